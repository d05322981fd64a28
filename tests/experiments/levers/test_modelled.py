"""What is modelled follows the physics."""

import re

import pytest

from phasewise.api.model_sheet import model_sheet
from phasewise.experiments.levers.guide import GUIDE
from phasewise.experiments.levers.modelled import modelled_on, typical_deployment
from tests.paths import ROOT

CONFIGS = sorted((ROOT / "examples" / "models").glob("*.json"))


def times(case, figure):
    """The factor that follows a figure's name."""
    (factor,) = re.findall(rf"{figure} (\d+\.\d\d)x", modelled_on(case, typical_deployment()))
    return float(factor)


@pytest.mark.parametrize(
    ("case", "figure", "low", "high"),
    [
        ("prefix_cache", "cached", 0.0, 0.5),
        ("batching_against_one", "tokens/s", 4.0, 6.0),
        ("batching_against_one", "TPOT", 1.0, 1.2),
        ("chunk_512", "worst gap", 0.0, 0.2),
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
    assert modelled_on(lever.case, deployment)
