"""One request drawn as a textbook does: its prefill, every decode step, and the KV cache growing.

Drawings are SVG that stretches to the width of the page, so they hold shapes only; words stand beside them.
Colours are the names of CSS variables in report/assets/style.css.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from phasewise.core.latency import e2e_s, ttft_s
from phasewise.core.timeline import Part, Timeline
from phasewise.core.units import counted, duration, size
from phasewise.costs.roofline.architecture import Architecture
from phasewise.costs.roofline.step_demand import PrefillChunk, StepDemand, demand_of
from phasewise.diagnosis.analysis.request_life import RequestLife, StepRole, even_shares
from phasewise.report.charts import even_sample
from phasewise.report.markup import Html, element, swatched, table
from phasewise.report.time_parts import PHASES, stretches

WIDE = 1000.0
"""The width of a drawing in its own units."""
WIDEST_GAP = 1.5
"""The widest gap between two steps that are drawn: a wider one would look like a pause."""
MOST_STEPS = 1_500
"""More steps than this are sampled: they would be thinner than a pixel."""
MOST_COLUMNS = 60
"""The KV cache is drawn at most so many cells high and wide; of a longer one, a cell is several tokens."""
PROMPT_ROWS = 14
KV_ELEMENT_BYTES = 2.0

PREFILL, DECODE = "--prefill", "--decode"
OTHERS, FROM_CACHE, STREAMS = "--prefill-others", "--cache-look-up", "--accent"
WEIGHTS, KV = "--muted", "--kv-transfer"
FAINT = 0.35
"""The opacity of what was written before and is read again."""

_Box = tuple[float, float, float, float]
"""Left, top, width and height."""


@dataclass(frozen=True, slots=True)
class DrawnStep:
    """A step, or without a step record a chunk, that computed tokens of the request.

    `cached_tokens` are in its KV cache afterwards; what others had in the step is None if it is not recorded.
    """

    start_s: float
    end_s: float
    is_prefill: bool
    own_tokens: int
    cached_tokens: int
    other_prompt_tokens: int | None = None
    other_streams: int | None = None

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


def drawn_steps(life: RequestLife) -> tuple[DrawnStep, ...]:
    """The steps that computed its tokens; without a record of them, its prefill and its chunks.

    None for a stored answer, and for several choices, whose streams are interleaved.
    """
    own = life.of(StepRole.PREFILL, StepRole.DECODE)
    if life.timeline.from_cache or life.timeline.choices != 1:
        return ()
    if not own:
        return tuple(_chunks(life.timeline))
    return tuple(
        DrawnStep(
            step.start_s,
            step.end_s,
            step.role is StepRole.PREFILL,
            step.own_tokens,
            step.cached_tokens,
            step.other_prompt_tokens,
            step.other_streams,
        )
        for step in own
    )


def _chunks(timeline: Timeline) -> Iterator[DrawnStep]:
    first_s = ttft_s(timeline)
    if first_s is None:
        return
    reading = timeline.reading_attempt
    reported = (span.duration_s for span in (reading.spans if reading else ()) if span.part is Part.PREFILL)
    prompt = timeline.prompt_tokens or 0
    began_s = max(0.0, first_s - next(reported, first_s))
    yield DrawnStep(began_s, first_s, True, prompt - (timeline.cached_tokens or 0), prompt)
    times_s = timeline.content_times_s
    held = prompt
    shares = even_shares((timeline.output_tokens or len(times_s)) - 1, len(times_s) - 1)
    for (before_s, at_s), tokens in zip(pairwise(times_s), shares, strict=True):
        held += tokens
        yield DrawnStep(before_s, at_s, False, tokens, held)


# --- Shapes.


def _boxes(boxes: Iterable[_Box], colour: str, *, faint: bool = False) -> Html:
    """Rectangles of one colour as a single path."""
    path = "".join(f"M{x:.5g} {y:.5g}h{w:.4g}v{h:.4g}h-{w:.4g}z" for x, y, w, h in boxes if w > 0 and h > 0)
    opacity = f";fill-opacity:{FAINT:g}" if faint else ""
    return element("path", d=path, style=f"fill:var({colour}){opacity}") if path else Html("")


def _drawing(label: str, height: float, pixels: int, *shapes: Html, width: float = WIDE) -> Html:
    return element(
        "svg",
        *shapes,
        viewBox=f"0 0 {width:g} {height:g}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
        class_="drawn",
        style=f"height:{pixels}px",
    )


def _axis(*labels: str) -> Html:
    return element("div", *(element("span", label) for label in labels), class_="axis")


def legend(*entries: tuple[str, str]) -> Html:
    return element("p", *(element("span", swatched(*entry)) for entry in entries), class_="parts")


def _figure(question: str, caption: str, *content: str) -> Html:
    return element("figure", element("h3", question), *content, element("figcaption", caption))


# --- The request from its arrival to its end, and its steps.


def whole_life(life: RequestLife, steps: Sequence[DrawnStep]) -> Html:
    """All of its time to scale: the parts of TTFT one after the other, then every decode step."""
    timeline = life.timeline
    end_s = e2e_s(timeline) or timeline.ended_s
    scale = WIDE / end_s if end_s > 0 else 0.0
    parts = [stretch for stretch in stretches(timeline) if stretch.phase is not PHASES[Part.DECODE]]
    shapes = [
        _boxes([(stretch.start_s * scale, 0.0, stretch.seconds * scale, 10.0)], stretch.phase.colour)
        for stretch in parts
    ]
    decode = [step for step in even_sample(steps, MOST_STEPS) if not step.is_prefill]
    shapes.append(_boxes(_slots(decode, 0.0, scale, 0.0, 10.0), DECODE))
    entries = [
        (stretch.phase.colour, f"{stretch.phase.name} {duration(stretch.seconds)}") for stretch in parts
    ]
    if decode:
        entries.append(
            (DECODE, f"decode {duration(sum(step.seconds for step in steps if not step.is_prefill))}")
        )
    return _figure(
        "The whole request, to scale",
        "From its arrival at the gateway to its end. For most parts until the first token only the duration "
        "is known: they are drawn in their usual order.",
        _drawing("the request's parts in proportion", 10, 46, *shapes),
        _axis("0", duration(end_s / 2), duration(end_s)),
        legend(*entries),
    )


def _slots(
    steps: Iterable[DrawnStep], from_s: float, scale: float, top: float, height: float
) -> Iterator[_Box]:
    """A box for each step, with a gap to the next one."""
    for step in steps:
        width = step.seconds * scale
        yield (step.start_s - from_s) * scale, top, max(width - min(0.1 * width, WIDEST_GAP), 0.4), height


def own_steps(steps: Sequence[DrawnStep], *, recorded: bool) -> Html:
    """Its prefill and every decode step to scale, with what other requests had in them."""
    from_s, end_s = steps[0].start_s, steps[-1].end_s
    scale = WIDE / (end_s - from_s) if end_s > from_s else 0.0
    shown = even_sample(steps, MOST_STEPS)
    prefill = [step for step in shown if step.is_prefill]
    decode = [step for step in shown if not step.is_prefill]
    joined = [step for step in shown if step.other_prompt_tokens]
    most = max((step.other_streams or 0 for step in shown), default=0)
    shapes = [
        _boxes(_slots(prefill, from_s, scale, 0.0, 20.0), PREFILL),
        _boxes(_slots(decode, from_s, scale, 0.0, 20.0), DECODE),
        _boxes(_slots(joined, from_s, scale, 0.0, 7.0), OTHERS),
    ]
    drawings = [_drawing("the prefill and every decode step in time", 20, 80, *shapes)]
    entries = [(PREFILL, "prefill"), (DECODE, "decode")]
    if joined:
        entries.append((OTHERS, "other requests' prompts in the same step"))
    if most:
        bars = [
            (
                x,
                20.0 - 20.0 * (step.other_streams or 0) / most,
                width,
                20.0 * (step.other_streams or 0) / most,
            )
            for step in shown
            for x, _, width, _ in _slots([step], from_s, scale, 0.0, 20.0)
        ]
        drawings.append(_drawing("other streams in each step", 20, 40, _boxes(bars, STREAMS)))
        entries.append((STREAMS, f"other streams in the step, at most {most}"))
    left_out = f" Every {ceil(len(steps) / len(shown))}th is drawn." if len(shown) < len(steps) else ""
    what = "step" if recorded else "chunk"
    longest = max(steps, key=lambda step: step.seconds)
    return _figure(
        f"Its prefill and its {counted(sum(not step.is_prefill for step in steps), f'decode {what}')}",
        "Widths are to scale; the height of a block means nothing. A wide block took long: the longest took "
        f"{duration(longest.seconds)}."
        + (" A band marks other requests' prompts, not their share of the step." if joined else "")
        + ("" if recorded else " Without a step record, a block is the time from one chunk to the next.")
        + left_out,
        *drawings,
        _axis(duration(from_s), duration((from_s + end_s) / 2), duration(end_s)),
        legend(*entries),
    )


# --- The KV cache.


def kv_cache(steps: Sequence[DrawnStep], prompt_tokens: int, from_cache_tokens: int) -> Html:
    """A column of cells for each step: the prompt below, and a new cell on top for each token."""
    decode = [step for step in steps if not step.is_prefill]
    written = sum(step.own_tokens for step in decode)
    cell = max(1, ceil(max(written, len(decode)) / MOST_COLUMNS))
    after = [
        0,
        *(sum(step.own_tokens for step in decode[: place + cell]) for place in range(0, len(decode), cell)),
    ]
    heights = [ceil(tokens / cell) for tokens in after]
    rows, columns = max(heights), len(heights)
    prompt_rows = min(PROMPT_ROWS, prompt_tokens)
    cached_rows = round(prompt_rows * from_cache_tokens / prompt_tokens) if prompt_tokens else 0

    def cells(column: int, low: int, high: int) -> Iterator[_Box]:
        for row in range(low, high):
            yield 10.0 * column, 10.0 * (rows + prompt_rows - row - 1), 9.0, 9.0

    def all_cells(bounds: Iterable[tuple[int, int]]) -> Iterator[_Box]:
        for column, (low, high) in enumerate(bounds):
            yield from cells(column, low, high)

    before = [0, *heights[:-1]]
    new = zip(before, heights, strict=True)
    again = [(0, 0), *((cached_rows, prompt_rows) for _ in heights[1:])]
    shapes = (
        _boxes(all_cells((0, cached_rows) for _ in heights), FROM_CACHE, faint=True),
        _boxes(cells(0, cached_rows, prompt_rows), PREFILL),
        _boxes(all_cells(again), PREFILL, faint=True),
        _boxes(all_cells((prompt_rows, prompt_rows + low) for low in before), DECODE, faint=True),
        _boxes(all_cells((prompt_rows + low, prompt_rows + high) for low, high in new), DECODE),
    )
    entries = [(PREFILL, f"written by the prefill: {prompt_tokens - from_cache_tokens:,} prompt tokens")]
    if from_cache_tokens:
        entries.insert(0, (FROM_CACHE, f"from the prefix cache: {from_cache_tokens:,} prompt tokens"))
    entries.append((DECODE, "written by this decode step; faint: written before, and read again"))
    each = "one token" if cell == 1 else f"{cell} tokens, a column {cell} steps"
    last = steps[-1].cached_tokens
    return _figure(
        f"The KV cache grows from {prompt_tokens:,} to {last:,} tokens",
        "The first column is the prefill, each further one a decode step. A cell above the prompt is "
        f"{each}; the prompt is drawn as {counted(prompt_rows, 'row')} of cells, whatever its length. The "
        "last output token is never written: nothing is computed after it.",
        _drawing(
            "the KV cache after each step",
            10.0 * (rows + prompt_rows),
            min(320, 60 + 9 * (rows + prompt_rows)),
            *shapes,
            width=10.0 * columns,
        ),
        _axis("prefill", f"decode step {len(decode):,}" if decode else ""),
        legend(*entries),
    )


# --- Bytes per step, by the model's shape.


def bytes_read(steps: Sequence[DrawnStep], model: Architecture) -> Html:
    """What each of its steps has to read from memory: the weights once, and its KV cache."""
    shown = even_sample(steps, 4 * MOST_COLUMNS)
    demands = [_demand(step, model) for step in shown]
    most = max(demand.weight_bytes + demand.kv_read_bytes for demand in demands)

    def bars(low: Sequence[float], high: Sequence[float]) -> Iterator[_Box]:
        for place, (under, over) in enumerate(zip(low, high, strict=True)):
            yield 10.0 * place, 100.0 * (1 - (under + over) / most), 9.0, 100.0 * over / most

    weights, kv = [demand.weight_bytes for demand in demands], [demand.kv_read_bytes for demand in demands]
    decode = [step for step in steps if not step.is_prefill]
    named = [("prefill", steps[0])] if steps[0].is_prefill else []
    named += [("first decode step", decode[0]), ("last decode step", decode[-1])] if decode else []
    rows = [(name, *_row(step, _demand(step, model))) for name, step in named]
    return _figure(
        f"Every step reads {size(weights[0])} of weights, however few tokens it computes",
        f"Calculated from the model's configuration with {KV_ELEMENT_BYTES:g} bytes per KV element, for this "
        "request alone: other streams in a step share the weights and read KV caches of their own. The rate "
        "is the memory bandwidth that it takes to read these bytes in the step's time. An engine with "
        "another number format of weights or KV cache reads more or less.",
        _drawing("bytes read by each step", 100, 120, _boxes(bars([0.0] * len(shown), weights), WEIGHTS),
                 _boxes(bars(weights, kv), KV), width=10.0 * len(shown)),
        _axis("first step", f"last step, {size(weights[-1] + kv[-1])}"),
        legend((WEIGHTS, "weights"), (KV, f"its KV cache, up to {size(max(kv))}")),
        table(("step", "weights", "KV read", "KV written", "took", "rate"), rows),
    )  # fmt: skip


def _demand(step: DrawnStep, model: Architecture) -> StepDemand:
    before = step.cached_tokens - step.own_tokens
    chunk = PrefillChunk(max(1, step.own_tokens), before, decoding=not step.is_prefill)
    return demand_of(model, KV_ELEMENT_BYTES, (chunk,))


def _row(step: DrawnStep, demand: StepDemand) -> tuple[str, ...]:
    read = demand.weight_bytes + demand.kv_read_bytes
    rate = f"{size(read / step.seconds)}/s" if step.seconds > 0 else ""
    sizes = (demand.weight_bytes, demand.kv_read_bytes, demand.kv_written_bytes)
    return (*map(size, sizes), duration(step.seconds), rate)
