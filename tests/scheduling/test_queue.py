"""The queue beside a plain list, and its retry times for rejected requests."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from phasewise.scheduling.queue import LATEST_RETURN_S, SOONEST_RETURN_S, Tenant, WaitingQueue
from phasewise.scheduling.tenant_lines import SPARE

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
            for line in queue.lines.values():
                assert len(line._heap) <= 2 * line.waiting + SPARE + 20


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


# --- between tenants ----------------------------------------------------------------------------------------

A, B = Tenant("a"), Tenant("b")


def joined(queue, tenant, count=1, *, at_s=0.0, work=100.0, priority=0):
    return [queue.join("m", priority, at_s, at_s, tenant=tenant, work=work) for _ in range(count)]


def granted_order(queue, count, now_s=1.0):
    """The tenants of the next tickets, each of which uses its slot and gives it back at once."""
    order = []
    for _ in range(count):
        (queue_of_model,) = queue._by_model.values()
        ticket = queue_of_model.pop(1, queue._holders.get("m", {}), queue._aging_s, now_s)
        queue._forget(ticket)
        order.append(ticket.tenant.name)
        queue.leave(ticket)
    return "".join(order)


def test_tenants_take_turns_whoever_came_first():
    queue = WaitingQueue()
    joined(queue, A, 50)
    joined(queue, B, 3, at_s=0.9)
    assert granted_order(queue, 8) == "abababaa"


def test_shares_are_of_work_in_tokens_and_by_weight():
    queue = WaitingQueue()
    joined(queue, A, 30, work=300.0)
    joined(queue, B, 30, work=100.0)
    assert granted_order(queue, 16).count("a") == 4
    queue = WaitingQueue()
    joined(queue, Tenant("a", weight=3.0), 30)
    joined(queue, B, 30)
    assert granted_order(queue, 16).count("a") == 12


def test_nobody_saves_up_while_it_is_away():
    queue = WaitingQueue()
    joined(queue, A, 40)
    granted_order(queue, 20)
    joined(queue, B, 20)
    assert granted_order(queue, 10).count("b") in {5, 6}


def test_a_tenant_that_holds_its_share_of_slots_comes_after_others():
    queue = WaitingQueue()
    for _ in range(8):
        queue.hold("m", A)
    joined(queue, A, 20)
    joined(queue, B, 20, work=10_000.0)
    assert granted_order(queue, 6) == "bbbbbb", "although it has been served more work by now"
    for _ in range(8):
        queue.release("m", A)
    assert "a" in granted_order(queue, 2)


def test_higher_priority_goes_first_and_a_tenant_that_is_not_served_rises_to_it_and_no_further():
    queue = WaitingQueue(aging_s=5.0)
    joined(queue, A, 40, priority=1)
    joined(queue, B, 20, at_s=0.0)
    assert granted_order(queue, 4, now_s=1.0) == "aaaa"
    assert granted_order(queue, 3, now_s=6.0) == "baa", "once it was served, it is a lower one again"


def test_a_queue_that_one_tenant_filled_still_takes_the_others():
    queue = WaitingQueue(capacity=10)
    assert all(joined(queue, A, 10))
    assert joined(queue, A) == [None]
    assert all(joined(queue, B, 5))
    assert joined(queue, B) == [None]
    queue.check_invariants()
    assert len(queue) == 15


class LinesOfTenants(RuleBasedStateMachine):
    """While two tenants wait throughout, neither is served more than one request ahead of the other."""

    def __init__(self):
        super().__init__()
        self.queue = WaitingQueue(capacity=10_000)
        self.works = {}
        self.largest = 0.0
        for tenant in (A, B):
            self.add(tenant, 30, 100.0)

    def add(self, tenant, count, work):
        self.largest = max(self.largest, work)
        joined(self.queue, tenant, count, work=work)

    @rule(tenant=st.sampled_from([A, B]), count=st.integers(1, 40), work=st.floats(1.0, 1_000.0))
    def more_come(self, tenant, count, work):
        self.add(tenant, count, work)

    @rule(count=st.integers(1, 10))
    def some_are_granted(self, count):
        for _ in range(count):
            (model,) = self.queue._by_model.values()
            if len(model.lines) < 2 or not all(line.waiting for line in model.lines.values()):
                return
            ticket = model.pop(1, {}, 5.0, 0.0)
            self.queue._forget(ticket)
            self.works[ticket.tenant.name] = self.works.get(ticket.tenant.name, 0.0) + ticket.work
            self.queue.leave(ticket)

    @invariant()
    def neither_is_far_ahead(self):
        self.queue.check_invariants()
        a, b = (self.works.get(name, 0.0) for name in "ab")
        assert abs(a - b) <= self.largest + 1e-6


LinesOfTenants.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLinesOfTenants = LinesOfTenants.TestCase
