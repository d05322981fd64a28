"""What is modelled beside the measurements says what the expectations rest on."""

import re

import pytest

from phasewise.experiments.levers.cases import CASES
from phasewise.experiments.levers.modelled import modelled_in_words


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


def test_what_depends_on_the_traffic_alone_is_not_modelled():
    assert [case.name for case in CASES if not modelled_in_words(case.name)] == ["batching_against_static"]
