"""The only definitions of TTFT, TPOT, ITL, stalls and goodput.

A figure that is undefined for a request (TPOT of one token, TTFT of a request without an answer) is None,
never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from phasewise.core.slo import Slo
from phasewise.core.timeline import TTFT_PARTS, Outcome, Part, Source, Span, Timeline

STALL_FACTOR = 4.0
"""A stall is a gap this many times longer than the stream's median gap."""
STALL_FLOOR_S = 0.05
"""A shorter gap is no stall in any stream: no user notices it."""
STALL_MIN_GAPS = 4
"""A stream with fewer gaps has no meaningful median, and no stalls."""


def ttft_s(timeline: Timeline) -> float | None:
    """Intended arrival to the first chunk with any content."""
    return timeline.content_times_s[0] if timeline.content_times_s else None


def e2e_s(timeline: Timeline) -> float | None:
    """Intended arrival to the end of the answer, for requests that were answered in full.

    The end is the chunk that announces it, which carries the last token though perhaps no text; without one,
    it is the last chunk with content.
    """
    if timeline.outcome is not Outcome.SUCCEEDED:
        return None
    last_s = timeline.content_times_s[-1] if timeline.content_times_s else None
    if timeline.finished_s is not None:
        # A record with an end before its content would have a negative TPOT.
        return timeline.finished_s if last_s is None else max(timeline.finished_s, last_s)
    return timeline.ended_s if last_s is None else last_s


def took_s(timeline: Timeline) -> float:
    """Intended arrival to the end of the request, however it ended; of a running one, until now."""
    whole_s = e2e_s(timeline)
    return timeline.ended_s if whole_s is None else whole_s


def tpot_s(timeline: Timeline) -> float | None:
    """Mean time per output token after the first; undefined for one token, several choices or a plain reply.

    With n output tokens, E2E = TTFT + (n - 1) x TPOT.
    """
    first, end, tokens = ttft_s(timeline), e2e_s(timeline), timeline.output_tokens
    if first is None or end is None or tokens is None or tokens < 2 or timeline.choices != 1:
        return None
    return (end - first) / (tokens - 1) if len(timeline.content_times_s) > 1 else None


def chunk_gaps_s(timeline: Timeline) -> tuple[float, ...]:
    """Gaps between consecutive chunks with content: inter-token latency as a client sees it."""
    times = timeline.content_times_s
    return tuple(later - earlier for earlier, later in pairwise(times))


def silence_s(timeline: Timeline) -> float | None:
    """How long a stream had been silent when it was broken off; None if it was not, or had no content at all.

    The gap would have been at least this long.
    """
    if timeline.outcome is Outcome.SUCCEEDED or not timeline.content_times_s:
        return None
    return max(0.0, timeline.ended_s - timeline.content_times_s[-1])


@dataclass(frozen=True, slots=True)
class Stall:
    """A gap many times the stream's own median."""

    start_s: float
    duration_s: float
    median_gap_s: float

    @property
    def excess_s(self) -> float:
        """How much longer the stall is than a typical gap."""
        return self.duration_s - self.median_gap_s


def stalls(timeline: Timeline) -> tuple[Stall, ...]:
    """The stream's stalls, in order, including the silence in which it was broken off."""
    gaps = chunk_gaps_s(timeline)
    if len(gaps) < STALL_MIN_GAPS:
        return ()
    usual_s = median(gaps)
    bound_s = max(STALL_FACTOR * usual_s, STALL_FLOOR_S)
    starts = timeline.content_times_s
    at_the_end_s = silence_s(timeline)
    waits = gaps if at_the_end_s is None else (*gaps, at_the_end_s)
    return tuple(
        Stall(start_s, wait, usual_s) for start_s, wait in zip(starts, waits, strict=False) if wait >= bound_s
    )


def longest_stall_s(timeline: Timeline) -> float | None:
    """The longest stall; None for a stream without one."""
    return max((stall.duration_s for stall in stalls(timeline)), default=None)


def meets(timeline: Timeline, slo: Slo) -> bool:
    """Whether the request was answered in full within its bounds.

    One token is judged by TTFT alone. A reply that was not streamed has no first token: it is judged by the
    time that a stream of as many tokens may take.
    """
    return within(slo, ttft_s(timeline), tpot_s(timeline), e2e_s(timeline), timeline.output_tokens)


def within(
    slo: Slo, first_s: float | None, per_token_s: float | None, whole_s: float | None, tokens: int | None
) -> bool:
    """The same, for a request whose TTFT, TPOT, E2E and output tokens are given."""
    if whole_s is None:
        return False
    if first_s is None:
        return whole_s <= slo.ttft_s + ((tokens or 1) - 1) * slo.tpot_s
    return first_s <= slo.ttft_s and (per_token_s is None or per_token_s <= slo.tpot_s)


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests that met their SLO, out of all that were offered."""

    met: int
    offered: int

    @property
    def share(self) -> float | None:
        """The share of offered requests that met their SLO."""
        return self.met / self.offered if self.offered else None


def goodput(timelines: Iterable[Timeline], slo: Slo) -> Goodput:
    """Goodput over all requests; failed, cancelled and rejected ones were offered too."""
    verdicts = [meets(timeline, slo) for timeline in timelines]
    return Goodput(met=sum(verdicts), offered=len(verdicts))


@dataclass(frozen=True, slots=True)
class PartTime:
    """How much of TTFT a part took, and which clock measured it."""

    part: Part
    source: Source
    seconds: float


@dataclass(frozen=True, slots=True)
class TtftBreakdown:
    """TTFT as named parts and an unexplained rest. `parts` and `unexplained_s` add up to `ttft_s`."""

    ttft_s: float
    parts: tuple[PartTime, ...]
    unexplained_s: float

    def seconds(self, part: Part) -> float | None:
        """The time of one part over all its sources; None where none measured it."""
        seen = [entry.seconds for entry in self.parts if entry.part is part]
        return sum(seen) if seen else None


def fitted(breakdown: TtftBreakdown) -> TtftBreakdown:
    """As it is shown. Where two clocks measured the same time, the parts come to more than the TTFT: they are
    made shorter in proportion, so that nothing negative is left.
    """
    over_s = -breakdown.unexplained_s
    if over_s <= 0:
        return breakdown
    scale = breakdown.ttft_s / (breakdown.ttft_s + over_s)
    parts = tuple(replace(entry, seconds=entry.seconds * scale) for entry in breakdown.parts)
    return TtftBreakdown(breakdown.ttft_s, parts, 0.0)


def ttft_breakdown(timeline: Timeline) -> TtftBreakdown | None:
    """Split TTFT into its parts; None for a request without content.

    The unexplained part is the time that no clock measured. It is negative where durations from two clocks
    overlap by an unknown amount; `fitted` is for showing it.
    """
    total_s = ttft_s(timeline)
    if total_s is None:
        return None
    return _breakdown(timeline, total_s)


def wait_so_far(timeline: Timeline) -> TtftBreakdown:
    """The same of a request without content: its parts until it ended, or until now."""
    return _breakdown(timeline, timeline.ended_s)


def _breakdown(timeline: Timeline, whole_s: float) -> TtftBreakdown:
    seconds = ttft_part_seconds(timeline, whole_s)
    ordered = sorted(seconds.items(), key=lambda item: TTFT_PARTS.index(item[0][0]))
    parts = tuple(PartTime(part, source, value) for (part, source), value in ordered)
    return TtftBreakdown(whole_s, parts, whole_s - sum(seconds.values()))


def ttft_part_seconds(timeline: Timeline, whole_s: float) -> dict[tuple[Part, Source], float]:
    """The time of every measured part of a TTFT, without building a breakdown.

    After a KV transfer the parts of both workers add up, because they ran one after the other. The gateway's
    wait is without that end of it which the engine measured too: it ends when the gateway notes that it has
    sent the request, and the engine may have begun by then.
    """
    serving, prefill = timeline.serving_attempt, timeline.prefill_attempt
    spans = timeline.spans + serving.spans if serving is not None else timeline.spans
    if prefill is not None:
        spans += prefill.spans
    seconds = part_seconds([span for span in spans if span.part is not Part.DECODE])
    over_s = sum(seconds.values()) - whole_s
    if over_s > 0:
        for key in seconds:
            if key[0] is Part.GATEWAY_WAIT:
                seconds[key] = max(0.0, seconds[key] - over_s)
    return seconds


def part_seconds(spans: Sequence[Span]) -> dict[tuple[Part, Source], float]:
    """The time of each part by source; a span within another counts once, for the inner part."""
    nested_s: dict[Part, float] = {}
    for span in spans:
        if span.within is not None:
            nested_s[span.within] = nested_s.get(span.within, 0.0) + span.duration_s
    seconds: dict[tuple[Part, Source], float] = {}
    for span in spans:
        own_s = span.duration_s
        if nested_s:
            # Two clocks may measure the inner part longer than the whole; the unexplained part then shows it.
            own_s = max(0.0, own_s - nested_s.pop(span.part, 0.0))
        key = (span.part, span.source)
        seconds[key] = seconds.get(key, 0.0) + own_s
    return seconds
