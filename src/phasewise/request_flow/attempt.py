"""One attempt at a request: run it on a worker, or on a pair of them that hand KV over, and learn from it.

Whether there is another attempt, and where, is flow.py's.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from phasewise.errors import FailureKind
from phasewise.model.decision import Decision
from phasewise.model.hand_over import pair_ref
from phasewise.model.noun import noun
from phasewise.model.request import GenerationRequest
from phasewise.model.worker import WorkerRef
from phasewise.request_flow.admission import expected_output_tokens
from phasewise.request_flow.learning import (
    learn_fetching,
    learn_pair,
    learn_reading,
    learn_sizes,
    learn_writing,
)
from phasewise.request_flow.outcomes import Cancelled, Failed, Outcome, Prefilled, Succeeded
from phasewise.request_flow.seat import Seat, leave_seat, take_reading_seat, take_seat
from phasewise.request_flow.steps import Generate, Prefill, Step
from phasewise.request_flow.world import World
from phasewise.state.breakers import Trial

_MET_NO_ENGINE = frozenset({FailureKind.REFUSED, FailureKind.NO_SOCKET})
_NO_WORKERS_FAULT = frozenset({FailureKind.HAND_OVER, FailureKind.TOO_LATE})


@noun
class Broken:
    """An attempt that failed, by a `worker`'s fault or by none's: the hand-over between two failed.

    `met`: an engine was there to fail.
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
    seat = take_reading_seat(request, world, decision, worker, expected_output_tokens(request))
    try:
        begun = partial(world.ledger.answering, seat.booking)
        outcome = yield Generate(decision, number, resumes, seat.trial, None, begun)
        result = _noted(world, seat, outcome)
        if isinstance(result, Succeeded):
            account = result.account
            # A prompt that goes on from a broken answer is longer than the request's own.
            if not resumes:
                learn_reading(world, request, seat.booking, seat.held_blocks, account)
                learn_sizes(world, request, account.prompt_tokens, account.output_tokens)
            learn_writing(world, worker, account)
        return _ended(result, worker)
    finally:
        leave_seat(world, seat)


# --- on two -----------------------------------------------------------------------------------------------


def _run_split(
    request: GenerationRequest, world: World, decision: Decision, prefill: WorkerRef, number: int
) -> Attempting:
    """The prompt on one worker, the answer on another, whose slot is held from the start.

    KV that had to wait for a slot could outlive the time for which it is kept.
    """
    decode = decision.chosen.ref
    seat = take_seat(world, decode, expected_output_tokens(request))
    pair = pair_ref(prefill, decode)
    trial = world.pairs.begin(pair, world.clock.now_s)
    result: _Result | None = None
    try:
        prefilled = yield from _prefill(request, world, decision, prefill, number)
        if not isinstance(prefilled, Prefilled):
            result = prefilled
            return _ended(result, prefill)
        kv = prefilled.ticket
        begun = partial(_begin_answer, world, seat, trial)
        outcome = yield Generate(decision, number, False, seat.trial, kv, begun)
        result = _noted(world, seat, outcome)
        # An engine that refused the request, as the client's mistake, has fetched nothing.
        if isinstance(result, Succeeded) and seat.booking.answering:
            learn_fetching(world, request, decode, kv, result.account)
            learn_sizes(world, request, kv.prompt_tokens, result.account.output_tokens)
            learn_writing(world, decode, result.account)
        if isinstance(result, Failed) and result.kind is FailureKind.TOO_LATE:
            # Free of charge, as no engine failed, and at most once: what follows is whole.
            return Broken(result, None, met=False)
        return _ended(result, decode)
    finally:
        if world.cluster.is_current(prefill) and world.cluster.is_current(decode):
            learn_pair(world, pair, trial, result, handed_over=seat.booking.answering)
        leave_seat(world, seat)


def _prefill(
    request: GenerationRequest, world: World, decision: Decision, worker: WorkerRef, number: int
) -> Generator[Step, Outcome, Prefilled | _Result]:
    seat = take_reading_seat(request, world, decision, worker)
    try:
        outcome = yield Prefill(decision, number, seat.trial)
        if not isinstance(outcome, Prefilled):
            return _noted(world, seat, outcome)
        world.clock.tell(outcome.at_s)
        seat.result = outcome
        learn_reading(world, request, seat.booking, seat.held_blocks, outcome.account)
        return outcome
    finally:
        leave_seat(world, seat)


def _begin_answer(world: World, seat: Seat, pair_trial: Trial | None) -> None:
    world.ledger.answering(seat.booking)
    if pair_trial is not None:
        pair_trial.answered = _yes


def _yes() -> bool:
    return True


# --- on either --------------------------------------------------------------------------------------------


def _noted(world: World, seat: Seat, outcome: Outcome) -> _Result:
    if not isinstance(outcome, Succeeded | Failed | Cancelled):
        raise TypeError(f"{type(outcome).__name__} is no outcome of Generate or Prefill")
    world.clock.tell(outcome.at_s)
    seat.result = outcome
    return outcome


def _ended(result: _Result, worker: WorkerRef) -> Succeeded | Cancelled | Broken:
    if not isinstance(result, Failed):
        return result
    at_fault = None if result.kind in _NO_WORKERS_FAULT else worker
    return Broken(result, at_fault, met=result.kind not in _MET_NO_ENGINE)
