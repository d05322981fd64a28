"""Prompts are marked as long as that takes little of the time."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from phasewise.core.request import Endpoint
from phasewise.gateway.api.fields import parse_body
from phasewise.gateway.api.prompt_prefix import SAVED_UP_S, SHARE_OF_TIME, Marking, TimeBudget
from tests.core.test_text_marks import prose
from tests.gateway.harness import chat_body

KEY = b"of all processes"
BODY = orjson.dumps(chat_body(prose(1).decode()))


class Clock:
    """A clock that each look moves on: `step_s` is how long every marking takes."""

    def __init__(self, step_s):
        self.now_s, self.step_s = 1000.0, step_s

    def __call__(self):
        self.now_s += self.step_s
        return self.now_s


def mark(marking, now_s):
    return marking.marks(Endpoint.CHAT, BODY, parse_body(Endpoint.CHAT, BODY), now_s)


def test_requests_that_come_now_and_then_are_all_marked():
    clock = Clock(step_s=0.0005)
    marking = Marking(KEY, clock)
    for _ in range(500):
        assert all(mark(marking, clock.now_s))
        clock.now_s += 0.1


def test_equal_prompts_have_equal_marks():
    marking = Marking(KEY)
    assert mark(marking, 1000.0) == mark(marking, 1000.1)


def test_under_a_heavy_load_some_go_without_marks_and_later_ones_have_them_again():
    clock = Clock(step_s=0.01)
    marking = Marking(KEY, clock)
    many = [mark(marking, clock()) for _ in range(1000)]
    assert all(many[0])
    assert ((), ()) in many
    clock.now_s += 60
    assert all(mark(marking, clock.now_s))


def test_a_short_prompt_asks_for_no_time():
    body = orjson.dumps(chat_body("hi"))
    marking = Marking(KEY, clock=None)
    assert marking.marks(Endpoint.CHAT, body, parse_body(Endpoint.CHAT, body), 1000.0) == ((), ())


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 0.5)), max_size=60))
def test_no_more_is_spent_than_was_saved_up_a_share_of_the_time_and_the_last_one(story):
    budget = TimeBudget(SHARE_OF_TIME, SAVED_UP_S)
    now_s, began_s, spent_s = 1000.0, 1000.0, 0.0
    for pause_s, takes_s in story:
        now_s += pause_s
        if budget.allows(now_s):
            assert spent_s <= SAVED_UP_S + SHARE_OF_TIME * (now_s - began_s) + 1e-9
            budget.spend(takes_s)
            spent_s += takes_s
            now_s += takes_s
