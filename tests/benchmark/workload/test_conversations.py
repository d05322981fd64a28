# ruff: noqa: S311 - seeds make tests repeat, they keep no secrets
from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.benchmark.workload.arrivals import ClosedLoop, OpenLoop
from phasewise.benchmark.workload.drafts import Conversations
from phasewise.benchmark.workload.plan import CONTEXT_MARGIN_TOKENS, Plan, make_plan
from phasewise.benchmark.workload.presets import Lengths
from phasewise.benchmark.workload.prompts import TEMPLATE_TOKENS
from phasewise.core.errors import ConfigError
from tests.benchmark.workload.builders import make_shape, make_spec, words_of


def plan_of(turns: int = 3, think_s: float = 2.0, requests: int = 9, seed: int = 0, **more) -> Plan:
    return make_plan(
        make_spec(requests=requests, conversations=Conversations(turns, think_s), **more), Random(seed)
    )


def test_turns_of_a_conversation_are_one_thread_in_order():
    plan = plan_of(turns=3, requests=9)
    assert [[(r.index, r.turn) for r in thread] for thread in plan.threads] == [
        [(0, 0), (1, 1), (2, 2)],
        [(3, 0), (4, 1), (5, 2)],
        [(6, 0), (7, 1), (8, 2)],
    ]


def test_the_last_conversation_is_cut_where_the_count_ends():
    assert [len(thread) for thread in plan_of(turns=3, requests=7).threads] == [3, 3, 1]


@settings(max_examples=30)
@given(
    turns=st.integers(1, 6),
    requests=st.integers(1, 30),
    load=st.one_of(st.builds(OpenLoop, st.floats(0.1, 100.0)), st.builds(ClosedLoop, st.integers(1, 8))),
    context_tokens=st.integers(150, 600),
    seed=st.integers(),
)
def test_indexes_ascend_and_every_turn_fits_the_context(turns, requests, load, context_tokens, seed):
    plan = plan_of(turns, 1.0, requests, seed, load=load, context_tokens=context_tokens)
    assert [r.index for r in plan.requests] == list(range(requests))
    for thread in plan.threads:
        assert 1 <= len(thread) <= turns
        for planned in thread:
            capacity_tokens = context_tokens - CONTEXT_MARGIN_TOKENS
            assert planned.prompt_tokens + planned.max_tokens <= capacity_tokens


def test_a_later_turn_is_a_user_message_alone_without_a_time():
    for planned in plan_of().requests:
        if planned.turn:
            (message,) = planned.messages
            assert (message.role, planned.at_s) == ("user", None)
            assert 8 <= len(words_of(planned)) <= 256


def test_only_first_turns_have_the_open_loops_times_and_no_thinking():
    for thread in plan_of(load=OpenLoop(2.0)).threads:
        assert thread[0].at_s is not None
        assert thread[0].think_s == 0.0
        assert all(planned.at_s is None and planned.think_s > 0 for planned in thread[1:])


def test_a_later_prompt_is_estimated_from_all_that_stands_before_it():
    shape = make_shape(50, 8, follow_up=Lengths.fixed(20))
    first, second, third = plan_of(source=shape).threads[0]
    assert first.prompt_tokens == 50
    assert second.prompt_tokens == 50 + 8 + 20 + TEMPLATE_TOKENS
    assert third.prompt_tokens == second.prompt_tokens + 8 + 20 + TEMPLATE_TOKENS


def test_a_history_is_shareable_and_the_new_message_is_not():
    shape = make_shape(50, 8, follow_up=Lengths.fixed(20))
    plan = plan_of(source=shape)
    assert [planned.fresh_words for planned in plan.threads[0]] == [38, 20, 20]


def test_thinking_takes_its_mean():
    drawn_s = [r.think_s for r in plan_of(turns=2, think_s=3.0, requests=6000).requests if r.turn]
    assert sum(drawn_s) / len(drawn_s) == pytest.approx(3.0, rel=0.05)


def test_nobody_thinks_where_none_is_asked_for():
    assert {planned.think_s for planned in plan_of(think_s=0.0).requests} == {0.0}


def test_first_turns_are_those_of_a_run_without_conversations():
    single = make_plan(make_spec(requests=3), Random(0))
    threads = plan_of(turns=3, requests=9).threads
    assert [r.messages for r in single.requests] == [thread[0].messages for thread in threads]


@pytest.mark.parametrize(("turns", "think_s"), [(0, 1.0), (2, -1.0), (2, float("inf")), (2, float("nan"))])
def test_conversations_that_cannot_be_are_rejected(turns, think_s):
    with pytest.raises(ConfigError):
        Conversations(turns, think_s)
