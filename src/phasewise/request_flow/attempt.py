"""One attempt at a request: book its workers, run it on one of them or on a pair, give their room back.

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
from phasewise.request_flow.admission import expected_tokens
from phasewise.request_flow.learning import (
    learn_fetching,
    learn_pair,
    learn_reading,
    learn_trust,
    learn_writing,
)
from phasewise.request_flow.outcomes import Cancelled, Failed, Outcome, Prefilled, Succeeded
from phasewise.request_flow.steps import Generate, Prefill, Step
from phasewise.request_flow.world import World, let_waiting_in
from phasewise.state.breakers import Trial
from phasewise.state.load_ledger import Booking

_MET_NO_ENGINE = frozenset({FailureKind.REFUSED, FailureKind.NO_SOCKET})


@noun
class Broken:
    """An attempt that failed, by a `worker`'s fault or by none's: the hand-over between two failed.

    `met`: an engine was there to fail. `late`: the KV was there, but could no longer be fetched safely.
    """

    failure: Failed
    worker: WorkerRef | None
    met: bool
    late: bool = False


class _Seat:
    """A worker's room for an attempt; `result` is what came of the step that it was taken for."""

    __slots__ = ("booking", "result", "trial", "worker")

    def __init__(self, worker: WorkerRef, booking: Booking, trial: Trial | None) -> None:
        self.worker = worker
        self.booking = booking
        self.trial = trial
        self.result: Prefilled | _Result | None = None


_Result = Succeeded | Failed | Cancelled
Attempting = Generator[Step, Outcome, Succeeded | Cancelled | Broken]


def attempt(
    request: GenerationRequest, world: World, decision: Decision, number: int, *, resumes: bool
) -> Attempting:
    """Run the request as decided, and learn what that tells of its workers."""
    if decision.prefill is None:
        return _run_whole(request, world, decision, number, resumes)
    return _run_split(request, world, decision, decision.prefill.ref, number)


# --- on one worker ----------------------------------------------------------------------------------------


def _run_whole(
    request: GenerationRequest, world: World, decision: Decision, number: int, resumes: bool
) -> Attempting:
    worker = decision.chosen.ref
    seat = _take_seat(world, worker, expected_tokens(request), _unread_tokens(request, decision))
    try:
        begun = partial(world.ledger.answering, seat.booking)
        result = yield from _generate(
            world, seat, Generate(decision, number, resumes, seat.trial, on_first_content=begun)
        )
        if isinstance(result, Succeeded):
            # A prompt that goes on from a broken answer is longer than the request's own.
            if not resumes:
                learn_reading(world, request, seat.booking, result.account)
            learn_writing(world, worker, result.account)
        return _ended(result, worker)
    finally:
        _leave_seat(world, seat)


# --- on two -----------------------------------------------------------------------------------------------


def _run_split(
    request: GenerationRequest, world: World, decision: Decision, prefill: WorkerRef, number: int
) -> Attempting:
    """The prompt on one worker, the answer on another: its slot is held while the prompt is computed.

    KV that waits for a slot would outlive the time for which it is kept.
    """
    decode = decision.chosen.ref
    seat = _take_seat(world, decode, expected_tokens(request) - request.estimated_prompt_tokens)
    pair = pair_ref(prefill, decode)
    trial = world.pairs.begin(pair, world.clock.now_s)
    result: _Result | None = None
    try:
        prefilled = yield from _prefill(request, world, decision, prefill, number)
        if not isinstance(prefilled, Prefilled):
            result = prefilled
            return _ended(result, prefill)
        kv = prefilled.ticket
        if prefilled.at_s >= kv.good_until_s:
            result = Failed(prefilled.at_s, FailureKind.HAND_OVER, False, tokens=kv.prompt_tokens)
            return Broken(result, None, met=False, late=True)
        begun = partial(_hand_over_done, world, seat, trial)
        step = Generate(decision, number, trial=seat.trial, kv=kv, on_first_content=begun)
        result = yield from _generate(world, seat, step)
        if isinstance(result, Succeeded):
            learn_fetching(world, request, decode, kv, result.account)
            learn_writing(world, decode, result.account)
        return _ended(result, decode)
    finally:
        if world.cluster.is_current(prefill) and world.cluster.is_current(decode):
            learn_pair(world, pair, trial, result, handed_over=seat.booking.answering)
        _leave_seat(world, seat)


def _prefill(
    request: GenerationRequest, world: World, decision: Decision, worker: WorkerRef, number: int
) -> Generator[Step, Outcome, Prefilled | _Result]:
    tokens = _unread_tokens(request, decision)
    seat = _take_seat(world, worker, tokens, tokens)
    try:
        outcome = yield Prefill(decision, number, seat.trial)
        if not isinstance(outcome, Prefilled | Succeeded | Failed | Cancelled):
            raise TypeError(f"{type(outcome).__name__} is no outcome of Prefill")
        world.clock.tell(outcome.at_s)
        seat.result = outcome
        if isinstance(outcome, Prefilled):
            learn_reading(world, request, seat.booking, outcome.account)
        return outcome
    finally:
        _leave_seat(world, seat)


def _hand_over_done(world: World, seat: _Seat, trial: Trial | None) -> None:
    world.ledger.answering(seat.booking)
    if trial is not None:
        trial.answered = _yes


def _yes() -> bool:
    return True


# --- both -------------------------------------------------------------------------------------------------


def _generate(world: World, seat: _Seat, step: Generate) -> Generator[Step, Outcome, _Result]:
    outcome = yield step
    if not isinstance(outcome, Succeeded | Failed | Cancelled):
        raise TypeError(f"{type(outcome).__name__} is no outcome of Generate")
    world.clock.tell(outcome.at_s)
    seat.result = outcome
    return outcome


def _ended(result: _Result, worker: WorkerRef) -> Succeeded | Cancelled | Broken:
    if not isinstance(result, Failed):
        return result
    at_fault = None if result.kind is FailureKind.HAND_OVER else worker
    return Broken(result, at_fault, met=result.kind not in _MET_NO_ENGINE)


def _unread_tokens(request: GenerationRequest, decision: Decision) -> int:
    """What of the prompt is still to be computed, as far as whoever decided could tell."""
    if not decision.options:
        return request.estimated_prompt_tokens
    expected = decision.options[0]
    return max(1, expected.prompt_tokens - expected.cached_tokens)


def _take_seat(world: World, worker: WorkerRef, tokens: int, unread_tokens: int = 0) -> _Seat:
    booking = world.ledger.book(worker, tokens, unread_tokens)
    return _Seat(worker, booking, world.breakers.begin(worker, world.clock.now_s))


def _leave_seat(world: World, seat: _Seat) -> None:
    """Give the room back, and let whoever waits have it."""
    world.ledger.release(seat.booking)
    learn_trust(world, seat.worker, seat.trial, seat.result)
    if len(world.line):
        let_waiting_in(world, world.clock.now_s)
