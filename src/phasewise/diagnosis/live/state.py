"""What is slow now, by the thresholds of a verdict."""

from __future__ import annotations

from dataclasses import replace

from phasewise.core.slo import Slo
from phasewise.diagnosis.live.snapshot import LivePhase, LiveSnapshot, LiveState
from phasewise.diagnosis.rules.affected import slow_phases, too_many_fail

MIN_REQUESTS = 3
"""Fewer requests than this have no state, as in a verdict."""


def judged(
    counted: LiveSnapshot, start: LivePhase | None, stream: LivePhase | None, slo: Slo
) -> LiveSnapshot:
    """The same snapshot with both phases and the state that they make."""
    state, also = _states(start, stream, counted.failed, counted.ended + counted.open_requests)
    slow = {LiveState.SLOW_TO_START: start, LiveState.SLOW_TO_STREAM: stream}.get(state)
    return replace(
        counted,
        slo_ttft_s=slo.ttft_s,
        slo_tpot_s=slo.tpot_s,
        state=state,
        also_slow=also,
        phase_part=None if slow is None else slow.largest,
        start=start,
        stream=stream,
    )


def _states(
    start: LivePhase | None, stream: LivePhase | None, failed: int, requests: int
) -> tuple[LiveState, LiveState | None]:
    """The state, and the other phase if that is slow too. The one that more requests suffer from is first."""
    starts, late = (0, 0) if start is None else (start.requests, start.over)
    streams, slow = (0, 0) if stream is None else (stream.requests, stream.over)
    if max(starts, streams, requests) < MIN_REQUESTS:
        return LiveState.NOT_ENOUGH_TRAFFIC, None
    starts_late, streams_slowly = slow_phases(late, starts, slow, streams)
    both = LiveState.SLOW_TO_START, LiveState.SLOW_TO_STREAM
    if starts_late and streams_slowly:
        return both if late * streams >= slow * starts else both[::-1]
    if starts_late or streams_slowly:
        return both[streams_slowly], None
    return (LiveState.FAILING if too_many_fail(failed, requests) else LiveState.HEALTHY), None
