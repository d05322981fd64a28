"""What was measured of an engine, as text: the parts of a step's time, and whether published claims hold."""

from __future__ import annotations

import re
from math import exp

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from phasewise.benchmark.calibrate.result import WORST_CELLS, Calibration, Seen, prefill_works
from phasewise.core.statistics import Interval
from phasewise.core.units import counted, duration, elapsed, milliseconds, number, share, size
from phasewise.costs.fit.step import Binding, CostPart, StepBound, StepKind, StepWork
from phasewise.costs.fit.step_fit import CONFIDENCE, error_span
from phasewise.experiments.validation_claims import ClaimOutcome, ValidationReport
from phasewise.report.console import text_table

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


def render_calibration(found: Calibration) -> RenderableType:
    """The fit, its errors, its predictions, and the bottleneck of each phase."""
    how = f"{found.rounds:.1f} rounds of probes" if found.rounds else "observed live"
    heading = (
        f"{found.model} at {found.url}: {found.fit.observations} steps in {len(found.fit.seen)} regimes, "
        f"{how} in {elapsed(found.took_s)}, from the {found.seen.value}"
    )
    bound_by = (_bound_line(binding, found) for binding in found.bindings)
    lines = (*bound_by, *_busy_lines(found), *_form_lines(found), *_caveats(found))
    tables = (_parts_table(found), _error_table(found), _prediction_table(found))
    return Group(Text(heading), *tables, *map(Text, lines))


def _parts_table(found: Calibration) -> Table:
    title = f"A step takes the sum of these ({CONFIDENCE:.0%} intervals)"
    table = text_table(title, ("part", "value", "interval"))
    table.add_column("unit")
    cost = found.fit.cost
    for part, value in cost.coefficients.items():
        scale, unit = _UNITS[part]
        interval = found.fit.intervals[part]
        # A parameter held at its bound of zero has no interval.
        span = _span(interval, scale) if interval.high > 0 else "not observed"
        table.add_row(_NAMES[part], number(value * scale), span, unit)
    table.add_row("the knee", str(cost.knee_tokens), _span(found.fit.knee_tokens, 1), "tokens in a step")
    if found.fit.front_end_s.high > 0:
        front_end_ms = milliseconds(found.fit.fitted.front_end_s)
        table.add_row(
            "front end and network", front_end_ms, _span(found.fit.front_end_s, 1e3), "ms per prompt"
        )
    return table


def _error_table(found: Calibration) -> Table:
    title = "Errors on step sizes that were left out of the fit"
    table = text_table(title, ("steps", "seen", "median error", f"{CONFIDENCE:.0%} of steps take"))
    for kind in StepKind:
        errors = found.fit.errors.get(kind, ())
        median_error, span = found.fit.held_out_error(kind), error_span(errors)
        table.add_row(
            kind.value,
            str(len(errors)),
            "unknown" if median_error is None else share(median_error),
            "unknown" if span is None else f"{exp(span[0]):.2f} to {exp(span[1]):.2f} times the prediction",
        )
    return table


def _prediction_table(found: Calibration) -> Table:
    heads = ("step", "predicted", f"{CONFIDENCE:.0%} of steps")
    table = text_table("Predictions, in ms per step", heads)
    for work in (*prefill_works(), *found.decode_works):
        predicted = found.fit.predict(work)
        if predicted is None:
            table.add_row(describe(work), "unknown", "outside the measured range")
        else:
            table.add_row(describe(work), milliseconds(predicted.seconds), _span(predicted.interval, 1e3))
    return table


def describe(work: StepWork) -> str:
    """A step in words."""
    streams = counted(work.decode_tokens, "stream")
    if work.kind is StepKind.PREFILL:
        return f"{work.prompt_tokens} prompt tokens"
    if work.kind is StepKind.MIXED:
        return f"{work.prompt_tokens} prompt tokens among {streams}"
    return f"{streams} at {work.kv_read_tokens // max(work.decode_tokens, 1)} tokens of context"


def _bound_line(each: Binding, found: Calibration) -> str:
    of_step = f"{share(each.share)} of {duration(each.seconds)}"
    line = f"{describe(each.work)}: bound by {each.bound.value} ({of_step})."
    if each.bound is StepBound.WEIGHTS_OR_OVERHEAD:
        line += " Use --gpu or --bandwidth-gbs, and --config if needed, to separate weights from overhead."
    elif found.machine is not None and each.bound in {StepBound.OVERHEAD, StepBound.WEIGHTS}:
        line += (
            f" Reading the weights once ({size(found.machine.weight_bytes)}) would take "
            f"{duration(found.machine.weights_read_s)} of the floor's {duration(found.fit.cost.floor_s)} "
            f"({found.machine.source})."
        )
    return line


BAR_CELLS = 20


def _busy_lines(found: Calibration) -> list[str]:
    """One bar for the math and one for the memory of each phase."""
    if found.machine is None:
        return []
    widest = max((len(describe(busy.work)) for busy in found.busy), default=0)
    lines = [
        f"  {describe(busy.work):{widest}}  math {_bar(busy.math)}  memory {_bar(busy.memory)}"
        for busy in found.busy
    ]
    sources = f"of what {found.machine.source}, and {found.machine.math_source}"
    return [f"How busy math and memory are in a step ({sources}):", *lines]


def _bar(busy: float) -> str:
    full = round(min(busy, 1.0) * BAR_CELLS)
    return f"{'█' * full}{'░' * (BAR_CELLS - full)} {busy:4.0%}"


def _form_lines(found: Calibration) -> list[str]:
    if found.form.fits is None:
        return [
            "The noise is too large to judge whether the cost model fits. Measure longer, or on an idle "
            "machine."
        ]
    if found.form.fits:
        missed = f"{len(found.form.missed)} of {len(found.form.cells)} kinds of step deviate"
        return [f"The cost model fits within the noise: {missed}."]
    worst = "; ".join(
        f"{describe(cell.work)}: {share(abs(cell.off_by))} "
        f"{'longer' if cell.off_by > 0 else 'shorter'} than fitted"
        for cell in found.form.missed[:WORST_CELLS]
    )
    return [
        f"THE COST MODEL DOES NOT FIT: {len(found.form.missed)} of {len(found.form.cells)} kinds of step "
        f"deviate by more than their own noise ({worst}). Do not trust predictions between the measured "
        "points."
    ]


def _caveats(found: Calibration) -> list[str]:
    lines = []
    if found.seen is Seen.CLIENT:
        lines.append(
            "Steps are inferred from the gaps between tokens, which is less certain"
            + (f": {found.no_record}." if found.no_record else ".")
        )
    if found.unreported:
        lines.append(
            f"{found.unreported} {'steps' if found.seen is Seen.STEPS else 'scenes'} were not used, because "
            "what they "
            "carried cannot be determined: requests were cut off or preempted, gained several tokens at once "
            "(speculation), or the engine ran late."
        )
    if found.stolen is not None and found.stolen > 0.01:
        lines.append(
            f"Other guests of the host took {share(found.stolen)} of this machine's CPU time during the "
            "measurement (steal)."
        )
    return lines


def _span(interval: Interval, scale: float) -> str:
    return f"{number(interval.low * scale)} to {number(interval.high * scale)}"


# --- A validation report, and its line in docs/validated.md.

_OUTCOME_STYLES = {
    ClaimOutcome.FAILS: "bold red",
    ClaimOutcome.INCONCLUSIVE: "bold yellow",
    ClaimOutcome.HOLDS: "bold green",
    ClaimOutcome.NOT_TRIED: "dim",
}
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>()#!|~&@:])")


def render_validation(report: ValidationReport) -> RenderableType:
    """Every claim with its outcome, those that do not hold first."""
    title = f"{_device(report)}, vLLM {report.versions['vllm']}, {report.settings['model']}"
    counts = (f"{report.count(outcome)} {outcome}" for outcome in ClaimOutcome if report.count(outcome))
    parts: list[RenderableType] = [Text(title, style="bold"), Text(", ".join(counts))]
    order = list(_OUTCOME_STYLES)
    for claim in sorted(report.claims, key=lambda claim: order.index(claim.outcome)):
        outcome = (claim.outcome.upper(), _OUTCOME_STYLES[claim.outcome])
        parts.append(Text.assemble("\n", outcome, f"  {claim.sentence}"))
        published = "" if claim.outcome is ClaimOutcome.NOT_TRIED else f"\npublished: {claim.published}"
        parts.append(Padding(Text(f"here: {claim.found}{published}"), (0, 0, 0, 2)))
    return Group(*parts)


def markdown_row(report: ValidationReport, link: str) -> str:
    """The report's line in docs/validated.md; markup in its texts is escaped."""
    failed = [f"`{claim.claim}`" for claim in report.claims if claim.outcome is ClaimOutcome.FAILS]
    versions = f"vLLM {report.versions['vllm']}, phasewise {report.versions['phasewise']}"
    cells = (
        f"[{report.day}]({link})",
        escaped(_device(report)),
        escaped(f"{report.settings['model']}, {versions}"),
        *(str(report.count(outcome)) for outcome in ClaimOutcome),
        ", ".join(failed) or "none",
    )
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """A text in which nothing is Markdown or HTML."""
    return _MARKDOWN.sub(r"\\\1", text)


def _device(report: ValidationReport) -> str:
    """The GPUs, or the processor where the engine runs on it."""
    machine = report.machine
    return str(
        machine["gpus"] or f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB"
    )
