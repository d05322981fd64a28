from __future__ import annotations

import pytest

from phasewise.benchmark.workload.plan import CONTEXT_TOKENS, fitted
from phasewise.benchmark.workload.presets import PRESETS, PresetName
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
