"""Find a worker with room for a request, waiting for one in line if need be. Booking it is flow.py's."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

from phasewise.model.decision import Decision, RejectReason
from phasewise.model.hand_over import pair_ref
from phasewise.model.request import GenerationRequest
from phasewise.model.worker import Worker, WorkerRef
from phasewise.request_flow.outcomes import Cancelled, Granted, Outcome, TimedOut
from phasewise.request_flow.steps import Reject, Step, Wait
from phasewise.request_flow.world import World, let_waiting_in
from phasewise.routing.policies import HandsOver
from phasewise.state.waiting_line import Ticket

RETRY_SOON_S = 1.0

Placing = Generator[Step, Outcome, Decision | Reject | Cancelled]


@dataclass(slots=True)
class Progress:
    """How far a request has come: how long it may wait, how often it was given away, who failed it.

    `tried` are workers that failed it. All attempts are `given`; of those `attempts` count, one under way
    among them and one that met no engine not. `begun`: its client has some of an answer, of whosever making.
    `tokens` are those of prompt and answer that were computed for it, None where nobody knows.
    """

    admitted_s: float
    now_s: float
    wait_until_s: float
    tried: list[WorkerRef] = field(default_factory=list)
    given: int = 0
    attempts: int = 0
    tokens: int | None = 0
    begun: bool = False

    @property
    def is_new(self) -> bool:
        """Whether nothing has been done for the request yet."""
        return not self.given and not self.begun


def place(request: GenerationRequest, world: World, progress: Progress) -> Placing:
    """A worker with room.

    A request that was given to a worker, or whose answer has begun, waits for one to come back; a new one is
    told at once that none is there.
    """
    model = request.model
    if model not in world.cluster.models:
        return Reject(RejectReason.NO_WORKER_FOR_MODEL, "no worker serves this model")
    if progress.is_new and not world.cluster.usable(model):
        return no_healthy_worker(progress)
    # Whoever comes when others wait stands behind them, even if there is room that they have not come to use.
    if not world.line.is_waiting(model) and (decision := _choose(world, request, progress)):
        return decision
    return (yield from _wait_for_room(request, world, progress))


def _wait_for_room(request: GenerationRequest, world: World, progress: Progress) -> Placing:
    line, model = world.line, request.model
    # An answer that broke off has a client in front of it, and there are never more of them than slots and
    # those who had joined them.
    ticket = line.join(
        model, request.priority, progress.admitted_s, progress.now_s, even_if_full=not progress.is_new
    )
    if ticket is None:
        return_after_s = line.turn_away(model, progress.now_s)
        return Reject(RejectReason.QUEUE_FULL, "too many requests wait already", return_after_s)
    while True:
        # There may be more room than those before it were granted.
        let_waiting_in(world, progress.now_s)
        outcome = yield from _wait(world, ticket, progress.wait_until_s)
        if isinstance(outcome, Cancelled):
            return outcome
        progress.now_s = outcome.at_s
        if isinstance(outcome, TimedOut):
            return _timed_out(world, model, progress)
        if decision := _choose(world, request, progress):
            return decision
        ticket = line.rejoin(ticket, progress.now_s)


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


def _timed_out(world: World, model: str, progress: Progress) -> Reject:
    if not world.cluster.usable(model):
        return no_healthy_worker(progress)
    detail, return_after_s = "no worker had room in time", world.line.turn_away(model, progress.now_s)
    return Reject(RejectReason.QUEUE_TIMEOUT, detail, return_after_s, progress.attempts)


def no_healthy_worker(progress: Progress) -> Reject:
    """Nobody is there to serve the request."""
    detail = "no worker of this model answers"
    return Reject(RejectReason.NO_HEALTHY_WORKER, detail, RETRY_SOON_S, progress.attempts)


def _choose(world: World, request: GenerationRequest, progress: Progress) -> Decision | None:
    candidates, tried = world.candidates(request.model, progress.now_s), progress.tried
    if tried:
        # A worker that failed this request is asked again only where there is no other: its failure may have
        # been a closed idle connection. And nobody's last attempt is to try a worker that was resting.
        fresh = [it for it in candidates if it.worker.ref not in tried]
        trusted = [it for it in fresh if not world.breakers.is_open(it.worker.ref)]
        candidates = trusted or fresh or candidates
    return world.policy(request, candidates, _hands_over(world, progress)) if candidates else None


def _hands_over(world: World, progress: Progress) -> HandsOver:
    """Which pairs may be given the request: as with workers, its last attempt tries none that rested."""
    if not world.pairs.any_open:
        return _any_pair

    def hands_over(prefill: Worker, decode: Worker) -> bool:
        pair = pair_ref(prefill.ref, decode.ref)
        if progress.given and world.pairs.is_open(pair):
            return False
        return world.pairs.allowance(pair, progress.now_s) > 0

    return hands_over


def _any_pair(_prefill: Worker, _decode: Worker) -> bool:
    return True
