"""One attempt at a request: run it on one worker, or on a pair with a KV transfer, and learn from it."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial

from phasewise.core.decision import Decision
from phasewise.core.errors import FailureKind
from phasewise.core.kv_transfer import KvTicket, pair_ref
from phasewise.core.request import GenerationRequest
from phasewise.core.timeline import EngineAccount
from phasewise.core.value import value
from phasewise.core.worker import WorkerRef
from phasewise.scheduling.admission import expected_output_tokens
from phasewise.scheduling.breakers import BreakerTrial
from phasewise.scheduling.ledger import IDLE, Booking
from phasewise.scheduling.steps import (
    Cancelled,
    Failed,
    Generate,
    Outcome,
    Prefill,
    Prefilled,
    Step,
    Succeeded,
)
from phasewise.scheduling.world import World, let_waiting_in

# --- What an attempt shows of its workers: whether they fail, how fast they are, what they hold in cache.
#
# Nothing is learned about former incarnations of a worker.

_NOT_THE_WORKERS_FAULT = frozenset(
    {FailureKind.NO_SOCKET, FailureKind.NOT_CONTINUED, FailureKind.KV_TRANSFER, FailureKind.TOO_LATE}
)


# --- trust ------------------------------------------------------------------------------------------------


def learn_trust(world: World, worker: WorkerRef, trial: BreakerTrial | None, result: Outcome | None) -> None:
    """Report the worker's part of the request to the breakers; None: not started, or interrupted."""
    if not world.cluster.is_current(worker):
        return
    if isinstance(result, Succeeded | Prefilled):
        world.breakers.succeeded(worker, trial)
    elif isinstance(result, Failed) and not _may_be_the_requests_fault(result, trial):
        world.breakers.failed(worker, trial, result.at_s)
        if result.kind is FailureKind.CONNECTION_REFUSED:
            world.cluster.report_unreachable(worker, "rejected a connection")
    else:
        # Inconclusive: the client left, the gateway stops, is late or has no socket, the KV did not come, the
        # answer cannot be resumed here, or the request itself may be at fault.
        world.breakers.abandoned(worker, trial)


def learn_pair(
    world: World, pair: WorkerRef, trial: BreakerTrial | None, result: Outcome | None, *, transferred: bool
) -> None:
    """Report to the breakers whether KV was transferred between two current workers."""
    if isinstance(result, Failed) and result.kind is FailureKind.KV_TRANSFER:
        world.pairs.failed(pair, trial, result.at_s)
    elif transferred:
        world.pairs.succeeded(pair, trial)
    else:
        world.pairs.abandoned(pair, trial)


def blame(world: World, worker: WorkerRef, failure: Failed) -> None:
    """Count a 5xx as the worker's failure, because another worker then answered the same request."""
    if (
        failure.kind is FailureKind.SERVER_ERROR
        and not failure.content_sent
        and world.cluster.is_current(worker)
    ):
        world.breakers.failed(worker, None, failure.at_s)


def _may_be_the_requests_fault(failure: Failed, trial: BreakerTrial | None) -> bool:
    """Whether the request may have caused the failure.

    Engines answer some client mistakes with 500. A client that repeats one must not open every circuit.
    """
    if failure.kind is FailureKind.SERVER_ERROR:
        return trial is None and not failure.content_sent
    return failure.kind in _NOT_THE_WORKERS_FAULT


# --- pace, sizes and caches -------------------------------------------------------------------------------


def learn_reading(
    world: World, request: GenerationRequest, slot: Slot, account: EngineAccount, *, timed: bool
) -> None:
    """A worker has computed the prompt itself: learn what it holds, and how fast it is if `timed`."""
    worker, held_blocks = slot.worker, slot.held_blocks
    prompt_tokens, cached_tokens = account.prompt_tokens, account.cached_tokens
    if prompt_tokens is None or not world.cluster.is_current(worker):
        return
    if cached_tokens is None:
        # An engine that does not report cached tokens still holds the prompt now.
        cached_tokens = held_blocks = 0
    elif timed and slot.booking.read_alone and account.prefill_s is not None:
        world.paces.learn_read(worker, prompt_tokens, cached_tokens, account.prefill_s)
    if request.prefix_hashes:
        world.learn_prefix(worker, request.prefix_hashes, prompt_tokens, cached_tokens, held_blocks)


def learn_fetching(
    world: World, request: GenerationRequest, worker: WorkerRef, kv: KvTicket, account: EngineAccount
) -> None:
    """A worker has fetched the part of the prompt's KV that it lacked, and holds all of it now.

    Its reported cached tokens are those of the prefill worker, so its own are taken from the prefix index.
    """
    if not world.cluster.is_current(worker):
        return
    hashes, fetched_tokens = request.prefix_hashes, kv.prompt_tokens
    if hashes:
        fetched_tokens -= world.prefixes.cached_tokens(worker, hashes, kv.prompt_tokens)
        world.learn_prefix(worker, hashes, kv.prompt_tokens, 0)
    if world.learns_pace and account.queue_s is not None and fetched_tokens > 0:
        world.paces.learn_fetch(worker, fetched_tokens, account.queue_s)


def learn_writing(world: World, worker: WorkerRef, account: EngineAccount) -> None:
    """A worker has finished an answer, which still counts among its streams."""
    if account.gap_s is not None and world.cluster.is_current(worker):
        load = world.ledger.whole_loads()(worker, IDLE)
        world.paces.learn_step(worker, max(1, load.streams), account.gap_s)
        if not load.unread_requests:
            world.paces.learn_calm_step(worker, max(1, load.streams), account.gap_s)


def learn_sizes(
    world: World, request: GenerationRequest, prompt_tokens: int | None, output_tokens: int | None
) -> None:
    """Learn the lengths of prompt and answer. With several choices no single length is known."""
    if request.choices == 1:
        world.paces.sizes.learn(request, prompt_tokens, output_tokens)


# --- A worker's slot for a request or for one of its phases: taken and released exactly once.


@dataclass(slots=True, eq=False)
class Slot:
    """A booked worker. `result` is the outcome of the step that it was booked for, None until then.

    `held_blocks` of the prompt were expected in the worker's cache when it got the request.
    """

    worker: WorkerRef
    booking: Booking
    trial: BreakerTrial | None
    held_blocks: int = 0
    result: Prefilled | Succeeded | Failed | Cancelled | None = None


def take_slot(world: World, worker: WorkerRef, tokens: int, unread_tokens: int = 0) -> Slot:
    """Book a worker for `tokens` to compute, the `unread_tokens` of the prompt included."""
    booking = world.ledger.book(worker, tokens, unread_tokens)
    return Slot(worker, booking, world.breakers.begin(worker, world.clock.now_s))


def note_arriving(
    world: World, request: GenerationRequest, worker: WorkerRef, *, unread_share: float, decodes: bool
) -> None:
    """A worker gets this share of a prompt to compute, and the answer to decode if it `decodes`."""
    if not world.learns_pace or (pace := world.paces.pace(worker)) is None:
        return
    sizes = world.paces.sizes
    prompt_tokens = sizes.prompt_tokens(request)
    prefill_s = pace.read_s(prompt_tokens, prompt_tokens * (1.0 - unread_share)) if unread_share else 0.0
    output_tokens = sizes.output_tokens(request) * request.choices if decodes else 0
    world.paces.arriving.placed(world.paces.kin(worker), prefill_s, output_tokens, world.clock.now_s)


def take_prefill_slot(
    request: GenerationRequest, world: World, decision: Decision, worker: WorkerRef, output_tokens: int = 0
) -> Slot:
    """Book a worker that computes the prompt, minus what its cache is expected to hold."""
    hashes = request.prefix_hashes
    if decision.options:
        expected = decision.options[0]
        prompt_tokens, cached_tokens = expected.prompt_tokens, expected.cached_tokens
        world.paces.reading.placed(worker, expected.terms.prefill_s, world.clock.now_s)
    else:
        prompt_tokens, cached_tokens = request.estimated_prompt_tokens, 0
        if hashes:
            cached_tokens = world.prefixes.cached_tokens(worker, hashes, prompt_tokens)
    unread_tokens = max(1, prompt_tokens - cached_tokens)
    unread_share = unread_tokens / max(1, prompt_tokens)
    note_arriving(world, request, worker, unread_share=unread_share, decodes=output_tokens > 0)
    slot = take_slot(world, worker, unread_tokens + output_tokens, unread_tokens)
    if hashes:
        slot.held_blocks = world.prefixes.held_blocks(worker, hashes)
    return slot


def leave_slot(world: World, slot: Slot) -> None:
    """Release the slot and grant it to a waiting request."""
    world.ledger.release(slot.booking)
    learn_trust(world, slot.worker, slot.trial, slot.result)
    if len(world.queue):
        let_waiting_in(world, world.clock.now_s)


_MET_NO_ENGINE = frozenset({FailureKind.CONNECTION_REFUSED, FailureKind.NO_SOCKET})
_NO_WORKERS_FAULT = frozenset({FailureKind.KV_TRANSFER, FailureKind.TOO_LATE})


@value
class Broken:
    """A failed attempt. `worker` is the one at fault, None if the KV transfer between two failed.

    `met`: the attempt reached an engine.
    """

    failure: Failed
    worker: WorkerRef | None
    met: bool


_Result = Succeeded | Failed | Cancelled
Attempting = Generator[Step, Outcome, Succeeded | Cancelled | Broken]


def attempt(
    request: GenerationRequest, world: World, decision: Decision, number: int, *, resumes: bool
) -> Attempting:
    """Run the request as decided."""
    if decision.prefill is None:
        return _run_whole(request, world, decision, number, resumes)
    return _run_split(request, world, decision, decision.prefill.ref, number)


# --- on one worker ----------------------------------------------------------------------------------------


def _run_whole(
    request: GenerationRequest, world: World, decision: Decision, number: int, resumes: bool
) -> Attempting:
    worker = decision.chosen.ref
    slot = take_prefill_slot(request, world, decision, worker, expected_output_tokens(request))
    try:
        begun = partial(world.ledger.answering, slot.booking)
        outcome = yield Generate(decision, number, resumes, slot.trial, None, begun)
        result = _noted(world, slot, outcome)
        if isinstance(result, Succeeded):
            account, timed = result.account, world.learns_pace and world.paces.is_due()
            # A resumed request's prompt includes the answer so far.
            if not resumes:
                learn_reading(world, request, slot, account, timed=timed)
            if timed and not resumes:
                learn_sizes(world, request, account.prompt_tokens, account.output_tokens)
            if timed:
                learn_writing(world, worker, account)
        return _ended(result, worker)
    finally:
        leave_slot(world, slot)


# --- on two -----------------------------------------------------------------------------------------------


def _run_split(
    request: GenerationRequest, world: World, decision: Decision, prefill: WorkerRef, number: int
) -> Attempting:
    """Prefill on one worker, decode on another, whose slot is held from the start.

    KV that waited for a decode slot could expire.
    """
    decode = decision.chosen.ref
    slot = take_slot(world, decode, expected_output_tokens(request))
    note_arriving(world, request, decode, unread_share=0.0, decodes=True)
    pair = pair_ref(prefill, decode)
    trial = world.pairs.begin(pair, world.clock.now_s)
    result: _Result | None = None
    try:
        prefilled = yield from _prefill(request, world, decision, prefill, number)
        if not isinstance(prefilled, Prefilled):
            result = prefilled
            return _ended(result, prefill)
        kv = prefilled.ticket
        begun = partial(_begin_answer, world, slot, trial)
        outcome = yield Generate(decision, number, False, slot.trial, kv, begun)
        result = _noted(world, slot, outcome)
        # An engine that rejected the request as invalid has fetched nothing.
        if isinstance(result, Succeeded) and slot.booking.answering:
            learn_fetching(world, request, decode, kv, result.account)
            if world.learns_pace:
                learn_sizes(world, request, kv.prompt_tokens, result.account.output_tokens)
                learn_writing(world, decode, result.account)
        if isinstance(result, Failed) and result.kind is FailureKind.TOO_LATE:
            # Not counted as an attempt, because no engine failed. The next attempt is not split.
            return Broken(result, None, met=False)
        return _ended(result, decode)
    finally:
        if world.cluster.is_current(prefill) and world.cluster.is_current(decode):
            learn_pair(world, pair, trial, result, transferred=slot.booking.answering)
        leave_slot(world, slot)


def _prefill(
    request: GenerationRequest, world: World, decision: Decision, worker: WorkerRef, number: int
) -> Generator[Step, Outcome, Prefilled | _Result]:
    slot = take_prefill_slot(request, world, decision, worker)
    try:
        outcome = yield Prefill(decision, number, slot.trial)
        if not isinstance(outcome, Prefilled):
            return _noted(world, slot, outcome)
        world.clock.advance(outcome.at_s)
        slot.result = outcome
        learn_reading(world, request, slot, outcome.account, timed=world.learns_pace)
        return outcome
    finally:
        leave_slot(world, slot)


def _begin_answer(world: World, slot: Slot, pair_trial: BreakerTrial | None) -> None:
    world.ledger.answering(slot.booking)
    if pair_trial is not None:
        pair_trial.answered = lambda: True


# --- on either --------------------------------------------------------------------------------------------


def _noted(world: World, slot: Slot, outcome: Outcome) -> _Result:
    if not isinstance(outcome, Succeeded | Failed | Cancelled):
        raise TypeError(f"{type(outcome).__name__} is no outcome of Generate or Prefill")
    world.clock.advance(outcome.at_s)
    slot.result = outcome
    return outcome


def _ended(result: _Result, worker: WorkerRef) -> Succeeded | Cancelled | Broken:
    if not isinstance(result, Failed):
        return result
    at_fault = None if result.kind in _NO_WORKERS_FAULT else worker
    return Broken(result, at_fault, met=result.kind not in _MET_NO_ENGINE)
