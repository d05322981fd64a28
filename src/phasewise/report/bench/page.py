"""A run or a sweep as one HTML file that opens anywhere, offline: figures, charts, the command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phasewise.benchmark.statistics.summary import Summary
from phasewise.core.units import counted, duration, number, share
from phasewise.report.bench.measured import Measured
from phasewise.report.bench.sections import interval, notes, objective, run_sections, verdict
from phasewise.report.bench.sweep_charts import goodput_by_load, trade_offs
from phasewise.report.bench.table import SWEEP_LATENCIES
from phasewise.report.charts import even_sample
from phasewise.report.drawn_charts import chart_grid
from phasewise.report.markup import (
    Html,
    defined,
    element,
    facts,
    repeat_section,
    section,
    strip,
    table,
    together,
    whole_page,
)

DETAILED = 8
"""Of at most this many loads of a sweep, everything is drawn: more would make the page too large."""

VERDICT_AND_FIGURES = "The verdict is on all requests of the run; the figures below leave out its warm-up."


def render_page(
    measured: Sequence[Measured],
    *,
    command: str,
    circumstances: Mapping[str, str],
    verdict_strip: Html | None = None,
    diagnosis: Html | None = None,
) -> str:
    """The page of one run, or of the runs of a sweep in their order.

    `command` repeats the measurement. `circumstances` are shown unchanged: the workload in words, the seed,
    the date, the machine, versions. With a verdict on the run, its strip and its diagnosis come first.
    """
    top = _strip(measured, command) if verdict_strip is None else verdict_strip
    points = _sweep(measured) if len(measured) > 1 else together(map(run_sections, measured))
    parts = (
        top,
        *_banners(measured),
        *([diagnosis, element("p", VERDICT_AND_FIGURES)] if diagnosis else []),
        *([notes(measured[0].report)] if len(measured) == 1 else []),
        points,
        _about(measured, circumstances),
        defined(),
        repeat_section(command),
    )
    return whole_page("phasewise bench", together(parts))


def _strip(measured: Sequence[Measured], command: str) -> Html:
    """What was measured, and the command that gives a verdict."""
    report = measured[-1].report
    void = any(point.report.void for point in measured)
    answered = sum(point.report.succeeded for point in measured)
    offered = sum(point.report.offered for point in measured)
    about = [
        "Synthetic load",
        f"{answered:,} of {counted(offered, 'request')} answered",
        f"in {duration(sum(point.report.wall_s for point in measured))}",
        f"{report.model} at {report.url}",
    ]
    if len(measured) > 1:
        loads = f"{len(measured)} loads, {measured[0].label} to {measured[-1].label}"
        shares = [(point.report.goodput.share, point.label) for point in measured]
        met = "; ".join(f"{label}: {share(value)}" for value, label in even_sample(shares, 4))
        ask = f"phasewise diagnose {report.url} --probe"
        headline = f"A sweep of {loads}. Within the SLO: {met}"
    else:
        ask = f"{command} --diagnose"
        headline = (
            f"TTFT p50 {duration(report.ttft_s.p50)}, TPOT p50 {duration(report.tpot_s.p50)}; "
            f"{share(report.goodput.share)} within {objective(report)}"
        )
    if void:
        headline = f"VOID: {headline}"
    asked = together(("Measured, not judged. For a verdict: ", element("code", ask)))
    return strip("unknown" if void else "measured", about, headline, asked)


def _about(measured: Sequence[Measured], circumstances: Mapping[str, str]) -> Html:
    if len(measured) > 1:
        return section("This sweep", facts(circumstances))
    return section("This run", element("p", verdict(measured[0].report)), facts(circumstances))


def _banners(measured: Sequence[Measured]) -> list[Html]:
    several = len(measured) > 1
    void = [
        f"{point.label}: {reason}" if several else reason
        for point in measured
        for reason in point.report.void
    ]
    banners = []
    if void:
        headline = "This run is void: it measured the load generator, not the server."
        if several:
            headline = "Some of these runs are void: they measured the load generator, not the server."
        listed = element("ul", *(element("li", reason) for reason in void))
        banners.append(
            element("div", element("strong", headline), listed, class_="banner void", role="alert")
        )
    cut = [point.label for point in measured if point.report.cut_short]
    if cut:
        which = f" ({', '.join(cut)})" if several else ""
        headline = element("strong", f"The run was interrupted{which}.")
        described = element("span", "The figures cover what was measured until then.")
        banners.append(element("div", headline, described, class_="banner cut", role="alert"))
    return banners


def _sweep(measured: Sequence[Measured]) -> Html:
    goodput = goodput_by_load(measured)
    carried = [] if goodput is None else [goodput]
    charts = [*trade_offs(measured), *carried]
    drawn = chart_grid(charts, columns=3) if charts else element("p", "No request was answered.")
    overview = section("Latency against load", drawn)
    rows = section("All loads", _points_table(measured))
    shown = even_sample(measured, DETAILED)
    left_out = (
        f"Shown: {len(shown)} of {len(measured)} loads, evenly sampled." if len(shown) < len(measured) else ""
    )
    details = section("Load by load", *([element("p", left_out)] if left_out else []), *_details(shown))
    return together((overview, rows, details))


def _points_table(measured: Sequence[Measured]) -> Html:
    latencies = (label for label, _, _ in SWEEP_LATENCIES)
    return table(
        ("load", "answered", "tokens/s", *latencies, "within SLO"),
        [
            (
                together((point.label, *([element("small", "void")] if point.report.void else []))),
                f"{point.report.succeeded:,} of {point.report.offered:,}",
                number(point.report.output_tokens_per_s),
                *(_estimated(getattr(point.report, name), value) for _, name, value in SWEEP_LATENCIES),
                share(point.report.goodput.share),
            )
            for point in measured
        ],
    )


def _estimated(summary: Summary, percentile: str) -> Html:
    spread = interval(summary, percentile)
    value = duration(getattr(summary, percentile))
    return together((value, *([element("small", spread)] if spread else [])))


def _details(measured: Sequence[Measured]) -> list[Html]:
    last = measured[-1]
    return [
        element(
            "details",
            element(
                "summary",
                point.label,
                element("span", f"{share(point.report.goodput.share)} within {objective(point.report)}"),
            ),
            element("p", verdict(point.report)),
            notes(point.report),
            run_sections(point),
            class_="point",
            open=point is last,
        )
        for point in measured
    ]
