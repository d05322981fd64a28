"""A report for people: tables that read without colour."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from phasewise.core.units import NONE, bound, count, duration, elapsed, milliseconds, number, share
from phasewise.loadgen.engine_watch import EngineView
from phasewise.loadgen.notes import TypicalTtft
from phasewise.loadgen.results import DEFINITIONS, BenchReport
from phasewise.loadgen.run import CUT_SHORT
from phasewise.loadgen.statistics.max_rate import MaxRate
from phasewise.loadgen.statistics.summary import Summary

LINE_COLUMNS = 80
LOAD_COLUMNS = 10
_SWEEP_COLUMNS = ("TTFT\np50", "TTFT\np90", "TPOT\np50", "ITL\np99", "E2E\np50", "tok/s", "SLO\nmet")

PART_NAMES = {
    "client_lag": "generator lag",
    "gateway_wait": "gateway wait",
    "cache_look_up": "cache lookup",
    "earlier_attempts": "earlier attempts",
    "step_in_flight": "step in flight",
    "engine_queue": "engine queue",
    "prefill": "prefill",
    "prefill_others": "other requests' prefill",
    "kv_transfer": "KV transfer",
}


def render(report: BenchReport) -> RenderableType:
    """The whole report of one run."""
    parts: list[RenderableType] = [_headline(report), *_warnings(report)]
    if report.succeeded:
        parts += [_latencies(report), _outcomes(report)]
    if report.typical_ttft is not None:
        parts.append(_ttft_parts(report.typical_ttft))
    if report.engine is not None:
        parts.append(_engine(report.engine, report))
    parts += [Text(f"note: {note}") for note in _other(report)]
    if report.succeeded:
        parts.append(_definitions())
    return Group(*parts)


def render_sweep(points: Sequence[tuple[str, BenchReport]]) -> RenderableType:
    """One row per load, within 80 columns."""
    title = "Latency against load (milliseconds, 95% intervals)"
    # Without borders, which would take a quarter of the line.
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, collapse_padding=True)
    load_width = _width_of_loads([label for label, _ in points])
    speeds = [number(report.output_tokens_per_s) for _, report in points]
    others = load_width + max(map(len, ("tok/s", *speeds))) + len("100%") + len(_SWEEP_COLUMNS)
    space = (LINE_COLUMNS - others) // (len(_SWEEP_COLUMNS) - 2)
    table.add_column("load", width=load_width)
    for column in _SWEEP_COLUMNS:
        table.add_column(column, justify="right", overflow="fold")
    for (label, report), speed in zip(points, speeds, strict=True):
        table.add_row(
            label,
            _estimate(report.ttft_s.p50, report.ttft_s.p50_interval, space),
            _estimate(report.ttft_s.p90, report.ttft_s.p90_interval, space),
            _estimate(report.tpot_s.p50, report.tpot_s.p50_interval, space),
            _estimate(report.itl_pooled_s.p99, report.itl_pooled_s.p99_interval, space),
            _estimate(report.e2e_s.p50, report.e2e_s.p50_interval, space),
            speed,
            share(report.goodput.share),
        )
    warnings = [Text(f"{label}: {line.plain}") for label, report in points for line in _warnings(report)]
    notes = dict.fromkeys(f"note ({label}): {note}" for label, report in points for note in _other(report))
    slo = points[0][1].slo
    goodput = Text(f"SLO met: the share within TTFT {bound(slo.ttft_s)} and TPOT {bound(slo.tpot_s)}")
    return Group(table, goodput, *warnings, *map(Text, notes), _definitions())


def _other(report: BenchReport) -> list[str]:
    """The notes that are not shown as warnings."""
    return [note for note in report.notes if note not in report.warnings]


def _width_of_loads(labels: Sequence[str]) -> int:
    """As wide as the longest load, if that is short, else as its longest word."""
    longest_word = max(len(word) for label in labels for word in label.split())
    return min(max(map(len, labels)), max(longest_word, LOAD_COLUMNS))


def render_max_rate(found: MaxRate, points: Sequence[tuple[str, BenchReport]]) -> RenderableType:
    """The highest rate, and the trials behind it."""
    return Group(render_sweep(points), Text(found.words))


def _headline(report: BenchReport) -> Text:
    window = report.window
    warm_up = f", the first {window.warm_up_requests} left out as warm-up" if window.warm_up_requests else ""
    return Text(
        f"{report.model} at {report.url}: {report.succeeded} of {report.offered} requests answered in "
        f"{duration(report.wall_s)}, {report.cache} prefix cache{warm_up}"
    )


def _warnings(report: BenchReport) -> list[Text]:
    lines = [Text(f"VOID: {reason}", style="bold red") for reason in report.void]
    lines += [Text(warning, style="yellow") for warning in report.warnings]
    # The warning that the run was cut short counts those that were still running.
    errors = {kind: many for kind, many in report.errors.items() if kind != CUT_SHORT}
    if errors:
        failed = ", ".join(f"{many} {kind}" for kind, many in errors.items())
        described = f"{sum(errors.values())} of {report.offered} requests were not answered: {failed}"
        lines.append(Text(described, style="yellow"))
    lines += [
        Text(
            f"{shift.metric} shifted {elapsed(shift.at_s)} into the run: "
            f"{duration(shift.before_s)} before, {duration(shift.after_s)} after",
            style="yellow",
        )
        for shift in report.shifts
    ]
    return lines


def _latencies(report: BenchReport) -> Table:
    table = Table("ms", title="Latency (with 95% intervals)", title_justify="left")
    for column in ("n", "mean", "p50", "p90", "p99", "max"):
        table.add_column(column, justify="right", overflow="fold")
    for name, summary in (
        ("TTFT", report.ttft_s),
        ("TPOT", report.tpot_s),
        ("ITL pooled", report.itl_pooled_s),
        ("ITL per request", report.itl_per_request_s),
        ("E2E", report.e2e_s),
        ("stall excess", report.stall_excess_s),
        ("generator lag", report.lag_s),
    ):
        table.add_row(name, f"{summary.count:,}", *_cells(summary))
    return table


def _outcomes(report: BenchReport) -> Table:
    table = Table(title="Outcome", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row(
        f"met TTFT {bound(report.slo.ttft_s)} and TPOT {bound(report.slo.tpot_s)}",
        f"{report.goodput.met} of {report.goodput.offered} ({share(report.goodput.share)})",
    )
    table.add_row("goodput, requests/s", number(report.goodput_per_s))
    table.add_row("answered, requests/s", number(report.requests_per_s))
    table.add_row("throughput, output tokens/s", number(report.output_tokens_per_s))
    table.add_row("prompt tokens, mean", count(report.prompt_tokens.mean))
    table.add_row("prompt tokens from cache, total", count(report.cached_tokens))
    table.add_row("output tokens, mean", count(report.output_tokens.mean))
    table.add_row("chunks with content, total", f"{report.chunks:,}")
    table.add_row("stalls", f"{report.stalls} in {report.stalled_requests} requests")
    if report.without_engine_timings:
        table.add_row("requests without engine timings", str(report.without_engine_timings))
    for kind, many in report.errors.items():
        table.add_row(f"not answered: {kind}", str(many))
    return table


RESOLVED_S = 0.005
"""The way between client and engine and parsing take a few milliseconds, which no source resolves."""


def rest_name(seconds: float) -> str:
    """What no source reports of a TTFT: below what sources resolve it is no riddle."""
    return "unexplained" if seconds > RESOLVED_S else "network and parsing"


def _ttft_parts(typical: TypicalTtft) -> Table:
    title = f"Where TTFT goes, for the {typical.requests} requests around the median"
    table = Table("part", "seen by", title=title, title_justify="left")
    table.add_column("ms", justify="right")
    table.add_column("share", justify="right")
    rows = [(PART_NAMES[part.part], part.source.value, part.seconds) for part in typical.parts]
    for name, source, seconds in (*rows, (rest_name(typical.unexplained_s), "-", typical.unexplained_s)):
        part = share(seconds / typical.ttft_s) if typical.ttft_s > 0 else NONE
        table.add_row(name, source.replace("_", " "), milliseconds(seconds), part)
    table.add_row("TTFT", "", milliseconds(typical.ttft_s), "")
    return table


def _engine(view: EngineView, report: BenchReport) -> Table:
    table = Table("over the same window", title="Engine counters", title_justify="left")
    table.add_column("engine", justify="right")
    table.add_column("client", justify="right")
    table.add_row("TTFT, mean ms", milliseconds(view.ttft_mean_s), milliseconds(report.ttft_s.mean))
    table.add_row("  of it queue, mean ms", milliseconds(view.queue_mean_s), "")
    table.add_row("  of it prefill, mean ms", milliseconds(view.prefill_mean_s), "")
    table.add_row("ITL, mean ms", milliseconds(view.itl_mean_s), milliseconds(report.itl_pooled_s.mean))
    table.add_row("E2E, mean ms", milliseconds(view.e2e_mean_s), milliseconds(report.e2e_s.mean))
    table.add_row("requests ended", count(view.requests), f"{report.ended_in_window:,}")
    table.add_row("prompt tokens from cache", share(view.cached_share), "")
    table.add_row("KV cache use, highest", share(view.kv_usage_max), "")
    running = f"{count(view.running_max)} / {count(view.waiting_max)}"
    table.add_row("running / waiting, highest", running, "")
    table.add_row("preemptions", count(view.preemptions), "")
    if view.steps is not None:
        steps = view.steps
        table.add_row("steps, those with prompt and decode tokens", f"{steps.count:,}, {steps.mixed:,}", "")
        middle, tail = milliseconds(steps.duration_s.p50), milliseconds(steps.duration_s.p99)
        table.add_row("step, p50 / p99 ms", f"{middle} / {tail}", "")
    return table


def _definitions() -> Table:
    table = Table.grid(padding=(0, 2))
    for name, meaning in DEFINITIONS.items():
        table.add_row(Text(name, style="dim"), Text(meaning, style="dim"))
    return table


def _cells(summary: Summary) -> list[str]:
    return [
        milliseconds(summary.mean),
        _estimate(summary.p50, summary.p50_interval),
        _estimate(summary.p90, summary.p90_interval),
        _estimate(summary.p99, summary.p99_interval),
        milliseconds(summary.max),
    ]


def _estimate(
    value_s: float | None, interval_s: tuple[float, float] | None, space: int = LINE_COLUMNS
) -> str:
    """A value above its interval, which is broken after its dash where there is no space for it."""
    if interval_s is None:
        return milliseconds(value_s)
    low, high = map(milliseconds, interval_s)
    dash = "–" if len(low) + 1 + len(high) <= space else "–\n"
    return f"{milliseconds(value_s)}\n{low}{dash}{high}"
