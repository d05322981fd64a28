from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from phasewise.model.worker import WorkerRef
from phasewise.state.load_ledger import IDLE, Load, LoadLedger

REFS = [WorkerRef(name, incarnation) for name in ("w0", "w1") for incarnation in ("1", "2")]


class LedgerBesideAList(RuleBasedStateMachine):
    """The ledger does what a plain list of open bookings says, whatever is booked and released."""

    bookings = Bundle("bookings")
    released = Bundle("released")

    def __init__(self):
        super().__init__()
        self.ledger = LoadLedger()
        self.open = []

    @rule(target=bookings, worker=st.sampled_from(REFS), tokens=st.integers(0, 200_000))
    def book(self, worker, tokens):
        booking = self.ledger.book(worker, tokens)
        assert (booking.worker, booking.tokens) == (worker, tokens)
        self.open.append(booking)
        return booking

    @rule(target=released, booking=consumes(bookings))
    def release(self, booking):
        self.ledger.release(booking)
        self.open.remove(booking)
        return booking

    @rule(booking=released)
    def release_twice(self, booking):
        with pytest.raises(KeyError):
            self.ledger.release(booking)

    @invariant()
    def loads_are_the_sums_of_what_is_open(self):
        self.ledger.check_invariants()
        requests, tokens = Counter(), Counter()
        for booking in self.open:
            requests[booking.worker] += 1
            tokens[booking.worker] += booking.tokens
        assert [self.ledger.load(ref) for ref in REFS] == [Load(requests[ref], tokens[ref]) for ref in REFS]
        assert self.ledger.total_requests == len(self.open)

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
