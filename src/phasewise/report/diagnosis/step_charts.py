"""The stalls on the engine's step record: steps as bars, and above them the streams that they serve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log10
from typing import Any

from phasewise.core.steps import EngineStep, TimedStep
from phasewise.core.units import count, duration
from phasewise.report.diagnosis.stall_scene import TICK_LIMIT, DrawnStream, StallScene
from phasewise.report.figures import Axis, Chart, Trace, axis, figure, fitting_axis, plain

STEPS_HEIGHT = 0.46
"""The share of the chart's height for the steps; the streams are above."""
ROW_PX = 17
EDGED_STEPS = 150
"""Up to this many steps get an edge."""
ID_LETTERS = 8
"""Labels show the end of a request's id, hovering shows all of it."""

Chosen = Callable[[EngineStep], bool]
KINDS: tuple[tuple[str, str, Chosen], ...] = (
    ("prompts only", "--prefill", lambda step: bool(step.prompt_tokens) and not step.decode_tokens),
    ("prompts and streams", "--objective", lambda step: bool(step.prompt_tokens and step.decode_tokens)),
    ("streams only", "--decode", lambda step: step.prompt_tokens == 0),
    ("contents not recorded", "--client-lag", lambda step: step.prompt_tokens is None),
)


def step_chart(scene: StallScene, question: str, origin_unix_s: float) -> Chart:
    """A scene as one chart; times count from `origin_unix_s`, the start of the window."""
    heights = [(timed.duration_s or 0.0) * 1000 for timed in scene.steps]
    duration_axis = fitting_axis("step, ms", heights)
    # The caption says that the axis is logarithmic; the title must stay short.
    duration_axis["title"] = {"text": "step, ms", "standoff": 8}
    logarithmic = duration_axis.get("type") == "log"
    traces = [*_steps(scene, origin_unix_s), *_streams(scene.streams, origin_unix_s)]
    rows = len(scene.streams)
    drawn = figure(
        traces,
        axis(
            "seconds of the window",
            range=[scene.begin_unix_s - origin_unix_s, scene.end_unix_s - origin_unix_s],
            anchor="y",
            rangemode="normal",
        ),
        {**duration_axis, "domain": [0, STEPS_HEIGHT if rows else 1]},
        height=300 + ROW_PX * rows,
        # Two rows of the legend.
        margin={"l": 8, "r": 12, "t": 52, "b": 8},
        yaxis2=_stream_axis(scene.streams),
        barmode="overlay",
        bargap=0,
        hovermode="closest",
        shapes=_bands(scene, origin_unix_s),
        annotations=_labels(scene, origin_unix_s, logarithmic=logarithmic),
        showlegend=True,
    )
    return Chart(question, _caption(scene, logarithmic=logarithmic), drawn)


def _caption(scene: StallScene, *, logarithmic: bool) -> str:
    left_out = f" Not drawn: {'; '.join(scene.left_out)}." if scene.left_out else ""
    heights = " (heights are logarithmic)" if logarithmic else ""
    text = (
        f"Below: the steps of {scene.engine}; width and height show their duration{heights}. Above: a row "
        "for each stream with a mark for each chunk of text."
    )
    if scene.events:
        text += " Red bars are stalls; a numbered band leads down to the step that caused them."
    return text + left_out


def _steps(scene: StallScene, origin_s: float) -> list[Trace]:
    traces = []
    for name, colour, chosen in KINDS:
        steps = [timed for timed in scene.steps if chosen(timed.step)]
        if steps:
            traces.append(_step_bars(name, colour, steps, origin_s, edges=len(scene.steps) <= EDGED_STEPS))
    return traces


def _step_bars(name: str, colour: str, steps: Sequence[TimedStep], origin_s: float, *, edges: bool) -> Trace:
    return {
        "type": "bar",
        "name": name,
        "x": [round(_middle_s(timed) - origin_s, 4) for timed in steps],
        "width": [round(timed.duration_s or 0.0, 4) for timed in steps],
        "y": [round((timed.duration_s or 0.0) * 1000, 2) for timed in steps],
        "customdata": [_step_in_words(timed) for timed in steps],
        "marker": {"color": colour, "line": {"width": 0.5 if edges else 0, "color": "--surface"}},
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _middle_s(timed: TimedStep) -> float:
    return timed.step.ended_unix_s - (timed.duration_s or 0.0) / 2


def _step_in_words(timed: TimedStep) -> str:
    step = timed.step
    return (
        f"step {step.seq}: {duration(timed.duration_s)}, {count(step.prompt_tokens)} prompt and "
        f"{count(step.decode_tokens)} decode tokens<br>then {step.running} running, {step.waiting} waiting"
    )


def _streams(streams: Sequence[DrawnStream], origin_s: float) -> list[Trace]:
    if not streams:
        return []
    ticks = sum(len(stream.tokens_unix_s) for stream in streams)
    marked = [
        (at_s - origin_s, row, stream.request_id)
        for row, stream in enumerate(streams)
        for at_s in (stream.tokens_unix_s if ticks <= TICK_LIMIT else _ends(stream.tokens_unix_s))
    ]
    stalled = [
        (begin_s - origin_s, end_s - origin_s, row, stream.request_id)
        for row, stream in enumerate(streams)
        for begin_s, end_s in stream.stalls_unix_s
    ]
    traces: list[Trace] = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "a chunk of text",
            "yaxis": "y2",
            "x": [round(at_s, 4) for at_s, _, _ in marked],
            "y": [row for _, row, _ in marked],
            "customdata": [plain(request_id) for _, _, request_id in marked],
            "marker": {"color": "--muted", "symbol": "line-ns-open", "size": 7, "line": {"width": 1}},
            "hovertemplate": "%{customdata} at %{x:.3f} s<extra></extra>",
        }
    ]
    if stalled:
        traces.append(_stall_lines(stalled))
    return traces


def _ends(times: Sequence[float]) -> Sequence[float]:
    return (times[0], times[-1]) if times else ()


def _stall_lines(stalled: Sequence[tuple[float, float, int, str]]) -> Trace:
    """All stalls as one line with gaps between them."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "a stall",
        "yaxis": "y2",
        "x": [x for begin, end, _, _ in stalled for x in (round(begin, 4), round(end, 4), None)],
        "y": [y for _, _, row, _ in stalled for y in (row, row, None)],
        "customdata": [
            text
            for begin, end, _, request_id in stalled
            for text in (f"{plain(request_id)} stalled for {duration(end - begin)}",) * 3
        ],
        "line": {"color": "--bad", "width": 5},
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _stream_axis(streams: Sequence[DrawnStream]) -> Axis:
    rows = list(range(len(streams)))
    return {
        **axis("streams", rangemode="normal", showgrid=False, zeroline=False),
        "domain": [STEPS_HEIGHT + 0.06, 1],
        "tickvals": rows,
        "ticktext": [plain(stream.request_id[-ID_LETTERS:]) for stream in streams],
        "tickfont": {"size": 10},
        "range": [len(rows) - 0.4, -0.6],
        "anchor": "x",
        "visible": bool(rows),
    }


def _bands(scene: StallScene, origin_s: float) -> list[dict[str, Any]]:
    return [
        {
            "type": "rect",
            "x0": round(event.begin_unix_s - origin_s, 4),
            "x1": round(event.end_unix_s - origin_s, 4),
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "fillcolor": "--bad-surface",
            "line": {"width": 0},
            "layer": "below",
        }
        for event in scene.events
    ]


def _labels(scene: StallScene, origin_s: float, *, logarithmic: bool) -> list[dict[str, Any]]:
    """Each stall's number with an arrow to its step, or at the foot of its band where there was none."""
    labels = []
    for number, event in enumerate(scene.events, start=1):
        at_s = (event.begin_unix_s + event.end_unix_s) / 2
        height = None if event.step is None else (event.step.duration_s or 0.0) * 1000
        if event.step is not None and height:
            at_s = _middle_s(event.step)
        label: dict[str, Any] = {
            "x": round(at_s - origin_s, 4),
            "text": f"<b>{number}</b>",
            "font": {"color": "--bad", "size": 13},
            "bgcolor": "--surface",
            "bordercolor": "--bad",
            "borderpad": 2,
            "arrowcolor": "--bad",
            "arrowwidth": 1.5,
            "showarrow": True,
            "ax": 0,
            "ay": -24,
        }
        # On a logarithmic axis, plotly expects an annotation's position as a logarithm.
        place = log10(height) if height and logarithmic else height
        labels.append(label | ({"y": place} if place is not None else {"yref": "paper", "y": 0.1}))
    return labels
