"""The queue beside a plain list, and its retry times for rejected requests."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from phasewise.scheduling.queue import LATEST_RETURN_S, PACE_OVER_GRANTS, SOONEST_RETURN_S, WaitingQueue

AGING_S = 5.0
MODELS = st.sampled_from(["a", "b"])
PICKS = st.integers(0, 1_000)


class QueueBesideAList(RuleBasedStateMachine):
    """Tickets are granted in the order that sorting them would give, whatever joins and leaves."""

    def __init__(self):
        super().__init__()
        self.queue = WaitingQueue(capacity=300, aging_s=AGING_S)
        self.waiting = []
        self.granted = []
        self.now_s = 0.0

    @rule(model=MODELS, priority=st.integers(-2, 2), count=st.integers(1, 90), later_s=st.floats(0.0, 3.0))
    def join(self, model, priority, count, later_s):
        self.now_s += later_s
        for _ in range(count):
            ticket = self.queue.join(model, priority, self.now_s, self.now_s)
            assert (ticket is None) == (len(self.waiting) >= 300)
            if ticket is not None:
                self.waiting.append(((self.now_s - priority * AGING_S, ticket.number), ticket))

    @rule(pick=PICKS, count=st.integers(1, 90))
    def some_leave(self, pick, count):
        for _ in range(min(count, len(self.waiting))):
            _, ticket = self.waiting.pop(pick % len(self.waiting))
            self.queue.leave(ticket)

    @rule(model=MODELS, free_slots=st.integers(0, 20))
    def grant(self, model, free_slots):
        mine = sorted((it for it in self.waiting if it[1].model == model), key=lambda it: it[0])
        already = sum(ticket.model == model for _, ticket in self.granted)
        expected = mine[: max(0, free_slots - already)]
        reported = []
        for number, (_, ticket) in enumerate(mine):
            ticket.on_grant = lambda number=number: reported.append(number)
        self.queue.grant(model, free_slots, self.now_s)
        assert reported == list(range(len(expected)))
        assert all(ticket.granted for _, ticket in expected)
        self.waiting = [it for it in self.waiting if it not in expected]
        self.granted += expected

    @rule(pick=PICKS, comes_back=st.booleans())
    def use_a_grant(self, pick, comes_back):
        if self.granted:
            order, ticket = self.granted.pop(pick % len(self.granted))
            self.queue.leave(ticket)
            if comes_back:
                self.waiting.append((order, self.queue.rejoin(ticket, self.now_s)))

    @invariant()
    def counts_are_those_of_the_list(self):
        self.queue.check_invariants()
        assert len(self.queue) == len(self.waiting)
        assert set(self.queue.models) == {ticket.model for _, ticket in self.waiting}
        for model in ("a", "b"):
            there = any(ticket.model == model for _, ticket in self.waiting + self.granted)
            assert self.queue.is_waiting(model) == there

    @invariant()
    def tickets_that_left_are_forgotten(self):
        for queue in self.queue._by_model.values():
            assert len(queue._heap) <= 2 * queue.waiting + PACE_OVER_GRANTS + 20


QueueBesideAList.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestQueueBesideAList = QueueBesideAList.TestCase


def make_queue(*, waiting=0, grants_s=()):
    """A queue whose tickets were granted at these times, each used at once."""
    queue = WaitingQueue()
    tickets = [queue.join("m", 0, 0.0, 0.0) for _ in range(waiting + len(grants_s))]
    for ticket, at_s in zip(tickets, grants_s, strict=False):
        queue.grant("m", 1, at_s)
        queue.leave(ticket)
    return queue


def test_waiting_for_aging_s_counts_as_one_of_priority():
    queue = WaitingQueue(aging_s=5.0)
    urgent, old, young = (
        queue.join("m", 1, 10.0, 10.0),
        queue.join("m", 0, 4.9, 4.9),
        queue.join("m", 0, 5.1, 5.1),
    )
    granted = []
    for name, ticket in (("urgent", urgent), ("old", old), ("young", young)):
        ticket.on_grant = lambda name=name: granted.append(name)
    queue.grant("m", 3, 11.0)
    assert granted == ["old", "urgent", "young"]


def test_a_full_queue_takes_only_requests_that_have_begun():
    queue = WaitingQueue(capacity=1)
    assert queue.join("m", 0, 0.0, 0.0)
    assert queue.join("other", 0, 0.0, 0.0) is None
    assert queue.join("m", 0, 0.0, 0.0, even_if_full=True)
    assert len(queue) == 2


def test_a_queue_of_no_capacity_rejects_every_request():
    assert WaitingQueue(capacity=0).join("m", 0, 0.0, 0.0) is None


def test_with_an_empty_queue_the_retry_time_is_short():
    assert WaitingQueue().reject("m", 5.0) == SOONEST_RETURN_S


@pytest.mark.parametrize("stood_s", [0.0, 1.0, 10.0, 60.0])
def test_a_queue_that_stands_still_spreads_returns_over_as_long_as_it_has_stood(stood_s):
    queue = make_queue(waiting=1_000)
    reported = [queue.reject("m", stood_s) for _ in range(500)]
    stood_s = max(stood_s, SOONEST_RETURN_S)
    assert reported[0] == pytest.approx(2 * stood_s, rel=0.01)
    assert reported[-1] == pytest.approx(3 * stood_s, rel=0.01)
    assert all(after > before for before, after in pairwise(reported))


def test_how_long_a_queue_stands_is_counted_from_when_it_formed():
    queue = WaitingQueue()
    queue.join("m", 0, since_s=0.0, now_s=3_600.0)
    assert queue.reject("m", 3_601.0) < 10.0


def test_rejected_requests_return_one_after_the_other_at_half_the_queues_rate():
    queue = make_queue(waiting=10, grants_s=[0.1 * number for number in range(1, 21)])
    reported = [queue.reject("m", 2.1) for _ in range(50)]
    gaps = [after - before for before, after in pairwise(reported)]
    assert reported[0] == pytest.approx(2.2, abs=0.01)  # ten who wait and itself, at five per second
    assert gaps == pytest.approx([0.2] * 49)


def test_rejected_requests_that_had_time_to_return_no_longer_count():
    queue = make_queue(waiting=10, grants_s=[0.1 * number for number in range(1, 21)])
    for _ in range(30):
        busy_s = queue.reject("m", 2.1)
    for number in range(1, 11):
        queue.grant("m", number, 2.1 + number * 0.1)
    later_s = queue.reject("m", 3.2)
    assert later_s < busy_s


def test_an_overload_is_forgotten_once_the_queue_was_empty():
    queue = make_queue(waiting=0, grants_s=[0.1 * number for number in range(1, 20)])
    tickets = [queue.join("m", 0, 2.0, 2.0) for _ in range(2)]
    for number in (1, 2):
        queue.grant("m", number, 2.0 + 0.05 * number)
    for _ in range(100_000):
        overloaded_s = queue.reject("m", 2.2)
    assert overloaded_s == LATEST_RETURN_S
    for ticket in tickets:
        queue.leave(ticket)
    for _ in range(30):
        queue.join("m", 0, 2.3, 2.3)
    for number in range(1, 11):
        queue.grant("m", number, 2.3 + 0.1 * number)
    assert queue.reject("m", 3.3) < 10.0


@given(grants=st.integers(0, 70), rejections=st.integers(1, 500), pace_s=st.floats(0.001, 30.0))
def test_retry_times_are_within_their_bounds(grants, rejections, pace_s):
    queue = make_queue(waiting=5, grants_s=[pace_s * (number + 1) for number in range(grants)])
    for number in range(rejections):
        after_s = queue.reject("m", pace_s * (grants + 1) + number * 0.01)
        assert SOONEST_RETURN_S <= after_s <= LATEST_RETURN_S


def test_an_idle_hour_does_not_count_as_slowness():
    queue = make_queue(grants_s=[0.1, 0.2, 0.3])
    for number in range(20):
        queue.join("m", 0, 3_600.0, 3_600.0)
        if number % 2:
            queue.grant("m", 1 + number // 2, 3_600.0 + number * 0.1)
    assert queue.reject("m", 3_602.0) < 10.0


def test_a_queue_out_of_step_with_its_tickets_is_noticed():
    queue = make_queue(waiting=2)
    queue._by_model["m"].waiting = 1
    with pytest.raises(AssertionError, match="out of step"):
        queue.check_invariants()
