"""The sections of one run: key figures, charts and tables."""

from __future__ import annotations

from collections.abc import Sequence

from phasewise.benchmark.notes import TypicalTtft
from phasewise.benchmark.results import BenchReport
from phasewise.benchmark.statistics.summary import Summary, readings_needed
from phasewise.core.units import bound, count, counted, duration, durations, number, share
from phasewise.report.bench import run_charts
from phasewise.report.bench.measured import Measured
from phasewise.report.bench.table import account_rows, shifts_in_words, typical_rows
from phasewise.report.drawn_charts import chart_grid, drawn
from phasewise.report.markup import Html, element, section, table, together
from phasewise.report.time_parts import ledger


def run_sections(measured: Measured) -> Html:
    """Everything about one run, from its key figures to its errors."""
    report, bars = measured.report, run_charts.request_bars(measured)
    spreads = run_charts.distributions(measured)
    return together(
        (
            section("Key figures", _cards(report)),
            section("Where TTFT goes", _typical(report.typical_ttft)),
            section(
                "Latency distributions",
                chart_grid(spreads, columns=3) if spreads else element("p", "No data for this chart."),
            ),
            section("Requests over time", drawn(bars) if bars else element("p", "No request was sent.")),
            section("What the latencies depend on", _drivers(measured)),
            section("Engine load", _fullness(measured)),
            section("Engine counters and client measurements", _two_accounts(measured)),
            section("Requests that were not answered", _errors(report)),
        )
    )


def verdict(report: BenchReport) -> str:
    """How the run went, in a line."""
    window = report.window
    warm_up = (
        f"the first {counted(window.warm_up_requests, 'request')} left out as warm-up"
        if window.warm_up_requests
        else "no warm-up left out"
    )
    return (
        f"Answered {report.succeeded} of {counted(report.offered, 'request')}. Window: "
        f"{durations((window.start_s, window.end_s))} of {duration(report.wall_s)}, {warm_up}. "
        f"Prefix cache: {report.cache}."
    )


def notes(report: BenchReport) -> Html:
    """The caveats of the figures as a list; empty without any."""
    listed = (*report.notes, *shifts_in_words(report))
    return element("ul", *(element("li", note) for note in listed), class_="notes") if listed else Html("")


def objective(report: BenchReport) -> str:
    """The SLO in words."""
    return f"TTFT ≤ {bound(report.slo.ttft_s)} and TPOT ≤ {bound(report.slo.tpot_s)}"


def _cards(report: BenchReport) -> Html:
    goodput, host = report.goodput, report.host
    busy = [("machine busy", host.busy_share), ("CPU steal", host.stolen_share)] if host else []
    return element(
        "div",
        _latency_card("TTFT", "time to first token", report.ttft_s, "request"),
        _latency_card("TPOT", "time per output token", report.tpot_s, "request"),
        _latency_card("ITL", "gaps between chunks", report.itl_pooled_s, "gap"),
        _latency_card("E2E", "whole answer", report.e2e_s, "request"),
        _card(
            "Throughput",
            "output tokens per second",
            number(report.output_tokens_per_s),
            "tokens/s",
            (
                ("answered", f"{number(report.requests_per_s)} requests/s"),
                ("prompt, mean", f"{number(report.prompt_tokens.mean)} tokens"),
                ("output, mean", f"{number(report.output_tokens.mean)} tokens"),
            ),
        ),
        _card(
            "Goodput",
            objective(report),
            share(goodput.share),
            "of offered requests",
            (
                ("met the SLO", f"{goodput.met} of {goodput.offered}"),
                ("goodput", f"{number(report.goodput_per_s)} requests/s"),
            ),
        ),
        _card(
            "Stalls",
            "gaps many times the stream's median",
            count(report.stalls),
            f"in {counted(report.stalled_requests, 'request')}",
            (
                ("excess, p50", duration(report.stall_excess_s.p50)),
                ("excess, longest", duration(report.stall_excess_s.max)),
            ),
        ),
        _card(
            "Generator",
            "delay of sending",
            duration(report.lag_s.p50),
            "p50",
            (
                ("longest", duration(report.lag_s.max)),
                *((name, share(value)) for name, value in busy),
            ),
        ),
        class_="cards",
    )


def _latency_card(name: str, meaning: str, summary: Summary, noun: str) -> Html:
    low = interval(summary, "p50")
    under = f"p50 of {counted(summary.count, noun)}" + (f", 95%: {low}" if low else "")
    rows = [
        ("p90", _with_interval(summary, "p90", 0.9, noun)),
        ("p99", _with_interval(summary, "p99", 0.99, noun)),
    ]
    return _card(name, meaning, duration(summary.p50), under, rows)


def _with_interval(summary: Summary, percentile: str, needed_share: float, noun: str) -> Html:
    value, spread = getattr(summary, percentile), interval(summary, percentile)
    if value is None:
        small = f"too few {noun}s: {summary.count} of {readings_needed(needed_share)}"
    else:
        small = f"95%: {spread}" if spread else "too few for an interval"
    return together((duration(value), element("small", small)))


def interval(summary: Summary, percentile: str) -> str:
    """The 95% interval of a percentile; empty where there are too few readings."""
    bounds = getattr(summary, f"{percentile}_interval")
    return durations(bounds) if bounds is not None else ""


def _card(name: str, meaning: str, figure: str, under: str, rows: Sequence[tuple[str, str]]) -> Html:
    pairs = (element("div", element("dt", term), element("dd", value)) for term, value in rows)
    return element(
        "article",
        element("h3", name, " ", element("span", meaning)),
        element("p", figure, class_="big"),
        element("p", under, class_="under"),
        element("dl", *pairs),
        class_="card",
    )


def _drivers(measured: Measured) -> Html:
    by_prompt, by_batch = run_charts.ttft_by_prompt(measured), run_charts.itl_by_concurrency(measured)
    charts = {
        "TTFT by prompt length is missing: no reply reported its prompt length.": by_prompt,
        "ITL by running requests is missing: no stream had two chunks.": by_batch,
    }
    known = [chart for chart in charts.values() if chart is not None]
    missing = (element("p", why) for why, chart in charts.items() if chart is None)
    return together((*([chart_grid(known)] if known else []), *missing))


def _fullness(measured: Measured) -> Html:
    charts = run_charts.fullness(measured)
    if charts:
        return chart_grid(charts)
    if measured.run.engine is None:
        return element("p", "Not observed: this address does not serve vLLM's metrics (/metrics).")
    return element("p", "Not observed: the engine's metrics do not include its KV cache or its queue.")


def _typical(typical: TypicalTtft | None) -> Html:
    if typical is None:
        return element("p", "Not observed: no request received a first token.")
    return ledger(
        typical_rows(typical),
        typical.ttft_s,
        "What does a typical request wait for?",
        f"The mean of the {counted(typical.requests, 'request')} around the median TTFT, so that "
        "the parts add up. Unexplained: time that no source reports; up to 5 ms it is the way between "
        "client and engine, and parsing.",
        total="TTFT",
    )


def _two_accounts(measured: Measured) -> Html:
    report = measured.report
    if report.engine is None:
        return element("p", "Only the client's measurements: this address serves no engine metrics.")
    lead = element(
        "p",
        "Both should agree; where the client waits longer, the time was spent between them. The client's "
        "latencies are of requests that arrived in the window, the engine's of those that ended in it; its "
        "counters are read once a second, so its window is up to two seconds longer.",
    )
    return together((lead, table(("", "client", "engine"), account_rows(report), narrow=True)))


def _errors(report: BenchReport) -> Html:
    rows = [(kind.replace("_", " "), count(many)) for kind, many in report.errors.items()]
    if report.unsent:
        rows.append(("never sent", count(report.unsent)))
    if not rows:
        return element("p", "None: every request was sent and fully answered.")
    return table(("kind", "requests"), rows, narrow=True)
