"""A request as coloured stretches of time, from its intended arrival to its last token.

Colours are the names of CSS variables in style.css.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from phasewise.benchmark.results import BenchReport
from phasewise.benchmark.run import BenchRun
from phasewise.core import latency
from phasewise.core.timeline import Part, Timeline


@dataclass(frozen=True, slots=True)
class PhaseStyle:
    """The name and the colour of a part of a request's time."""

    name: str
    colour: str


_NAMES = {
    Part.CLIENT_LAG: "generator lag",
    Part.GATEWAY_WAIT: "gateway",
    Part.CACHE_LOOK_UP: "cache lookup",
    Part.EARLIER_ATTEMPTS: "earlier attempts",
    Part.STEP_IN_FLIGHT: "waiting for running step",
    Part.ENGINE_QUEUE: "engine queue",
    Part.PREFILL: "prefill",
    Part.PREFILL_OTHERS: "other requests' prefill",
    Part.KV_TRANSFER: "KV transfer",
    Part.DECODE: "decode",
}
PHASES = {part: PhaseStyle(name, f"--{part.value.replace('_', '-')}") for part, name in _NAMES.items()}
"""Every part in the order it comes in a request."""
UNEXPLAINED = PhaseStyle("unexplained", "--unexplained")
IN_ORDER = (*(PHASES[part] for part in Part if part is not Part.DECODE), UNEXPLAINED, PHASES[Part.DECODE])


@dataclass(frozen=True, slots=True)
class Stretch:
    """Time of one phase, in seconds since the request's intended arrival."""

    phase: PhaseStyle
    start_s: float
    seconds: float


def stretches(timeline: Timeline) -> tuple[Stretch, ...]:
    """The request end to end.

    For most parts only their duration is known, so the parts of TTFT are drawn one after the other in their
    usual order, and the unexplained part fills the time until the first token. A request that was never
    answered is unexplained from its sending on.
    """
    first_s = latency.ttft_s(timeline)
    until_s = timeline.ended_s if first_s is None else first_s
    before = tuple(_up_to(until_s, _known_parts(timeline)))
    if first_s is None:
        return before
    end_s = latency.e2e_s(timeline) or timeline.content_times_s[-1]
    return (*before, Stretch(PHASES[Part.DECODE], first_s, max(end_s - first_s, 0.0)))


def _known_parts(timeline: Timeline) -> Iterator[tuple[PhaseStyle, float]]:
    breakdown = latency.ttft_breakdown(timeline)
    if breakdown is not None:
        yield from ((PHASES[entry.part], entry.seconds) for entry in breakdown.parts)
    else:
        yield from ((PHASES[span.part], span.duration_s) for span in timeline.spans)


def _up_to(until_s: float, parts: Iterator[tuple[PhaseStyle, float]]) -> Iterator[Stretch]:
    at_s = 0.0
    for phase, seconds in parts:
        # Two sources may report the same time; the bar still ends at the first token.
        shown_s = min(seconds, until_s - at_s)
        if shown_s > 0:
            yield Stretch(phase, at_s, shown_s)
            at_s += shown_s
    if until_s > at_s:
        yield Stretch(UNEXPLAINED, at_s, until_s - at_s)


# --- One run of a report with its figures and its label.


@dataclass(frozen=True, slots=True)
class Measured:
    """A run with its figures. `label` names it within a sweep, such as `2 req/s`."""

    run: BenchRun
    report: BenchReport
    label: str = ""

    @property
    def counted(self) -> tuple[Timeline, ...]:
        """The requests that the figures count: those that arrived after the warm-up."""
        return self.run.timelines[self.report.window.warm_up_requests :]

    def arrival_s(self, timeline: Timeline) -> float:
        """When a request was meant to be sent, in seconds of the run."""
        return timeline.started_unix_s - self.run.started_unix_s

    def readings_s(self, reading: Callable[[Timeline], float | None]) -> list[float]:
        """One latency of every counted request that has it."""
        return [value for timeline in self.counted if (value := reading(timeline)) is not None]
