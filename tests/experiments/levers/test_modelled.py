"""What is modelled beside the measurements says what the expectations rest on."""

import re

import pytest

from phasewise.api.model_sheet import model_sheet
from phasewise.experiments.levers.cases import CASES
from phasewise.experiments.levers.guide import GUIDE
from phasewise.experiments.levers.modelled import modelled_in_words, modelled_on
from tests.paths import ROOT

CONFIGS = sorted((ROOT / "examples" / "models").glob("*.json"))


def times(case, figure):
    """The factor that follows a figure's name."""
    (factor,) = re.findall(rf"{figure} (\d+\.\d\d)x", modelled_in_words(case))
    return float(factor)


@pytest.mark.parametrize(
    ("case", "figure", "low", "high"),
    [
        ("prefix_cache", "cached", 0.0, 0.5),
        ("batching_against_one", "tokens/s", 4.0, 6.0),
        ("batching_against_one", "TPOT", 1.0, 1.2),
        ("batch_cap", "tokens/s", 0.25, 0.4),
        ("batch_cap", "TPOT", 0.8, 1.0),
        ("chunk_512", "worst gap", 0.0, 0.2),
        ("chunk_128", "its own TTFT", 1.2, 3.0),
        ("w4a16", "^.*?TPOT", 0.25, 0.5),
        ("w4a16", "4,096 tokens", 0.99, 1.01),
        ("w8a8", "4,096 tokens", 0.5, 0.8),
        ("kv_fp8", "KV capacity", 1.99, 2.01),
    ],
)
def test_a_large_model_on_a_gpu_follows_the_physics(case, figure, low, high):
    assert low <= times(case, figure) <= high


@pytest.mark.parametrize("lever", GUIDE, ids=lambda it: it.name)
@pytest.mark.parametrize(
    "config", sorted((ROOT / "examples" / "models").glob("*.json")), ids=lambda it: it.stem
)
def test_every_lever_is_modelled_on_every_kind_of_model(config, lever):
    deployment = model_sheet(str(config), gpu="H100").asked.deployment
    assert modelled_on(lever.cases[0], deployment)


def test_every_measured_case_that_the_table_names_exists():
    known = {case.name for case in CASES}
    modelled_only = {"grouped_queries", "disaggregation", "semantic_cache"}
    assert {name for lever in GUIDE for name in lever.cases} - modelled_only <= known
