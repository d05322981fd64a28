"""The sections of one run: key figures, charts and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from phasewise.core.units import NONE, bound, count, counted, duration, durations, number, share
from phasewise.loadgen.notes import TypicalTtft
from phasewise.loadgen.results import BenchReport
from phasewise.loadgen.statistics.summary import Summary, readings_needed
from phasewise.report.bench import run_charts
from phasewise.report.bench.phases import PHASES, UNEXPLAINED, Measured, PhaseStyle
from phasewise.report.bench.table import rest_name
from phasewise.report.charts import Chart
from phasewise.report.drawn_charts import chart_grid, drawn
from phasewise.report.layout import section
from phasewise.report.markup import Html, element, table, together

PERCENTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))


def run_sections(measured: Measured) -> Html:
    """Everything about one run, from its key figures to its errors."""
    report = measured.report
    return together(
        (
            section("Key figures", _cards(report)),
            section("Where TTFT goes", _typical(report.typical_ttft)),
            section("Latency distributions", _distributions(measured)),
            section(
                "Requests over time", _chart_or(run_charts.request_bars(measured), "No request was sent.")
            ),
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
    moved = (
        f"{shift.metric} shifted at {shift.at_s:.1f} s of the run: {duration(shift.before_s)} "
        f"before, {duration(shift.after_s)} after."
        for shift in report.shifts
    )
    listed = (*report.notes, *moved)
    return element("ul", *(element("li", note) for note in listed), class_="notes") if listed else Html("")


def objective(report: BenchReport) -> str:
    """The SLO in words."""
    return f"TTFT ≤ {bound(report.slo.ttft_s)} and TPOT ≤ {bound(report.slo.tpot_s)}"


def _cards(report: BenchReport) -> Html:
    goodput = report.goodput
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
        _card("Generator", "delay of sending", duration(report.lag_s.p50), "p50", _generator_rows(report)),
        class_="cards",
    )


def _generator_rows(report: BenchReport) -> tuple[tuple[str, str], ...]:
    rows = [("longest", duration(report.lag_s.max))]
    if report.host is not None:
        rows += [
            ("machine busy", share(report.host.busy_share)),
            ("CPU steal", share(report.host.stolen_share)),
        ]
    return tuple(rows)


def _latency_card(name: str, meaning: str, summary: Summary, noun: str) -> Html:
    rows = tuple(
        (percentile, _with_interval(summary, percentile, needed_share, noun))
        for percentile, needed_share in PERCENTILES[1:]
    )
    low = _interval(summary, "p50")
    under = f"p50 of {counted(summary.count, noun)}" + (f", 95%: {low}" if low else "")
    return _card(name, meaning, duration(summary.p50), under, rows)


def _with_interval(summary: Summary, percentile: str, needed_share: float, noun: str) -> Html:
    value = getattr(summary, percentile)
    if value is None:
        needed = readings_needed(needed_share)
        return together((NONE, element("small", f"too few {noun}s: {summary.count} of {needed}")))
    interval = _interval(summary, percentile)
    return together(
        (duration(value), element("small", f"95%: {interval}" if interval else "too few for an interval"))
    )


def _interval(summary: Summary, percentile: str) -> str:
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


def _distributions(measured: Measured) -> Html:
    charts = run_charts.distributions(measured)
    return chart_grid(charts, columns=3) if charts else _sentence("No data for this chart.")


def _chart_or(chart: Chart | None, otherwise: str) -> Html:
    return drawn(chart) if chart is not None else _sentence(otherwise)


def _drivers(measured: Measured) -> Html:
    charts = (run_charts.ttft_by_prompt(measured), run_charts.itl_by_concurrency(measured))
    missing = []
    if charts[0] is None:
        missing.append("TTFT by prompt length is missing: no reply reported its prompt length.")
    if charts[1] is None:
        missing.append("ITL by running requests is missing: no stream had two chunks.")
    known = [found for found in charts if found is not None]
    return together((*([chart_grid(known)] if known else []), *map(_sentence, missing)))


def _fullness(measured: Measured) -> Html:
    charts = run_charts.fullness(measured)
    if charts:
        return chart_grid(charts)
    if measured.run.engine is None:
        return _sentence("Not observed: this address does not serve vLLM's metrics (/metrics).")
    return _sentence("Not observed: the engine's metrics do not include its KV cache or its queue.")


def _typical(typical: TypicalTtft | None) -> Html:
    if typical is None:
        return _sentence("Not observed: no request received a first token.")
    rows = [
        (PHASES[entry.part], entry.source.value.replace("_", " "), entry.seconds) for entry in typical.parts
    ]
    rows.append(
        (replace(UNEXPLAINED, name=rest_name(typical.unexplained_s)), "not measured", typical.unexplained_s)
    )
    whole_s = sum(max(seconds, 0.0) for _, _, seconds in rows)
    pieces = (
        element(
            "span",
            style=f"width:{100 * seconds / whole_s:.3f}%;background:var({phase.colour})",
            title=f"{phase.name}: {duration(seconds)}",
        )
        for phase, _, seconds in rows
        if seconds > 0
    )
    accounted = table(
        ("part", "seen by", "time", "share"),
        [
            *(
                (_swatched(phase), source, duration(seconds), share(_part_of(seconds, typical.ttft_s)))
                for phase, source, seconds in rows
            ),
            (element("strong", "TTFT"), "", element("strong", duration(typical.ttft_s)), ""),
        ],
        words=2,
    )
    return element(
        "figure",
        element("h3", "What does a typical request wait for?"),
        element("div", *pieces, class_="stack", role="img", aria_label="the parts of TTFT in proportion"),
        accounted,
        element(
            "figcaption",
            f"The mean of the {counted(typical.requests, 'request')} around the median TTFT, so that "
            "the parts add up. Unexplained: time that no source reports; up to 5 ms it is the way between "
            "client and engine, and parsing.",
        ),
    )


def _swatched(phase: PhaseStyle) -> Html:
    return together((element("i", class_="swatch", style=f"background:var({phase.colour})"), phase.name))


def _part_of(seconds: float, whole_s: float) -> float | None:
    return seconds / whole_s if whole_s > 0 else None


def _two_accounts(measured: Measured) -> Html:
    report = measured.report
    if report.engine is None:
        return _sentence("Only the client's measurements: this address serves no engine metrics.")
    lead = _sentence(
        "Both should agree; where the client waits longer, the time was spent between them. The "
        "client counts requests that arrived in the window, the engine those that ended in it; its counters "
        "are read once a second, so its window is up to two seconds longer."
    )
    return together((lead, _narrow(table(("", "client", "engine"), _account_rows(report)))))


def _account_rows(report: BenchReport) -> list[tuple[str, str, str]]:
    engine = report.engine
    if engine is None:
        return []
    prompts = report.prompt_tokens
    prompt_total = prompts.mean * prompts.count if prompts.mean is not None else None
    cached = report.cached_tokens
    outputs = report.output_tokens
    rows = [
        ("requests answered", count(report.succeeded), count(engine.requests)),
        ("TTFT, mean", duration(report.ttft_s.mean), duration(engine.ttft_mean_s)),
        ("queue, mean", NONE, duration(engine.queue_mean_s)),
        ("prefill, mean", NONE, duration(engine.prefill_mean_s)),
        ("ITL, mean", duration(report.itl_pooled_s.mean), duration(engine.itl_mean_s)),
        ("E2E, mean", duration(report.e2e_s.mean), duration(engine.e2e_mean_s)),
        ("prompt tokens", count(prompt_total), count(engine.prompt_tokens)),
        (
            "prompt tokens from cache",
            share(cached / prompt_total if cached is not None and prompt_total else None),
            share(engine.cached_share),
        ),
        (
            "output tokens",
            count(outputs.mean * outputs.count if outputs.mean is not None else None),
            count(engine.generation_tokens),
        ),
        ("preemptions", NONE, count(engine.preemptions)),
        ("KV cache in use, highest", NONE, share(engine.kv_usage_max)),
        ("running, highest", NONE, count(engine.running_max)),
        ("waiting, highest", NONE, count(engine.waiting_max)),
    ]
    if engine.steps is not None:
        steps = engine.steps
        rows += [
            ("steps", NONE, count(steps.count)),
            ("steps with prefill and decode", NONE, count(steps.mixed)),
            (
                "a step, p50 / p99",
                NONE,
                f"{duration(steps.duration_s.p50)} / {duration(steps.duration_s.p99)}",
            ),
        ]
    return rows


def _errors(report: BenchReport) -> Html:
    rows = [(kind.replace("_", " "), count(many)) for kind, many in report.errors.items()]
    if report.unsent:
        rows.append(("never sent", count(report.unsent)))
    if not rows:
        return _sentence("None: every request was sent and fully answered.")
    return _narrow(table(("kind", "requests"), rows))


def _narrow(wide: Html) -> Html:
    return element("div", wide, class_="narrow")


def _sentence(text: str) -> Html:
    return element("p", text)
