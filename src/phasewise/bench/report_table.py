"""A report for people: tables that read without colour.

The figures themselves come from report.py and are not changed here.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from phasewise.bench.definitions import DEFINITIONS
from phasewise.bench.engine_view import EngineView
from phasewise.bench.max_rate import MaxRate
from phasewise.bench.report import BenchReport
from phasewise.bench.statistics import Summary
from phasewise.bench.typical import TypicalTtft

PART_NAMES = {
    "client_lag": "generator lag",
    "gateway_wait": "gateway wait",
    "cache_look_up": "cache look-up",
    "earlier_attempts": "earlier attempts",
    "step_in_flight": "step in flight",
    "engine_queue": "engine queue",
    "prefill": "prefill",
    "prefill_others": "others' tokens in the same steps",
    "hand_over": "KV hand-over",
}


def render(report: BenchReport) -> RenderableType:
    """The whole report of one run."""
    parts: list[RenderableType] = [
        _headline(report),
        *_warnings(report),
        _latencies(report),
        _outcomes(report),
    ]
    if report.typical_ttft is not None:
        parts.append(_ttft_parts(report.typical_ttft))
    if report.engine is not None:
        parts.append(_engine(report.engine, report))
    parts += [Text(f"note: {note}") for note in report.notes]
    parts.append(_definitions())
    return Group(*parts)


def render_sweep(points: Sequence[tuple[str, BenchReport]]) -> RenderableType:
    """One row per load."""
    table = Table("load", title="Latency against load (milliseconds, 95% intervals)", title_justify="left")
    for column in ("TTFT p50", "TTFT p90", "TPOT p50", "ITL p99", "E2E p50", "tok/s", "SLO met"):
        table.add_column(column, justify="right", overflow="fold")
    for label, report in points:
        table.add_row(
            label,
            _estimate(report.ttft_s.p50, report.ttft_s.p50_interval),
            _estimate(report.ttft_s.p90, report.ttft_s.p90_interval),
            _estimate(report.tpot_s.p50, report.tpot_s.p50_interval),
            _estimate(report.itl_pooled_s.p99, report.itl_pooled_s.p99_interval),
            _estimate(report.e2e_s.p50, report.e2e_s.p50_interval),
            _number(report.output_tokens_per_s, 1),
            _share(report.goodput.share),
        )
    warnings = [Text(f"{label}: {line.plain}") for label, report in points for line in _warnings(report)]
    notes = dict.fromkeys(f"note ({label}): {note}" for label, report in points for note in report.notes)
    slo = points[0][1].slo
    goodput = Text(f"SLO met: the share within TTFT {slo.ttft_s:g} s and TPOT {slo.tpot_s:g} s")
    return Group(table, goodput, *warnings, *map(Text, notes), _definitions())


def render_max_rate(found: MaxRate, points: Sequence[tuple[str, BenchReport]]) -> RenderableType:
    """The answer, and the trials it rests on."""
    return Group(render_sweep(points), Text(found.words))


def _headline(report: BenchReport) -> Text:
    window = report.window
    warm_up = f", the first {window.warm_up_requests} left out as warm-up" if window.warm_up_requests else ""
    return Text(
        f"{report.model} at {report.url}: {report.succeeded} of {report.offered} requests answered in "
        f"{report.wall_s:.1f} s, {report.cache} prefix cache{warm_up}"
    )


def _warnings(report: BenchReport) -> list[Text]:
    lines = [Text(f"VOID: {reason}", style="bold red") for reason in report.void]
    if report.succeeded < report.offered:
        failed = ", ".join(f"{count} {kind}" for kind, count in report.errors.items())
        told = f"{report.offered - report.succeeded} of {report.offered} requests were not answered: {failed}"
        lines.append(Text(told, style="yellow"))
    lines += [
        Text(
            f"{shift.metric} changed its level {shift.at_s:.0f} s into the run: "
            f"{shift.before_s * 1000:.1f} ms before, {shift.after_s * 1000:.1f} ms after",
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
        f"met TTFT {report.slo.ttft_s:g} s and TPOT {report.slo.tpot_s:g} s",
        f"{report.goodput.met} of {report.goodput.offered} ({_share(report.goodput.share)})",
    )
    table.add_row("goodput, requests/s", _number(report.goodput_per_s, 2))
    table.add_row("answered, requests/s", _number(report.requests_per_s, 2))
    table.add_row("throughput, output tokens/s", _number(report.output_tokens_per_s, 1))
    table.add_row("prompt tokens, mean", _number(report.prompt_tokens.mean, 0))
    table.add_row("prompt tokens from cache, in all", _number(report.cached_tokens, 0))
    table.add_row("output tokens, mean", _number(report.output_tokens.mean, 0))
    table.add_row("chunks with content, in all", f"{report.chunks:,}")
    table.add_row("stalls", f"{report.stalls} in {report.stalled_requests} requests")
    if report.without_engine_timings:
        table.add_row("requests without engine timings", str(report.without_engine_timings))
    for kind, count in report.errors.items():
        table.add_row(f"not answered: {kind}", str(count))
    return table


def _ttft_parts(typical: TypicalTtft) -> Table:
    title = f"Where TTFT goes, for the {typical.requests} requests around the median"
    table = Table("part", "seen by", title=title, title_justify="left")
    table.add_column("ms", justify="right")
    table.add_column("share", justify="right")
    rows = [(PART_NAMES[part.part], part.source.value, part.seconds) for part in typical.parts]
    for name, source, seconds in (*rows, ("unexplained", "-", typical.residual_s)):
        share = f"{seconds / typical.ttft_s:.0%}" if typical.ttft_s > 0 else "-"
        table.add_row(name, source.replace("_", " "), _ms(seconds), share)
    table.add_row("TTFT", "", _ms(typical.ttft_s), "")
    return table


def _engine(view: EngineView, report: BenchReport) -> Table:
    table = Table("over the same window", title="The engine's own account", title_justify="left")
    table.add_column("engine", justify="right")
    table.add_column("client", justify="right")
    table.add_row("TTFT, mean ms", _ms(view.ttft_mean_s), _ms(report.ttft_s.mean))
    table.add_row("  of it queue, mean ms", _ms(view.queue_mean_s), "")
    table.add_row("  of it prefill, mean ms", _ms(view.prefill_mean_s), "")
    table.add_row("ITL, mean ms", _ms(view.itl_mean_s), _ms(report.itl_pooled_s.mean))
    table.add_row("E2E, mean ms", _ms(view.e2e_mean_s), _ms(report.e2e_s.mean))
    table.add_row("requests ended", _number(view.requests, 0), f"{report.ended_in_window:,}")
    table.add_row("prompt tokens from cache", _share(view.cached_share), "")
    table.add_row("KV cache use, highest", _share(view.kv_usage_max), "")
    running = f"{_number(view.running_max, 0)} / {_number(view.waiting_max, 0)}"
    table.add_row("running / waiting, highest", running, "")
    table.add_row("preemptions", _number(view.preemptions, 0), "")
    if view.steps is not None:
        steps = view.steps
        table.add_row("steps, those with prompt and decode tokens", f"{steps.count:,}, {steps.mixed:,}", "")
        table.add_row("step, p50 / p99 ms", f"{_ms(steps.duration_s.p50)} / {_ms(steps.duration_s.p99)}", "")
    return table


def _definitions() -> Table:
    table = Table.grid(padding=(0, 2))
    for name, meaning in DEFINITIONS.items():
        table.add_row(Text(name, style="dim"), Text(meaning, style="dim"))
    return table


def _cells(summary: Summary) -> list[str]:
    return [
        _ms(summary.mean),
        _estimate(summary.p50, summary.p50_interval),
        _estimate(summary.p90, summary.p90_interval),
        _estimate(summary.p99, summary.p99_interval),
        _ms(summary.max),
    ]


def _estimate(value_s: float | None, interval_s: tuple[float, float] | None) -> str:
    if interval_s is None:
        return _ms(value_s)
    low_s, high_s = interval_s
    return f"{_ms(value_s)}\n{low_s * 1000:.{_digits(low_s)}f}–{high_s * 1000:.{_digits(high_s)}f}"


def _digits(value_s: float) -> int:
    """Decimals that leave about three figures of a number of milliseconds."""
    return 0 if value_s >= 0.1 else 1 if value_s >= 0.01 else 2


def _ms(value_s: float | None) -> str:
    return "-" if value_s is None else _number(value_s * 1000, _digits(value_s))


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
