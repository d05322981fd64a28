"""A run or a sweep as one HTML file that opens anywhere, offline: figures, charts, the command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phasewise.benchmark.statistics.summary import Summary
from phasewise.benchmark.workload.arrivals import ClosedLoop, Load, OpenLoop
from phasewise.core.units import bound, counted, duration, number, scale_for, share
from phasewise.report.bench.measured import Measured
from phasewise.report.bench.sections import interval, notes, objective, run_sections, verdict
from phasewise.report.bench.table import SWEEP_LATENCIES
from phasewise.report.charts import (
    Axis,
    Chart,
    ChartSeries,
    Label,
    Mark,
    Panel,
    axis,
    even_sample,
    fitting_axis,
    level,
    share_axis,
)
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
    report, several = measured[0].report, len(measured) > 1
    parts = (
        _strip(measured, command) if verdict_strip is None else verdict_strip,
        *_banners(measured),
        *([diagnosis, element("p", VERDICT_AND_FIGURES)] if diagnosis else []),
        *([_sweep(measured)] if several else [notes(report), run_sections(measured[0])]),
        section("This sweep", facts(circumstances))
        if several
        else section("This run", element("p", verdict(report)), facts(circumstances)),
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


def _banners(measured: Sequence[Measured]) -> list[Html]:
    several = len(measured) > 1
    void = [
        f"{point.label}: {reason}" if several else reason
        for point in measured
        for reason in point.report.void
    ]
    banners = []
    if void:
        which = "Some of these runs are void: they" if several else "This run is void: it"
        headline = element("strong", f"{which} measured the load generator, not the server.")
        listed = element("ul", *(element("li", reason) for reason in void))
        banners.append(element("div", headline, listed, class_="banner void", role="alert"))
    if cut := [point.label for point in measured if point.report.cut_short]:
        which = f" ({', '.join(cut)})" if several else ""
        headline = element("strong", f"The run was interrupted{which}.")
        described = element("span", "The figures cover what was measured until then.")
        banners.append(element("div", headline, described, class_="banner cut", role="alert"))
    return banners


def _sweep(measured: Sequence[Measured]) -> Html:
    charts = [*trade_offs(measured), *goodput_by_load(measured)]
    drawn = chart_grid(charts, columns=3) if charts else element("p", "No request was answered.")
    shown = even_sample(measured, DETAILED)
    left_out = f"Shown: {len(shown)} of {len(measured)} loads, evenly sampled."
    return together(
        (
            section("Latency against load", drawn),
            section("All loads", _points_table(measured)),
            section(
                "Load by load",
                *([element("p", left_out)] if len(shown) < len(measured) else []),
                *(_details(point, is_open=point is shown[-1]) for point in shown),
            ),
        )
    )


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


def _details(point: Measured, *, is_open: bool) -> Html:
    met = f"{share(point.report.goodput.share)} within {objective(point.report)}"
    return element(
        "details",
        element("summary", point.label, element("span", met)),
        element("p", verdict(point.report)),
        notes(point.report),
        run_sections(point),
        class_="point",
        open=is_open,
    )


# --- The charts of a sweep: throughput and latency against load.

DRAWN_LATENCIES = (
    ("TTFT", "ttft_s", {"p50": "--prefill", "p90": "--engine-queue"}),
    ("TPOT", "tpot_s", {"p50": "--decode"}),
)
"""The latencies to draw: a name, a summary of the report, and the colours of its percentiles."""


def trade_offs(points: Sequence[Measured]) -> list[Chart]:
    """TTFT and TPOT against throughput, a point for every load."""
    charts = (_trade_off(points, *latency) for latency in DRAWN_LATENCIES)
    return [chart for chart in charts if chart is not None]


def _trade_off(
    points: Sequence[Measured], name: str, figures: str, colours: Mapping[str, str]
) -> Chart | None:
    known = [(point, rate) for point in points if (rate := point.report.output_tokens_per_s)]
    summaries = [(point.label, rate, getattr(point.report, figures)) for point, rate in known]
    lines = {
        percentile: [
            (label, rate, value, getattr(summary, f"{percentile}_interval") or (value, value))
            for label, rate, summary in summaries
            if (value := getattr(summary, percentile)) is not None
        ]
        for percentile in colours
    }
    values = [value for readings in lines.values() for _, _, value, _ in readings]
    if not values:
        return None
    scale, bound_s = scale_for(max(values)), getattr(points[0].report.slo, figures)
    x = axis("throughput, output tokens/s", [rate for _, rate in known], from_zero=False)
    series = [level(f"SLO {bound(bound_s)}", scale.of(bound_s), x)]
    for percentile, readings in lines.items():
        if not readings:
            continue
        title, colour = f"{name} {percentile}", colours[percentile]
        placed = tuple((rate, scale.of(value)) for _, rate, value, _ in readings)
        spreads = tuple((rate, scale.of(low), rate, scale.of(high)) for _, rate, _, (low, high) in readings)
        texts = tuple(
            f"{label}: {title} {duration(value)} at {number(rate)} tokens/s"
            for label, rate, value, _ in readings
        )
        series += [
            ChartSeries(f"{title} line", colour, Mark.LINE, placed, listed=False),
            ChartSeries(f"{title} interval", colour, Mark.SEGMENTS, spreads, size=1.5, listed=False),
            ChartSeries(title, colour, Mark.DOTS, placed, texts=texts, size=8),
        ]
    # Only one line is labelled, the upper one if it has all points: both have the same labels.
    labelled = max(reversed(lines.values()), key=len)
    short, unit = short_labels([label for label, *_ in labelled])
    labels = tuple(
        Label(rate, scale.of(value), text) for text, (_, rate, value, _) in zip(short, labelled, strict=True)
    )
    heights = [height for drawn in series for point in drawn.points for height in point[1::2]]
    y = fitting_axis(f"{name}, {scale.unit}", heights)
    return Chart(
        f"How does throughput affect {name}?",
        f"One point per load, labelled {unit}; bars are 95% intervals. Right is more throughput, "
        "down is faster; where the line turns up, more load adds latency and no throughput.",
        x,
        (Panel(y, tuple(series), height=280, labels=labels),),
    )


def short_labels(labels: Sequence[str]) -> tuple[list[str], str]:
    """The part in which labels differ, and their unit: `2 req/s` and `4 req/s` give 2 and 4, in req/s."""
    split = [label.partition(" ") for label in labels]
    units = {unit for _, _, unit in split}
    if len(units) != 1 or "" in units:
        return list(labels), "with it"
    return [first for first, _, _ in split], f"in {units.pop()}"


def goodput_by_load(points: Sequence[Measured]) -> list[Chart]:
    """The share of requests that met the SLO against the offered load; none if nothing was offered."""
    offered, x = _offered([point.run.plan.load for point in points])
    slo = points[0].report.slo
    shares = [
        (at, value, f"{point.label}: {share(value)} met the SLO")
        for at, point in zip(offered, points, strict=True)
        if (value := point.report.goodput.share) is not None
    ]
    if not shares:
        return []
    placed = tuple((at, value) for at, value, _ in shares)
    texts = tuple(text for _, _, text in shares)
    series = (
        ChartSeries("met the SLO, line", "--accent", Mark.LINE, placed, listed=False),
        ChartSeries("met the SLO", "--accent", Mark.DOTS, placed, texts=texts, size=8),
    )
    chart = Chart(
        "How much load meets the SLO?",
        f"The share of offered requests with TTFT within {bound(slo.ttft_s)} and TPOT within "
        f"{bound(slo.tpot_s)}. The capacity is the load just before the line falls.",
        x,
        (Panel(share_axis("share that met the SLO"), series),),
    )
    return [chart]


def _offered(loads: Sequence[Load]) -> tuple[list[float], Axis]:
    """The offered load of each point and its axis; loads of different kinds are numbered."""
    if all(isinstance(load, OpenLoop) for load in loads):
        rates = [load.rate_per_s for load in loads if isinstance(load, OpenLoop)]
        return rates, axis("offered, requests/s", rates)
    if all(isinstance(load, ClosedLoop) for load in loads):
        counts = [float(load.concurrency) for load in loads if isinstance(load, ClosedLoop)]
        return counts, axis("requests at once", counts, whole=True)
    places = [float(place) for place in range(1, len(loads) + 1)]
    return places, axis("point of the sweep", places, whole=True)
