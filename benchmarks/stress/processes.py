"""Fake engines and a gateway as processes of their own: begun here, watched here, and always ended here.

What load they get is the scripts' matter.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from phasewise.clients.step_feed import PORT_OFFSET

MODEL = "fake-model"
READY_WITHIN_S = 60.0
STOP_WITHIN_S = 10.0
WATCH_EVERY_S = 0.25

ENGINES = """
import json, sys
import uvloop
from phasewise.costs.fit.step import StepCost
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import run_engines
from phasewise.simulator.engine import EngineShape
told = json.loads(sys.argv[1])
cost, shape = StepCost(**told["cost"]), EngineShape(**told["shape"])
config = FakeEngineConfig(model=told["model"], cost=cost, shape=shape)
def announce(engines):
    print(json.dumps([engine.base_url for engine in engines]), flush=True)
uvloop.run(run_engines(told["count"], config, announce))
"""


class DidNotStart(Exception):
    """A process was not ready in time; the text says which, and what it wrote last."""


@contextmanager
def fake_engines(
    count: int,
    cost: Mapping[str, float],
    shape: Mapping[str, int],
    cores: Sequence[int] = (),
    model: str = MODEL,
) -> Iterator[list[str]]:
    """So many engines in one process; their addresses."""
    reported = json.dumps({"model": model, "count": count, "cost": dict(cost), "shape": dict(shape)})
    with running([sys.executable, "-c", ENGINES, reported], cores, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise DidNotStart("the fake engines ended at once; what they wrote stands above")
        yield json.loads(line)


@dataclass(slots=True)
class Gateway:
    """A gateway process."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        """Its process."""
        return self.process.pid


@contextmanager
def gateway(
    urls: Sequence[str],
    slots: int,
    settings: Mapping[str, Any],
    model: str = MODEL,
    cores: Sequence[int] = (),
) -> Iterator[Gateway]:
    """A gateway before these engines, with these settings under `gateway`."""
    port = free_port()
    workers = [
        {"name": f"engine-{index}", "url": url, "model": model, "slots": slots}
        for index, url in enumerate(urls)
    ]
    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder) / "gateway.yaml", Path(folder) / "gateway.log"
        # YAML reads JSON too.
        file.write_text(json.dumps({"gateway": {"port": port, **settings}, "workers": workers}))
        with (
            log.open("wb") as written,
            running(
                [sys.executable, "-m", "phasewise.cli", "gateway", str(file)], cores, stderr=written
            ) as process,
        ):
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(url, process, log)
            yield Gateway(url, process, log)


@contextmanager
def running(
    command: Sequence[str],
    cores: Sequence[int] = (),
    stdout: int = subprocess.DEVNULL,
    stderr: Any = None,  # noqa: ANN401 - what Popen takes
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, on these cores if any are named, ended with all its children.

    It may open as many files as we may: a script with many streams raises its own limit first.
    """
    pinned = ("taskset", "-c", ",".join(map(str, cores))) if cores else ()
    process = subprocess.Popen(
        [*pinned, *command],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        _end(process)


def wait_until_ready(
    url: str, process: subprocess.Popen[bytes], log: Path | None = None, within_s: float = READY_WITHIN_S
) -> None:
    """Return when /health answers 200."""
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            with urlopen(f"{url}/health", timeout=5):
                return
        except (OSError, HTTPError):
            time.sleep(0.1)
    wrote = "" if log is None else f": {log.read_text(errors='replace')[-2000:]}"
    raise DidNotStart(f"nothing is ready at {url}{wrote}")


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def steady_steps(step_s: float) -> dict[str, float]:
    """The cost of an engine whose every step takes the same time, whatever is in it."""
    return {
        "floor_s": step_s,
        "knee_tokens": 10**9,
        "beyond_knee_s_per_token": 0.0,
        "attention_s_per_token_pair": 0.0,
        "kv_read_s_per_token": 0.0,
        "per_request_s": 0.0,
    }


def two_cores() -> tuple[int, int]:
    """For the load and for the gateways; the same on a machine that has only one."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[0], cores[min(1, len(cores) - 1)]


def phasewise(*arguments: str, check: bool = True) -> dict[str, Any]:
    """Run a phasewise command and read the JSON that it prints."""
    command = [sys.executable, "-m", "phasewise.cli", *arguments, "--json"]
    found: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=check).stdout)
    return found


def fleet_status(name: str) -> dict[str, Any]:
    """The fleet as `phasewise status` reports it."""
    fleet: dict[str, Any] = phasewise("status", name, check=False)["fleets"][0]
    return fleet


@contextmanager
def real_engine(name: str) -> Iterator[dict[str, Any]]:
    """The state of a fleet of one real engine with the demo model, on ports that are free."""
    engine_port, gateway_port = map(str, free_ports())
    ports = ("--port", gateway_port, "--engine-port", engine_port)
    state = phasewise("up", "--detach", "--no-engine-keys", "--name", name, *ports)
    try:
        yield state
    finally:
        phasewise("down", name)


def serving_pids(pid: int) -> list[int]:
    """The processes that a gateway's supervisor keeps; of any other process, itself."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for task in tasks for child in task.read_text().split()]
    served = [child for child in children if b"gateway.processes.child" in _command_line(child)]
    return served or [pid]


def _command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def resident_mib(pid: int) -> float:
    """Memory that a process has in use, of a gateway those that serve."""
    pages = sum(int(Path(f"/proc/{each}/statm").read_text().split()[1]) for each in serving_pids(pid))
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu_s(pid: int) -> float:
    """CPU time that a process has used by itself, of a gateway those that serve."""
    ticks = 0
    for each in serving_pids(pid):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class MemoryWatch:
    """How much memory a process had in use, read four times a second."""

    pid: int
    readings_mib: list[float] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    @property
    def most_mib(self) -> float:
        """The largest reading."""
        return max(self.readings_mib)

    @property
    def late_growth_mib(self) -> float:
        """By how much the largest reading of the second half is above that of the first."""
        half = len(self.readings_mib) // 2
        return max(self.readings_mib[half:]) - max(self.readings_mib[:half] or self.readings_mib)

    @contextmanager
    def watching(self) -> Iterator[MemoryWatch]:
        """Read until the block is left."""
        thread = threading.Thread(target=self._read)
        self.readings_mib.append(resident_mib(self.pid))
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()

    def _read(self) -> None:
        while not self._over.wait(WATCH_EVERY_S):
            try:
                self.readings_mib.append(resident_mib(self.pid))
            except OSError:
                return


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(STOP_WITHIN_S)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def free_ports() -> tuple[int, int]:
    """A port for the engine, whose recorder listens so many above it, and one for the gateway."""
    for _ in range(100):
        with (
            socket.create_server(("127.0.0.1", 0)) as first,
            socket.create_server(("127.0.0.1", 0)) as second,
        ):
            port = first.getsockname()[1] - PORT_OFFSET
            try:
                with socket.create_server(("127.0.0.1", port)):
                    return port, second.getsockname()[1]
            except (OSError, OverflowError):
                time.sleep(0.01)
    raise SystemExit("no free ports")
