"""Admit, place, run, and finish or recover: the order of a request's steps, and what is learned from them."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

from phasewise.errors import FailureKind
from phasewise.model.decision import Decision, RejectReason
from phasewise.model.request import GenerationRequest
from phasewise.model.worker import Worker, WorkerRef
from phasewise.request_flow.admission import admit, expected_tokens
from phasewise.request_flow.outcomes import Cancelled, Failed, Outcome, Succeeded
from phasewise.request_flow.placement import RETRY_SOON_S, Progress, no_healthy_worker, place
from phasewise.request_flow.steps import Generate, Reject, Step
from phasewise.request_flow.world import World, let_waiting_in
from phasewise.state.breakers import Trial

MAX_ATTEMPTS = 2
"""A prompt that kills engines kills at most this many. Attempts that met no engine are not counted."""
_MET_NO_ENGINE = frozenset({FailureKind.REFUSED, FailureKind.NO_SOCKET})
_NOT_THE_WORKERS_FAULT = frozenset({FailureKind.NO_SOCKET, FailureKind.NOT_CONTINUED})

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
    progress = Progress(admitted.at_s, admitted.at_s, admitted.at_s + request.max_wait_s)
    ended: _Ended | None = None
    try:
        ended = yield from _serve(request, world, progress)
    finally:
        if admitted.lease is not None:
            world.quotas.settle(admitted.lease, progress.tokens)
    if isinstance(ended, Reject):
        yield ended


def _serve(request: GenerationRequest, world: World, progress: Progress) -> Generator[Step, Outcome, _Ended]:
    world.clock.tell(progress.admitted_s)
    world.retries.earn()
    failure: Failed | None = None
    while True:
        placed = yield from place(request, world, progress)
        if not isinstance(placed, Decision):
            return placed
        progress.attempts += 1
        resumes = failure is not None and failure.content_sent
        # Whoever interrupts the attempt does not say how far it came.
        tokens_before, progress.tokens = progress.tokens, None
        result = yield from _run(request, world, Generate(placed, len(progress.tried) + 1, resumes))
        progress.tokens = _tokens_computed(result, tokens_before)
        if not isinstance(result, Failed):
            if failure is not None and isinstance(result, Succeeded):
                _blame(world, progress.tried[-1], failure)
            return result
        progress.tried.append(placed.chosen.ref)
        _note_failure(progress, result, failure, request.max_wait_s)
        if given_up := _given_up(world, progress, result):
            return given_up
        failure = result


def _tokens_computed(result: _Result, before: int | None) -> int | None:
    """What the client's limits are charged: not for what was computed twice because a worker broke."""
    if isinstance(result, Succeeded) or result.tokens is None:
        return result.tokens
    return max(result.tokens, before or 0)


def _note_failure(progress: Progress, failure: Failed, before: Failed | None, max_wait_s: float) -> None:
    """Take the attempt back if it met no engine, and let the request wait anew, but not for every refusal."""
    progress.now_s = failure.at_s
    refused = failure.kind is FailureKind.REFUSED
    progress.attempts -= failure.kind in _MET_NO_ENGINE
    if not refused or before is None or before.kind is not FailureKind.REFUSED:
        progress.wait_until_s = failure.at_s + max_wait_s


def _given_up(world: World, progress: Progress, failure: Failed) -> Reject | None:
    """Why there is no further attempt; None if there is one, which is then paid for."""
    if failure.content_sent and not failure.resumable:
        return _failed(
            RejectReason.NOT_RESUMABLE, f"a worker failed in mid-answer ({failure.kind})", progress
        )
    if failure.kind in _MET_NO_ENGINE:
        return _given_up_unmet(progress, failure)
    if progress.attempts >= MAX_ATTEMPTS:
        if failure.kind is FailureKind.TIMED_OUT:
            return _failed(RejectReason.ATTEMPTS_TIMED_OUT, "no worker answered in time", progress)
        return _failed(RejectReason.ALL_ATTEMPTS_FAILED, f"{MAX_ATTEMPTS} attempts failed", progress)
    if not world.retries.take():
        detail = f"a worker failed ({failure.kind})"
        return Reject(RejectReason.RETRY_BUDGET_SPENT, detail, RETRY_SOON_S, progress.attempts)
    return None


def _given_up_unmet(progress: Progress, failure: Failed) -> Reject | None:
    if failure.kind is FailureKind.NO_SOCKET:
        detail = "the gateway can open no more connections"
        return Reject(RejectReason.GATEWAY_FULL, detail, RETRY_SOON_S, progress.attempts)
    # Nobody was there, and the worker is taken out: asking another costs no engine anything.
    return no_healthy_worker(progress) if failure.at_s >= progress.wait_until_s else None


def _failed(reason: RejectReason, detail: str, progress: Progress) -> Reject:
    return Reject(reason, detail, attempts=progress.attempts)


def _run(request: GenerationRequest, world: World, step: Generate) -> Generator[Step, Outcome, _Result]:
    """Book the worker, run the request on it, and let whoever waits have the room."""
    worker, clock = step.worker, world.clock
    booking = world.ledger.book(worker.ref, expected_tokens(request))
    if (trial := world.breakers.begin(worker.ref, clock.now_s)) is not None:
        step = replace(step, trial=trial)
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


def _learn(world: World, worker: Worker, trial: Trial | None, result: Outcome | None) -> None:
    """What the attempt tells of the worker, if it is still the same incarnation."""
    if not world.cluster.is_current(worker.ref):
        return
    if isinstance(result, Succeeded):
        world.breakers.succeeded(worker.ref, trial)
    elif isinstance(result, Failed) and not _may_be_the_requests_fault(result, trial):
        world.breakers.failed(worker.ref, trial, result.at_s)
        if result.kind is FailureKind.REFUSED:
            world.cluster.report_unreachable(worker.ref, "refused a connection")
    else:
        # The client left, the gateway stops or has no socket, an answer cannot go on, or nobody knows yet.
        world.breakers.abandoned(worker.ref, trial)


def _may_be_the_requests_fault(failure: Failed, trial: Trial | None) -> bool:
    """Whether nobody knows yet that it was the worker's: a reply of 5xx may be the request's own.

    Engines answer some mistakes of clients with 500; a client who repeats one must not take all workers away.
    """
    if failure.kind is FailureKind.SERVER_ERROR:
        return trial is None and not failure.content_sent
    return failure.kind in _NOT_THE_WORKERS_FAULT


def _blame(world: World, ref: WorkerRef, failure: Failed) -> None:
    """Another worker answered the request that this one answered with 5xx: it was the worker."""
    if (
        failure.kind is FailureKind.SERVER_ERROR
        and not failure.content_sent
        and world.cluster.is_current(ref)
    ):
        world.breakers.failed(ref, None, failure.at_s)
