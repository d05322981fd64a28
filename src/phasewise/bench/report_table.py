"""A report for people: tables that read without colour.

The figures themselves come from report.py and are not changed here.
"""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from phasewise.bench.report import BenchReport, TypicalTtft
from phasewise.bench.statistics import Summary

PART_NAMES = {
    "client_lag": "generator lag",
    "gateway_wait": "gateway wait",
    "earlier_attempts": "earlier attempts",
    "step_in_flight": "step in flight",
    "engine_queue": "engine queue",
    "prefill": "prefill",
    "prefill_others": "others' tokens in the same steps",
    "hand_over": "KV hand-over",
}


def render(report: BenchReport) -> RenderableType:
    """The whole report."""
    parts: list[RenderableType] = [_headline(report), _latencies(report), _outcomes(report)]
    if report.typical_ttft is not None:
        parts.append(_ttft_parts(report.typical_ttft))
    parts += [Text(f"note: {note}") for note in report.notes]
    return Group(*parts)


def _headline(report: BenchReport) -> Text:
    return Text(
        f"{report.model} at {report.url}: {report.succeeded} of {report.offered} requests answered "
        f"in {report.wall_s:.1f} s"
    )


def _latencies(report: BenchReport) -> Table:
    table = Table("milliseconds", title="Latency", title_justify="left")
    for column in ("n", "mean", "p50", "p90", "p99", "max"):
        table.add_column(column, justify="right")
    for name, summary in (
        ("TTFT", report.ttft_s),
        ("TPOT", report.tpot_s),
        ("ITL, all gaps pooled", report.itl_pooled_s),
        ("ITL, mean per request", report.itl_per_request_s),
        ("E2E", report.e2e_s),
        ("excess of a stall", report.stall_excess_s),
        ("generator lag", report.lag_s),
    ):
        table.add_row(name, str(summary.count), *_cells(summary))
    return table


def _outcomes(report: BenchReport) -> Table:
    table = Table(title="Outcome", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    share = report.goodput.share
    table.add_row(
        f"met TTFT {report.slo.ttft_s:g} s and TPOT {report.slo.tpot_s:g} s",
        "-" if share is None else f"{report.goodput.met} of {report.goodput.offered} ({share:.0%})",
    )
    table.add_row("goodput, requests/s", _number(report.goodput.per_second, 2))
    table.add_row("answered, requests/s", _number(report.requests_per_s, 2))
    table.add_row("throughput, output tokens/s", _number(report.output_tokens_per_s, 1))
    table.add_row("prompt tokens, mean", _number(report.prompt_tokens.mean, 0))
    table.add_row("prompt tokens from cache, in all", _number(report.cached_tokens, 0))
    table.add_row("output tokens, mean", _number(report.output_tokens.mean, 0))
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
        table.add_row(name, source.replace("_", " "), _number(seconds * 1000, 1), share)
    table.add_row("TTFT", "", _number(typical.ttft_s * 1000, 1), "")
    return table


def _cells(summary: Summary) -> list[str]:
    values = (summary.mean, summary.p50, summary.p90, summary.p99, summary.max)
    return [_number(None if value is None else value * 1000, 1) for value in values]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
