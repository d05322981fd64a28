"""Admit a request, and find a worker with a free slot for it: count, look up, place, wait in the queue."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from math import ceil

from phasewise.core.decision import Decision, RejectReason
from phasewise.core.kv_transfer import pair_ref
from phasewise.core.ports import Lease, LimitKind, NotCounted, OverLimit, QuotaAnswer
from phasewise.core.request import GenerationRequest, Limits
from phasewise.core.value import value
from phasewise.core.worker import Worker, WorkerRef
from phasewise.scheduling.policies import CanTransfer
from phasewise.scheduling.queue import Tenant, Ticket
from phasewise.scheduling.rejections import (
    RETRY_SOON_S,
    no_healthy_worker,
    no_worker_for_model,
    queue_timeout,
)
from phasewise.scheduling.steps import (
    CacheHit,
    CacheMiss,
    Cancelled,
    CountAndLookUp,
    Granted,
    IdenticalUnderWay,
    LookedUp,
    LookUpCache,
    Outcome,
    Reject,
    Step,
    TimedOut,
    Wait,
)
from phasewise.scheduling.world import World, let_waiting_in

ASSUMED_OUTPUT_TOKENS = 256
"""The output length that is assumed for a request without a limit when loads are compared."""

_OVER_LIMIT = {
    LimitKind.REQUESTS: RejectReason.REQUESTS_OVER_LIMIT,
    LimitKind.TOKENS: RejectReason.TOKENS_OVER_LIMIT,
    LimitKind.CONCURRENCY: RejectReason.CONCURRENCY_OVER_LIMIT,
}


@value
class Admitted:
    """The request may be served; its `lease` is settled when it ends.

    `looked_up` is Cancelled if the client left during the look-up.
    """

    at_s: float
    lease: Lease | None
    looked_up: LookedUp | Cancelled


def expected_tokens(request: GenerationRequest) -> int:
    """The work of a request in tokens: its prompt and its expected output."""
    return request.estimated_prompt_tokens + expected_output_tokens(request)


def expected_output_tokens(request: GenerationRequest) -> int:
    """The output tokens that a request may produce, over all its choices."""
    output_tokens = request.max_output_tokens
    if output_tokens is None:
        output_tokens = ASSUMED_OUTPUT_TOKENS
    return output_tokens * request.choices


def tenant_of(request: GenerationRequest) -> Tenant:
    """Whose line the request waits in."""
    return Tenant(request.tenant, request.weight)


def charged_tokens(request: GenerationRequest) -> int:
    """The tokens that a request is charged until its usage is known: a full bucket at most.

    If the usage is never reported, a larger charge could lock a key out for days.
    """
    expected, per_minute = expected_tokens(request), request.limits.tokens_per_minute
    return expected if per_minute is None else min(expected, per_minute)


def admit(request: GenerationRequest) -> Generator[Step, Outcome, Admitted | Reject | Cancelled]:
    """Count the request, or reject it."""
    if request.limits.unlimited:
        outcome = yield LookUpCache()
        if isinstance(outcome, Cancelled):
            return outcome
        if not isinstance(outcome, CacheMiss | CacheHit | IdenticalUnderWay):
            raise TypeError(f"{type(outcome).__name__} is no outcome of LookUpCache")
        return Admitted(outcome.at_s, None, outcome)
    outcomes = yield CountAndLookUp(request.key_id, request.limits, charged_tokens(request))
    if isinstance(outcomes, Cancelled):
        return outcomes
    if not isinstance(outcomes, tuple):
        raise TypeError(f"{type(outcomes).__name__} is no outcome of CountAndLookUp")
    counted, looked_up = outcomes
    if isinstance(counted.answer, Lease):
        return Admitted(max(counted.at_s, looked_up.at_s), counted.answer, looked_up)
    return over_quota(counted.answer, request.limits)


def over_quota(answer: QuotaAnswer, limits: Limits) -> Reject:
    """The rejection of a request that its key's limits did not admit."""
    if isinstance(answer, OverLimit):
        bounds = {
            LimitKind.REQUESTS: f"{limits.requests_per_minute} requests per minute",
            LimitKind.TOKENS: f"{limits.tokens_per_minute} tokens per minute",
            LimitKind.CONCURRENCY: f"{limits.max_concurrent} requests at once",
        }
        hint = f"send it again in {max(1, ceil(answer.retry_after_s))} s"
        detail = f"this key's limit of {bounds[answer.kind]} is reached. hint: {hint}"
        return Reject(_OVER_LIMIT[answer.kind], detail, answer.retry_after_s)
    if isinstance(answer, NotCounted):
        return Reject(RejectReason.LIMITS_UNAVAILABLE, "limits cannot be checked now", answer.retry_after_s)
    raise TypeError("a lease is not a rejection")


# --- Find a worker with a free slot for a request; wait in the queue if there is none.

Placing = Generator[Step, Outcome, Decision | Reject | Cancelled]


@dataclass(slots=True)
class RequestProgress:
    """The progress of a request: how long it may wait, its attempts, the workers that failed it.

    `tried` holds the workers that failed it. `given` counts all attempts; `attempts` counts those that met an
    engine, one under way included. `begun`: the client has the beginning of an answer, from a worker or from
    an identical request. `tokens` are the prompt and output tokens computed for it, None if unknown.
    `weights` are those that the rest of its answer needs, None if any will do.
    """

    admitted_s: float
    now_s: float
    wait_until_s: float
    tried: list[WorkerRef] = field(default_factory=list)
    given: int = 0
    attempts: int = 0
    tokens: int | None = 0
    begun: bool = False
    weights: str | None = None

    @property
    def is_new(self) -> bool:
        """Whether nothing has been done for the request yet."""
        return not self.given and not self.begun


def place(request: GenerationRequest, world: World, progress: RequestProgress) -> Placing:
    """Find a worker with a free slot.

    If no worker is healthy, a new request is rejected at once. A request that was given to a worker before,
    or whose answer has begun, waits for one to come back.
    """
    model = request.model
    if model not in world.cluster.models:
        return no_worker_for_model(model, world.cluster)
    if progress.is_new and not _usable(request, world):
        return no_healthy_worker(model, world.cluster, progress.attempts)
    # Neither of these two joins the queue: they would be given slots of other engines, which they cannot use.
    if progress.weights is not None:
        other = "no engine that is free has the same weights in the same number format"
        return _choose(world, request, progress) or Reject(
            RejectReason.NO_SAME_WEIGHTS, f"the answer broke off, and {other}", attempts=progress.attempts
        )
    if request.workers is not None:
        full = "no engine of those that this request may use has a free slot"
        return _choose(world, request, progress) or Reject(
            RejectReason.QUEUE_FULL, full, RETRY_SOON_S, progress.attempts
        )
    # A request joins the queue behind those that wait, even if granted slots are not in use yet.
    if not world.queue.is_waiting(model) and (decision := _choose(world, request, progress)):
        return decision
    return (yield from _wait_for_slot(request, world, progress))


def _usable(request: GenerationRequest, world: World) -> Sequence[Worker]:
    workers, allowed = world.cluster.usable(request.model), request.workers
    return workers if allowed is None else [worker for worker in workers if worker.name in allowed]


def _wait_for_slot(request: GenerationRequest, world: World, progress: RequestProgress) -> Placing:
    queue, model = world.queue, request.model
    # An answer that broke off has a client that reads it, so it joins a full queue too. There are never more
    # of these than slots and their followers.
    ticket = queue.join(
        model,
        request.priority,
        progress.admitted_s,
        progress.now_s,
        tenant=tenant_of(request),
        work=expected_tokens(request),
        even_if_full=not progress.is_new,
    )
    if ticket is None:
        return_after_s = queue.reject(model, progress.now_s)
        return Reject(RejectReason.QUEUE_FULL, "too many requests wait already", return_after_s)
    while True:
        # There may be more free slots than were granted.
        let_waiting_in(world, progress.now_s)
        outcome = yield from _wait(world, ticket, progress.wait_until_s)
        if isinstance(outcome, Cancelled):
            return outcome
        progress.now_s = outcome.at_s
        if isinstance(outcome, TimedOut):
            return _timed_out(world, model, progress)
        if decision := _choose(world, request, progress):
            return decision
        ticket = queue.rejoin(ticket, progress.now_s)


def _wait(
    world: World, ticket: Ticket, until_s: float
) -> Generator[Step, Outcome, Granted | TimedOut | Cancelled]:
    """Wait for a grant. If the request ends although it was granted a slot, the next one gets the slot."""
    outcome: Outcome | None = None
    try:
        outcome = yield Wait(ticket, until_s)
        if not isinstance(outcome, Granted | TimedOut | Cancelled):
            raise TypeError(f"{type(outcome).__name__} is no outcome of Wait")
        return outcome
    finally:
        world.queue.leave(ticket)
        if ticket.granted and not isinstance(outcome, Granted):
            let_waiting_in(world, world.clock.now_s)


def _timed_out(world: World, model: str, progress: RequestProgress) -> Reject:
    if not world.cluster.usable(model):
        return no_healthy_worker(model, world.cluster, progress.attempts)
    failing = [worker.name for worker in world.cluster.usable(model) if world.breakers.is_open(worker.ref)]
    return queue_timeout(model, failing, world.queue.reject(model, progress.now_s), progress.attempts)


def _choose(world: World, request: GenerationRequest, progress: RequestProgress) -> Decision | None:
    candidates, tried = world.candidates(request.model, progress.now_s), progress.tried
    if request.workers is not None:
        candidates = [candidate for candidate in candidates if candidate.worker.name in request.workers]
    if progress.weights is not None:
        candidates = [candidate for candidate in candidates if candidate.worker.weights == progress.weights]
    if tried:
        # A worker that failed this request is tried again only if there is no other: its failure may have
        # been a closed idle connection. The last attempt avoids workers whose circuit is open.
        fresh = [candidate for candidate in candidates if candidate.worker.ref not in tried]
        trusted = [candidate for candidate in fresh if not world.breakers.is_open(candidate.worker.ref)]
        candidates = trusted or fresh or candidates
    return world.policy(request, candidates, _can_transfer(world, progress)) if candidates else None


def _can_transfer(world: World, progress: RequestProgress) -> CanTransfer:
    """Which pairs may serve the request. Its last attempt avoids pairs whose circuit is open."""
    if not world.pairs.any_open:
        return lambda _prefill, _decode: True

    def can_transfer(prefill: Worker, decode: Worker) -> bool:
        pair = pair_ref(prefill.ref, decode.ref)
        if progress.given and world.pairs.is_open(pair):
            return False
        return world.pairs.allowance(pair, progress.now_s) > 0

    return can_transfer
