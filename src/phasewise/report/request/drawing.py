"""One request drawn as a textbook does: its prefill, every decode step, and the KV cache growing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil

from phasewise.core.latency import e2e_s, ttft_s
from phasewise.core.timeline import Part, Timeline
from phasewise.core.units import counted, duration, size
from phasewise.costs.roofline.architecture import Architecture
from phasewise.costs.roofline.step_demand import PrefillChunk, StepDemand, demand_of
from phasewise.diagnosis.analysis.request_life import RequestLife, StepRole, even_shares
from phasewise.report.charts import Axis, Chart, ChartSeries, Mark, Panel, axis, even_sample
from phasewise.report.drawn_charts import drawn
from phasewise.report.markup import Html, table, together
from phasewise.report.time_parts import PHASES, stretches

WIDEST_GAP = 0.0015
"""The widest gap between two steps, as a share of the drawing: a wider one would look like a pause."""
NARROWEST = 0.0004
"""A block is drawn at least this wide, as a share of the drawing."""
MOST_STEPS = 1_500
"""More steps than this are sampled: they would be thinner than a pixel."""
MOST_COLUMNS = 60
"""The KV cache is drawn after at most so many steps."""
KV_ELEMENT_BYTES = 2.0
BLOCKS = Axis("", 0.0, 1.0, ())
"""The axis of blocks whose height means nothing."""
PREFILL, DECODE = "--prefill", "--decode"


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


# --- The request from its arrival to its end, and its steps.


def whole_life(life: RequestLife, steps: Sequence[DrawnStep]) -> Chart:
    """All of its time to scale: the parts of TTFT one after the other, then every decode step."""
    timeline = life.timeline
    end_s = e2e_s(timeline) or timeline.ended_s
    series = [
        ChartSeries(
            f"{stretch.phase.name} {duration(stretch.seconds)}",
            stretch.phase.colour,
            Mark.BOXES,
            ((stretch.start_s, 0.0, stretch.start_s + stretch.seconds, 1.0),),
        )
        for stretch in stretches(timeline)
        if stretch.phase is not PHASES[Part.DECODE]
    ]
    decode = [step for step in steps if not step.is_prefill]
    if decode:
        name = f"decode {duration(sum(step.seconds for step in decode))}"
        series.append(_blocks(name, DECODE, even_sample(decode, MOST_STEPS), end_s))
    return Chart(
        "The whole request, to scale",
        "From its arrival at the gateway to its end. For most parts until the first token only the duration "
        "is known: they are drawn in their usual order.",
        axis("seconds since its arrival", [end_s]),
        (Panel(BLOCKS, tuple(series), height=46),),
    )


def _blocks(
    name: str, colour: str, steps: Iterable[DrawnStep], span_s: float, low: float = 0.0
) -> ChartSeries:
    """A block for each step, with a gap to the next one; `span_s` is what the drawing covers."""
    boxes = []
    for step in steps:
        gap_s = min(0.1 * step.seconds, WIDEST_GAP * span_s)
        boxes.append((step.start_s, low, step.start_s + max(step.seconds - gap_s, NARROWEST * span_s), 1.0))
    return ChartSeries(name, colour, Mark.BOXES, tuple(boxes), "{width} s at {x} s")


def own_steps(steps: Sequence[DrawnStep], *, recorded: bool) -> Chart:
    """Its prefill and every decode step to scale, with what other requests had in them."""
    from_s, end_s = steps[0].start_s, steps[-1].end_s
    shown = even_sample(steps, MOST_STEPS)
    kinds = [
        ("prefill", PREFILL, [step for step in shown if step.is_prefill], 0.0),
        ("decode", DECODE, [step for step in shown if not step.is_prefill], 0.0),
    ]
    if joined := [step for step in shown if step.other_prompt_tokens]:
        kinds.append(("other requests' prompts in the same step", "--prefill-others", joined, 0.65))
    blocks = tuple(_blocks(name, colour, of, end_s - from_s, low) for name, colour, of, low in kinds)
    panels = [Panel(BLOCKS, blocks, height=80)]
    streams = tuple((step.start_s, step.other_streams or 0) for step in shown)
    if most := max(many for _, many in streams):
        line = ChartSeries("other streams", "--accent", Mark.STEPS, streams, "{y} at {x} s")
        panels.append(Panel(axis("other streams in the step", [most], whole=True), (line,), height=60))
    longest_s = max(step.seconds for step in steps)
    what = "step" if recorded else "chunk"
    return Chart(
        f"Its prefill and its {counted(sum(not step.is_prefill for step in steps), f'decode {what}')}",
        "Widths are to scale; the height of a block means nothing. A wide block took long: the longest took "
        f"{duration(longest_s)}."
        + (" A band marks other requests' prompts, not their share of the step." if joined else "")
        + ("" if recorded else " Without a step record, a block is the time from one chunk to the next.")
        + (f" Every {ceil(len(steps) / len(shown))}th is drawn." if len(shown) < len(steps) else ""),
        axis("seconds since its arrival", [from_s, end_s], from_zero=False),
        tuple(panels),
    )


# --- The KV cache, and the bytes that each step reads, by the model's shape.


def kv_cache(steps: Sequence[DrawnStep], prompt_tokens: int, from_cache_tokens: int) -> Chart:
    """A column for each step: what was in the KV cache before it, and what it added on top."""
    decode = [step.own_tokens for step in steps if not step.is_prefill]
    every = max(1, ceil(len(decode) / MOST_COLUMNS))
    held = [*list(accumulate(decode, initial=prompt_tokens))[::every], prompt_tokens + sum(decode)]
    columns = [
        (place * every, before, (place + 0.9) * every, after)
        for place, (before, after) in enumerate(pairwise(held))
        if after > before
    ]
    computed = (-every, from_cache_tokens, -0.1 * every, prompt_tokens)
    kinds = {
        f"from the prefix cache: {from_cache_tokens:,} prompt tokens": (
            "--cache-look-up",
            [(left, 0, right, from_cache_tokens) for left, _, right, _ in (computed, *columns)],
        ),
        f"written by the prefill: {prompt_tokens - from_cache_tokens:,} prompt tokens": (PREFILL, [computed]),
        "written before, and read again": (
            "--prefill-fill",
            [(left, from_cache_tokens, right, before) for left, before, right, _ in columns],
        ),
        "written by this decode step": (DECODE, columns),
    }
    low = max(0, 2 * prompt_tokens - held[-1]) if columns else 0
    each = "a decode step" if every == 1 else f"{every} decode steps"
    return Chart(
        f"The KV cache grows from {prompt_tokens:,} to {steps[-1].cached_tokens:,} tokens",
        f"The first column is the prefill, each further one {each}. The axis may begin within the prompt, so "
        "that the growth can be seen. The last output token is never written: nothing is computed after it.",
        axis("decode step", [-every, len(decode)], whole=True),
        (
            Panel(
                axis("tokens in the KV cache", [low, held[-1]], from_zero=not low, whole=True),
                tuple(
                    ChartSeries(name, colour, Mark.BOXES, tuple(boxes))
                    for name, (colour, boxes) in kinds.items()
                    if boxes and (from_cache_tokens or colour != "--cache-look-up")
                ),
            ),
        ),
    )


def bytes_read(steps: Sequence[DrawnStep], model: Architecture) -> Html:
    """What each of its steps has to read from memory: the weights once, and its KV cache."""
    shown = even_sample(list(enumerate(steps, start=1)), 4 * MOST_COLUMNS)
    read = [(place, _demand(step, model)) for place, step in shown]
    width = 0.9 * len(steps) / len(shown)
    weights = tuple((place - width, 0.0, place, demand.weight_bytes / 1e6) for place, demand in read)
    kv = tuple(
        (left, top, place, top + demand.kv_read_bytes / 1e6)
        for (left, _, place, top), (_, demand) in zip(weights, read, strict=True)
    )
    most_kv = size(max(demand.kv_read_bytes for _, demand in read))
    decode = [step for step in steps if not step.is_prefill]
    named = [("prefill", steps[0])] if steps[0].is_prefill else []
    named += [("first decode step", decode[0]), ("last decode step", decode[-1])] if decode else []
    chart = Chart(
        f"Every step reads {size(read[0][1].weight_bytes)} of weights, however few tokens it computes",
        f"Calculated from the model's configuration with {KV_ELEMENT_BYTES:g} bytes per KV element, for this "
        "request alone: other streams in a step share the weights and read KV caches of their own. The rate "
        "is the memory bandwidth that it takes to read these bytes in the step's time. An engine with "
        "another number format of weights or KV cache reads more or less.",
        axis("step", [len(steps)], whole=True),
        (
            Panel(
                axis("MB read", [top for *_, top in kv]),
                (
                    ChartSeries("weights", "--muted", Mark.BOXES, weights),
                    ChartSeries(f"its KV cache, up to {most_kv}", "--kv-transfer", Mark.BOXES, kv),
                ),
                height=160,
            ),
        ),
    )
    rows = [(name, *_row(step, _demand(step, model))) for name, step in named]
    return together((drawn(chart), table(("step", "weights", "KV read", "KV written", "took", "rate"), rows)))


def _demand(step: DrawnStep, model: Architecture) -> StepDemand:
    before = step.cached_tokens - step.own_tokens
    chunk = PrefillChunk(max(1, step.own_tokens), before, decoding=not step.is_prefill)
    return demand_of(model, KV_ELEMENT_BYTES, (chunk,))


def _row(step: DrawnStep, demand: StepDemand) -> tuple[str, ...]:
    read = demand.weight_bytes + demand.kv_read_bytes
    rate = f"{size(read / step.seconds)}/s" if step.seconds > 0 else ""
    sizes = (demand.weight_bytes, demand.kv_read_bytes, demand.kv_written_bytes)
    return (*map(size, sizes), duration(step.seconds), rate)
