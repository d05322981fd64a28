"""What a probe measured of an engine: each figure is a comparison within the same few seconds.

The probe's requests are recognised by their shape: short prompts alone, one long prompt twice, and short ones
that a long one joins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from phasewise.core.latency import chunk_gaps_s, tpot_s, ttft_s
from phasewise.core.timeline import Timeline

REUSED = 0.5
"""A prompt that starts in less than this share of its first time came from the prefix cache."""


@dataclass(frozen=True, slots=True)
class Start:
    """A prompt's length and its TTFT."""

    prompt_tokens: int
    ttft_s: float


@dataclass(frozen=True, slots=True)
class ProbeReading:
    """The engine's figures; None for what did not finish.

    `short` and `long` are prompts alone, `again` is the long one a second time. `alone_tpot_s` is a
    token's time in a single stream, `together_tpot_s` in one of `streams`, without stalls. `stall_s` is the
    longest gap of these streams while the prompt of `joined_tokens` was read: behind a gateway, streams on
    other engines than the prompt's have none.
    """

    short: Start | None
    long: Start | None
    again: Start | None
    alone_tpot_s: float | None
    streams: int
    together_tpot_s: float | None
    stall_s: float | None
    joined_tokens: int | None

    @property
    def per_1000_s(self) -> float | None:
        """What 1,000 more prompt tokens add to a TTFT."""
        if self.short is None or self.long is None or self.long.prompt_tokens <= self.short.prompt_tokens:
            return None
        more = self.long.prompt_tokens - self.short.prompt_tokens
        return max(0.0, self.long.ttft_s - self.short.ttft_s) * 1000 / more

    @property
    def reuses_prefixes(self) -> bool:
        """Whether the second of two equal prompts started much sooner."""
        return (
            self.again is not None and self.long is not None and self.again.ttft_s < REUSED * self.long.ttft_s
        )


def probe_reading(timelines: Sequence[Timeline]) -> ProbeReading | None:
    """The figures of a probe; None if too little of it finished."""
    known = sorted(
        (timeline for timeline in timelines if timeline.prompt_tokens),
        key=lambda timeline: timeline.started_unix_s,
    )
    longest = max((timeline.prompt_tokens or 0 for timeline in known), default=0)
    longs = [timeline for timeline in known if 2 * (timeline.prompt_tokens or 0) > longest]
    shorts = [timeline for timeline in known if timeline not in longs]
    if not shorts:
        return None
    alone = [
        short for short in shorts if not any(_overlap(short, other) for other in known if other is not short)
    ]
    together = [short for short in shorts if short not in alone]
    first, again, joined = (longs[at] if at < len(longs) else None for at in range(3))
    return ProbeReading(
        short=_median_start(alone),
        long=None if first is None else _median_start([first]),
        again=None if again is None else _median_start([again]),
        alone_tpot_s=_median([found for stream in alone if (found := tpot_s(stream)) is not None]),
        streams=len(together),
        together_tpot_s=_median([median(gaps) for stream in together if (gaps := chunk_gaps_s(stream))]),
        stall_s=None
        if joined is None
        else max((_stall_s(stream, joined) for stream in together), default=None),
        joined_tokens=None if joined is None else joined.prompt_tokens,
    )


def _stall_s(stream: Timeline, prompt: Timeline) -> float:
    """The stream's longest gap between two chunks that overlaps the prompt's TTFT."""
    since_s = prompt.started_unix_s - stream.started_unix_s
    first_s = ttft_s(prompt)
    until_s = since_s + (prompt.ended_s if first_s is None else first_s)
    gaps = pairwise(stream.content_times_s)
    return max(
        (end_s - start_s for start_s, end_s in gaps if start_s < until_s and end_s > since_s), default=0.0
    )


def _overlap(one: Timeline, other: Timeline) -> bool:
    return (
        one.started_unix_s < other.started_unix_s + other.ended_s
        and other.started_unix_s < one.started_unix_s + one.ended_s
    )


def _median_start(timelines: Sequence[Timeline]) -> Start | None:
    starts = [
        (timeline.prompt_tokens or 0, found)
        for timeline in timelines
        if (found := ttft_s(timeline)) is not None
    ]
    if not starts:
        return None
    return Start(round(median(tokens for tokens, _ in starts)), median(found for _, found in starts))


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None
