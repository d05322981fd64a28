"""The charts of one run: latency distributions, each request's phases, and what the latencies depend on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from phasewise.benchmark.engine_watch import Gauge, gauges
from phasewise.benchmark.statistics.summary import Summary
from phasewise.core import latency
from phasewise.core.timeline import Outcome, Timeline
from phasewise.core.units import AxisScale, bound, duration, scale_for
from phasewise.report.bench.measured import (
    MIN_GAPS,
    TAIL_GAPS,
    Measured,
    counted_by_engine,
    gaps_by_concurrency,
)
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
    ttft_s, tpot_s = measured.readings_s(latency.ttft_s), measured.readings_s(latency.tpot_s)
    gaps_s = [gap for timeline in measured.counted for gap in latency.chunk_gaps_s(timeline)]
    spreads = (
        ("TTFT", "How long until the first token?", "requests", ttft_s, report.ttft_s, slo.ttft_s),
        ("TPOT", "How fast is the stream?", "requests", tpot_s, report.tpot_s, slo.tpot_s),
        ("ITL", "How long are the gaps?", "gaps", gaps_s, report.itl_pooled_s, None),
    )
    return [_spread(*spread) for spread in spreads if spread[3]]


def _spread(
    name: str, question: str, of_what: str, values_s: Sequence[float], summary: Summary, bound_s: float | None
) -> Chart:
    ordered_s = sorted(values_s)
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
    sampled = f" Shown: {len(drawn)} of {len(timelines)} requests, evenly sampled."
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
        + (sampled if len(drawn) < len(timelines) else ""),
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
    series = []
    for name, cached, colour in (
        ("nothing cached", False, "--prefill"),
        ("prefix cached", True, "--engine-queue"),
    ):
        kind = tuple(
            (tokens, scale.of(first_s))
            for timeline, tokens, first_s in points
            if bool(timeline.cached_tokens) is cached
        )
        if kind:
            hover = f"TTFT {{y}} {scale.unit}, prompt {{x}} tokens"
            series.append(ChartSeries(name, colour, Mark.DOTS, kind, hover, size=7, hollow=cached))
    heights = [scale.of(first_s) for *_, first_s in points]
    return Chart(
        "Do longer prompts start later?",
        "One point per request. The rising line is prefill; points far above it waited for "
        "other requests, and cached prefixes lie below it.",
        axis("prompt length, tokens", [tokens for _, tokens, _ in points]),
        (Panel(fitting_axis(f"TTFT, {scale.unit}", heights), tuple(series)),),
    )


def itl_by_concurrency(measured: Measured) -> Chart | None:
    """The gaps between chunks against the number of requests that ran at the time."""
    groups = gaps_by_concurrency(measured)
    if not groups:
        return None
    scale = scale_for(max(group.top_s for group in groups))
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
    tails = [(x, group) for x, group in placed if group.gaps >= TAIL_GAPS]
    dots = tuple((x, scale.of(group.p99_s)) for x, group in tails)
    named = tuple(
        f"{group.name} running: p99 {duration(group.p99_s)} of {group.gaps:,} gaps" for _, group in tails
    )
    series = (
        ChartSeries("p10 to p90", "--decode", Mark.SEGMENTS, whiskers, size=1.5),
        ChartSeries("half of all gaps", "--decode-fill", Mark.BOXES, boxes, texts=texts),
        ChartSeries("median", "--decode", Mark.SEGMENTS, medians, size=2.5),
        ChartSeries(f"p99, of {TAIL_GAPS} gaps or more", "--text", Mark.DOTS, dots, texts=named, size=6),
    )
    values = [scale.of(value) for group in groups for value in (group.p10_s, group.top_s)]
    counted = (
        "requests running in the engine" if counted_by_engine(measured) else "streams open at this client"
    )
    return Chart(
        "Does batch size slow decode?",
        "Gaps between chunks by the number of running requests. Flat boxes: batching costs nothing yet. "
        "Rising boxes: a larger batch slows every stream. p99 far above its box: other requests' prefill "
        f"stalls it. Counts with fewer than {MIN_GAPS} gaps are left out.",
        axis(counted, [placed[0][0] - 2 * half, placed[-1][0] + 2 * half], from_zero=False, whole=True),
        (Panel(fitting_axis(f"ITL, {scale.unit}", values), tuple(line for line in series if line.points)),),
    )


def fullness(measured: Measured) -> list[Chart]:
    """The engine's load over the run; empty if the engine did not report it."""
    run, warm_up_s = measured.run, measured.report.window.start_s
    if run.engine is None:
        return []
    seen = [
        gauge for gauge in gauges(run.engine, run.started_unix_s) if -1.0 <= gauge.at_s <= run.wall_s + 2.0
    ]

    def line(name: str, colour: str, read: Callable[[Gauge], float | None]) -> ChartSeries:
        points = [(gauge.at_s, value) for gauge in seen if (value := read(gauge)) is not None]
        return ChartSeries(name, colour, Mark.STEPS, tuple(_peaks(points)), "{y} at {x} s")

    def chart(
        question: str, caption: str, scale: Callable[[float], Axis], *lines: ChartSeries
    ) -> Chart | None:
        drawn = tuple(line for line in lines if line.points)
        if not drawn:
            return None
        y = scale(max(value for line in drawn for _, value in line.points) or 1.0)
        x = axis(SECONDS, [at_s for line in drawn for at_s, _ in line.points if at_s >= 0])
        return Chart(question, caption, x, (Panel(y, (*shade(warm_up_s, y), *drawn), height=200),))

    charts = (
        chart(
            "Is the KV cache full?",
            "The share of the KV cache in use. At 100% the engine queues or preempts requests.",
            lambda most: share_axis("KV cache in use", most),
            line("KV cache in use", "--prefill", lambda gauge: gauge.kv_usage),
        ),
        chart(
            "Does the engine keep up?",
            "Requests in the engine. A queue that keeps growing is overload.",
            lambda most: axis("requests", [most], whole=True),
            line("running", "--decode", lambda gauge: gauge.running),
            line("waiting", "--engine-queue", lambda gauge: gauge.waiting),
        ),
    )
    return [found for found in charts if found is not None]


def _peaks(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """A sample that keeps every peak: of neighbours the highest."""
    width = -(-len(points) // POINT_LIMIT) or 1
    return [
        max(points[start : start + width], key=lambda point: point[1])
        for start in range(0, len(points), width)
    ]
