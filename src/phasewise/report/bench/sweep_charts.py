"""The charts of a sweep: throughput and latency against load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from phasewise.core.units import AxisScale, bound, scale_for
from phasewise.loadgen.results import BenchReport
from phasewise.loadgen.statistics.summary import Summary
from phasewise.loadgen.workload.arrivals import ClosedLoop, Load, OpenLoop
from phasewise.report.bench.phases import Measured
from phasewise.report.figures import Chart, Trace, axis, figure, fitting_axis, level, line_in_legend, plain

THROUGHPUT = "throughput, output tokens/s"


@dataclass(frozen=True, slots=True)
class _Latency:
    """A latency to draw: its figures in a report, and the percentiles to show."""

    name: str
    question: str
    summary: Callable[[BenchReport], Summary]
    bound_s: float
    lines: tuple[tuple[str, str, str], ...]

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
            (("p50", "--prefill", "circle"), ("p90", "--engine-queue", "diamond")),
        ),
        _Latency(
            "TPOT",
            "How does throughput affect TPOT?",
            lambda report: report.tpot_s,
            slo.tpot_s,
            (("p50", "--decode", "circle"),),
        ),
    )
    charts = (_latency_chart(latency, points) for latency in latencies)
    return [chart for chart in charts if chart is not None]


def _latency_chart(latency: _Latency, points: Sequence[Measured]) -> Chart | None:
    known = [point for point in points if point.report.output_tokens_per_s is not None]
    percentiles = [percentile for percentile, _, _ in latency.lines]
    readings = (latency.read(point, percentile) for point in known for percentile in percentiles)
    read = [value for value in readings if value is not None]
    if not read:
        return None
    scale = scale_for(max(read))
    short, unit = short_labels([point.label for point in known])
    drawn = (_line(latency, line, list(zip(known, short, strict=True)), scale) for line in latency.lines)
    traces = [trace for trace in drawn if trace["x"]]
    # Only one line is labelled, the upper one if it has all points: both have the same labels.
    labelled = max(reversed(traces), key=lambda trace: len(trace["x"]))
    labelled |= {"mode": "lines+markers+text", "textposition": "bottom right", "cliponaxis": False}
    return Chart(
        question=latency.question,
        caption=f"One point per load, labelled {unit}; bars are 95% intervals. Right is more throughput, "
        "down is faster; where the line turns up, more load adds latency and no throughput.",
        figure=figure(
            [*traces, line_in_legend(f"SLO {bound(latency.bound_s)}", "--objective")],
            axis(THROUGHPUT, rangemode="normal"),
            fitting_axis(f"{latency.name}, {scale.unit}", [scale.of(s) for s in (*read, latency.bound_s)]),
            height=360,
            margin={"l": 8, "r": 40, "t": 8, "b": 8},
            shapes=[level(scale.of(latency.bound_s), "--objective")],
            showlegend=True,
        ),
    )


def short_labels(labels: Sequence[str]) -> tuple[list[str], str]:
    """The part in which labels differ, and their unit: `2 req/s` and `4 req/s` give 2 and 4, in req/s."""
    split = [label.partition(" ") for label in labels]
    units = {unit for _, _, unit in split}
    if len(units) != 1 or "" in units:
        return list(labels), "with it"
    return [first for first, _, _ in split], f"in {units.pop()}"


def _line(
    latency: _Latency, line: tuple[str, str, str], known: Sequence[tuple[Measured, str]], scale: AxisScale
) -> Trace:
    percentile, colour, symbol = line
    read = [
        (point, short, value, latency.spread(point, percentile) or (value, value))
        for point, short in known
        if (value := latency.read(point, percentile)) is not None
    ]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": f"{latency.name} {percentile}",
        "x": [round(point.report.output_tokens_per_s or 0.0, 2) for point, _, _, _ in read],
        "y": [scale.of(value) for _, _, value, _ in read],
        "text": [plain(short) for _, short, _, _ in read],
        "customdata": [plain(point.label) for point, _, _, _ in read],
        "textfont": {"size": 11, "color": "--muted"},
        "line": {"color": colour, "width": 2},
        "marker": {"color": colour, "size": 8, "symbol": symbol},
        "error_y": {
            "type": "data",
            "array": [scale.of(max(high - value, 0.0)) for _, _, value, (_, high) in read],
            "arrayminus": [scale.of(max(value - low, 0.0)) for _, _, value, (low, _) in read],
            "color": colour,
            "thickness": 1.2,
            "width": 4,
        },
        "hovertemplate": f"%{{customdata}}: {latency.name} {percentile} %{{y:.4g}} {scale.unit} at "
        "%{x:.4g} tokens/s<extra></extra>",
    }


def goodput_by_load(points: Sequence[Measured]) -> Chart | None:
    """The share of requests that met the SLO against the offered load."""
    known = [(point, point.report.goodput.share) for point in points]
    offered, title = _offered([point.run.plan.load for point in points])
    slo = points[0].report.slo
    share: Trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "met the SLO",
        "x": [x for x, (_, value) in zip(offered, known, strict=True) if value is not None],
        "y": [round(value, 4) for _, value in known if value is not None],
        "text": [plain(point.label) for point, value in known if value is not None],
        "line": {"color": "--accent", "width": 2},
        "marker": {"color": "--accent", "size": 8},
        "hovertemplate": "%{text}: %{y:.1%} met the SLO<extra></extra>",
    }
    if not share["x"]:
        return None
    whole: dict[str, Any] = {} if isinstance(offered[0], float) else {"type": "category"}
    return Chart(
        question="How much load meets the SLO?",
        caption=f"The share of offered requests with TTFT within {bound(slo.ttft_s)} and TPOT within "
        f"{bound(slo.tpot_s)}. The capacity is the load just before the line falls.",
        figure=figure(
            [share],
            axis(title, **whole),
            axis("share that met the SLO", tickformat=".0%", range=[0, 1.04]),
            height=300,
        ),
    )


def _offered(loads: Sequence[Load]) -> tuple[list[float] | list[str], str]:
    """The offered load of each point and its unit; loads of different kinds are numbered."""
    if all(isinstance(load, OpenLoop) for load in loads):
        return [load.rate_per_s for load in loads if isinstance(load, OpenLoop)], "offered, requests/s"
    if all(isinstance(load, ClosedLoop) for load in loads):
        return [float(load.concurrency) for load in loads if isinstance(load, ClosedLoop)], "requests at once"
    return [str(place) for place in range(1, len(loads) + 1)], "point of the sweep"
