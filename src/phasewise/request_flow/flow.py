"""Admit, look for a stored answer, place, run, and finish or recover: the order of a request's steps."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from phasewise.errors import FailureKind
from phasewise.model.decision import Candidate, Decision, RejectReason
from phasewise.model.limits import Lease, LimitKind, NotCounted, OverLimit, QuotaAnswer
from phasewise.model.request import GenerationRequest
from phasewise.model.worker import Worker, WorkerRef
from phasewise.request_flow.outcomes import (
    Cancelled,
    Failed,
    Granted,
    Outcome,
    QuotaAnswered,
    Succeeded,
)
from phasewise.request_flow.steps import Generate, LookUpCache, Reject, Step, TakeQuota, Together, Wait
from phasewise.request_flow.world import World, let_waiting_in
from phasewise.state.load_ledger import LoadLedger

MAX_ATTEMPTS = 2
"""A prompt that kills engines kills at most this many."""
ASSUMED_OUTPUT_TOKENS = 256
"""What a request without a limit is taken to write, when comparing loads."""
RETRY_SOON_S = 1.0

_OVER_LIMIT = {
    LimitKind.REQUESTS: RejectReason.REQUESTS_OVER_LIMIT,
    LimitKind.TOKENS: RejectReason.TOKENS_OVER_LIMIT,
    LimitKind.CONCURRENCY: RejectReason.CONCURRENCY_OVER_LIMIT,
}

RequestFlow = Generator[Step, Outcome, None]
_Ended = Succeeded | Cancelled | Reject


@dataclass(frozen=True, slots=True)
class _Admitted:
    at_s: float
    lease: Lease | None


def request_flow(request: GenerationRequest, world: World) -> RequestFlow:
    """Serve the request once, and once more elsewhere where that is safe and affordable."""
    admitted = yield from _admit(request)
    if isinstance(admitted, Cancelled):
        return
    if isinstance(admitted, Reject):
        yield admitted
        return
    used_tokens: int | None = None
    try:
        ended = yield from _serve(request, world, admitted.at_s)
        used_tokens = _used_tokens(ended)
    finally:
        if admitted.lease is not None:
            world.quotas.settle(admitted.lease, used_tokens)
    if isinstance(ended, Reject):
        yield ended


def expected_tokens(request: GenerationRequest) -> int:
    """The work a request is booked as: its prompt and what it may write."""
    return request.estimated_prompt_tokens + (request.max_output_tokens or ASSUMED_OUTPUT_TOKENS)


# --- admit ------------------------------------------------------------------------------------------------


def _admit(request: GenerationRequest) -> Generator[Step, Outcome, _Admitted | Reject | Cancelled]:
    if request.limits.unlimited:
        outcome = yield LookUpCache()
        return outcome if isinstance(outcome, Cancelled) else _Admitted(_time_of(outcome), None)
    quota = TakeQuota(request.key_id, request.limits, expected_tokens(request))
    outcomes = yield Together((quota, LookUpCache()))
    if isinstance(outcomes, Cancelled):
        return outcomes
    if not isinstance(outcomes, tuple) or not isinstance(outcomes[0], QuotaAnswered):
        raise TypeError(f"{type(outcomes).__name__} is no outcome of steps taken together")
    answered = outcomes[0]
    if isinstance(answered.answer, Lease):
        return _Admitted(max(outcome.at_s for outcome in outcomes), answered.answer)
    return _over_limit(answered.answer)


def _over_limit(answer: QuotaAnswer) -> Reject:
    if isinstance(answer, OverLimit):
        detail = f"this key's limit of {answer.kind} is reached"
        return Reject(_OVER_LIMIT[answer.kind], detail, answer.retry_after_s)
    if isinstance(answer, NotCounted):
        return Reject(RejectReason.LIMITS_UNAVAILABLE, "limits cannot be checked now", answer.retry_after_s)
    raise TypeError("a lease is not a refusal")


def _used_tokens(ended: _Ended) -> int | None:
    if isinstance(ended, Succeeded):
        return ended.tokens
    # Nobody computed anything for a request that found no place; how far another got, nobody knows.
    return 0 if isinstance(ended, Reject) and ended.reason in _NEVER_RAN else None


_NEVER_RAN = frozenset(
    {
        RejectReason.NO_WORKER_FOR_MODEL,
        RejectReason.NO_HEALTHY_WORKER,
        RejectReason.QUEUE_FULL,
        RejectReason.QUEUE_TIMEOUT,
    }
)


# --- place and run ----------------------------------------------------------------------------------------


def _serve(request: GenerationRequest, world: World, now_s: float) -> Generator[Step, Outcome, _Ended]:
    world.retries.earn()
    tried: set[WorkerRef] = set()
    failure: Failed | None = None
    for attempt in range(1, MAX_ATTEMPTS + 1):
        if failure is not None and (given_up := _given_up(world, failure)):
            return given_up
        placed = yield from _place(request, world, tried, now_s)
        if not isinstance(placed, Decision):
            return placed
        resumes = failure is not None and failure.content_sent
        result = yield from _run(request, world, Generate(placed, attempt, resumes))
        if not isinstance(result, Failed):
            return result
        failure, now_s = result, result.at_s
        tried.add(placed.chosen.ref)
    if failure is not None and failure.kind is FailureKind.TIMED_OUT:
        return Reject(RejectReason.ATTEMPTS_TIMED_OUT, "no worker answered in time")
    return Reject(RejectReason.ALL_ATTEMPTS_FAILED, f"{MAX_ATTEMPTS} attempts failed")


def _given_up(world: World, failure: Failed) -> Reject | None:
    """Why there is no second attempt; None if there is one, which is then paid for."""
    if failure.content_sent and not failure.resumable:
        return Reject(RejectReason.NOT_RESUMABLE, f"a worker failed in mid-answer ({failure.kind})")
    if not world.retries.take():
        return Reject(RejectReason.RETRY_BUDGET_SPENT, f"a worker failed ({failure.kind})", RETRY_SOON_S)
    return None


def _run(
    request: GenerationRequest, world: World, step: Generate
) -> Generator[Step, Outcome, Succeeded | Failed | Cancelled]:
    ref = step.worker.ref
    booking = world.ledger.book(ref, expected_tokens(request))
    world.breakers.begin(ref)
    ended_s: float | None = None
    try:
        result = yield step
        if not isinstance(result, Succeeded | Failed | Cancelled):
            raise TypeError(f"{type(result).__name__} is no outcome of Generate")
        ended_s = result.at_s
        _learn(world, step.worker, result)
        return result
    finally:
        world.ledger.release(booking)
        if ended_s is None:
            world.breakers.abandoned(ref)
        if world.line.models:
            let_waiting_in(world, request.arrived_s if ended_s is None else ended_s)


def _learn(world: World, worker: Worker, result: Succeeded | Failed | Cancelled) -> None:
    if isinstance(result, Succeeded):
        world.breakers.succeeded(worker.ref)
    elif isinstance(result, Failed):
        world.breakers.failed(worker.ref, result.at_s)
        if result.kind is FailureKind.REFUSED:
            world.cluster.report_unreachable(worker.ref, "refused a connection")
    else:
        world.breakers.abandoned(worker.ref)


def _place(
    request: GenerationRequest, world: World, tried: set[WorkerRef], now_s: float
) -> Generator[Step, Outcome, Decision | Reject | Cancelled]:
    """A worker with room. A request that has begun waits for one to come back; a new one is told at once."""
    model = request.model
    if model not in world.cluster.models:
        return Reject(RejectReason.NO_WORKER_FOR_MODEL, "no worker serves this model")
    if not tried and not world.cluster.usable(model):
        return Reject(RejectReason.NO_HEALTHY_WORKER, "no worker of this model answers", RETRY_SOON_S)
    if not world.line.is_waiting(model) and (decision := _choose(request, world, tried, now_s)):
        return decision
    return (yield from _wait_for_room(request, world, tried, now_s))


def _wait_for_room(
    request: GenerationRequest, world: World, tried: set[WorkerRef], now_s: float
) -> Generator[Step, Outcome, Decision | Reject | Cancelled]:
    line, model = world.line, request.model
    while ticket := line.join(model, request.priority, now_s):
        try:
            outcome = yield Wait(ticket, now_s + request.max_wait_s)
        finally:
            line.leave(ticket)
        if isinstance(outcome, Cancelled):
            return outcome
        if not isinstance(outcome, Granted):
            detail = "no worker had room in time"
            return Reject(RejectReason.QUEUE_TIMEOUT, detail, line.expected_wait_s(model))
        if decision := _choose(request, world, tried, outcome.at_s):
            return decision
    return Reject(RejectReason.QUEUE_FULL, "too many requests wait already", line.expected_wait_s(model))


def _choose(request: GenerationRequest, world: World, tried: set[WorkerRef], now_s: float) -> Decision | None:
    usable = world.open_workers(request.model, now_s)
    # A worker that failed this request is asked again only where there is no other: its failure may have
    # been a closed idle connection, and the attempts are counted anyway.
    fresh = (tuple(worker for worker in usable if worker.ref not in tried) or usable) if tried else usable
    return world.policy([_candidate(world.ledger, worker) for worker in fresh]) if fresh else None


def _candidate(ledger: LoadLedger, worker: Worker) -> Candidate:
    load = ledger.load(worker.ref)
    return Candidate(worker, outstanding_tokens=load.tokens, outstanding_requests=load.requests)


def _time_of(outcome: Outcome) -> float:
    if isinstance(outcome, tuple):
        raise TypeError("several outcomes have several times")
    return outcome.at_s
