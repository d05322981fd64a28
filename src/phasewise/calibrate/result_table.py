"""A calibration for people: the parts of a step's time, how wrong they are, and what they make."""

from __future__ import annotations

from math import exp

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from phasewise.calibrate.result import (
    WORST_CELLS,
    Calibration,
    Seen,
    decode_works,
    prefill_works,
)
from phasewise.costs.binding import Binding, Bound
from phasewise.costs.misfit import Cell
from phasewise.costs.step_cost import CostPart
from phasewise.costs.step_fit import CONFIDENCE, error_span
from phasewise.costs.step_work import StepKind, StepWork
from phasewise.model.interval import Interval

_UNITS = {
    CostPart.FLOOR: (1e3, "ms per step"),
    CostPart.TOKENS: (1e6, "µs per token"),
    CostPart.BEYOND_KNEE: (1e6, "µs per token beyond the knee"),
    CostPart.ATTENTION: (1e9, "ns per pair of tokens"),
    CostPart.KV_READ: (1e6, "µs per token of context read"),
    CostPart.REQUESTS: (1e6, "µs per request"),
}
_NAMES = {
    CostPart.FLOOR: "floor: weights and overhead",
    CostPart.TOKENS: "every token",
    CostPart.BEYOND_KNEE: "tokens beyond the knee",
    CostPart.ATTENTION: "attention in prefill",
    CostPart.KV_READ: "KV read in decode",
    CostPart.REQUESTS: "running requests",
}


def render(found: Calibration) -> RenderableType:
    """The fit, its errors, its predictions, and what binds each phase here."""
    parts: list[RenderableType] = [Text(line) for line in _heading(found)]
    parts += [_parts_table(found), _error_table(found), _prediction_table(found)]
    parts += [Text(line) for line in (*_bound_lines(found), *_form_lines(found), *_caveats(found))]
    return Group(*parts)


def _heading(found: Calibration) -> list[str]:
    how = f"{found.rounds:.1f} rounds of probes" if found.rounds else "listened to"
    return [
        f"{found.model} at {found.url}: {found.fit.observations} steps in {len(found.fit.seen)} regimes, "
        f"{how} in {found.took_s:.0f} s, from the {found.seen.value}",
    ]


def _parts_table(found: Calibration) -> Table:
    table = Table(
        "part", title=f"A step takes the sum of these ({CONFIDENCE:.0%} intervals)", title_justify="left"
    )
    for column in ("value", "interval"):
        table.add_column(column, justify="right")
    table.add_column("unit")
    cost = found.fit.cost
    for part, value in cost.coefficients.items():
        scale, unit = _UNITS[part]
        interval = found.fit.intervals[part]
        # A bound is no estimate: resampling cannot move what is held at zero.
        span = _span(interval, scale) if interval.high > 0 else "not seen"
        table.add_row(_NAMES[part], _figure(value * scale), span, unit)
    table.add_row("the knee", str(cost.knee_tokens), _span(found.fit.knee_tokens, 1), "tokens in a step")
    if found.seen is Seen.CLIENT:
        front_end_ms = _figure(found.fit.fitted.front_end_s * 1e3)
        table.add_row("front end and way", front_end_ms, _span(found.fit.front_end_s, 1e3), "ms per prompt")
    return table


def _error_table(found: Calibration) -> Table:
    title = "How wrong it is on regimes that were left out of the fit"
    table = Table("steps", title=title, title_justify="left")
    for column in ("seen", "median error", f"{CONFIDENCE:.0%} of steps take"):
        table.add_column(column, justify="right")
    for kind in StepKind:
        errors = found.fit.errors.get(kind, ())
        median_error, span = found.fit.held_out_error(kind), error_span(errors)
        table.add_row(
            kind.value,
            str(len(errors)),
            "unknown" if median_error is None else f"{median_error:.1%}",
            "unknown"
            if span is None
            else f"{exp(span[0]):.2f} to {exp(span[1]):.2f} times what is predicted",
        )
    return table


def _prediction_table(found: Calibration) -> Table:
    title = "What that makes, in ms per step"
    table = Table("step", title=title, title_justify="left")
    table.add_column("predicted", justify="right")
    table.add_column(f"{CONFIDENCE:.0%} of steps", justify="right")
    for work in (*prefill_works(), *decode_works()):
        predicted = found.fit.predict(work)
        if predicted is None:
            table.add_row(describe(work), "unknown", "never been there")
        else:
            table.add_row(describe(work), _figure(predicted.seconds * 1e3), _span(predicted.interval, 1e3))
    return table


def describe(work: StepWork) -> str:
    """A step in words."""
    streams = f"{work.decode_tokens} stream{'s' if work.decode_tokens > 1 else ''}"
    if work.kind is StepKind.PREFILL:
        return f"{work.prompt_tokens} prompt tokens"
    if work.kind is StepKind.MIXED:
        return f"{work.prompt_tokens} prompt tokens among {streams}"
    return f"{streams} at {work.kv_read_tokens // max(work.decode_tokens, 1)} tokens of context"


def _bound_lines(found: Calibration) -> list[str]:
    return [_bound_line(each, found) for each in found.bindings]


def _bound_line(each: Binding, found: Calibration) -> str:
    of_step = f"{each.share:.0%} of {each.seconds * 1e3:.0f} ms"
    line = f"{describe(each.work)}: bound by {each.bound.value} ({of_step})."
    if each.bound is Bound.WEIGHTS_OR_OVERHEAD:
        line += " --gpu or --bandwidth-gbs, and --config if needed, tell weights from overhead."
    elif found.machine is not None and each.bound in {Bound.OVERHEAD, Bound.WEIGHTS}:
        line += (
            f" Reading the weights once ({found.machine.weight_bytes / 1e6:,.0f} MB) would take "
            f"{found.machine.weights_read_s * 1e3:.1f} ms of the floor's {found.fit.cost.floor_s * 1e3:.0f} "
            f"({found.machine.source})."
        )
    return line


def _form_lines(found: Calibration) -> list[str]:
    if found.form.fits is None:
        return ["Whether the form fits cannot be told through this noise. Measure for longer, or in quiet."]
    if found.form.fits:
        missed = f"{len(found.form.missed)} of {len(found.form.cells)} kinds of step miss it"
        return [f"Nothing beyond the noise speaks against the form: {missed}."]
    worst = "; ".join(_missed(cell) for cell in found.form.missed[:WORST_CELLS])
    return [
        f"THE FORM DOES NOT FIT: {len(found.form.missed)} of {len(found.form.cells)} kinds of step miss it "
        f"by more than their own noise ({worst}). Do not trust predictions between what was measured."
    ]


def _missed(cell: Cell) -> str:
    longer = "longer" if cell.off_by > 0 else "shorter"
    return f"{describe(cell.work)}: {abs(cell.off_by):.0%} {longer} than fitted"


def _caveats(found: Calibration) -> list[str]:
    lines = []
    if found.seen is Seen.CLIENT:
        lines.append(
            "Steps are told from the gaps between tokens alone, which is less sure"
            + (f": {found.no_record}." if found.no_record else ".")
        )
    if found.untold:
        lines.append(
            f"{found.untold} {'steps' if found.seen is Seen.STEPS else 'scenes'} were not used, as what they "
            "carried cannot be told: requests were cut off or preempted, gained several tokens at once "
            "(speculation), or the engine ran late."
        )
    if found.stolen is not None and found.stolen > 0.01:
        lines.append(
            f"Others on the same host took {found.stolen:.0%} of this machine's processor time meanwhile."
        )
    return lines


def _span(interval: Interval, scale: float) -> str:
    return f"{_figure(interval.low * scale)} to {_figure(interval.high * scale)}"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
