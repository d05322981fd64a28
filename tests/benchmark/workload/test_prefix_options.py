# ruff: noqa: S311 - seeds make tests repeat, they keep no secrets
from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.benchmark.workload.arrivals import ClosedLoop
from phasewise.benchmark.workload.plan import PlanSpec, make_plan
from phasewise.benchmark.workload.presets import PRESETS, PresetName, with_lengths
from phasewise.benchmark.workload.prompts import TEMPLATE_TOKENS
from phasewise.core.errors import ConfigError
from tests.benchmark.workload.builders import words_of


def behind(name: PresetName, prefix_tokens: int, prompt_tokens: int | None = None):
    return with_lengths(PRESETS[name], prompt_tokens, None, prefix_tokens, None)


@settings(max_examples=40)
@given(name=st.sampled_from(PresetName), prefix_tokens=st.integers(1, 5000), seed=st.integers())
def test_a_preset_makes_room_for_any_system_prompt(name, prefix_tokens, seed):
    shape = behind(name, prefix_tokens)
    assert shape.prompt.low_tokens >= prefix_tokens + TEMPLATE_TOKENS + 1
    plan = make_plan(PlanSpec(shape, ClosedLoop(1), 5, context_tokens=16_384), Random(seed))
    for planned in plan.requests:
        system, _ = planned.messages
        assert len(system.content.split()) == prefix_tokens
        assert len(words_of(planned)) + TEMPLATE_TOKENS == planned.prompt_tokens


def test_what_users_add_to_a_longer_system_prompt_stays_as_long():
    shape = behind(PresetName.CHAT, 500)
    assert (shape.prompt.low_tokens, shape.prompt.median_tokens, shape.prompt.high_tokens) == (520, 692, 2420)
    assert shape.shared_share == 1.0


@pytest.mark.parametrize(("name", "prefix_tokens"), [(PresetName.RAG, 500), (PresetName.CHAT, 0)])
def test_a_system_prompt_that_fits_changes_no_length(name, prefix_tokens):
    assert behind(name, prefix_tokens).prompt == PRESETS[name].prompt


@pytest.mark.parametrize("prefix_tokens", [-1, 88, 100, 500])
def test_a_prompt_asked_for_exactly_is_not_made_longer(prefix_tokens):
    with pytest.raises(ConfigError, match="does not fit prompts of 100"):
        behind(PresetName.CHAT, prefix_tokens, prompt_tokens=100)


def test_a_prompt_asked_for_exactly_takes_what_just_fits():
    assert behind(PresetName.CHAT, 87, prompt_tokens=100).shared_prefix_tokens == 87
    assert behind(PresetName.CHAT, 0, prompt_tokens=4).prompt.low_tokens == 4


def test_a_negative_length_is_rejected_with_a_preset_too():
    with pytest.raises(ConfigError, match="a shared prefix of -1 tokens"):
        behind(PresetName.CHAT, -1)
