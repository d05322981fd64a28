"""Composes a snapshot: the phases by their objectives, the state they make, and what stands around them."""

from __future__ import annotations

from phasewise.core.slo import Slo
from phasewise.core.value import value
from phasewise.diagnosis.live.snapshot import (
    LiveEngine,
    LivePart,
    LivePhase,
    LivePoint,
    LiveSnapshot,
    LiveState,
    LiveTenant,
)
from phasewise.diagnosis.live.window import OpenRequest, Totals, start_phase, state_of, stream_phase

KV_FULL = 0.95
NOT_OBSERVED = "not observed"
_HEALTH = {
    "suspect": "stands still",
    "hung": "stands still",
    "down": "is down",
    "circuit open": "fails requests: its circuit is open",
}


@value
class Around:
    """What stands around the requests of a window."""

    source: str
    open_requests: int = 0
    waiting: int = 0
    engines: tuple[LiveEngine, ...] = ()
    tenants: tuple[LiveTenant, ...] = ()
    history: tuple[LivePoint, ...] = ()
    not_observed: tuple[str, ...] = ()


def compose(totals: Totals, around: Around, at_unix_s: float, slo: Slo, *, own_slo: bool) -> LiveSnapshot:
    """The snapshot. With `own_slo` every request is held to the objective of its class, else all to `slo`."""
    held_to = None if own_slo else slo
    start, stream = start_phase(totals, held_to), stream_phase(totals, held_to)
    return of_phases(start, stream, around, at_unix_s, slo, totals)


def of_phases(
    start: LivePhase | None,
    stream: LivePhase | None,
    around: Around,
    at_unix_s: float,
    slo: Slo,
    totals: Totals,
) -> LiveSnapshot:
    """The snapshot of phases that were measured in any way; `totals` has the counts."""
    state, also = state_of(start, stream, totals.failed, totals.ended + around.open_requests)
    return LiveSnapshot(
        at_unix_s=at_unix_s,
        source=around.source,
        window_s=totals.window_s,
        slo_ttft_s=slo.ttft_s,
        slo_tpot_s=slo.tpot_s,
        state=state,
        also_slow=also,
        phase_part=_largest(state, start, stream),
        start=start,
        stream=stream,
        requests_per_s=totals.requests_per_s,
        tokens_per_s=totals.tokens_per_s,
        open_requests=around.open_requests,
        waiting=around.waiting,
        failed=totals.failed,
        engines=around.engines,
        tenants=around.tenants,
        requests=totals.requests,
        still=totals.still,
        history=around.history,
        not_observed=around.not_observed,
    )


def _largest(state: LiveState, start: LivePhase | None, stream: LivePhase | None) -> LivePart | None:
    phase = {LiveState.SLOW_TO_START: start, LiveState.SLOW_TO_STREAM: stream}.get(state)
    return None if phase is None else phase.largest


def held_by(request: OpenRequest, engine: LiveEngine | None, prefilling: int) -> str:
    """What holds a stream that stands still, in words; `prefilling` prompts are computed on its engine."""
    if request.blocked:
        return "its client does not read"
    if engine is None:
        return "no engine has it"
    if engine.health != "up":
        return f"{engine.name} {_HEALTH.get(engine.health, engine.health)}"
    if engine.kv_usage is not None and engine.kv_usage >= KV_FULL:
        return f"the KV cache of {engine.name} is full"
    if prefilling:
        return f"{prefilling} other prompt{'s' * (prefilling != 1)} in prefill on {engine.name}"
    return NOT_OBSERVED
