"""Admit, place, run, and finish or recover: the order of a request's steps, and what is learned from them."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from phasewise.errors import FailureKind
from phasewise.model.decision import Decision, RejectReason
from phasewise.model.request import GenerationRequest
from phasewise.model.worker import Worker, WorkerRef
from phasewise.request_flow.admission import admit, expected_tokens
from phasewise.request_flow.outcomes import Cancelled, Failed, Outcome, Succeeded
from phasewise.request_flow.placement import RETRY_SOON_S, place
from phasewise.request_flow.steps import Generate, Reject, Step
from phasewise.request_flow.world import World, let_waiting_in

MAX_ATTEMPTS = 2
"""A prompt that kills engines kills at most this many."""

RequestFlow = Generator[Step, Outcome, None]
_Result = Succeeded | Failed | Cancelled
_Ended = Succeeded | Cancelled | Reject


def request_flow(request: GenerationRequest, world: World) -> RequestFlow:
    """Serve the request once, and once more elsewhere where that is safe and affordable."""
    admitted = yield from admit(request)
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


def _used_tokens(ended: _Ended) -> int | None:
    if isinstance(ended, Succeeded):
        return ended.tokens
    # Nobody computed anything for a request that found no place; how far another got, nobody knows.
    return 0 if isinstance(ended, Reject) and not ended.attempts else None


def _serve(request: GenerationRequest, world: World, admitted_s: float) -> Generator[Step, Outcome, _Ended]:
    world.clock.tell(admitted_s)
    world.retries.earn()
    tried: list[WorkerRef] = []
    failure: Failed | None = None
    now_s = admitted_s
    while True:
        placed = yield from place(request, world, tried, admitted_s, now_s)
        if not isinstance(placed, Decision):
            return placed
        resumes = failure is not None and failure.content_sent
        result = yield from _run(request, world, Generate(placed, len(tried) + 1, resumes))
        if not isinstance(result, Failed):
            return result
        failure, now_s = result, result.at_s
        tried.append(placed.chosen.ref)
        if given_up := _given_up(world, failure, tried):
            return given_up


def _given_up(world: World, failure: Failed, tried: Sequence[WorkerRef]) -> Reject | None:
    """Why there is no further attempt; None if there is one, which is then paid for."""
    attempts = len(tried)
    if failure.content_sent and not failure.resumable:
        detail = f"a worker failed in mid-answer ({failure.kind})"
        return Reject(RejectReason.NOT_RESUMABLE, detail, attempts=attempts)
    if attempts >= MAX_ATTEMPTS:
        if failure.kind is FailureKind.TIMED_OUT:
            detail = "no worker answered in time"
            return Reject(RejectReason.ATTEMPTS_TIMED_OUT, detail, attempts=attempts)
        return Reject(RejectReason.ALL_ATTEMPTS_FAILED, f"{attempts} attempts failed", attempts=attempts)
    if not world.retries.take():
        detail = f"a worker failed ({failure.kind})"
        return Reject(RejectReason.RETRY_BUDGET_SPENT, detail, RETRY_SOON_S, attempts)
    return None


def _run(request: GenerationRequest, world: World, step: Generate) -> Generator[Step, Outcome, _Result]:
    """Book the worker, run the request on it, and let whoever waits have the room."""
    worker, clock = step.worker, world.clock
    booking = world.ledger.book(worker.ref, expected_tokens(request))
    trial = world.breakers.begin(worker.ref, clock.now_s)
    result: Outcome | None = None
    try:
        result = yield step
        if not isinstance(result, Succeeded | Failed | Cancelled):
            raise TypeError(f"{type(result).__name__} is no outcome of Generate")
        clock.tell(result.at_s)
        return result
    finally:
        world.ledger.release(booking)
        _learn(world, worker, trial, result)
        if len(world.line):
            let_waiting_in(world, clock.now_s)


def _learn(world: World, worker: Worker, trial: int | None, result: Outcome | None) -> None:
    """What the attempt tells of the worker, if it is still the same incarnation."""
    if not world.cluster.is_current(worker.ref):
        return
    if isinstance(result, Succeeded):
        world.breakers.succeeded(worker.ref, trial)
    elif isinstance(result, Failed):
        world.breakers.failed(worker.ref, trial, result.at_s)
        if result.kind is FailureKind.REFUSED:
            world.cluster.report_unreachable(worker.ref, "refused a connection")
    else:
        # The client left, or the gateway stops: nobody's fault.
        world.breakers.abandoned(worker.ref, trial)
