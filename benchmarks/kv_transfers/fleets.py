"""Two engines in one of two arrangements, real or fake, and gateways before them by an arm's rule.

What is asked of them is load.py's matter.
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from resuming.timelines import ADMIN_KEY_SHA256
from stress.processes import free_port, phasewise, running, wait_until_ready

from phasewise.clients.step_feed import default_steps_url

FLEET = "disaggregation-bench"
MODEL = "smollm2-135m"
ENGINES = 2
PORT_OFFSETS = (0, 10_000, 20_000)
"""An engine's own port, its recorder's and its side channel's."""
READY_WITHIN_S = 120.0


class Layout(StrEnum):
    """How two engines are arranged."""

    MIXED = "mixed"
    DISAGGREGATED = "disaggregated"


class Arm(StrEnum):
    """What is compared. `MIXED_AGAIN` is the control: the same as `MIXED`, measured once more."""

    MIXED = "mixed"
    MIXED_AGAIN = "mixed_again"
    DISAGGREGATED = "disaggregated"
    DECIDING = "deciding"


GATEWAYS: dict[Arm, dict[str, Any]] = {
    Arm.MIXED: {"policy": "least_outstanding"},
    Arm.MIXED_AGAIN: {"policy": "least_outstanding"},
    Arm.DISAGGREGATED: {"kv_transfer": {"when": "always"}},
    Arm.DECIDING: {"kv_transfer": {"when": "auto"}},
}
POOLS: dict[Layout, list[dict[str, Any]]] = {
    Layout.MIXED: [{"name": "main", "replicas": ENGINES, "cores": 1}],
    Layout.DISAGGREGATED: [
        {"name": "prefill", "role": "prefill", "cores": 1},
        {"name": "decode", "role": "decode", "cores": 1},
    ],
}


@dataclass(frozen=True)
class Engines:
    """Engines that run, as a gateway is told of them."""

    layout: Layout
    model: str
    workers: tuple[dict[str, Any], ...]

    def url(self, role: str) -> str:
        """The address of the first engine with this role."""
        return next(str(worker["url"]) for worker in self.workers if worker.get("role", "mixed") == role)

    @property
    def urls(self) -> list[str]:
        """All addresses."""
        return [str(worker["url"]) for worker in self.workers]

    @property
    def steps_urls(self) -> dict[str, str]:
        """Where each engine's steps are told, by its name."""
        reported = (
            (str(it["name"]), it.get("steps_url") or default_steps_url(it["url"])) for it in self.workers
        )
        return {name: url for name, url in reported if url is not None}


@contextmanager
def real_engines(layout: Layout, pools: list[dict[str, Any]] | None = None) -> Iterator[Engines]:
    """Two vLLM as `phasewise up` starts them, a core each; its own gateway stands idle beside ours.

    With `pools` those of a fleet file instead.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "fleet.yaml"
        settings = {
            "version": 1,
            "name": FLEET,
            "model": MODEL,
            "first_engine_port": free_engine_port(),
            "pools": pools or POOLS[layout],
            "gateway": {"port": free_port(), "kv_transfer": {"when": "always"}},
        }
        # YAML reads JSON too.
        file.write_text(json.dumps(settings))
        try:
            phasewise("up", str(file), "--detach", "--no-engine-keys")
            home = Path(os.environ["PHASEWISE_HOME"])
            reported = json.loads((home / "run" / f"{FLEET}.gateway").read_text())
            yield Engines(layout, MODEL, tuple(reported["workers"]))
        finally:
            phasewise("down", FLEET)


@contextmanager
def gateway(engines: Engines, arm: Arm) -> Iterator[str]:
    """A gateway of its own for this arm, which knows nothing yet; its address."""
    with gateway_with(engines, GATEWAYS[arm]) as url:
        yield url


@contextmanager
def gateway_with(engines: Engines, asked: dict[str, Any]) -> Iterator[str]:
    """A gateway with these settings, which knows nothing yet; its address."""
    port = free_port()
    settings = {"port": port, "admin_key_sha256": ADMIN_KEY_SHA256, **asked}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        file, log = folder / "gateway.yaml", folder / "gateway.log"
        file.write_text(json.dumps({"gateway": settings, "workers": engines.workers}))
        written = stack.enter_context(log.open("wb"))
        command = [sys.executable, "-m", "phasewise.cli", "gateway", str(file)]
        process = stack.enter_context(running(command, stderr=written))
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(url, process, log, READY_WITHIN_S)
        yield url


def free_engine_port() -> int:
    """The first of two ports that are free, with all that an engine opens above its own."""
    for _ in range(100):
        first = random.randrange(10_300, 12_500, ENGINES)
        with ExitStack() as stack:
            try:
                for port in (first + offset + index for offset in PORT_OFFSETS for index in range(ENGINES)):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return first
    raise SystemExit("no free ports were found for two engines")
