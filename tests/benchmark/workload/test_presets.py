from __future__ import annotations

# ruff: noqa: S311 - seeds make tests repeat, they keep no secrets
from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.benchmark.workload.plan import CONTEXT_TOKENS, fitted
from phasewise.benchmark.workload.presets import PRESETS, Lengths, PresetName
from phasewise.core.errors import ConfigError
from tests.benchmark.workload.builders import make_shape


def test_every_name_has_a_shape():
    assert set(PRESETS) == set(PresetName)


@pytest.mark.parametrize("name", PresetName)
def test_a_preset_fits_an_8k_context_as_it_stands(name):
    assert fitted(PRESETS[name], CONTEXT_TOKENS) == PRESETS[name]


@pytest.mark.parametrize("name", PresetName)
def test_a_preset_says_what_it_is_in_a_sentence(name):
    assert PRESETS[name].about.endswith(".")
    assert PRESETS[name].shared_prefix_tokens < PRESETS[name].prompt.median_tokens


def test_shared_prefixes_are_one_or_more():
    with pytest.raises(ConfigError, match="0 shared prefixes"):
        make_shape(shared_prefixes=0)


@st.composite
def lengths(draw) -> Lengths:
    low, mid, high = sorted(draw(st.lists(st.integers(1, 9000), min_size=3, max_size=3)))
    return Lengths(mid, draw(st.floats(0.0, 3.0)), low, high)


@given(lengths(), st.integers())
def test_every_length_lies_within_its_bounds(distribution, seed):
    assert distribution.low_tokens <= distribution.draw(Random(seed)) <= distribution.high_tokens


@given(lengths(), st.integers(1, 9000), st.integers())
def test_a_cap_holds(distribution, cap, seed):
    assert distribution.capped(cap).draw(Random(seed)) <= cap


def test_a_fixed_length_never_varies():
    assert {Lengths.fixed(77).draw(Random(seed)) for seed in range(20)} == {77}


def test_half_of_the_lengths_lie_below_the_median():
    rng = Random(3)
    drawn = [Lengths(320, 0.7, 16, 8000).draw(rng) for _ in range(5000)]
    assert median(drawn) == pytest.approx(320, rel=0.05)


@pytest.mark.parametrize("sizes", [(0, 0, 0), (5, 6, 9), (10, 1, 9)])
def test_bounds_that_cannot_be_are_rejected(sizes):
    median_tokens, low, high = sizes
    with pytest.raises(ConfigError, match="are not within"):
        Lengths(median_tokens, 0.5, low, high)
