"""A window's traffic as a trace: arrival times, lengths and shared prefixes.

It has no text, no ids and no tenants, so that it can be stored, shared and replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from statistics import median

from phasewise.core.prefixes import MARK_SIZES_BYTES
from phasewise.core.timeline import Timeline
from phasewise.loadgen.workload.traces import Trace, TracedRequest

WINDOW_BLOCK_TOKENS = 32
"""Fine enough for the shortest prefix with a mark, which is about a hundred tokens."""


@dataclass(frozen=True, slots=True)
class WindowTrace:
    """The traffic of a window. `estimated` requests have an estimated length, because they were cut off or
    rejected. `left_out` requests have no known size."""

    trace: Trace
    estimated: int = 0
    left_out: int = 0


def trace_of(timelines: Sequence[Timeline]) -> WindowTrace:
    """The traffic behind these timelines, in the order of arrival."""
    in_order = sorted(timelines, key=lambda timeline: timeline.started_unix_s)
    known = [it for it in in_order if it.prompt_tokens is not None or it.prompt_bytes is not None]
    bytes_per_token = _bytes_per_token(known)
    outputs = [it.output_tokens for it in known if it.output_tokens is not None]
    usual_output = round(median(outputs)) if outputs else 1
    naming = _BlockNaming(bytes_per_token)
    requests: list[TracedRequest] = []
    estimated = 0
    for timeline in known:
        prompt_tokens = timeline.prompt_tokens
        if prompt_tokens is None:
            if bytes_per_token is None:
                continue
            prompt_tokens = round((timeline.prompt_bytes or 0) / bytes_per_token)
        estimated += timeline.prompt_tokens is None or timeline.output_tokens is None
        prompt_tokens = max(prompt_tokens, 1)
        requests.append(
            TracedRequest(
                timeline.started_unix_s - in_order[0].started_unix_s,
                prompt_tokens,
                # A request that was cut off has at least its observed length.
                timeline.output_tokens or max(len(timeline.content_times_s), usual_output),
                naming.block_ids(timeline, prompt_tokens),
            )
        )
    trace = Trace("window", tuple(requests), WINDOW_BLOCK_TOKENS)
    return WindowTrace(trace, estimated, len(in_order) - len(requests))


def _bytes_per_token(timelines: Sequence[Timeline]) -> float | None:
    """One ratio for the whole window, so that equal prefixes have equally many blocks."""
    measured = [it for it in timelines if it.prompt_bytes and it.prompt_tokens]
    tokens = sum(it.prompt_tokens or 0 for it in measured)
    return sum(it.prompt_bytes or 0 for it in measured) / tokens if tokens else None


class _BlockNaming:
    """Block numbers: equal if a mark shows that everything up to the block's end is equal.

    Marks exist for a few prefix sizes, and what is shared between two sizes counts as not shared: the trace
    shares no more than the traffic did.
    """

    def __init__(self, bytes_per_token: float | None) -> None:
        self._bytes_per_token = bytes_per_token
        self._numbers = count()
        self._known: dict[tuple[str, int], int] = {}

    def block_ids(self, timeline: Timeline, prompt_tokens: int) -> tuple[int, ...]:
        """A number for every full block of the prompt; none without marks."""
        if not timeline.prefix_marks or self._bytes_per_token is None:
            return ()
        block_bytes = WINDOW_BLOCK_TOKENS * self._bytes_per_token
        marks = tuple(zip(MARK_SIZES_BYTES, timeline.prefix_marks, strict=False))
        ids = []
        for index in range(prompt_tokens // WINDOW_BLOCK_TOKENS):
            covering = (mark for size, mark in marks if size >= (index + 1) * block_bytes)
            ids.append(self._number(next(covering, None), index))
        return tuple(ids)

    def _number(self, mark: str | None, index: int) -> int:
        if mark is None:
            return next(self._numbers)
        if (mark, index) not in self._known:
            self._known[mark, index] = next(self._numbers)
        return self._known[mark, index]
