from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from phasewise.core.worker import WorkerRef
from phasewise.scheduling.ledger import IDLE, Load, LoadLedger

REFS = [WorkerRef(name, incarnation) for name in ("w0", "w1") for incarnation in ("1", "2")]


class LedgerBesideAList(RuleBasedStateMachine):
    """The ledger does what a plain list of open bookings says, whatever is booked and released."""

    bookings = Bundle("bookings")
    released = Bundle("released")

    def __init__(self):
        super().__init__()
        self.ledger = LoadLedger()
        self.open = []
        self.answering = set()
        self.disturbed = set()

    @rule(
        target=bookings,
        worker=st.sampled_from(REFS),
        output_tokens=st.integers(0, 200_000),
        unread_tokens=st.integers(0, 3),
    )
    def book(self, worker, output_tokens, unread_tokens):
        tokens = output_tokens + unread_tokens
        booking = self.ledger.book(worker, tokens, unread_tokens)
        assert (booking.worker, booking.tokens) == (worker, tokens)
        self.open.append(booking)
        if unread_tokens:
            self.disturb(booking)
        return booking

    def disturb(self, booking):
        others = [it for it in self.readers(booking.worker) if it is not booking]
        self.disturbed.update(others)
        if others:
            self.disturbed.add(booking)

    def readers(self, worker):
        return [
            it for it in self.open if it.worker == worker and it.unread_tokens and it not in self.answering
        ]

    @rule(booking=bookings)
    def begin_answer(self, booking):
        self.ledger.answering(booking)
        self.answering.add(booking)

    @rule(target=released, booking=consumes(bookings))
    def release(self, booking):
        self.ledger.release(booking)
        self.open.remove(booking)
        return booking

    @rule(booking=released)
    def release_twice(self, booking):
        with pytest.raises(KeyError):
            self.ledger.release(booking)

    @rule(booking=released)
    def begin_answer_too_late(self, booking):
        self.ledger.answering(booking)

    @invariant()
    def loads_are_the_sums_of_what_is_open(self):
        self.ledger.check_invariants()
        for ref in REFS:
            here = [it for it in self.open if it.worker == ref]
            streams = sum(it in self.answering for it in here)
            unread_tokens = sum(it.unread_tokens for it in self.readers(ref))
            tokens = unread_tokens + sum(it.tokens - it.unread_tokens for it in here)
            expected = Load(len(here), tokens, unread_tokens, streams, len(self.readers(ref)))
            assert self.ledger.load(ref) == expected
        assert self.ledger.total_requests == len(self.open)

    @invariant()
    def a_prompt_is_read_alone_unless_another_was_there_before_its_answer_began(self):
        for it in self.open:
            assert it.read_alone == (bool(it.unread_tokens) and it not in self.disturbed)

    def teardown(self):
        for booking in self.open:
            self.ledger.release(booking)
        self.ledger.check_invariants()
        assert self.ledger.total_requests == 0
        assert all(self.ledger.load(ref) is IDLE for ref in REFS)


LedgerBesideAList.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestLedgerBesideAList = LedgerBesideAList.TestCase


def test_the_incarnations_of_a_worker_are_loaded_apart():
    ledger = LoadLedger()
    before, after = WorkerRef("w0", "1"), WorkerRef("w0", "2")
    old = ledger.book(before, 100)
    ledger.book(after, 7)
    assert (ledger.load(before), ledger.load(after)) == (Load(1, 100), Load(1, 7))
    ledger.release(old)
    assert (ledger.load(before), ledger.load(after)) == (IDLE, Load(1, 7))


def test_equal_claims_are_released_one_by_one():
    ledger = LoadLedger()
    first, second = (ledger.book(REFS[0], 5) for _ in range(2))
    assert first != second
    ledger.release(first)
    assert ledger.load(REFS[0]) == Load(1, 5)


def test_a_ledger_out_of_step_with_its_bookings_is_noticed():
    ledger = LoadLedger()
    ledger.book(REFS[0], 5)
    ledger._loads[REFS[0]] = Load(1, 6)
    with pytest.raises(AssertionError, match="out of step"):
        ledger.check_invariants()


def test_a_prompt_is_work_until_it_has_been_read():
    ledger = LoadLedger()
    booking = ledger.book(REFS[0], 150, unread_tokens=100)
    assert ledger.load(REFS[0]) == Load(1, 150, unread_tokens=100, unread_requests=1)
    ledger.answering(booking)
    ledger.answering(booking)
    assert ledger.load(REFS[0]) == Load(1, 50, streams=1)
    ledger.release(booking)
    assert ledger.load(REFS[0]) is IDLE


def test_one_who_comes_when_the_answer_has_begun_does_not_disturb_the_reading():
    ledger = LoadLedger()
    first = ledger.book(REFS[0], 10, 10)
    ledger.answering(first)
    second = ledger.book(REFS[0], 10, 10)
    third = ledger.book(REFS[0], 10, 10)
    assert (first.read_alone, second.read_alone, third.read_alone) == (True, False, False)
