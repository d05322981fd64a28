"""Builders of shapes and deployments from examples/models."""

import json

from phasewise.costs.roofline.accelerators import ACCELERATORS
from phasewise.costs.roofline.deployment import Deployment
from phasewise.costs.roofline.model_config import architecture_of
from phasewise.costs.roofline.precision import WEIGHT_SCHEMES
from tests.paths import ROOT

EXAMPLES = ROOT / "examples" / "models"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.json") if path.stem != "smollm2-135m")
"""Models whose heads eight devices can share."""


def example_config(name):
    return json.loads((EXAMPLES / f"{name}.json").read_text())


def deploy(name="llama-3-8b", gpu="H100", gpus=1, weights=None, **changes):
    architecture = architecture_of(example_config(name), WEIGHT_SCHEMES[weights] if weights else None)
    return Deployment(architecture, ACCELERATORS[gpu], gpus, **changes)
