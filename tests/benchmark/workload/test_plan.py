# ruff: noqa: S311 - seeds make tests repeat, they keep no secrets
from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.benchmark.workload import plan as plan_module
from phasewise.benchmark.workload.arrivals import ClosedLoop, OpenLoop, Replay, Spacing
from phasewise.benchmark.workload.drafts import Conversations
from phasewise.benchmark.workload.plan import ContextCut, Fit, PlanSpec, make_plan, refitted
from phasewise.benchmark.workload.presets import PRESETS, PresetName
from phasewise.benchmark.workload.prompts import TEMPLATE_TOKENS, write_opening
from phasewise.core.errors import ConfigError
from tests.benchmark.workload.builders import make_shape, make_spec, words_of


@settings(max_examples=25)
@given(
    name=st.sampled_from(PresetName),
    load=st.one_of(st.builds(OpenLoop, st.floats(0.1, 100.0)), st.builds(ClosedLoop, st.integers(1, 8))),
    requests=st.integers(1, 10),
    seed=st.integers(),
)
def test_the_same_seed_gives_the_same_plan(name, load, requests, seed):
    spec = PlanSpec(PRESETS[name], load, requests)
    plan = make_plan(spec, Random(seed))
    assert plan == make_plan(spec, Random(seed))
    assert [request.index for request in plan.requests] == list(range(requests))


def test_another_load_keeps_the_prompts():
    slow, fast = (
        make_plan(PlanSpec(PRESETS[PresetName.CHAT], load, 6), Random(4))
        for load in (OpenLoop(1.0), ClosedLoop(3))
    )
    assert [r.messages for r in slow.requests] == [r.messages for r in fast.requests]


def test_other_bursts_keep_the_prompts_and_change_the_times():
    even, bursty = (
        make_plan(make_spec(OpenLoop(1.0, Spacing.GAMMA, burstiness)), Random(4))
        for burstiness in (0.25, 4.0)
    )
    assert [r.messages for r in even.requests] == [r.messages for r in bursty.requests]
    assert [r.at_s for r in even.requests] != [r.at_s for r in bursty.requests]


def test_an_open_loop_has_times_in_order_and_ends_with_its_duration():
    plan = make_plan(make_spec(OpenLoop(20.0), requests=None, duration_s=3.0), Random(0))
    times_s = [request.at_s for request in plan.requests]
    assert times_s == sorted(times_s)
    assert times_s[0] == 0.0
    assert times_s[-1] < 3.0
    assert 30 < len(times_s) < 100


def test_a_closed_loop_has_no_times_and_enough_requests_for_its_duration():
    plan = make_plan(make_spec(ClosedLoop(3), requests=None, duration_s=2.0), Random(0))
    assert {request.at_s for request in plan.requests} == {None}
    assert len(plan.requests) == 24


def test_prompts_share_no_prefix_unless_asked_to():
    plan = make_plan(make_spec(requests=50), Random(0))
    assert len({request.messages[0].content[:30] for request in plan.requests}) == 50
    assert {len(request.messages) for request in plan.requests} == {1}


def test_a_shared_prefix_is_the_same_text_for_its_share_of_requests():
    spec = make_spec(requests=200, source=make_shape(shared_prefix_tokens=20, shared_share=0.5))
    plan = make_plan(spec, Random(0))
    sharing = [request for request in plan.requests if request.messages[0].role == "system"]
    assert 70 < len(sharing) < 130
    assert len({request.messages[0] for request in sharing}) == 1


def test_several_shared_prefixes_are_drawn_evenly_and_are_different_texts():
    shape = make_shape(shared_prefix_tokens=20, shared_share=1.0, shared_prefixes=4)
    plan = make_plan(make_spec(requests=400, source=shape), Random(0))
    texts = Counter(planned.messages[0].content for planned in plan.requests)
    assert len(texts) == 4
    assert all(70 < used < 130 for used in texts.values())


def test_sizes_and_times_do_not_depend_on_what_is_shared():
    def sizes(**shared):
        shape = make_shape(prompt_tokens=90, **shared)
        plan = make_plan(make_spec(OpenLoop(3.0), requests=30, source=shape), Random(2))
        return [(r.at_s, r.prompt_tokens, r.max_tokens) for r in plan.requests]

    assert (
        sizes()
        == sizes(shared_prefix_tokens=20, shared_share=0.5)
        == sizes(shared_prefix_tokens=20, shared_share=1.0, shared_prefixes=7)
    )


def test_a_prompt_shorter_than_its_system_prompt_is_planned_as_long_as_it_is():
    shape = make_shape(prompt_tokens=30, shared_prefix_tokens=100, shared_share=1.0)
    (planned,) = make_plan(make_spec(requests=1, source=shape), Random(0)).requests
    assert planned.prompt_tokens == 100 + 1 + TEMPLATE_TOKENS


def test_a_context_too_small_for_a_presets_system_prompt_cuts_it_too():
    spec = PlanSpec(PRESETS[PresetName.CODEGEN], ClosedLoop(1), 50, context_tokens=2048)
    plan = make_plan(spec, Random(0))
    assert any(request.messages[0].role == "system" for request in plan.requests)
    assert all(request.prompt_tokens + request.max_tokens <= 2048 for request in plan.requests)


def shared_words(one: list[str], other: list[str]) -> int:
    return next((i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(one))


@settings(max_examples=20)
@given(seed=st.integers(), share=st.sampled_from([0.0, 0.5, 1.0]), prompt_tokens=st.integers(1, 80))
def test_an_opening_changes_the_first_words_and_nothing_else(seed, share, prompt_tokens):
    shape = make_shape(prompt_tokens, shared_prefix_tokens=20, shared_share=share, shared_prefixes=2)
    spec = make_spec(OpenLoop(2.0), source=shape)
    plain = make_plan(spec, Random(seed))
    opening = write_opening(Random(1))
    cold = make_plan(spec, Random(seed), opening)
    for before, after in zip(plain.requests, cold.requests, strict=True):
        assert (before.at_s, before.prompt_tokens, before.max_tokens) == (
            after.at_s,
            after.prompt_tokens,
            after.max_tokens,
        )
        assert [message.role for message in before.messages] == [message.role for message in after.messages]
        old, new = words_of(before), words_of(after)
        replaced = min(6, len(before.messages[0].content.split()))
        assert new == opening.split()[:replaced] + old[replaced:]


def test_prompts_of_an_opened_run_share_among_themselves_but_not_with_another_run():
    shape = make_shape(shared_prefix_tokens=20, shared_share=1.0)
    one, other = (
        make_plan(make_spec(source=shape), Random(3), write_opening(Random(number))) for number in (1, 2)
    )
    assert len({planned.messages[0] for planned in one.requests}) == 1
    assert all(
        shared_words(words_of(a), words_of(b)) < 3 for a, b in zip(one.requests, other.requests, strict=True)
    )


def test_only_what_came_before_counts_as_shareable():
    shape = make_shape(prompt_tokens=50, shared_prefix_tokens=20, shared_share=1.0)
    plan = make_plan(make_spec(requests=5, source=shape), Random(0))
    assert [planned.fresh_words for planned in plan.requests] == [38, 18, 18, 18, 18]


def test_without_a_shared_prefix_only_the_opening_is_shareable():
    plain = make_plan(make_spec(), Random(0))
    opened = make_plan(make_spec(), Random(0), write_opening(Random(1)))
    fewer = [a.fresh_words - b.fresh_words for a, b in zip(plain.requests, opened.requests, strict=True)]
    assert fewer == [6] * 5


@settings(max_examples=25)
@given(
    seed=st.integers(),
    share=st.sampled_from([0.0, 0.5, 1.0]),
    prefixes=st.integers(1, 3),
    opening=st.sampled_from(["", "of the city by night river"]),
)
def test_no_prompt_shares_more_words_with_an_earlier_one_than_is_said(seed, share, prefixes, opening):
    shape = make_shape(60, shared_prefix_tokens=20, shared_share=share, shared_prefixes=prefixes)
    plan = make_plan(make_spec(requests=12, source=shape), Random(seed), opening)
    for planned in plan.requests:
        earlier = (words_of(other) for other in plan.requests[: planned.index])
        found = max((shared_words(words_of(planned), words) for words in earlier), default=0)
        # Beyond what is planned two texts may go on alike by chance, for a word or two.
        assert found <= len(words_of(planned)) - planned.fresh_words + 2


def test_a_small_context_cuts_a_presets_prompts():
    spec = PlanSpec(PRESETS[PresetName.RAG], ClosedLoop(1), 50, context_tokens=2048)
    plan = make_plan(spec, Random(0))
    assert all(request.prompt_tokens + request.max_tokens <= 2048 for request in plan.requests)
    assert plan.shape.prompt.median_tokens == plan.shape.prompt.high_tokens == 1600
    assert plan.cut == ContextCut(PRESETS[PresetName.RAG], 2048)


@pytest.mark.parametrize("name", PresetName)
def test_a_preset_that_fits_its_context_is_planned_as_it_is(name):
    plan = make_plan(PlanSpec(PRESETS[name], ClosedLoop(1), 1), Random(0))
    assert (plan.shape, plan.cut) == (PRESETS[name], None)


def test_exact_lengths_that_do_not_fit_are_rejected_not_cut():
    spec = make_spec(source=make_shape(prompt_tokens=2000, output_tokens=100), context_tokens=2048)
    with pytest.raises(ConfigError, match="do not fit a context of 2048"):
        make_plan(spec, Random(0))


@pytest.mark.parametrize(
    "wrong", [{"requests": None}, {"requests": 0}, {"requests": 10**6}, {"duration_s": 0.0}]
)
def test_a_run_without_a_sound_end_is_rejected(wrong):
    with pytest.raises(ConfigError):
        make_spec(**wrong)


def test_more_arrivals_than_a_plan_holds_are_rejected_with_the_longest_time_that_fits():
    with pytest.raises(ConfigError, match=r"100 requests per second for 3600 s .* 20000 .* at most 200 s"):
        make_spec(OpenLoop(100.0), requests=None, duration_s=3600.0)
    assert make_spec(OpenLoop(100.0), requests=None, duration_s=200.0).duration_s == 200.0
    assert make_spec(OpenLoop(100.0), requests=10, duration_s=3600.0).requests == 10


def test_every_turn_of_a_conversation_counts_among_the_arrivals():
    with pytest.raises(ConfigError, match=r"100 conversations of 4 turns per second .* at most 50 s"):
        make_spec(OpenLoop(100.0), requests=None, duration_s=60.0, conversations=Conversations(4, 1.0))


def test_a_plan_that_chance_made_too_long_says_that_it_is_full(monkeypatch):
    monkeypatch.setattr(plan_module, "PLAN_LIMIT", 20)
    bursts = OpenLoop(20.0, Spacing.GAMMA, 9.0)
    plans = [make_plan(make_spec(bursts, requests=None, duration_s=1.0), Random(seed)) for seed in range(20)]
    assert {plan.full for plan in plans} == {True, False}
    assert all(plan.full == (len(plan.requests) == 20) for plan in plans)


@pytest.mark.parametrize(("duration_s", "full"), [(1.0, False), (3.0, True)])
def test_a_closed_loop_whose_time_asks_for_more_than_a_plan_holds_is_full(monkeypatch, duration_s, full):
    monkeypatch.setattr(plan_module, "PLAN_LIMIT", 20)
    plan = make_plan(make_spec(ClosedLoop(2), requests=None, duration_s=duration_s), Random(0))
    assert plan.full is full


@pytest.mark.parametrize(
    ("fit", "exact"),
    [(None, False), (Fit(5), True), (Fit(5, off=1, most_off_tokens=2), False), (Fit(4), False)],
)
def test_prompts_are_exact_only_where_all_were_counted_and_none_is_off(fit, exact):
    plan = make_plan(make_spec(requests=5), Random(0))
    assert replace(plan, fit=fit).exact_prompts is exact


def test_a_replay_needs_a_trace():
    with pytest.raises(ConfigError, match="a replay needs a trace"):
        make_spec(Replay())


def test_a_prompt_follows_the_tokenizers_count():
    (planned,) = make_plan(make_spec(requests=1), Random(0)).requests
    words = len(planned.messages[-1].content.split())
    longer = refitted(planned, counted_tokens=45, rng=Random(0))
    shorter = refitted(planned, counted_tokens=60, rng=Random(0))
    assert len(longer.messages[-1].content.split()) == words + 5
    assert len(shorter.messages[-1].content.split()) == words - 10
