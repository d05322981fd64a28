"""A scene of stalls as a chart: steps as bars, and above them the streams that they serve."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from phasewise.core.steps import EngineStep, TimedStep
from phasewise.core.units import count, duration
from phasewise.report.charts import (
    Axis,
    Chart,
    ChartSeries,
    Label,
    Mark,
    Panel,
    Point,
    axis,
    fitting_axis,
    rows_axis,
)
from phasewise.report.diagnosis.stall_scene import TICK_LIMIT, DrawnStream, StallScene

STEPS_HEIGHT = 170
ROW_PX = 17
ID_LETTERS = 8
"""Labels show the end of a request's id, hovering shows all of it."""
CHUNK = "a chunk of text"

Chosen = Callable[[EngineStep], bool]
KINDS: tuple[tuple[str, str, Chosen], ...] = (
    ("prompts only", "--prefill", lambda step: bool(step.prompt_tokens) and not step.decode_tokens),
    ("prompts and streams", "--objective", lambda step: bool(step.prompt_tokens and step.decode_tokens)),
    ("streams only", "--decode", lambda step: step.prompt_tokens == 0),
    ("contents not recorded", "--client-lag", lambda step: step.prompt_tokens is None),
)


def step_chart(scene: StallScene, question: str, origin_unix_s: float) -> Chart:
    """A scene as one chart; times count from `origin_unix_s`, the start of the window."""
    heights = fitting_axis("step, ms", [(timed.duration_s or 0.0) * 1000 for timed in scene.steps])
    ends = [scene.begin_unix_s - origin_unix_s, scene.end_unix_s - origin_unix_s]
    panels = []
    if scene.streams:
        names = [(row, stream.request_id[-ID_LETTERS:]) for row, stream in enumerate(scene.streams, start=1)]
        rows = rows_axis("streams", names, len(names))
        series = (*_bands(scene, origin_unix_s, rows), *_streams(scene.streams, origin_unix_s))
        panels.append(Panel(rows, series, height=ROW_PX * len(names) + 10))
    series = (*_bands(scene, origin_unix_s, heights), *_steps(scene, origin_unix_s, heights))
    panels.append(Panel(heights, series, STEPS_HEIGHT, tuple(_labels(scene, origin_unix_s, heights))))
    return Chart(
        question, _caption(scene), axis("seconds of the window", ends, from_zero=False), tuple(panels)
    )


def _caption(scene: StallScene) -> str:
    stalls = " Red bars are stalls; a numbered band leads down to the step that caused them."
    return (
        f"Below: the steps of {scene.engine}; width and height show their duration. Above: a row for each "
        f"stream with a mark for each chunk of text.{stalls if scene.events else ''}"
        + (f" Not drawn: {'; '.join(scene.left_out)}." if scene.left_out else "")
    )


def _steps(scene: StallScene, origin_s: float, heights: Axis) -> Iterator[ChartSeries]:
    for name, colour, chosen in KINDS:
        if steps := [timed for timed in scene.steps if chosen(timed.step)]:
            boxes = tuple(
                (
                    _start_s(timed) - origin_s,
                    heights.low,
                    timed.step.ended_unix_s - origin_s,
                    (timed.duration_s or 0.0) * 1000,
                )
                for timed in steps
            )
            yield ChartSeries(name, colour, Mark.BOXES, boxes, texts=tuple(map(_step_in_words, steps)))


def _start_s(timed: TimedStep) -> float:
    return timed.step.ended_unix_s - (timed.duration_s or 0.0)


def _step_in_words(timed: TimedStep) -> str:
    step = timed.step
    return (
        f"step {step.seq}: {duration(timed.duration_s)}, {count(step.prompt_tokens)} prompt and "
        f"{count(step.decode_tokens)} decode tokens; then {step.running} running, {step.waiting} waiting"
    )


def _streams(streams: Sequence[DrawnStream], origin_s: float) -> list[ChartSeries]:
    """The legend's mark for a chunk, a series for each stream, and all stalls."""
    all_drawn = sum(len(stream.tokens_unix_s) for stream in streams) <= TICK_LIMIT
    series = [ChartSeries(CHUNK, "--muted", Mark.SEGMENTS, ())]
    stalled: list[Point] = []
    texts: list[str] = []
    for row, stream in enumerate(streams, start=1):
        name, times = stream.request_id, stream.tokens_unix_s
        shown = times if all_drawn else (*times[:1], *times[-1:])
        ticks = tuple((at_s - origin_s, row + 0.25, at_s - origin_s, row - 0.25) for at_s in shown)
        hover = "a chunk at {x} s"
        series.append(ChartSeries(name, "--muted", Mark.SEGMENTS, ticks, hover, size=1, listed=False))
        stalled += [
            (begin_s - origin_s, row, end_s - origin_s, row) for begin_s, end_s in stream.stalls_unix_s
        ]
        texts += [
            f"{name} stalled for {duration(end_s - begin_s)}" for begin_s, end_s in stream.stalls_unix_s
        ]
    if stalled:
        series.append(
            ChartSeries("a stall", "--bad", Mark.SEGMENTS, tuple(stalled), texts=tuple(texts), size=5)
        )
    return series


def _bands(scene: StallScene, origin_s: float, y: Axis) -> tuple[ChartSeries, ...]:
    boxes = tuple(
        (event.begin_unix_s - origin_s, y.low, event.end_unix_s - origin_s, y.high) for event in scene.events
    )
    return (ChartSeries("stalled time", "--bad-surface", Mark.BOXES, boxes, listed=False),) if boxes else ()


def _labels(scene: StallScene, origin_s: float, heights: Axis) -> list[Label]:
    """Each stall's number above its step, or at the foot of its band where there was none."""
    labels = []
    for number, event in enumerate(scene.events, start=1):
        at_s = (event.begin_unix_s + event.end_unix_s) / 2
        height = heights.low
        if event.step is not None and event.step.duration_s:
            at_s = _start_s(event.step) + event.step.duration_s / 2
            height = event.step.duration_s * 1000
        labels.append(Label(at_s - origin_s, height, str(number), boxed=True))
    return labels
