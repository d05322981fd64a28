"""A window's traffic as a trace: arrival times, lengths and shared prefixes.

It has no text, no ids and no tenants, so that it can be stored, shared and replayed. The file of a trace may
hold recorded timelines as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import median

import orjson

from phasewise.benchmark.workload.traces import Trace, TracedRequest, read_trace
from phasewise.core import timeline_record
from phasewise.core.errors import ConfigError
from phasewise.core.prefixes import MARK_SIZES_BYTES
from phasewise.core.timeline import Timeline

RECORDED = b'{"v":'
"""A recorded timeline begins with its version; no published trace has one."""
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
    known = [
        timeline
        for timeline in in_order
        if timeline.prompt_tokens is not None or timeline.prompt_bytes is not None
    ]
    bytes_per_token = _bytes_per_token(known)
    outputs = [timeline.output_tokens for timeline in known if timeline.output_tokens is not None]
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
    measured = [timeline for timeline in timelines if timeline.prompt_bytes and timeline.prompt_tokens]
    tokens = sum(timeline.prompt_tokens or 0 for timeline in measured)
    return sum(timeline.prompt_bytes or 0 for timeline in measured) / tokens if tokens else None


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


# --- The file of a trace.


def traffic_in(path: Path, say: Callable[[str], None]) -> Trace:
    """The trace in a file: a published format, or timelines that a gateway, `bench` or `simulate` recorded.

    `say` gets what had to be left out.
    """
    try:
        with path.open("rb") as file:
            is_recorded = file.readline().startswith(RECORDED)
    except OSError:
        is_recorded = False
    if not is_recorded:
        return read_trace(path)
    found = trace_of(_timelines(path, say))
    if not found.trace.requests:
        raise ConfigError(f"{path} has no request of a known length", hint="record more traffic")
    if found.left_out:
        say(f"{found.left_out} requests of unknown length were left out")
    return replace(found.trace, name=path.stem)


def _timelines(path: Path, say: Callable[[str], None]) -> list[Timeline]:
    """One per line; a last line that is still being written is left out."""
    lines = path.read_bytes().splitlines(keepends=True)
    found = []
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                found.append(timeline_record.decode(line))
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            if number == len(lines) > 1 and not line.endswith(b"\n"):
                say(f"the last line of {path} is incomplete and was left out")
                break
            raise ConfigError(
                f"{path}: line {number} is no timeline",
                hint="give a file that --timelines or a gateway wrote",
            ) from error
    return found
