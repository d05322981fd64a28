"""The line beside a plain list, and what it tells those it turns away."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from phasewise.state.waiting_line import (
    LATEST_RETURN_S,
    PACE_OVER_GRANTS,
    SOONEST_RETURN_S,
    WaitingLine,
)

AGING_S = 5.0
MODELS = st.sampled_from(["a", "b"])
PICKS = st.integers(0, 1_000)


class LineBesideAList(RuleBasedStateMachine):
    """Tickets are granted in the order that sorting them would give, whatever joins and leaves."""

    def __init__(self):
        super().__init__()
        self.line = WaitingLine(capacity=300, aging_s=AGING_S)
        self.waiting = []
        self.granted = []
        self.now_s = 0.0

    @rule(model=MODELS, priority=st.integers(-2, 2), count=st.integers(1, 90), later_s=st.floats(0.0, 3.0))
    def join(self, model, priority, count, later_s):
        self.now_s += later_s
        for _ in range(count):
            ticket = self.line.join(model, priority, self.now_s, self.now_s)
            assert (ticket is None) == (len(self.waiting) >= 300)
            if ticket is not None:
                self.waiting.append(((self.now_s - priority * AGING_S, ticket.number), ticket))

    @rule(pick=PICKS, count=st.integers(1, 90))
    def some_leave(self, pick, count):
        for _ in range(min(count, len(self.waiting))):
            _, ticket = self.waiting.pop(pick % len(self.waiting))
            self.line.leave(ticket)

    @rule(model=MODELS, room=st.integers(0, 20))
    def grant(self, model, room):
        mine = sorted((it for it in self.waiting if it[1].model == model), key=lambda it: it[0])
        already = sum(ticket.model == model for _, ticket in self.granted)
        expected = mine[: max(0, room - already)]
        told = []
        for number, (_, ticket) in enumerate(mine):
            ticket.on_grant = lambda number=number: told.append(number)
        self.line.grant(model, room, self.now_s)
        assert told == list(range(len(expected)))
        assert all(ticket.granted for _, ticket in expected)
        self.waiting = [it for it in self.waiting if it not in expected]
        self.granted += expected

    @rule(pick=PICKS, comes_back=st.booleans())
    def use_a_grant(self, pick, comes_back):
        if self.granted:
            order, ticket = self.granted.pop(pick % len(self.granted))
            self.line.leave(ticket)
            if comes_back:
                self.waiting.append((order, self.line.rejoin(ticket, self.now_s)))

    @invariant()
    def counts_are_those_of_the_list(self):
        self.line.check_invariants()
        assert len(self.line) == len(self.waiting)
        assert set(self.line.models) == {ticket.model for _, ticket in self.waiting}
        for model in ("a", "b"):
            there = any(ticket.model == model for _, ticket in self.waiting + self.granted)
            assert self.line.is_waiting(model) == there

    @invariant()
    def those_who_left_are_forgotten(self):
        for queue in self.line._queues.values():
            assert len(queue._heap) <= 2 * queue.waiting + PACE_OVER_GRANTS + 20


LineBesideAList.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLineBesideAList = LineBesideAList.TestCase


def make_line(*, waiting=0, grants_s=()):
    """A line whose tickets were granted at these times, each used at once."""
    line = WaitingLine()
    tickets = [line.join("m", 0, 0.0, 0.0) for _ in range(waiting + len(grants_s))]
    for ticket, at_s in zip(tickets, grants_s, strict=False):
        line.grant("m", 1, at_s)
        line.leave(ticket)
    return line


def test_waiting_for_aging_s_counts_as_one_of_priority():
    line = WaitingLine(aging_s=5.0)
    urgent, old, young = (
        line.join("m", 1, 10.0, 10.0),
        line.join("m", 0, 4.9, 4.9),
        line.join("m", 0, 5.1, 5.1),
    )
    granted = []
    for name, ticket in (("urgent", urgent), ("old", old), ("young", young)):
        ticket.on_grant = lambda name=name: granted.append(name)
    line.grant("m", 3, 11.0)
    assert granted == ["old", "urgent", "young"]


def test_a_full_line_takes_only_who_has_begun():
    line = WaitingLine(capacity=1)
    assert line.join("m", 0, 0.0, 0.0)
    assert line.join("other", 0, 0.0, 0.0) is None
    assert line.join("m", 0, 0.0, 0.0, even_if_full=True)
    assert len(line) == 2


def test_a_line_of_no_length_turns_everybody_away():
    assert WaitingLine(capacity=0).join("m", 0, 0.0, 0.0) is None


def test_where_nobody_waits_the_advice_is_to_come_again_soon():
    assert WaitingLine().turn_away("m", 5.0) == SOONEST_RETURN_S


@pytest.mark.parametrize("stood_s", [0.0, 1.0, 10.0, 60.0])
def test_a_line_that_stands_still_spreads_returns_over_as_long_as_it_has_stood(stood_s):
    line = make_line(waiting=1_000)
    told = [line.turn_away("m", stood_s) for _ in range(500)]
    stood_s = max(stood_s, SOONEST_RETURN_S)
    assert told[0] == pytest.approx(2 * stood_s, rel=0.01)
    assert told[-1] == pytest.approx(3 * stood_s, rel=0.01)
    assert all(after > before for before, after in pairwise(told))


def test_how_long_a_line_stands_is_counted_from_when_it_formed():
    line = WaitingLine()
    line.join("m", 0, since_s=0.0, now_s=3_600.0)
    assert line.turn_away("m", 3_601.0) < 10.0


def test_those_turned_away_are_told_to_come_back_one_after_the_other_at_half_the_lines_pace():
    line = make_line(waiting=10, grants_s=[0.1 * number for number in range(1, 21)])
    told = [line.turn_away("m", 2.1) for _ in range(50)]
    gaps = [after - before for before, after in pairwise(told)]
    assert told[0] == pytest.approx(2.2, abs=0.01)  # ten who wait and itself, at five per second
    assert gaps == pytest.approx([0.2] * 49)


def test_those_who_had_time_to_come_back_are_no_longer_reckoned_with():
    line = make_line(waiting=10, grants_s=[0.1 * number for number in range(1, 21)])
    for _ in range(30):
        crowded_s = line.turn_away("m", 2.1)
    for number in range(1, 11):
        line.grant("m", number, 2.1 + number * 0.1)
    later_s = line.turn_away("m", 3.2)
    assert later_s < crowded_s


def test_an_overload_is_forgotten_once_the_line_was_empty():
    line = make_line(waiting=0, grants_s=[0.1 * number for number in range(1, 20)])
    tickets = [line.join("m", 0, 2.0, 2.0) for _ in range(2)]
    for number in (1, 2):
        line.grant("m", number, 2.0 + 0.05 * number)
    for _ in range(100_000):
        overloaded_s = line.turn_away("m", 2.2)
    assert overloaded_s == LATEST_RETURN_S
    for ticket in tickets:
        line.leave(ticket)
    for _ in range(30):
        line.join("m", 0, 2.3, 2.3)
    for number in range(1, 11):
        line.grant("m", number, 2.3 + 0.1 * number)
    assert line.turn_away("m", 3.3) < 10.0


@given(grants=st.integers(0, 70), turned_away=st.integers(1, 500), pace_s=st.floats(0.001, 30.0))
def test_nobody_is_told_to_come_sooner_than_at_once_or_later_than_clients_heed(grants, turned_away, pace_s):
    line = make_line(waiting=5, grants_s=[pace_s * (number + 1) for number in range(grants)])
    for number in range(turned_away):
        after_s = line.turn_away("m", pace_s * (grants + 1) + number * 0.01)
        assert SOONEST_RETURN_S <= after_s <= LATEST_RETURN_S


def test_an_idle_hour_does_not_count_as_slowness():
    line = make_line(grants_s=[0.1, 0.2, 0.3])
    for number in range(20):
        line.join("m", 0, 3_600.0, 3_600.0)
        if number % 2:
            line.grant("m", 1 + number // 2, 3_600.0 + number * 0.1)
    assert line.turn_away("m", 3_602.0) < 10.0


def test_a_line_out_of_step_with_its_tickets_is_noticed():
    line = make_line(waiting=2)
    line._queues["m"].waiting = 1
    with pytest.raises(AssertionError, match="out of step"):
        line.check_invariants()
