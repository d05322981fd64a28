"""A worker's room for a request, or for one phase of it: taken, and left exactly once.

What runs on it is attempt.py's, what that tells of the worker learning.py's.
"""

from __future__ import annotations

from phasewise.model.decision import Decision
from phasewise.model.request import GenerationRequest
from phasewise.model.worker import WorkerRef
from phasewise.request_flow.learning import learn_trust
from phasewise.request_flow.outcomes import Cancelled, Failed, Prefilled, Succeeded
from phasewise.request_flow.world import World, let_waiting_in
from phasewise.state.breakers import Trial
from phasewise.state.load_ledger import Booking


class Seat:
    """A booked worker. `result` is what came of the step that it was taken for, None until then.

    `held_blocks` of the prompt the worker was taken to have in cache when it was given the request.
    """

    __slots__ = ("booking", "held_blocks", "result", "trial", "worker")

    def __init__(self, worker: WorkerRef, booking: Booking, trial: Trial | None) -> None:
        self.worker = worker
        self.booking = booking
        self.trial = trial
        self.held_blocks = 0
        self.result: Prefilled | Succeeded | Failed | Cancelled | None = None


def take_seat(world: World, worker: WorkerRef, tokens: int, unread_tokens: int = 0) -> Seat:
    """Book a worker for so many tokens to compute, the unread ones of the prompt among them."""
    booking = world.ledger.book(worker, tokens, unread_tokens)
    return Seat(worker, booking, world.breakers.begin(worker, world.clock.now_s))


def take_reading_seat(
    request: GenerationRequest, world: World, decision: Decision, worker: WorkerRef, output_tokens: int = 0
) -> Seat:
    """Book a worker that computes the prompt, but for what it is expected to have in cache."""
    hashes = request.prefix_hashes
    if decision.options:
        expected = decision.options[0]
        unread_tokens = expected.prompt_tokens - expected.cached_tokens
        world.paces.reading.placed(worker, expected.terms.prefill_s, world.clock.now_s)
    else:
        unread_tokens = request.estimated_prompt_tokens
        if hashes:
            unread_tokens -= world.prefixes.cached_tokens(worker, hashes, unread_tokens)
    unread_tokens = max(1, unread_tokens)
    seat = take_seat(world, worker, unread_tokens + output_tokens, unread_tokens)
    if hashes:
        seat.held_blocks = world.prefixes.held_blocks(worker, hashes)
    return seat


def leave_seat(world: World, seat: Seat) -> None:
    """Give the room back, and let whoever waits have it."""
    world.ledger.release(seat.booking)
    learn_trust(world, seat.worker, seat.trial, seat.result)
    if len(world.line):
        let_waiting_in(world, world.clock.now_s)
