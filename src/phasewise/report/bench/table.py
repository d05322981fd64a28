"""A report for people: tables that read without colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from phasewise.benchmark.notes import TypicalTtft
from phasewise.benchmark.results import DEFINITIONS, BenchReport
from phasewise.benchmark.run import CUT_SHORT
from phasewise.benchmark.statistics.max_rate import MaxRate
from phasewise.benchmark.statistics.summary import Summary
from phasewise.core.units import NONE, bound, count, duration, elapsed, milliseconds, number, share
from phasewise.report.console import text_table
from phasewise.report.time_parts import LedgerRow, rows_of_parts, share_in_words, with_rest

LINE_COLUMNS = 80
LOAD_COLUMNS = 10
SWEEP_LATENCIES = (
    ("TTFT p50", "ttft_s", "p50"),
    ("TTFT p90", "ttft_s", "p90"),
    ("TPOT p50", "tpot_s", "p50"),
    ("ITL p99", "itl_pooled_s", "p99"),
    ("E2E p50", "e2e_s", "p50"),
)
"""What the screen and the page show of each load: a name, a summary of the report, a percentile."""


def render(report: BenchReport) -> RenderableType:
    left_out = report.window.warm_up_requests
    warm_up = f", the first {left_out} left out as warm-up" if left_out else ""
    headline = (
        f"{report.model} at {report.url}: {report.succeeded} of {report.offered} requests answered in "
        f"{duration(report.wall_s)}, {report.cache} prefix cache{warm_up}"
    )
    parts: list[RenderableType] = [Text(headline), *_warnings(report)]
    if report.succeeded:
        parts += [_latencies(report), _outcomes(report)]
    if report.typical_ttft is not None:
        parts.append(_ttft_parts(report.typical_ttft))
    if accounts := account_rows(report):
        engine = text_table("Engine counters", ("over the same window", "engine", "client"))
        for name, client, counted in accounts:
            engine.add_row(name, counted, client)
        parts.append(engine)
    parts += [Text(f"note: {note}") for note in _other(report)]
    if report.succeeded:
        parts.append(_definitions())
    return Group(*parts)


def render_sweep(points: Sequence[tuple[str, BenchReport]]) -> RenderableType:
    """One row per load, within 80 columns."""
    title = "Latency against load (milliseconds, 95% intervals)"
    # Without borders, which would take a quarter of the line.
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, collapse_padding=True)
    # As wide as the longest load, if that is short, else as its longest word.
    longest_word = max(len(word) for label, _ in points for word in label.split())
    load_width = min(max(len(label) for label, _ in points), max(longest_word, LOAD_COLUMNS))
    speeds = [number(report.output_tokens_per_s) for _, report in points]
    others = load_width + max(map(len, ("tok/s", *speeds))) + len("100%") + len(SWEEP_LATENCIES) + 2
    space = (LINE_COLUMNS - others) // len(SWEEP_LATENCIES)
    table.add_column("load", width=load_width)
    for column in (*(label for label, _, _ in SWEEP_LATENCIES), "tok/s", "SLO met"):
        table.add_column(column.replace(" ", "\n"), justify="right", overflow="fold")
    for (label, report), speed in zip(points, speeds, strict=True):
        table.add_row(
            label,
            *(_estimate(getattr(report, name), percentile, space) for _, name, percentile in SWEEP_LATENCIES),
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


def render_max_rate(found: MaxRate, points: Sequence[tuple[str, BenchReport]]) -> RenderableType:
    return Group(render_sweep(points), Text(found.words))


def _warnings(report: BenchReport) -> list[Text]:
    lines = [Text(f"VOID: {reason}", style="bold red") for reason in report.void]
    lines += [Text(warning, style="yellow") for warning in report.warnings]
    # The warning that the run was cut short counts those that were still running.
    errors = {kind: many for kind, many in report.errors.items() if kind != CUT_SHORT}
    if errors:
        failed = ", ".join(f"{many} {kind}" for kind, many in errors.items())
        described = f"{sum(errors.values())} of {report.offered} requests were not answered: {failed}"
        lines.append(Text(described, style="yellow"))
    return [*lines, *(Text(line, style="yellow") for line in shifts_in_words(report))]


def shifts_in_words(report: BenchReport) -> list[str]:
    return [
        f"{shift.metric} shifted {elapsed(shift.at_s)} into the run: "
        f"{duration(shift.before_s)} before, {duration(shift.after_s)} after"
        for shift in report.shifts
    ]


def _latencies(report: BenchReport) -> Table:
    heads = ("ms", "n", "mean", "p50", "p90", "p99", "max")
    table = text_table("Latency (with 95% intervals)", heads, fold=True)
    for name, summary in (
        ("TTFT", report.ttft_s),
        ("TPOT", report.tpot_s),
        ("ITL pooled", report.itl_pooled_s),
        ("ITL per request", report.itl_per_request_s),
        ("E2E", report.e2e_s),
        ("stall excess", report.stall_excess_s),
        ("generator lag", report.lag_s),
    ):
        estimates = (_estimate(summary, percentile) for percentile in ("p50", "p90", "p99"))
        count_and_mean = f"{summary.count:,}", milliseconds(summary.mean)
        table.add_row(name, *count_and_mean, *estimates, milliseconds(summary.max))
    return table


def _outcomes(report: BenchReport) -> Table:
    table = Table(title="Outcome", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    goodput, slo = report.goodput, report.slo
    rows = [
        (
            f"met TTFT {bound(slo.ttft_s)} and TPOT {bound(slo.tpot_s)}",
            f"{goodput.met} of {goodput.offered} ({share(goodput.share)})",
        ),
        ("goodput, requests/s", number(report.goodput_per_s)),
        ("answered, requests/s", number(report.requests_per_s)),
        ("throughput, output tokens/s", number(report.output_tokens_per_s)),
        ("prompt tokens, mean", count(report.prompt_tokens.mean)),
        ("prompt tokens from cache, total", count(report.cached_tokens)),
        ("output tokens, mean", count(report.output_tokens.mean)),
        ("chunks with content, total", f"{report.chunks:,}"),
        ("stalls", f"{report.stalls} in {report.stalled_requests} requests"),
    ]
    if report.without_engine_timings:
        rows.append(("requests without engine timings", str(report.without_engine_timings)))
    rows += [(f"not answered: {kind}", str(many)) for kind, many in report.errors.items()]
    for row in rows:
        table.add_row(*row)
    return table


RESOLVED_S = 0.005
"""The way between client and engine and parsing take a few milliseconds, which no source resolves."""


def typical_rows(typical: TypicalTtft) -> tuple[LedgerRow, ...]:
    """Its parts, for the screen and the page; what no source reports is no riddle below what they resolve."""
    *parts, rest = with_rest(rows_of_parts(typical.parts), typical.unexplained_s)
    return (*parts, rest if rest.seconds > RESOLVED_S else replace(rest, name="network and parsing"))


def _ttft_parts(typical: TypicalTtft) -> Table:
    title = f"Where TTFT goes, for the {typical.requests} requests around the median"
    table = text_table(title, ("part", "seen by", "ms", "share"), words=2)
    for row in typical_rows(typical):
        part = share_in_words(row.seconds, typical.ttft_s)
        table.add_row(row.name, row.source, milliseconds(row.seconds), part)
    table.add_row("TTFT", "", milliseconds(typical.ttft_s), "")
    return table


def account_rows(report: BenchReport) -> list[tuple[str, str, str]]:
    """What the client measured and what the engine counted; empty without the engine's counters."""
    engine, prompts, outputs = report.engine, report.prompt_tokens, report.output_tokens
    if engine is None:
        return []
    prompt_total = prompts.mean * prompts.count if prompts.mean is not None else None
    cached_share = (
        report.cached_tokens / prompt_total if report.cached_tokens is not None and prompt_total else None
    )
    output_total = outputs.mean * outputs.count if outputs.mean is not None else None
    rows = [
        ("requests ended", count(report.ended_in_window), count(engine.requests)),
        ("TTFT, mean", duration(report.ttft_s.mean), duration(engine.ttft_mean_s)),
        ("queue, mean", NONE, duration(engine.queue_mean_s)),
        ("prefill, mean", NONE, duration(engine.prefill_mean_s)),
        ("ITL, mean", duration(report.itl_pooled_s.mean), duration(engine.itl_mean_s)),
        ("E2E, mean", duration(report.e2e_s.mean), duration(engine.e2e_mean_s)),
        ("prompt tokens", count(prompt_total), count(engine.prompt_tokens)),
        ("prompt tokens from cache", share(cached_share), share(engine.cached_share)),
        ("output tokens", count(output_total), count(engine.generation_tokens)),
        ("preemptions", NONE, count(engine.preemptions)),
        ("KV cache in use, highest", NONE, share(engine.kv_usage_max)),
        ("running, highest", NONE, count(engine.running_max)),
        ("waiting, highest", NONE, count(engine.waiting_max)),
    ]
    if (steps := engine.steps) is not None:
        middle, tail = duration(steps.duration_s.p50), duration(steps.duration_s.p99)
        rows += [
            ("steps", NONE, count(steps.count)),
            ("steps with prefill and decode", NONE, count(steps.mixed)),
            ("a step, p50 / p99", NONE, f"{middle} / {tail}"),
        ]
    return rows


def _definitions() -> Table:
    table = Table.grid(padding=(0, 2))
    for name, meaning in DEFINITIONS.items():
        table.add_row(Text(name, style="dim"), Text(meaning, style="dim"))
    return table


def _estimate(summary: Summary, percentile: str, space: int = LINE_COLUMNS) -> str:
    """A value above its interval, which is broken after its dash where there is no space for it."""
    value_s, interval_s = getattr(summary, percentile), getattr(summary, f"{percentile}_interval")
    if interval_s is None:
        return milliseconds(value_s)
    low, high = map(milliseconds, interval_s)
    dash = "–" if len(low) + 1 + len(high) <= space else "–\n"
    return f"{milliseconds(value_s)}\n{low}{dash}{high}"
