"""Find a worker with room for a request, waiting for one in line if need be. Booking it is flow.py's."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from phasewise.model.decision import Decision, RejectReason
from phasewise.model.request import GenerationRequest
from phasewise.model.worker import WorkerRef
from phasewise.request_flow.outcomes import Cancelled, Granted, Outcome, TimedOut
from phasewise.request_flow.steps import Reject, Step, Wait
from phasewise.request_flow.world import World, let_waiting_in
from phasewise.state.waiting_line import Ticket

RETRY_SOON_S = 1.0

Placing = Generator[Step, Outcome, Decision | Reject | Cancelled]


def place(
    request: GenerationRequest, world: World, tried: Sequence[WorkerRef], since_s: float, now_s: float
) -> Placing:
    """A worker with room, for a request that was admitted at `since_s` and has been `tried` so far.

    A request that has begun waits for a worker to come back; a new one is told at once that none is there.
    """
    model = request.model
    if model not in world.cluster.models:
        return Reject(RejectReason.NO_WORKER_FOR_MODEL, "no worker serves this model")
    if not tried and not world.cluster.usable(model):
        return _no_healthy_worker(0)
    # Whoever comes when others wait stands behind them, even if there is room that they have not come to use.
    if not world.line.is_waiting(model) and (decision := _choose(request, world, tried, now_s)):
        return decision
    return (yield from _wait_for_room(request, world, tried, since_s, now_s))


def _wait_for_room(
    request: GenerationRequest, world: World, tried: Sequence[WorkerRef], since_s: float, now_s: float
) -> Placing:
    line, model = world.line, request.model
    # An answer that broke off has a client in front of it, and there are never more of them than slots.
    ticket = line.join(model, request.priority, since_s, even_if_full=bool(tried))
    if ticket is None:
        advice_s = line.expected_wait_s(model, now_s)
        return Reject(RejectReason.QUEUE_FULL, "too many requests wait already", advice_s)
    until_s = now_s + request.max_wait_s
    while True:
        # There may be more room than those before it were granted.
        let_waiting_in(world, now_s)
        outcome = yield from _wait(world, ticket, until_s)
        if isinstance(outcome, Cancelled):
            return outcome
        now_s = outcome.at_s
        if isinstance(outcome, TimedOut):
            return _timed_out(world, model, now_s, len(tried))
        if decision := _choose(request, world, tried, now_s):
            return decision
        ticket = line.rejoin(ticket)


def _wait(
    world: World, ticket: Ticket, until_s: float
) -> Generator[Step, Outcome, Granted | TimedOut | Cancelled]:
    """Wait for one's turn. Room that was granted to a request which no longer wants it is the next one's."""
    outcome: Outcome | None = None
    try:
        outcome = yield Wait(ticket, until_s)
        if not isinstance(outcome, Granted | TimedOut | Cancelled):
            raise TypeError(f"{type(outcome).__name__} is no outcome of Wait")
        return outcome
    finally:
        world.line.leave(ticket)
        if ticket.granted and not isinstance(outcome, Granted):
            let_waiting_in(world, world.clock.now_s)


def _timed_out(world: World, model: str, now_s: float, attempts: int) -> Reject:
    if not world.cluster.usable(model):
        return _no_healthy_worker(attempts)
    advice_s = world.line.expected_wait_s(model, now_s)
    return Reject(RejectReason.QUEUE_TIMEOUT, "no worker had room in time", advice_s, attempts)


def _no_healthy_worker(attempts: int) -> Reject:
    detail = "no worker of this model answers"
    return Reject(RejectReason.NO_HEALTHY_WORKER, detail, RETRY_SOON_S, attempts)


def _choose(
    request: GenerationRequest, world: World, tried: Sequence[WorkerRef], now_s: float
) -> Decision | None:
    candidates = world.candidates(request.model, now_s)
    # A worker that failed this request is asked again only where there is no other: its failure may have
    # been a closed idle connection, and the attempts are counted anyway.
    if tried and (fresh := [it for it in candidates if it.worker.ref not in tried]):
        candidates = fresh
    return world.policy(candidates) if candidates else None
