"""Admit, serve what was found or place and try, finish or recover: the order of steps, when to give up."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

from phasewise.errors import FailureKind
from phasewise.model.decision import Decision, RejectReason
from phasewise.model.request import GenerationRequest
from phasewise.request_flow.admission import admit
from phasewise.request_flow.attempt import Broken, attempt
from phasewise.request_flow.learning import blame
from phasewise.request_flow.outcomes import Cancelled, Failed, Outcome, Succeeded
from phasewise.request_flow.placement import RETRY_SOON_S, Progress, no_healthy_worker, place
from phasewise.request_flow.steps import Reject, ServeFound, Step
from phasewise.request_flow.world import World

MAX_ATTEMPTS = 2
"""A prompt that kills engines kills at most this many, of whatever role: each attempt breaks off with the
first that fails. Attempts that met no engine are not counted."""

RequestFlow = Generator[Step, Outcome, None]
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
        if not admitted.left:
            ended = yield from _serve(request, world, progress, found=admitted.found)
    finally:
        if admitted.lease is not None:
            world.quotas.settle(admitted.lease, progress.tokens)
    if isinstance(ended, Reject):
        yield ended


def _serve(
    request: GenerationRequest, world: World, progress: Progress, *, found: bool
) -> Generator[Step, Outcome, _Ended]:
    world.clock.tell(progress.admitted_s)
    before: Broken | None = None
    # What was kept of a model that is served no longer is refused as the model is.
    if found and request.model in world.cluster.models:
        served = yield from _serve_found(request, world, progress)
        if not isinstance(served, Broken):
            return served
        before = served
        if progress.begun:
            request = replace(request, splittable=False)
    world.retries.earn()
    while True:
        placed = yield from place(request, world, progress)
        if not isinstance(placed, Decision):
            return placed
        progress.given += 1
        progress.attempts += 1
        resumes = before is not None and before.failure.content_sent
        # Whoever interrupts the attempt does not say how far it came.
        tokens_before, progress.tokens = progress.tokens, None
        ended = yield from attempt(request, world, placed, progress.given, resumes=resumes)
        progress.tokens = _tokens_computed(ended, tokens_before)
        if not isinstance(ended, Broken):
            if before is not None and before.worker is not None and isinstance(ended, Succeeded):
                blame(world, before.worker, before.failure)
            return ended
        _note_failure(progress, ended, before, request.max_wait_s)
        if given_up := _given_up(world, progress, ended):
            return given_up
        if ended.worker is None or ended.failure.content_sent:
            # Nobody knows which of two workers a hand-over failed by, so another pair may fail it as well,
            # and any worker can compute the prompt itself. There is no KV of a half-written answer.
            request = replace(request, splittable=False)
        before = ended


def _serve_found(
    request: GenerationRequest, world: World, progress: Progress
) -> Generator[Step, Outcome, _Ended | Broken]:
    """Serve what is there already. It costs no attempt, no tokens and no worker's name, even if it breaks.

    Whoever had to wait too long for another's has waited: there is a worker for it now, or none.
    """
    outcome = yield ServeFound()
    if not isinstance(outcome, Succeeded | Failed | Cancelled):
        raise TypeError(f"{type(outcome).__name__} is no outcome of ServeFound")
    world.clock.tell(outcome.at_s)
    if not isinstance(outcome, Failed):
        return outcome
    progress.now_s, progress.begun = outcome.at_s, outcome.content_sent
    if outcome.kind is not FailureKind.TIMED_OUT:
        progress.wait_until_s = outcome.at_s + request.max_wait_s
    if outcome.content_sent and not outcome.resumable:
        return _failed(RejectReason.NOT_RESUMABLE, "an answer that was joined broke off", progress)
    return Broken(outcome, None, met=False)


def _tokens_computed(ended: Succeeded | Cancelled | Broken, before: int | None) -> int | None:
    """What the client's limits are charged: not for what was computed twice because a worker broke."""
    tokens = ended.failure.tokens if isinstance(ended, Broken) else ended.tokens
    if isinstance(ended, Succeeded) or tokens is None:
        return tokens
    return max(tokens, before or 0)


def _note_failure(progress: Progress, broken: Broken, before: Broken | None, max_wait_s: float) -> None:
    """Remember whom to avoid, take the attempt back if it met no engine, and let the request wait anew."""
    failure = broken.failure
    progress.now_s = failure.at_s
    progress.attempts -= not broken.met
    if broken.worker is not None:
        progress.tried.append(broken.worker)
    # But not for every refusal.
    refused = failure.kind is FailureKind.REFUSED
    if not refused or before is None or before.failure.kind is not FailureKind.REFUSED:
        progress.wait_until_s = failure.at_s + max_wait_s


def _given_up(world: World, progress: Progress, broken: Broken) -> Reject | None:
    """Why there is no further attempt; None if there is one, which is then paid for."""
    failure = broken.failure
    if failure.content_sent and not failure.resumable:
        return _failed(
            RejectReason.NOT_RESUMABLE, f"a worker failed in mid-answer ({failure.kind})", progress
        )
    if not broken.met:
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
    refused = failure.kind is FailureKind.REFUSED
    return no_healthy_worker(progress) if refused and failure.at_s >= progress.wait_until_s else None


def _failed(reason: RejectReason, detail: str, progress: Progress) -> Reject:
    return Reject(reason, detail, attempts=progress.attempts)
