"""A request as coloured stretches of time, from its intended arrival to its last token.

Colours are names of the page's own variables: style.css says what they look like in light and in dark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from phasewise.bench.report_table import PART_NAMES
from phasewise.model import latency
from phasewise.model.timeline import Part, Timeline


@dataclass(frozen=True, slots=True)
class Phase:
    """A kind of time, what people call it, and its colour wherever it is drawn."""

    name: str
    colour: str


PHASES = {part: Phase(PART_NAMES.get(part, part.value), f"--{part.value.replace('_', '-')}") for part in Part}
"""Every part in the order it comes in a request."""
UNEXPLAINED = Phase("unexplained", "--unexplained")
IN_ORDER = (*(PHASES[part] for part in Part if part is not Part.DECODE), UNEXPLAINED, PHASES[Part.DECODE])


@dataclass(frozen=True, slots=True)
class Stretch:
    """Time of one phase, in seconds since the request's intended arrival."""

    phase: Phase
    start_s: float
    seconds: float


def stretches(timeline: Timeline) -> tuple[Stretch, ...]:
    """The request end to end.

    For most parts only their lengths are known, so those of TTFT are laid one after the other in their usual
    order, and what no clock saw fills the time that is left until the first token. A request that was never
    answered is unexplained once it was sent.
    """
    first_s = latency.ttft_s(timeline)
    until_s = timeline.ended_s if first_s is None else first_s
    before = tuple(_up_to(until_s, _known_parts(timeline)))
    if first_s is None:
        return before
    end_s = latency.e2e_s(timeline) or timeline.content_times_s[-1]
    return (*before, Stretch(PHASES[Part.DECODE], first_s, max(end_s - first_s, 0.0)))


def _known_parts(timeline: Timeline) -> Iterator[tuple[Phase, float]]:
    breakdown = latency.ttft_breakdown(timeline)
    if breakdown is not None:
        yield from ((PHASES[entry.part], entry.seconds) for entry in breakdown.parts)
    else:
        yield from ((PHASES[span.part], span.duration_s) for span in timeline.spans)


def _up_to(until_s: float, parts: Iterator[tuple[Phase, float]]) -> Iterator[Stretch]:
    at_s = 0.0
    for phase, seconds in parts:
        # Two clocks may account for the same time; a bar does not run past the first token for that.
        shown_s = min(seconds, until_s - at_s)
        if shown_s > 0:
            yield Stretch(phase, at_s, shown_s)
            at_s += shown_s
    if until_s > at_s:
        yield Stretch(UNEXPLAINED, at_s, until_s - at_s)
