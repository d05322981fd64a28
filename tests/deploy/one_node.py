"""A real one-node Kubernetes for a test, started by the script that PHASEWISE_K8S names.

The script has the commands `up`, `import IMAGE.tar` and `down`, and takes `--dir DIR`. A machine runs one
node at a time, as root.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.kubernetes_tools import kubernetes_tools
from tests.paths import ROOT

WITHIN_S = 300.0


class OneNode:
    """A cluster in a folder, with helm and kubectl for it."""

    def __init__(self, script: str, folder: Path) -> None:
        self._script = script
        self._folder = folder
        self.custom_resources = Path(script).parent / "crds"
        home = Path(os.environ.get("PHASEWISE_HOME") or ROOT / ".phasewise")
        # Its programs are packed, and stay unpacked for the next time.
        self._environment = {
            **os.environ,
            "K8S_BIN_DIR": str(home / "one-node"),
            "KUBECONFIG": str(folder / "kubeconfig"),
        }

    def up(self, *options: str) -> None:
        self._run(self._script, "--dir", str(self._folder), "up", *options)

    def api_server(self) -> tuple[str, bytes]:
        """Its address, and the certificate of the authority that signed its own."""
        (it,) = yaml.safe_load((self._folder / "kubeconfig").read_text())["clusters"]
        cluster = it["cluster"]
        if "certificate-authority" in cluster:
            return cluster["server"], Path(cluster["certificate-authority"]).read_bytes()
        return cluster["server"], base64.b64decode(cluster["certificate-authority-data"])

    def down(self) -> None:
        self._run(self._script, "--dir", str(self._folder), "down")

    def load(self, image_tar: Path) -> None:
        self._run(self._script, "--dir", str(self._folder), "import", str(image_tar))

    def helm(self, *arguments: str) -> str:
        return self._run(str(kubernetes_tools() / "helm"), *arguments)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self._run(str(kubernetes_tools() / "kubectl"), *arguments, stdin=stdin)

    def get(self, namespace: str, *what: str) -> dict[str, Any]:
        text = self.kubectl("--namespace", namespace, "get", *what, "--output", "json")
        found: dict[str, Any] = json.loads(text)
        return found

    def _run(self, *command: str, stdin: str | None = None) -> str:
        done = subprocess.run(
            command,
            input=stdin,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command[:4])} failed: {done.stderr[-3000:]}")
        return done.stdout


@contextmanager
def running_node(*options: str) -> Iterator[OneNode]:
    """A node until the block is left; the test is skipped where there is no script to start it. With
    `--api-only` there is the API server alone.
    """
    script = os.environ.get("PHASEWISE_K8S")
    if not script:
        pytest.skip("PHASEWISE_K8S does not name a script that starts a one-node Kubernetes")
    folder = Path(tempfile.mkdtemp(prefix="node-"))  # a short path: it holds sockets
    node = OneNode(script, folder)
    try:
        node.up(*options)
        yield node
    finally:
        node.down()
        shutil.rmtree(folder, ignore_errors=True)
