"""A window's traffic as a trace: when requests came, how long they were, which beginnings they shared.

It holds no text, no ids and no tenants, so that it can be kept, handed on and replayed. How it is written
down stands in workload/traces.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from statistics import median

from phasewise.model.prefix_marks import MARK_SIZES_BYTES
from phasewise.model.timeline import Timeline
from phasewise.workload.traces import Trace, TracedRequest

WINDOW_BLOCK_TOKENS = 32
"""Fine enough for the shortest beginning that marks can tell, which is about a hundred tokens."""


@dataclass(frozen=True, slots=True)
class WindowTrace:
    """What was sent in a window. Of `estimated` requests some length was not told: they were cut off or
    refused, and are part of the load all the same. Of `left_out` ones not even their size is known."""

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
                # One cut off would have had at least what it was seen to have.
                timeline.output_tokens or max(len(timeline.content_times_s), usual_output),
                naming.block_ids(timeline, prompt_tokens),
            )
        )
    trace = Trace("window", tuple(requests), WINDOW_BLOCK_TOKENS)
    return WindowTrace(trace, estimated, len(in_order) - len(requests))


def _bytes_per_token(timelines: Sequence[Timeline]) -> float | None:
    """One figure for the whole window, so that equal beginnings come to equally many blocks."""
    measured = [it for it in timelines if it.prompt_bytes and it.prompt_tokens]
    tokens = sum(it.prompt_tokens or 0 for it in measured)
    return sum(it.prompt_bytes or 0 for it in measured) / tokens if tokens else None


class _BlockNaming:
    """Numbers for blocks: equal where a mark says that everything up to the block's end is equal.

    Marks tell beginnings of a few sizes, so that what is shared between two sizes counts as not shared: the
    trace shares no more than the traffic did.
    """

    def __init__(self, bytes_per_token: float | None) -> None:
        self._bytes_per_token = bytes_per_token
        self._numbers = count()
        self._known: dict[tuple[str, int], int] = {}

    def block_ids(self, timeline: Timeline, prompt_tokens: int) -> tuple[int, ...]:
        """A number for every full block of the prompt; none where nobody marked it."""
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
