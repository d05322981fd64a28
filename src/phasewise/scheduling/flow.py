"""Admit, serve from the cache or place and try, finish or recover: the order of steps, when to give up."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

from phasewise.core.decision import Decision, RejectReason
from phasewise.core.errors import FailureKind
from phasewise.core.request import GenerationRequest
from phasewise.scheduling.admission import RequestProgress, admit, place, tenant_of
from phasewise.scheduling.attempt import Broken, attempt, blame
from phasewise.scheduling.rejections import RETRY_SOON_S, all_attempts_failed, no_healthy_worker
from phasewise.scheduling.steps import (
    CacheHit,
    CacheMiss,
    Cancelled,
    Failed,
    FollowIdentical,
    IdenticalUnderWay,
    LeaderLost,
    LookAgain,
    LookedUp,
    NotShareable,
    Outcome,
    Reject,
    ServeStored,
    Step,
    Succeeded,
    TimedOut,
)
from phasewise.scheduling.world import World

MAX_ATTEMPTS = 2
"""A prompt that crashes engines crashes at most this many: each attempt ends with the first failure. Attempts
that reached no engine do not count."""

RequestFlow = Generator[Step, Outcome, None]
_Ended = Succeeded | Cancelled | Reject


def request_flow(request: GenerationRequest, world: World) -> RequestFlow:
    """Serve the request; if a worker fails, try once more if that is safe and within the retry budget."""
    admitted = yield from admit(request)
    if isinstance(admitted, Cancelled):
        return
    if isinstance(admitted, Reject):
        yield admitted
        return
    progress = RequestProgress(admitted.at_s, admitted.at_s, admitted.at_s + request.max_wait_s)
    ended: _Ended | None = None
    try:
        if not isinstance(admitted.looked_up, Cancelled):
            ended = yield from _serve(request, world, progress, admitted.looked_up)
    finally:
        if admitted.lease is not None:
            world.quotas.settle(admitted.lease, progress.tokens)
    if isinstance(ended, Reject):
        yield ended


def _serve(
    request: GenerationRequest, world: World, progress: RequestProgress, looked_up: LookedUp
) -> Generator[Step, Outcome, _Ended]:
    world.clock.advance(progress.admitted_s)
    before: Broken | None = None
    if not isinstance(looked_up, CacheMiss):
        served = yield from _serve_found(request, world, progress, looked_up)
        if isinstance(served, Succeeded | Cancelled | Reject):
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
        # Unknown while the attempt runs: an interruption does not report how far it came.
        tokens_before, progress.tokens = progress.tokens, None
        tenant = tenant_of(request)
        world.queue.hold(request.model, tenant)
        try:
            ended = yield from attempt(request, world, placed, progress.given, resumes=resumes)
        finally:
            world.queue.release(request.model, tenant)
        progress.tokens = _tokens_computed(ended, tokens_before)
        if not isinstance(ended, Broken):
            if before is not None and before.worker is not None and isinstance(ended, Succeeded):
                blame(world, before.worker, before.failure)
            return ended
        _note_failure(progress, ended, before, request.max_wait_s)
        progress.weights = _needed_weights(world, request.model, progress, placed, ended)
        if given_up := _given_up(request.model, world, progress, ended):
            return given_up
        if ended.worker is None or ended.failure.content_sent:
            # A failed KV transfer does not show which of the two workers failed, so another pair may fail
            # too, and any worker can compute the prompt itself. A partial answer has no KV to transfer.
            request = replace(request, splittable=False)
        before = ended


def _serve_found(
    request: GenerationRequest, world: World, progress: RequestProgress, found: CacheHit | IdenticalUnderWay
) -> Generator[Step, Outcome, _Ended | Broken | None]:
    """Serve the stored or shared answer. It costs no attempt and no tokens, and no worker is blamed for it.

    None: the client got nothing of it, so the request is placed like any other.
    """
    # A model that is no longer served is rejected, even if an answer is stored.
    if request.model not in world.cluster.models:
        return None
    if isinstance(found, CacheHit):
        return (yield from _send_stored(world))
    outcome = yield from _follow(request, world)
    if isinstance(outcome, Succeeded | Cancelled):
        return outcome
    progress.now_s = outcome.at_s
    # A request that timed out behind its leader has used its wait: it gets a free slot now, or none.
    failed = outcome if isinstance(outcome, Failed) else None
    if not isinstance(outcome, TimedOut) and (failed is None or failed.kind is not FailureKind.TIMED_OUT):
        progress.wait_until_s = outcome.at_s + request.max_wait_s
    if failed is None:
        return None
    progress.begun = True
    # Nobody noted whose answer it was.
    if not failed.resumable or _has_several_weights(world, request.model):
        return _failed(RejectReason.NOT_RESUMABLE, "the answer of an identical request broke off", progress)
    return Broken(failed, None, met=False)


def _needed_weights(
    world: World, model: str, progress: RequestProgress, placed: Decision, broken: Broken
) -> str | None:
    """Those that an answer began with, if engines of its model differ in them."""
    if progress.weights is not None or not broken.failure.content_sent:
        return progress.weights
    return placed.chosen.weights if _has_several_weights(world, model) else None


def _has_several_weights(world: World, model: str) -> bool:
    """Whether engines of one model would write different answers."""
    return len({state.worker.weights for state in world.cluster.serving(model)}) > 1


def _send_stored(world: World) -> Generator[Step, Outcome, Succeeded | Cancelled]:
    outcome = yield ServeStored()
    if not isinstance(outcome, Succeeded | Cancelled):
        raise TypeError(f"{type(outcome).__name__} is no outcome of ServeStored")
    world.clock.advance(outcome.at_s)
    return outcome


def _follow(
    request: GenerationRequest, world: World
) -> Generator[Step, Outcome, Succeeded | Cancelled | LeaderLost | NotShareable | TimedOut | Failed]:
    """Share the answer of an identical request; if its leader is lost, of the next one."""
    while True:
        outcome = yield FollowIdentical()
        if not isinstance(outcome, Succeeded | Cancelled | LeaderLost | NotShareable | TimedOut | Failed):
            raise TypeError(f"{type(outcome).__name__} is no outcome of FollowIdentical")
        world.clock.advance(outcome.at_s)
        # The wait for leaders is bounded like the wait for a slot.
        if not isinstance(outcome, LeaderLost) or outcome.at_s >= request.arrived_s + request.max_wait_s:
            return outcome
        again = yield LookAgain()
        if not isinstance(again, CacheMiss | IdenticalUnderWay | Cancelled):
            raise TypeError(f"{type(again).__name__} is no outcome of LookAgain")
        world.clock.advance(again.at_s)
        if not isinstance(again, IdenticalUnderWay):
            return again if isinstance(again, Cancelled) else LeaderLost(again.at_s)


def _tokens_computed(ended: Succeeded | Cancelled | Broken, before: int | None) -> int | None:
    """The tokens charged to the client's limits, without those computed twice because a worker failed."""
    tokens = ended.failure.tokens if isinstance(ended, Broken) else ended.tokens
    if isinstance(ended, Succeeded) or tokens is None:
        return tokens
    return max(tokens, before or 0)


def _note_failure(
    progress: RequestProgress, broken: Broken, before: Broken | None, max_wait_s: float
) -> None:
    """Note the worker to avoid, uncount an attempt that reached no engine, and let the request wait again."""
    failure = broken.failure
    progress.now_s = failure.at_s
    progress.attempts -= not broken.met
    if broken.worker is not None:
        progress.tried.append(broken.worker)
    # A second failed connection in a row does not extend the wait.
    no_connection = failure.kind is FailureKind.CONNECTION_REFUSED
    if not no_connection or before is None or before.failure.kind is not FailureKind.CONNECTION_REFUSED:
        progress.wait_until_s = failure.at_s + max_wait_s


def _given_up(model: str, world: World, progress: RequestProgress, broken: Broken) -> Reject | None:
    """The reason to give up; None if another attempt follows, which is then taken from the retry budget."""
    failure = broken.failure
    if failure.content_sent and not failure.resumable:
        return _failed(
            RejectReason.NOT_RESUMABLE, f"a worker failed in mid-answer ({failure.kind})", progress
        )
    if not broken.met:
        return _given_up_unmet(model, world, progress, failure)
    if progress.attempts >= MAX_ATTEMPTS:
        if failure.kind is FailureKind.TIMED_OUT:
            return _failed(RejectReason.ATTEMPTS_TIMED_OUT, "no worker answered in time", progress)
        return all_attempts_failed(progress.tried, failure.kind, progress.attempts)
    if not world.retries.take():
        who = "a KV transfer" if broken.worker is None else broken.worker.name
        detail = f"{who} failed ({failure.kind}), and too many requests were retried recently"
        return Reject(RejectReason.RETRY_BUDGET_SPENT, detail, RETRY_SOON_S, progress.attempts)
    return None


def _given_up_unmet(model: str, world: World, progress: RequestProgress, failure: Failed) -> Reject | None:
    if failure.kind is FailureKind.NO_SOCKET:
        detail = "the gateway can open no more connections"
        return Reject(RejectReason.GATEWAY_FULL, detail, RETRY_SOON_S, progress.attempts)
    # The worker is now marked down, and trying another costs no engine anything.
    if failure.kind is FailureKind.CONNECTION_REFUSED and failure.at_s >= progress.wait_until_s:
        return no_healthy_worker(model, world.cluster, progress.attempts)
    return None


def _failed(reason: RejectReason, detail: str, progress: RequestProgress) -> Reject:
    return Reject(reason, detail, attempts=progress.attempts)
