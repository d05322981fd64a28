"""Two real vLLM that hand KV over, a prefill and a decode engine, as `phasewise up` would start them.

tests/conftest.py makes a fixture of it. Whoever kills or stops an engine of the shared pair restarts it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from phasewise.core.engine_metrics import MetricsSnapshot
from phasewise.core.worker import Role
from phasewise.engines.vllm import parse_metrics
from phasewise.fleet.config import FleetConfig, GatewayConfig, KvTransferConfig, Pool, WorkerConfig
from phasewise.fleet.engines.environment import inspect_engine
from phasewise.fleet.engines.known_models import served_model
from phasewise.fleet.local.placement import this_machine
from phasewise.fleet.local.plan import FleetPlan, MemberPlan, ProcessPlan, plan_fleet
from tests.fleet.builders import free_engine_port
from tests.real_engine import INSTALL_HINT, MODEL, ROOT, stop_group, wait_until_ready

LEASE_S = 20
"""Short, so that a test sees KV released that nobody fetched; long for a KV transfer on a busy machine."""
PAIR = FleetConfig(
    name="pair",
    pools=(Pool(name="p", role=Role.PREFILL), Pool(name="d", role=Role.DECODE)),
    gateway=GatewayConfig(kv_transfer=KvTransferConfig(timeout_s=LEASE_S / 2, lease_s=LEASE_S)),
)

Change = Callable[[ProcessPlan], ProcessPlan]


@dataclass
class PairEngine:
    """One engine of the pair; `pid` also names its process group, and changes with a restart."""

    plan: MemberPlan
    worker: WorkerConfig
    log: Path
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return self.plan.url

    @property
    def steps_url(self) -> str:
        return str(self.plan.steps_url)

    @property
    def side_port(self) -> int:
        return int(self.plan.side_port or 0)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def counters(self) -> MetricsSnapshot:
        """What the engine counts now."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as reply:
            return parse_metrics(reply.read().decode(), time.time())

    def kill(self) -> None:
        """End the engine at once, its core process too."""
        self.signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every process of the engine (SIGSTOP: it stays connected and says nothing)."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def start(self, change: Change | None = None) -> None:
        """Start the engine; `change` plants a mistake in its command or environment."""
        process = self.plan.process if change is None else change(self.plan.process)
        cores = ",".join(map(str, process.affinity))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                # The engine ends with the test run even if that is killed and cannot clean up.
                ["setpriv", "--pdeathsig", "TERM", "taskset", "-c", cores, *process.argv],
                env={**os.environ, **process.env},
                cwd=self.log.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        assert self.process is not None
        wait_until_ready(self.process, self.url, self.log)

    def stop(self) -> None:
        if self.process is not None:
            self.signal(signal.SIGCONT)
            stop_group(self.process)


@dataclass(frozen=True)
class RealPair:
    """A prefill and a decode engine that can hand over to each other."""

    prefill: PairEngine
    decode: PairEngine
    model: str = MODEL
    lease_s: int = LEASE_S

    @property
    def workers(self) -> tuple[WorkerConfig, ...]:
        """The engines as a gateway is told of them."""
        return (self.prefill.worker, self.decode.worker)

    def restart(self, which: Role | str, change: Change | None = None) -> None:
        """End one engine and start it again at the same ports; it is ready when this returns."""
        engine = {Role.PREFILL: self.prefill, Role.DECODE: self.decode}[Role(which)]
        engine.kill()
        engine.start(change)
        engine.wait_until_ready()


@contextmanager
def running_real_pair(folder: Path, fleet: FleetConfig = PAIR) -> Iterator[RealPair]:
    """Both engines, one core each, on free ports, with their logs in `folder`; they end with the context."""
    plan = _plan_on_free_ports(fleet, folder)
    engines = [
        PairEngine(member, worker, folder / f"{member.name}.log")
        for member, worker in zip(plan.engines, plan.gateway_file.workers, strict=True)
    ]
    try:
        for engine in engines:
            engine.start()
        for engine in engines:
            engine.wait_until_ready()
        prefill, decode = engines
        yield RealPair(prefill, decode, lease_s=fleet.gateway.kv_transfer.lease_s)
    finally:
        for engine in engines:
            engine.stop()


def _plan_on_free_ports(fleet: FleetConfig, folder: Path) -> FleetPlan:
    home = Path(os.environ.get("PHASEWISE_HOME") or ROOT / ".phasewise")
    environment = inspect_engine(home / "engine" / "bin" / "python")
    if environment is None or not (home / "models" / MODEL).is_dir():
        raise RuntimeError(f"the engine or its model is missing. {INSTALL_HINT}")
    model, machine = served_model(MODEL, home, os.environ), this_machine(environment.device)
    moved = fleet.model_copy(update={"first_engine_port": free_engine_port(engines=2), "engine_keys": False})
    return plan_fleet(moved, environment, model, machine, folder)
