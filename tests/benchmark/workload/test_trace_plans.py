# ruff: noqa: S311 - seeds make tests repeat, they keep no secrets
from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.benchmark.workload import plan as plan_module
from phasewise.benchmark.workload.arrivals import ClosedLoop, OpenLoop, Replay
from phasewise.benchmark.workload.drafts import Conversations
from phasewise.benchmark.workload.plan import CONTEXT_MARGIN_TOKENS, PlanSpec, make_plan, refitted
from phasewise.benchmark.workload.prompts import TEMPLATE_TOKENS, write_opening
from phasewise.benchmark.workload.traces import TracedRequest, read_trace
from phasewise.core.errors import ConfigError
from tests.benchmark.workload.builders import make_trace, words_of
from tests.paths import ROOT

BLOCK = 16
SHARED_DATA = ROOT.parent / "shared" / "data"


def traced(at_s: float = 0.0, prompt_tokens: int = 40, output_tokens: int = 4, ids=()) -> TracedRequest:
    return TracedRequest(at_s, prompt_tokens, output_tokens, tuple(ids))


def plan_of(*requests: TracedRequest, load=None, opening: str = "", seed: int = 1, **more):
    spec = PlanSpec(make_trace(*requests, block_tokens=BLOCK), load or Replay(), **more)
    return make_plan(spec, Random(seed), opening)


@st.composite
def blocked_requests(draw) -> TracedRequest:
    """Few ids, so that prefixes meet, and prompts that end anywhere in their last block."""
    ids = draw(st.lists(st.integers(0, 2), min_size=1, max_size=4))
    return traced(prompt_tokens=draw(st.integers((len(ids) - 1) * BLOCK + 1, len(ids) * BLOCK)), ids=ids)


def agreeing(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next(
        (i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
        min(len(one), len(other)),
    )


@settings(max_examples=60)
@given(st.lists(blocked_requests(), min_size=2, max_size=6), st.integers(), st.booleans())
def test_equal_ids_at_the_beginning_are_equal_words_up_to_the_shorter_prompt(requests, seed, cold):
    plan = plan_of(*requests, seed=seed, opening=write_opening(Random(5)) if cold else "")
    texts = [words_of(planned) for planned in plan.requests]
    for one, words in zip(requests, texts, strict=True):
        for other, others in zip(requests, texts, strict=True):
            alike = min(agreeing(one.block_ids, other.block_ids) * BLOCK, len(words), len(others))
            assert words[:alike] == others[:alike]


@settings(max_examples=60)
@given(st.lists(blocked_requests(), min_size=2, max_size=6), st.integers(-30, 30))
def test_full_blocks_stay_whatever_a_tokenizer_counts(requests, off_by):
    for request, planned in zip(requests, plan_of(*requests).requests, strict=True):
        full = request.prompt_tokens // BLOCK * BLOCK
        changed = refitted(planned, planned.prompt_tokens + off_by, Random(0))
        assert len(words_of(changed)) >= full
        assert words_of(changed)[:full] == words_of(planned)[:full]


def test_other_ids_and_other_seeds_are_other_words():
    first, second = plan_of(traced(ids=[1, 2, 3]), traced(ids=[1, 4, 5])).requests
    assert words_of(first)[BLOCK : BLOCK + 4] != words_of(second)[BLOCK : BLOCK + 4]
    (other,) = plan_of(traced(ids=[1, 2, 3]), seed=2).requests
    assert words_of(first)[:4] != words_of(other)[:4]


def test_a_block_reads_the_same_in_whatever_requests_stand_around_it():
    alone = plan_of(traced(ids=[7, 8, 9]))
    among = plan_of(traced(ids=[1, 2, 3]), traced(ids=[7, 8, 9]))
    assert alone.requests[0].messages == among.requests[1].messages


def test_prompts_without_ids_share_nothing():
    plan = plan_of(*(traced() for _ in range(40)))
    assert len({planned.messages[0].content[:25] for planned in plan.requests}) == 40


def test_the_template_is_taken_off_the_end_but_never_off_a_full_block():
    loose, tight = plan_of(
        traced(prompt_tokens=47, ids=[1, 2, 3]), traced(prompt_tokens=33, ids=[1, 2, 3])
    ).requests
    assert (len(words_of(loose)), loose.prompt_tokens) == (47 - TEMPLATE_TOKENS, 47)
    assert (len(words_of(tight)), tight.prompt_tokens) == (32, 32 + TEMPLATE_TOKENS)


def test_a_replay_keeps_the_traces_times_at_its_speed():
    plan = plan_of(traced(0.0), traced(3.0), traced(4.0), load=Replay(speed=2.0))
    assert [planned.at_s for planned in plan.requests] == [0.0, 1.5, 2.0]


def test_a_replay_ends_with_its_duration_counted_at_its_speed():
    requests = [traced(0.0), traced(3.0, 10**6), traced(4.0), traced(9.0, 10**6)]
    plan = plan_of(*requests, load=Replay(2.0), duration_s=1.9)
    assert [planned.at_s for planned in plan.requests] == [0.0]
    assert plan.left_out == 1


@pytest.mark.parametrize("load", [OpenLoop(5.0), ClosedLoop(2)])
def test_another_load_takes_only_the_traces_lengths(load):
    requests = [traced(float(i), 20 + i, 1 + i) for i in range(6)]
    plan, replayed = plan_of(*requests, load=load), plan_of(*requests)
    assert [(r.messages, r.prompt_tokens, r.max_tokens) for r in plan.requests] == [
        (r.messages, r.prompt_tokens, r.max_tokens) for r in replayed.requests
    ]
    assert [r.at_s for r in plan.requests] != [r.at_s for r in replayed.requests]


def test_a_closed_loop_has_no_times_with_a_trace_either():
    assert {r.at_s for r in plan_of(traced(0.0), traced(1.0), load=ClosedLoop(2)).requests} == {None}


def test_what_does_not_fit_the_context_is_left_out_and_counted():
    room = 1000 - CONTEXT_MARGIN_TOKENS
    plan = plan_of(
        traced(0.0, room - 4), traced(1.0, room - 3), traced(2.0, 10), traced(3.0, 9000), context_tokens=1000
    )
    assert [(r.index, r.at_s) for r in plan.requests] == [(0, 0.0), (1, 2.0)]
    assert plan.left_out == 2


@pytest.mark.parametrize("load", [Replay(), ClosedLoop(1), OpenLoop(1.0)])
def test_what_lies_behind_the_end_is_not_counted_as_left_out(load):
    plan = plan_of(traced(0.0), traced(1.0), traced(2.0, 10**6), load=load, requests=2)
    assert (len(plan.requests), plan.left_out) == (2, 0)


def test_a_trace_that_fits_nowhere_is_rejected():
    with pytest.raises(ConfigError, match="none of the 2 requests of the trace trace fits a context of 1000"):
        plan_of(traced(0.0, 5000), traced(0.0, 6000), context_tokens=1000)


def test_more_text_than_memory_should_hold_is_rejected_before_it_is_written(monkeypatch):
    monkeypatch.setattr(plan_module, "PLAN_LIMIT_TOKENS", 100)
    with pytest.raises(ConfigError, match="2 requests of the trace trace come to more than 100 tokens"):
        plan_of(traced(0.0, 60), traced(0.0, 60))


@pytest.mark.parametrize("load", [Replay(), ClosedLoop(1), OpenLoop(1.0)])
@pytest.mark.parametrize(("requests", "full"), [(3, False), (4, True)])
def test_a_trace_that_goes_on_behind_a_full_plan_is_told(monkeypatch, load, requests, full):
    monkeypatch.setattr(plan_module, "PLAN_LIMIT", 3)
    plan = plan_of(*(traced(float(at_s)) for at_s in range(requests)), load=load)
    assert (len(plan.requests), plan.full) == (3, full)


def test_a_trace_that_ends_by_time_or_count_is_not_called_full(monkeypatch):
    monkeypatch.setattr(plan_module, "PLAN_LIMIT", 3)
    requests = [traced(float(at_s)) for at_s in range(6)]
    assert not plan_of(*requests, duration_s=3.0).full
    assert not plan_of(*requests, requests=3).full


def test_a_trace_has_no_conversations():
    with pytest.raises(ConfigError, match="conversations cannot be combined with the trace"):
        plan_of(traced(), conversations=Conversations(2, 1.0))


def test_a_reply_of_no_tokens_is_asked_for_as_one():
    assert plan_of(traced(output_tokens=0)).requests[0].max_tokens == 1


def test_blocks_seen_before_as_a_prefix_are_shareable():
    plan = plan_of(
        traced(prompt_tokens=64, ids=[1, 2, 3, 4]),
        traced(prompt_tokens=64, ids=[1, 2, 5, 6]),
        traced(prompt_tokens=64, ids=[9, 2, 5, 6]),
        traced(prompt_tokens=64, ids=[1, 2, 5, 6]),
    )
    assert [planned.fresh_words for planned in plan.requests] == [64, 32, 64, 0]


def test_a_traces_texts_repeat_with_seed_and_opening():
    requests = [traced(ids=[1, 2, 3]), traced(prompt_tokens=90)]
    assert plan_of(*requests, opening="a b c d e f") == plan_of(*requests, opening="a b c d e f")
    cold, plain = plan_of(*requests, opening="a b c d e f"), plan_of(*requests)
    for after, before in zip(cold.requests, plain.requests, strict=True):
        assert words_of(after) == ["a", "b", "c", "d", "e", "f", *words_of(before)[6:]]


def test_a_published_trace_is_planned_with_the_prefixes_it_says():
    path = SHARED_DATA / "mooncake_conversation.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not on this machine")
    trace = read_trace(path)
    trace = replace(trace, requests=trace.requests[:200])
    plan = make_plan(PlanSpec(trace, Replay(10.0), context_tokens=8192), Random(0))
    assert len(plan.requests) + plan.left_out == 200
    first, *others = plan.requests
    # Every conversation of this trace begins with the same block.
    assert {tuple(words_of(planned)[:512]) for planned in others} == {tuple(words_of(first)[:512])}
    assert len({tuple(words_of(planned)[512:520]) for planned in plan.requests}) > len(plan.requests) / 2
