"""The charts of one run: latency distributions, each request's phases, and what the latencies depend on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phasewise.core import latency
from phasewise.core.timeline import Outcome, Timeline
from phasewise.core.units import AxisScale, bound, duration, scale_for
from phasewise.loadgen.engine_watch import Gauge, gauges
from phasewise.loadgen.statistics.summary import Summary
from phasewise.report.bench.concurrency import MIN_GAPS, counted_by_engine, gaps_by_concurrency
from phasewise.report.bench.phases import IN_ORDER, Measured, PhaseStyle, stretches
from phasewise.report.figures import (
    Axis,
    Chart,
    Trace,
    axis,
    even_sample,
    figure,
    fitting_axis,
    line_in_legend,
    shade,
    shade_in_legend,
    upright,
)

BAR_LIMIT = 400
"""At most this many requests are drawn as bars; more would be thinner than a pixel."""
POINT_LIMIT = 2000
"""More readings than this are sampled, to keep the page responsive."""
CURVE_POINTS = 400
TAIL_POINTS = 60
"""The slowest readings are all kept, because the tail matters most."""
FAR_BOUND = 2.5
"""An objective this many times the largest reading is named but not drawn."""

PERCENTILE_MARKS = (
    ("p50", 0.5, "circle"),
    ("p90", 0.9, "diamond"),
    ("p99", 0.99, "square"),
)


def distributions(measured: Measured) -> list[Chart]:
    """The cumulative distributions of TTFT, TPOT and ITL."""
    report, slo = measured.report, measured.report.slo
    gaps_s = [gap for timeline in measured.counted for gap in latency.chunk_gaps_s(timeline)]
    spreads = (
        ("TTFT", "How long until the first token?", "requests", report.ttft_s, slo.ttft_s),
        ("TPOT", "How fast is the stream?", "requests", report.tpot_s, slo.tpot_s),
        ("ITL", "How long are the gaps?", "gaps", report.itl_pooled_s, None),
    )
    readings = (measured.readings_s(latency.ttft_s), measured.readings_s(latency.tpot_s), gaps_s)
    return [
        Chart(
            question=question,
            caption=f"Height: the share of {of_what} with this {name} or less. A steeper curve is steadier; "
            "marks are percentiles with their 95% intervals.",
            figure=_spread(name, of_what, sorted(values_s), summary, bound_s),
        )
        for (name, question, of_what, summary, bound_s), values_s in zip(spreads, readings, strict=True)
        if values_s
    ]


def _spread(
    name: str, of_what: str, ordered_s: Sequence[float], summary: Summary, bound_s: float | None
) -> dict[str, Any]:
    scale = scale_for(ordered_s[-1])
    count = len(ordered_s)
    ranks = sorted({*even_sample(range(count), CURVE_POINTS), *range(max(count - TAIL_POINTS, 0), count)})
    curve = {
        "type": "scatter",
        "mode": "lines" if count > 1 else "markers",
        "name": f"all {of_what}",
        "x": [scale.of(ordered_s[rank]) for rank in ranks],
        "y": [round((rank + 1) / count, 5) for rank in ranks],
        "line": {"color": "--accent", "width": 2, "shape": "hv"},
        "marker": {"color": "--accent"},
        "hovertemplate": f"%{{y:.1%}} of {of_what}: %{{x:.4g}} {scale.unit} or less<extra></extra>",
        "showlegend": False,
    }
    marks = [
        _percentile_mark(percentile, height, symbol, summary, scale.per_second)
        for percentile, height, symbol in PERCENTILE_MARKS
        if getattr(summary, percentile) is not None
    ]
    objective, shapes = _objective(bound_s, ordered_s[-1], scale)
    shown = [scale.of(value) for value in ordered_s] + [shape["x0"] for shape in shapes]
    return figure(
        [curve, *marks, *objective],
        fitting_axis(f"{name}, {scale.unit}", shown),
        axis(f"share of {of_what}", tickformat=".0%", range=[0, 1.04], tickvals=[0, 0.25, 0.5, 0.75, 0.9, 1]),
        height=310,
        # Every chart reserves two rows for the legend, so that the plots line up.
        margin={"l": 8, "r": 12, "t": 58, "b": 8},
        shapes=shapes,
        showlegend=True,
    )


def _objective(bound_s: float | None, largest_s: float, scale: AxisScale) -> tuple[list[Trace], list[Trace]]:
    """The SLO's legend entry and its line, which is left out if it is far beyond the readings."""
    if bound_s is None:
        return [], []
    if bound_s > FAR_BOUND * largest_s:
        return [line_in_legend(f"SLO {bound(bound_s)}, far right", "--objective")], []
    line = upright(scale.of(bound_s), "--objective")
    return [line_in_legend(f"SLO {bound(bound_s)}", "--objective")], [line]


def _percentile_mark(name: str, height: float, symbol: str, summary: Summary, per_second: float) -> Trace:
    value, interval = getattr(summary, name), getattr(summary, f"{name}_interval")
    mark: Trace = {
        "type": "scatter",
        "mode": "markers",
        "name": f"{name} {duration(value)}",
        "x": [value * per_second],
        "y": [height],
        "marker": {"color": "--text", "size": 8, "symbol": symbol},
        "hovertemplate": f"{name}: {duration(value)}<extra></extra>",
    }
    if interval is not None:
        low, high = interval
        mark["error_x"] = {
            "type": "data",
            "array": [max(high - value, 0.0) * per_second],
            "arrayminus": [max(value - low, 0.0) * per_second],
            "color": "--text",
            "thickness": 1.2,
            "width": 4,
        }
    return mark


def request_bars(measured: Measured) -> Chart | None:
    """Every request as a bar of its phases over the run, or an even sample of them."""
    timelines = measured.run.timelines
    if not timelines:
        return None
    drawn = even_sample(list(enumerate(timelines, start=1)), BAR_LIMIT)
    warm_up_s = measured.report.window.start_s
    sampled = (
        f" Shown: {len(drawn)} of {len(timelines)} requests, evenly sampled."
        if len(drawn) < len(timelines)
        else ""
    )
    # Rows that are left out leave no gaps.
    thickness = len(timelines) / len(drawn) * (0.8 if len(drawn) <= 60 else 1.0)
    bars = figure(
        [*_bars(measured, drawn, thickness), *_failures(measured, drawn), *shade_in_legend(warm_up_s)],
        axis("seconds since the start of the run"),
        _rows_axis(len(timelines)),
        height=max(min(150 + 9 * len(drawn), 640), 220),
        barmode="overlay",
        shapes=shade(warm_up_s),
        hovermode="closest",
        showlegend=True,
    )
    return Chart(
        question="Where did each request's time go?",
        caption="One row per request, from its planned arrival to its last token. Wide "
        "bars before decode are slow starts, long decodes are slow streams, and a growing queue is overload."
        + sampled,
        figure=bars,
    )


def _rows_axis(rows: int) -> Axis:
    every = {"dtick": 1} if rows <= 10 else {}
    return axis(
        "request, by arrival",
        autorange="reversed",
        rangemode="normal",
        showgrid=False,
        zeroline=False,
        **every,
    )


def _bars(measured: Measured, drawn: Sequence[tuple[int, Timeline]], thickness: float) -> list[Trace]:
    found: dict[PhaseStyle, list[tuple[int, float, float]]] = {phase: [] for phase in IN_ORDER}
    for row, timeline in drawn:
        start_s = measured.arrival_s(timeline)
        for stretch in stretches(timeline):
            found[stretch.phase].append((row, start_s + stretch.start_s, stretch.seconds))
    return [
        {
            "type": "bar",
            "orientation": "h",
            "width": thickness,
            "name": phase.name,
            "y": [row for row, _, _ in pieces],
            "base": [round(start_s, 4) for _, start_s, _ in pieces],
            "x": [round(seconds, 4) for _, _, seconds in pieces],
            "customdata": [duration(seconds) for _, _, seconds in pieces],
            "marker": {"color": phase.colour, "line": {"width": 0}},
            "hovertemplate": f"request %{{y}}: {phase.name} %{{customdata}}<extra></extra>",
        }
        for phase, pieces in found.items()
        if any(seconds >= 5e-5 for _, _, seconds in pieces)
    ]


def _failures(measured: Measured, drawn: Sequence[tuple[int, Timeline]]) -> list[Trace]:
    failed = [(row, timeline) for row, timeline in drawn if timeline.outcome is not Outcome.SUCCEEDED]
    if not failed:
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "not answered in full",
            "x": [round(measured.arrival_s(timeline) + timeline.ended_s, 4) for _, timeline in failed],
            "y": [row for row, _ in failed],
            "marker": {"color": "--bad", "symbol": "x", "size": 7},
            "hovertemplate": "request %{y}: not answered in full<extra></extra>",
        }
    ]


def ttft_by_prompt(measured: Measured) -> Chart | None:
    """TTFT against the prompt's length, with and without a cached prefix."""
    started = [
        (timeline, timeline.prompt_tokens, first_s)
        for timeline in measured.counted
        if timeline.prompt_tokens is not None and (first_s := latency.ttft_s(timeline)) is not None
    ]
    if not started:
        return None
    points = even_sample(started, POINT_LIMIT)
    scale = scale_for(max(first_s for _, _, first_s in points))
    kinds = (
        ("nothing cached", False, "circle", "--prefill"),
        ("prefix cached", True, "diamond-open", "--engine-queue"),
    )
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": [tokens for timeline, tokens, _ in points if bool(timeline.cached_tokens) is cached],
            "y": [scale.of(s) for timeline, _, s in points if bool(timeline.cached_tokens) is cached],
            "customdata": [
                [timeline.cached_tokens or 0, tokens - (timeline.cached_tokens or 0)]
                for timeline, tokens, _ in points
                if bool(timeline.cached_tokens) is cached
            ],
            "marker": {"color": colour, "symbol": symbol, "size": 7, "opacity": 0.75},
            "hovertemplate": f"TTFT %{{y:.4g}} {scale.unit}<br>prompt %{{x}} tokens<br>"
            "%{customdata[0]} cached, %{customdata[1]} not cached<extra></extra>",
        }
        for name, cached, symbol, colour in kinds
    ]
    return Chart(
        question="Do longer prompts start later?",
        caption="One point per request. The rising line is prefill; points far above it waited for "
        "other requests, and cached prefixes lie below it.",
        figure=figure(
            [trace for trace in traces if trace["x"]],
            axis("prompt length, tokens"),
            fitting_axis(f"TTFT, {scale.unit}", [scale.of(first_s) for _, _, first_s in points]),
            hovermode="closest",
            showlegend=True,
        ),
    )


def itl_by_concurrency(measured: Measured) -> Chart | None:
    """The gaps between chunks against the number of requests that ran at the time."""
    groups = gaps_by_concurrency(measured)
    if not groups:
        return None
    scale = scale_for(max(group.p99_s or group.p90_s for group in groups))
    middle = [(group.low + group.high) / 2 for group in groups]
    boxes = {
        "type": "box",
        "name": "half of all gaps, whiskers p10 to p90",
        "x": middle,
        "q1": [scale.of(group.p25_s) for group in groups],
        "median": [scale.of(group.p50_s) for group in groups],
        "q3": [scale.of(group.p75_s) for group in groups],
        "lowerfence": [scale.of(group.p10_s) for group in groups],
        "upperfence": [scale.of(group.p90_s) for group in groups],
        "line": {"color": "--decode", "width": 1.5},
        "fillcolor": "--decode-fill",
    }
    tails = {
        "type": "scatter",
        "mode": "markers",
        "name": "p99, of 100 gaps or more",
        "x": [x for x, group in zip(middle, groups, strict=True) if group.p99_s is not None],
        "y": [scale.of(group.p99_s) for group in groups if group.p99_s is not None],
        "customdata": [[group.name, group.gaps] for group in groups if group.p99_s is not None],
        "marker": {"color": "--text", "symbol": "diamond", "size": 6},
        "hovertemplate": f"%{{customdata[0]}} running: p99 %{{y:.4g}} {scale.unit} of %{{customdata[1]}} gaps"
        "<extra></extra>",
    }
    values = [scale.of(value) for group in groups for value in (group.p10_s, group.p99_s or group.p90_s)]
    counted = (
        "requests running in the engine" if counted_by_engine(measured) else "streams open at this client"
    )
    whole = {"dtick": 1} if groups[-1].high <= 16 else {}
    return Chart(
        question="Does batch size slow decode?",
        caption="Gaps between chunks by the number of running requests. Flat boxes: batching costs nothing "
        "yet. "
        "Rising boxes: a larger batch slows every stream. p99 far above its box: other requests' prefill "
        f"stalls it. Counts with fewer than {MIN_GAPS} gaps are left out.",
        figure=figure(
            [boxes, *([tails] if tails["x"] else [])],
            axis(counted, rangemode="normal", **whole),
            fitting_axis(f"ITL, {scale.unit}", values),
            showlegend=True,
        ),
    )


def fullness(measured: Measured) -> list[Chart]:
    """The engine's load over the run; empty if the engine did not report it."""
    if measured.run.engine is None:
        return []
    seen = [
        gauge
        for gauge in gauges(measured.run.engine, measured.run.started_unix_s)
        if -1.0 <= gauge.at_s <= measured.run.wall_s + 2.0
    ]
    warm_up_s = measured.report.window.start_s
    kv = _over_time("KV cache in use", "--prefill", [(g.at_s, g.kv_usage) for g in seen])
    running = _over_time("running", "--decode", [(g.at_s, g.running) for g in seen])
    waiting = _over_time("waiting", "--engine-queue", [(g.at_s, g.waiting) for g in seen])
    frame: dict[str, Any] = {"shapes": shade(warm_up_s), "showlegend": True, "height": 280}
    seconds = "seconds since the start of the run"
    charts = []
    if kv["x"]:
        kv["hovertemplate"] = "%{y:.1%} at %{x:.1f} s<extra></extra>"
        charts.append(
            Chart(
                "Is the KV cache full?",
                "The share of the KV cache in use. At 100% the engine queues or preempts requests.",
                figure(
                    [kv, *shade_in_legend(warm_up_s)],
                    axis(seconds),
                    axis("KV cache in use", tickformat=".0%" if _peak(seen) > 0.04 else ".1%"),
                    **frame,
                ),
            )
        )
    if running["x"] or waiting["x"]:
        charts.append(
            Chart(
                "Does the engine keep up?",
                "Requests in the engine. A queue that keeps growing is overload.",
                figure(
                    [*(t for t in (running, waiting) if t["x"]), *shade_in_legend(warm_up_s)],
                    axis(seconds),
                    axis("requests"),
                    **frame,
                ),
            )
        )
    return charts


def _peak(seen: Sequence[Gauge]) -> float:
    return max((gauge.kv_usage or 0.0 for gauge in seen), default=0.0)


def _over_time(name: str, colour: str, readings: Sequence[tuple[float, float | None]]) -> Trace:
    points = _peaks([(at_s, value) for at_s, value in readings if value is not None])
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [round(at_s, 3) for at_s, _ in points],
        "y": [round(value, 4) for _, value in points],
        "line": {"color": colour, "width": 2, "shape": "hv"},
        "hovertemplate": f"%{{y}} {name} at %{{x:.1f}} s<extra></extra>",
    }


def _peaks(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """A sample that keeps every peak: of neighbours the highest."""
    width = -(-len(points) // POINT_LIMIT) or 1
    return [
        max(points[start : start + width], key=lambda point: point[1])
        for start in range(0, len(points), width)
    ]
