"""What is modelled follows the physics."""

import re

import pytest

from phasewise.api.model_sheet import model_sheet
from phasewise.planning.lever_guide import GUIDE, typical_deployment
from tests.paths import ROOT

CONFIGS = sorted((ROOT / "examples" / "models").glob("*.json"))


def times(name, figure):
    """The factor that follows a figure's name."""
    (lever,) = (lever for lever in GUIDE if lever.name == name)
    (factor,) = re.findall(rf"{figure} (\d+\.\d\d)x", lever.modelled_on(typical_deployment()))
    return float(factor)


@pytest.mark.parametrize(
    ("name", "figure", "low", "high"),
    [
        ("prefix caching", "cached", 0.0, 0.5),
        ("larger batch", "tokens/s", 4.0, 6.0),
        ("larger batch", "TPOT", 1.0, 1.2),
        ("chunked prefill", "worst gap", 0.0, 0.2),
        ("weight quantization, W4A16", "^.*?TPOT", 0.25, 0.5),
        ("weight quantization, W4A16", "4,096 tokens", 0.99, 1.01),
        ("weight quantization, W8A8", "4,096 tokens", 0.5, 0.8),
        ("KV quantization", "KV capacity", 1.99, 2.01),
    ],
)
def test_a_large_model_on_a_gpu_follows_the_physics(name, figure, low, high):
    assert low <= times(name, figure) <= high


@pytest.mark.parametrize("lever", GUIDE, ids=lambda lever: lever.name)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.stem)
def test_every_lever_is_modelled_on_every_kind_of_model(config, lever):
    deployment = model_sheet(str(config), gpu="H100").asked.deployment
    assert lever.modelled_on(deployment)
