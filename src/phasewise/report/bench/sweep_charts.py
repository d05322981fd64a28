"""The charts of a sweep: throughput and latency against load."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from phasewise.benchmark.results import BenchReport
from phasewise.benchmark.statistics.summary import Summary
from phasewise.benchmark.workload.arrivals import ClosedLoop, Load, OpenLoop
from phasewise.core.units import AxisScale, bound, duration, number, scale_for, share
from phasewise.report.bench.measured import Measured
from phasewise.report.charts import (
    Axis,
    Chart,
    ChartSeries,
    Label,
    Mark,
    Panel,
    axis,
    fitting_axis,
    level,
    share_axis,
)

THROUGHPUT = "throughput, output tokens/s"


@dataclass(frozen=True, slots=True)
class _Latency:
    """A latency to draw: its figures in a report, and the percentiles to show."""

    name: str
    question: str
    summary: Callable[[BenchReport], Summary]
    bound_s: float
    lines: tuple[tuple[str, str], ...]

    def read(self, point: Measured, percentile: str) -> float | None:
        value: float | None = getattr(self.summary(point.report), percentile)
        return value

    def spread(self, point: Measured, percentile: str) -> tuple[float, float] | None:
        bounds: tuple[float, float] | None = getattr(self.summary(point.report), f"{percentile}_interval")
        return bounds


def trade_offs(points: Sequence[Measured]) -> list[Chart]:
    """TTFT and TPOT against throughput, a point for every load."""
    slo = points[0].report.slo
    latencies = (
        _Latency(
            "TTFT",
            "How does throughput affect TTFT?",
            lambda report: report.ttft_s,
            slo.ttft_s,
            (("p50", "--prefill"), ("p90", "--engine-queue")),
        ),
        _Latency(
            "TPOT",
            "How does throughput affect TPOT?",
            lambda report: report.tpot_s,
            slo.tpot_s,
            (("p50", "--decode"),),
        ),
    )
    charts = (_latency_chart(latency, points) for latency in latencies)
    return [chart for chart in charts if chart is not None]


def _latency_chart(latency: _Latency, points: Sequence[Measured]) -> Chart | None:
    known = [
        (point, point.report.output_tokens_per_s or 0.0)
        for point in points
        if point.report.output_tokens_per_s
    ]
    read = [
        value
        for point, _ in known
        for percentile, _ in latency.lines
        if (value := latency.read(point, percentile)) is not None
    ]
    if not read:
        return None
    scale = scale_for(max(read))
    short, unit = short_labels([point.label for point, _ in known])
    x = axis(THROUGHPUT, [rate for _, rate in known], from_zero=False)
    series = tuple(
        drawn for line in latency.lines for drawn in _line(latency, line, known, scale) if drawn.points
    )
    # Only one line is labelled, the upper one if it has all points: both have the same labels.
    labelled = max(
        (drawn for drawn in reversed(series) if drawn.mark is Mark.DOTS), key=lambda drawn: len(drawn.points)
    )
    names = dict(zip((rate for _, rate in known), short, strict=True))
    labels = tuple(Label(at, height, names[at]) for at, height in labelled.points)
    heights = [y for drawn in series for point in drawn.points for y in point[1::2]]
    y = fitting_axis(f"{latency.name}, {scale.unit}", [*heights, scale.of(latency.bound_s)])
    slo = level(f"SLO {bound(latency.bound_s)}", scale.of(latency.bound_s), x)
    return Chart(
        latency.question,
        f"One point per load, labelled {unit}; bars are 95% intervals. Right is more throughput, "
        "down is faster; where the line turns up, more load adds latency and no throughput.",
        x,
        (Panel(y, (slo, *series), height=280, labels=labels),),
    )


def short_labels(labels: Sequence[str]) -> tuple[list[str], str]:
    """The part in which labels differ, and their unit: `2 req/s` and `4 req/s` give 2 and 4, in req/s."""
    split = [label.partition(" ") for label in labels]
    units = {unit for _, _, unit in split}
    if len(units) != 1 or "" in units:
        return list(labels), "with it"
    return [first for first, _, _ in split], f"in {units.pop()}"


def _line(
    latency: _Latency, line: tuple[str, str], known: Sequence[tuple[Measured, float]], scale: AxisScale
) -> Iterator[ChartSeries]:
    """A line, its intervals, and its points."""
    percentile, colour = line
    read = [
        (point, rate, value, latency.spread(point, percentile) or (value, value))
        for point, rate in known
        if (value := latency.read(point, percentile)) is not None
    ]
    name = f"{latency.name} {percentile}"
    points = tuple((rate, scale.of(value)) for _, rate, value, _ in read)
    spreads = tuple((rate, scale.of(low), rate, scale.of(high)) for _, rate, _, (low, high) in read)
    texts = tuple(
        f"{point.label}: {name} {duration(value)} at {number(rate)} tokens/s"
        for point, rate, value, _ in read
    )
    yield ChartSeries(f"{name} line", colour, Mark.LINE, points, listed=False)
    yield ChartSeries(f"{name} interval", colour, Mark.SEGMENTS, spreads, size=1.5, listed=False)
    yield ChartSeries(name, colour, Mark.DOTS, points, texts=texts, size=8)


def goodput_by_load(points: Sequence[Measured]) -> Chart | None:
    """The share of requests that met the SLO against the offered load."""
    offered, x = _offered([point.run.plan.load for point in points])
    slo = points[0].report.slo
    shares = [
        (at, point, value)
        for at, point in zip(offered, points, strict=True)
        if (value := point.report.goodput.share) is not None
    ]
    if not shares:
        return None
    placed = tuple((at, value) for at, _, value in shares)
    texts = tuple(f"{point.label}: {share(value)} met the SLO" for _, point, value in shares)
    series = (
        ChartSeries("met the SLO, line", "--accent", Mark.LINE, placed, listed=False),
        ChartSeries("met the SLO", "--accent", Mark.DOTS, placed, texts=texts, size=8),
    )
    return Chart(
        "How much load meets the SLO?",
        f"The share of offered requests with TTFT within {bound(slo.ttft_s)} and TPOT within "
        f"{bound(slo.tpot_s)}. The capacity is the load just before the line falls.",
        x,
        (Panel(share_axis("share that met the SLO"), series),),
    )


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
