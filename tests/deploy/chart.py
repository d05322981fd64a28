"""Renders the Helm chart, and writes the manifests for those without Helm: `python -m tests.deploy.chart`."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.files import DEPLOY
from tests.deploy.kubernetes_tools import kubernetes_tools

CHART = DEPLOY / "helm" / "phasewise"
VALUES = DEPLOY / "helm" / "values"
MANIFESTS = DEPLOY / "kubernetes"
EXAMPLES = ("fake-engines", "mixed", "disaggregated", "endpoint-picker")
NAMESPACE = "phasewise"
RENDER_WITHIN_S = 60.0
HEAD = """\
# Rendered from the Helm chart with deploy/helm/values/{example}.yaml. Change the chart, not this file.
#   kubectl create namespace phasewise
#   kubectl apply --namespace phasewise --filename deploy/kubernetes/{example}.yaml
"""


class ChartRejected(Exception):
    """helm did not render the chart, and says why."""


def render(*options: str) -> str:
    """The chart as release `phasewise`."""
    command = [
        str(kubernetes_tools() / "helm"),
        "template",
        "phasewise",
        str(CHART),
        "--namespace",
        NAMESPACE,
    ]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=RENDER_WITHIN_S, check=False
    )
    if done.returncode:
        raise ChartRejected(done.stderr)
    return done.stdout


def values_of(example: str) -> Path:
    return VALUES / f"{example}.yaml"


def rendered(example: str, *options: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The example's objects by kind and name."""
    documents = yaml.safe_load_all(render("--values", str(values_of(example)), *options))
    return {(it["kind"], it["metadata"]["name"]): it for it in documents if it}


def manifest(example: str) -> str:
    return HEAD.format(example=example) + render("--values", str(values_of(example)))


if __name__ == "__main__":
    MANIFESTS.mkdir(exist_ok=True)
    for name in EXAMPLES:
        (MANIFESTS / f"{name}.yaml").write_text(manifest(name))
