"""The charts of one run: latency distributions, each request's phases, and what the latencies depend on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phasewise.benchmark.engine_watch import gauges
from phasewise.benchmark.statistics.summary import Summary
from phasewise.core import latency
from phasewise.core.timeline import Outcome, Timeline
from phasewise.core.units import AxisScale, bound, duration, scale_for
from phasewise.report.bench.measured import MIN_GAPS, Measured, counted_by_engine, gaps_by_concurrency
from phasewise.report.charts import (
    Axis,
    Chart,
    ChartSeries,
    Mark,
    Panel,
    axis,
    even_sample,
    fitting_axis,
    rows_axis,
    shade,
    share_axis,
    upright,
)
from phasewise.report.time_parts import IN_ORDER, PhaseStyle, stretches

BAR_LIMIT = 400
"""At most this many requests are drawn as bars; more would be thinner than a pixel."""
POINT_LIMIT = 1000
"""More readings than this are sampled: a chart is about so many pixels wide."""
CURVE_POINTS = 200
TAIL_POINTS = 60
"""The slowest readings are all kept, because the tail matters most."""
FAR_BOUND = 2.5
"""An objective this many times the largest reading is named but not drawn."""
SECONDS = "seconds since the start of the run"

PERCENTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))


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
        _spread((name, question, of_what), sorted(values_s), summary, bound_s)
        for (name, question, of_what, summary, bound_s), values_s in zip(spreads, readings, strict=True)
        if values_s
    ]


def _spread(
    words: tuple[str, str, str], ordered_s: Sequence[float], summary: Summary, bound_s: float | None
) -> Chart:
    name, question, of_what = words
    scale, y = scale_for(ordered_s[-1]), share_axis(f"share of {of_what}")
    curve = cumulative(f"all {of_what}", "--accent", ordered_s, scale, of_what)
    marks = tuple(
        series
        for percentile, height in PERCENTILES
        if getattr(summary, percentile) is not None
        for series in _percentile_mark(percentile, height, summary, scale)
    )
    objective = _objective(bound_s, ordered_s[-1], scale, y)
    shown = [x for series in (curve, *objective) for x, *_ in series.points]
    return Chart(
        question,
        f"Height: the share of {of_what} with this {name} or less. A steeper curve is steadier; "
        "marks are percentiles with their 95% intervals.",
        fitting_axis(f"{name}, {scale.unit}", shown),
        (Panel(y, (curve, *objective, *marks), height=220),),
    )


def cumulative(
    name: str,
    colour: str,
    ordered_s: Sequence[float],
    scale: AxisScale,
    of_what: str,
    total: int | None = None,
) -> ChartSeries:
    """A cumulative distribution, sampled except for its tail; `total` counts missing readings too."""
    count = len(ordered_s)
    ranks = sorted({*even_sample(range(count), CURVE_POINTS), *range(max(count - TAIL_POINTS, 0), count)})
    points = tuple((scale.of(ordered_s[rank]), (rank + 1) / (total or count)) for rank in ranks)
    hover = f"{{y}} of {of_what} in {{x}} {scale.unit} or less"
    if count == 1:
        return ChartSeries(name, colour, Mark.DOTS, points, hover, size=8)
    return ChartSeries(name, colour, Mark.STEPS, points, hover)


def _objective(bound_s: float | None, largest_s: float, scale: AxisScale, y: Axis) -> tuple[ChartSeries, ...]:
    """The SLO's line; only its name if it is far beyond the readings."""
    if bound_s is None:
        return ()
    line = upright(f"SLO {bound(bound_s)}", scale.of(bound_s), y)
    if bound_s <= FAR_BOUND * largest_s:
        return (line,)
    return (ChartSeries(f"{line.name}, far right", line.colour, line.mark, (), dashed=True),)


def _percentile_mark(name: str, height: float, summary: Summary, scale: AxisScale) -> Iterator[ChartSeries]:
    value, interval = getattr(summary, name), getattr(summary, f"{name}_interval")
    at = value * scale.per_second
    if interval is not None:
        ends = ((interval[0] * scale.per_second, height, interval[1] * scale.per_second, height),)
        yield ChartSeries(f"{name} interval", "--text", Mark.SEGMENTS, ends, size=1.5, listed=False)
    said = f"{name} {duration(value)}"
    yield ChartSeries(said, "--text", Mark.DOTS, ((at, height),), texts=(said,), size=8)


def request_bars(measured: Measured) -> Chart | None:
    """Every request as a bar of its phases over the run, or an even sample of them."""
    timelines = measured.run.timelines
    if not timelines:
        return None
    drawn = even_sample(list(enumerate(timelines, start=1)), BAR_LIMIT)
    sampled = (
        f" Shown: {len(drawn)} of {len(timelines)} requests, evenly sampled."
        if len(drawn) < len(timelines)
        else ""
    )
    height = max(min(9 * len(drawn), 520), 100)
    # Rows that are left out leave no gaps.
    thickness = height / len(drawn) * (0.8 if len(drawn) <= 60 else 1.05)
    bars = _bars(measured, drawn, thickness)
    every = axis("", [1, len(timelines)], whole=True)
    y = rows_axis("request, by arrival", [tick for tick in every.ticks if tick[0] >= 1], len(timelines))
    x = axis(SECONDS, [end for series in bars for *_, end, _ in series.points])
    panel = Panel(
        y, (*shade(measured.report.window.start_s, y), *bars, *_failures(measured, drawn)), height=height
    )
    return Chart(
        "Where did each request's time go?",
        "One row per request, from its planned arrival to its last token. Wide "
        "bars before decode are slow starts, long decodes are slow streams, and a growing queue is overload."
        + sampled,
        x,
        (panel,),
    )


def _bars(
    measured: Measured, drawn: Sequence[tuple[int, Timeline]], thickness: float
) -> tuple[ChartSeries, ...]:
    found: dict[PhaseStyle, list[tuple[float, float, float, float]]] = {phase: [] for phase in IN_ORDER}
    for row, timeline in drawn:
        start_s = measured.arrival_s(timeline)
        for stretch in stretches(timeline):
            begin_s = start_s + stretch.start_s
            found[stretch.phase].append((begin_s, row, begin_s + stretch.seconds, row))
    return tuple(
        ChartSeries(
            phase.name,
            phase.colour,
            Mark.SEGMENTS,
            tuple(pieces),
            "{width} s, request {row}",
            size=thickness,
        )
        for phase, pieces in found.items()
        if any(end_s - begin_s >= 5e-5 for begin_s, _, end_s, _ in pieces)
    )


def _failures(measured: Measured, drawn: Sequence[tuple[int, Timeline]]) -> tuple[ChartSeries, ...]:
    failed = tuple(
        (measured.arrival_s(timeline) + timeline.ended_s, float(row))
        for row, timeline in drawn
        if timeline.outcome is not Outcome.SUCCEEDED
    )
    name = "not answered in full"
    return (ChartSeries(name, "--bad", Mark.DOTS, failed, "request {row}", size=7),) if failed else ()


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
    kinds = (("nothing cached", False, "--prefill"), ("prefix cached", True, "--engine-queue"))
    series = tuple(
        ChartSeries(
            name,
            colour,
            Mark.DOTS,
            tuple(
                (tokens, scale.of(s))
                for timeline, tokens, s in points
                if bool(timeline.cached_tokens) is cached
            ),
            f"TTFT {{y}} {scale.unit}, prompt {{x}} tokens",
            size=7,
            hollow=cached,
        )
        for name, cached, colour in kinds
    )
    return Chart(
        "Do longer prompts start later?",
        "One point per request. The rising line is prefill; points far above it waited for "
        "other requests, and cached prefixes lie below it.",
        axis("prompt length, tokens", [tokens for _, tokens, _ in points]),
        (
            Panel(
                fitting_axis(f"TTFT, {scale.unit}", [scale.of(first_s) for *_, first_s in points]),
                tuple(drawn for drawn in series if drawn.points),
            ),
        ),
    )


def itl_by_concurrency(measured: Measured) -> Chart | None:
    """The gaps between chunks against the number of requests that ran at the time."""
    groups = gaps_by_concurrency(measured)
    if not groups:
        return None
    scale = scale_for(max(group.p99_s or group.p90_s for group in groups))
    placed = [((group.low + group.high) / 2, group) for group in groups]
    half = 0.3 * max(groups[0].high - groups[0].low + 1, (groups[-1].high - groups[0].low) / 40)
    texts = tuple(
        f"{group.name} running: half of {group.gaps:,} gaps took {duration(group.p25_s)} to "
        f"{duration(group.p75_s)}, the median {duration(group.p50_s)}"
        for group in groups
    )
    whiskers = tuple((x, scale.of(group.p10_s), x, scale.of(group.p90_s)) for x, group in placed)
    boxes = tuple((x - half, scale.of(group.p25_s), x + half, scale.of(group.p75_s)) for x, group in placed)
    medians = tuple((x - half, scale.of(group.p50_s), x + half, scale.of(group.p50_s)) for x, group in placed)
    tails = [(x, group, group.p99_s) for x, group in placed if group.p99_s is not None]
    series = (
        ChartSeries("p10 to p90", "--decode", Mark.SEGMENTS, whiskers, size=1.5),
        ChartSeries("half of all gaps", "--decode-fill", Mark.BOXES, boxes, texts=texts),
        ChartSeries("median", "--decode", Mark.SEGMENTS, medians, size=2.5),
        ChartSeries(
            "p99, of 100 gaps or more",
            "--text",
            Mark.DOTS,
            tuple((x, scale.of(p99_s)) for x, _, p99_s in tails),
            texts=tuple(
                f"{group.name} running: p99 {duration(p99_s)} of {group.gaps:,} gaps"
                for _, group, p99_s in tails
            ),
            size=6,
        ),
    )
    values = [scale.of(value) for group in groups for value in (group.p10_s, group.p99_s or group.p90_s)]
    counted = (
        "requests running in the engine" if counted_by_engine(measured) else "streams open at this client"
    )
    return Chart(
        "Does batch size slow decode?",
        "Gaps between chunks by the number of running requests. Flat boxes: batching costs nothing yet. "
        "Rising boxes: a larger batch slows every stream. p99 far above its box: other requests' prefill "
        f"stalls it. Counts with fewer than {MIN_GAPS} gaps are left out.",
        axis(counted, [placed[0][0] - 2 * half, placed[-1][0] + 2 * half], from_zero=False, whole=True),
        (
            Panel(
                fitting_axis(f"ITL, {scale.unit}", values), tuple(drawn for drawn in series if drawn.points)
            ),
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
    kv = _over_time("KV cache in use", "--prefill", [(g.at_s, g.kv_usage) for g in seen], "{y} at {x} s")
    counts = (
        _over_time("running", "--decode", [(g.at_s, g.running) for g in seen], "{y} at {x} s"),
        _over_time("waiting", "--engine-queue", [(g.at_s, g.waiting) for g in seen], "{y} at {x} s"),
    )
    known = tuple(line for line in counts if line.points)
    charts = []
    if kv.points:
        charts.append(
            _load_chart(
                measured,
                "Is the KV cache full?",
                "The share of the KV cache in use. At 100% the engine queues or preempts requests.",
                share_axis("KV cache in use", max(value for _, value in kv.points) or 1.0),
                (kv,),
            )
        )
    if known:
        most = max(value for line in known for _, value in line.points)
        charts.append(
            _load_chart(
                measured,
                "Does the engine keep up?",
                "Requests in the engine. A queue that keeps growing is overload.",
                axis("requests", [most or 1.0], whole=True),
                known,
            )
        )
    return charts


def _load_chart(
    measured: Measured, question: str, caption: str, y: Axis, series: tuple[ChartSeries, ...]
) -> Chart:
    x = axis(SECONDS, [at_s for line in series for at_s, _ in line.points if at_s >= 0])
    shaded = shade(measured.report.window.start_s, y)
    return Chart(question, caption, x, (Panel(y, (*shaded, *series), height=200),))


def _over_time(
    name: str, colour: str, readings: Sequence[tuple[float, float | None]], hover: str
) -> ChartSeries:
    points = _peaks([(at_s, value) for at_s, value in readings if value is not None])
    return ChartSeries(name, colour, Mark.STEPS, tuple(points), hover)


def _peaks(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """A sample that keeps every peak: of neighbours the highest."""
    width = -(-len(points) // POINT_LIMIT) or 1
    return [
        max(points[start : start + width], key=lambda point: point[1])
        for start in range(0, len(points), width)
    ]
