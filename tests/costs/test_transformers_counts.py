"""Parameters and windows are those that transformers builds, for every family that is known."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from phasewise.costs.roofline.model_config import KNOWN_FAMILIES, architecture_of, windows_of
from tests.paths import ROOT

NOT_IN_TRANSFORMERS = {"kimi_k2"}  # brings its own code; its layers are those of deepseek_v3


@pytest.fixture(scope="module")
def counts():
    home = Path(os.environ.get("PHASEWISE_HOME") or ROOT / ".phasewise")
    command = [home / "engine/bin/python", "-W", "ignore", ROOT / "tests/costs/transformers_counts.py"]
    families = sorted(KNOWN_FAMILIES - NOT_IN_TRANSFORMERS)
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *families], capture_output=True, check=True, env=environment)
    return json.loads(done.stdout)


@pytest.mark.real
def test_parameters_are_those_that_transformers_counts(counts):
    off = {
        family: architecture_of(found["config"]).parameters / found["parameters"] - 1
        for family, found in counts.items()
    }
    assert {family: share for family, share in off.items() if abs(share) > 0.0005} == {}


@pytest.mark.real
@pytest.mark.parametrize("family", ["gemma2", "gemma3_text", "cohere2", "gpt_oss"])
def test_patterns_that_a_configuration_leaves_out_are_those_of_transformers(counts, family):
    config = counts[family]["config"]
    layers = config["num_hidden_layers"]
    unsaid = {key: value for key, value in config.items() if key != "layer_types"}
    assert windows_of(unsaid, layers) == windows_of(config, layers)
