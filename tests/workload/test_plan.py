# ruff: noqa: S311 - seeds make tests repeat, they keep no secrets
from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.errors import ConfigError
from phasewise.workload.arrivals import ClosedLoop, Load, OpenLoop
from phasewise.workload.lengths import Lengths
from phasewise.workload.plan import PlanSpec, make_plan, refitted
from phasewise.workload.presets import PRESETS, PresetName, Shape


def make_shape(prompt_tokens: int = 50, output_tokens: int = 8, **more: object) -> Shape:
    return replace(
        Shape("test.", Lengths.fixed(prompt_tokens), Lengths.fixed(output_tokens)),
        **more,
    )


def make_spec(load: Load | None = None, requests: int | None = 5, **more: object) -> PlanSpec:
    return PlanSpec(**{"source": make_shape(), "load": load or ClosedLoop(2), "requests": requests, **more})


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
    assert {request.shared_prefix for request in plan.requests} == {None}


def test_a_shared_prefix_is_the_same_text_for_its_share_of_requests():
    spec = make_spec(requests=200, source=make_shape(shared_prefix_tokens=20, shared_share=0.5))
    plan = make_plan(spec, Random(0))
    sharing = [request for request in plan.requests if request.shared_prefix is not None]
    assert 70 < len(sharing) < 130
    assert len({request.messages[0] for request in sharing}) == 1


def test_a_small_context_cuts_a_presets_prompts():
    spec = PlanSpec(PRESETS[PresetName.RAG], ClosedLoop(1), 50, context_tokens=2048)
    plan = make_plan(spec, Random(0))
    assert all(request.prompt_tokens + request.max_tokens <= 2048 for request in plan.requests)


def test_exact_lengths_that_do_not_fit_are_refused_not_cut():
    spec = make_spec(source=make_shape(prompt_tokens=2000, output_tokens=100), context_tokens=2048)
    with pytest.raises(ConfigError, match="do not fit a context of 2048"):
        make_plan(spec, Random(0))


@pytest.mark.parametrize(
    "wrong", [{"requests": None}, {"requests": 0}, {"requests": 10**6}, {"duration_s": 0.0}]
)
def test_a_run_without_a_sound_end_is_refused(wrong):
    with pytest.raises(ConfigError):
        make_spec(**wrong)


def test_a_prompt_follows_the_tokenizers_count():
    (planned,) = make_plan(make_spec(requests=1), Random(0)).requests
    words = len(planned.messages[-1].content.split())
    longer = refitted(planned, counted_tokens=45, rng=Random(0))
    shorter = refitted(planned, counted_tokens=60, rng=Random(0))
    assert len(longer.messages[-1].content.split()) == words + 5
    assert len(shorter.messages[-1].content.split()) == words - 10
