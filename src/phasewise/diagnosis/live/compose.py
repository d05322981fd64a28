"""Composes a snapshot: the phases, the state they make, and what stands around them."""

from __future__ import annotations

from phasewise.core.slo import Slo
from phasewise.core.value import value
from phasewise.diagnosis.live.snapshot import (
    LiveEngine,
    LivePhase,
    LivePoint,
    LiveRequest,
    LiveSnapshot,
    LiveState,
    LiveTenant,
)
from phasewise.diagnosis.rules.affected import slow_phases, too_many_fail

MIN_REQUESTS = 3
"""Fewer requests than this have no state, as in a verdict."""


@value
class Around:
    """What stands around the requests of a window."""

    source: str
    open_requests: int = 0
    waiting: int = 0
    engines: tuple[LiveEngine, ...] = ()
    tenants: tuple[LiveTenant, ...] = ()
    not_observed: tuple[str, ...] = ()


@value
class Counted:
    """What was counted in a window."""

    window_s: float
    ended: int = 0
    failed: int = 0
    requests_per_s: float = 0.0
    tokens_per_s: float = 0.0
    requests: tuple[LiveRequest, ...] = ()
    still: int = 0
    history: tuple[LivePoint, ...] = ()


def compose(
    start: LivePhase | None,
    stream: LivePhase | None,
    counted: Counted,
    around: Around,
    at_unix_s: float,
    slo: Slo,
) -> LiveSnapshot:
    """The snapshot of phases that were measured in any way."""
    state, also = state_of(start, stream, counted.failed, counted.ended + around.open_requests)
    slow = {LiveState.SLOW_TO_START: start, LiveState.SLOW_TO_STREAM: stream}.get(state)
    return LiveSnapshot(
        at_unix_s=at_unix_s,
        source=around.source,
        window_s=counted.window_s,
        slo_ttft_s=slo.ttft_s,
        slo_tpot_s=slo.tpot_s,
        state=state,
        also_slow=also,
        phase_part=None if slow is None else slow.largest,
        start=start,
        stream=stream,
        requests_per_s=counted.requests_per_s,
        tokens_per_s=counted.tokens_per_s,
        open_requests=around.open_requests,
        waiting=around.waiting,
        failed=counted.failed,
        engines=around.engines,
        tenants=around.tenants,
        requests=counted.requests,
        still=counted.still,
        history=counted.history,
        not_observed=around.not_observed,
    )


def state_of(
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
