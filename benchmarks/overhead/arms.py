"""The processes that are compared: ours twice, the peers, and the upstream behind all of them.

Each is pinned to a core, runs in a session of its own and is always ended here. Which loads they get is
loads.py's.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phasewise.clients.processes import process_tree
from phasewise.gateway.api.auth import key_sha256

from .tools import Command, free_port

API_KEY = "sk-load-generator"
ADMIN_KEY = "sk-admin"
MODEL = "fake"
START_S = 60.0
STOP_S = 5.0
SLOTS = 20_000
"""The one upstream stands for a fleet: a single engine would make the other streams wait."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class DidNotStart(Exception):
    """A gateway ended or stayed silent; the text holds the end of what it printed."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A running gateway, or the upstream itself."""

    name: str
    port: int
    pid: int

    @property
    def cpu_s(self) -> float:
        """What the process and its descendants have used of the processor."""
        return sum(stat.cpu_s for stat in process_tree(self.pid))

    @property
    def resident_bytes(self) -> int:
        """The memory of the process and its descendants that is in RAM."""
        return sum(_resident_pages(stat.pid) for stat in process_tree(self.pid)) * PAGE_BYTES


def our_command(
    folder: Path,
    upstream_port: int,
    name: str,
    *,
    checkout: Path | None = None,
    settings: dict[str, Any] | None = None,
) -> Command:
    """Our gateway before the upstream, with everything on that it does by default, and with API keys.

    `checkout` is another clone of the repository, whose sources are run instead. `settings` are more keys
    under `gateway`.
    """
    port = free_port()
    file = folder / f"{name}.yaml"
    gateway = {
        "port": port,
        "api_keys": [{"sha256": key_sha256(API_KEY), "tenant": "load"}],
        "admin_key_sha256": key_sha256(ADMIN_KEY),
        **(settings or {}),
    }
    worker = {"name": "w0", "url": f"http://127.0.0.1:{upstream_port}", "model": MODEL, "slots": SLOTS}
    # Every JSON text is YAML, too.
    file.write_text(json.dumps({"version": 1, "gateway": gateway, "workers": [worker]}))
    sources = {} if checkout is None else {"PYTHONPATH": str(checkout.resolve() / "src")}
    return Command(port, (sys.executable, *gateway_of(checkout), str(file)), sources)


def gateway_of(checkout: Path | None) -> tuple[str, ...]:
    """How a clone's gateway is started with a file: older ones have a module for it."""
    older = checkout is not None and (checkout / "src" / "phasewise" / "gateway" / "__main__.py").is_file()
    return ("-m", "phasewise.gateway") if older else ("-m", "phasewise.cli", "gateway")


@contextlib.contextmanager
def running(name: str, command: Command, core: int, log_folder: Path) -> Iterator[Arm]:
    """Start it, wait until it answers a completion, end it at the end."""
    log = log_folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["taskset", "-c", str(core), *command.argv],
            env={**os.environ, **command.environment},
            cwd=log_folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        _wait_until_it_answers(name, process, command.port, log)
        yield Arm(name, command.port, process.pid)
    finally:
        _end(process)


def complete(port: int, key: str | None = API_KEY) -> int:
    """Ask for two tokens: the status of the answer."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    headers = {"content-type": "application/json"}
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def what_is_on(ours: Arm) -> dict[str, Any]:
    """What our gateway does beside forwarding, as itself tells: no figure is small because this was off."""
    timelines = _fetch(ours.port, "/phasewise/v1/requests?limit=100").splitlines()
    workers = json.loads(_fetch(ours.port, "/phasewise/v1/workers"))
    metrics = _fetch(ours.port, "/metrics")
    counted = (line for line in metrics.splitlines() if line.startswith("phasewise_requests_total{"))
    return {
        "timelines": bool(timelines),
        "requests_in_metrics": int(sum(float(line.rpartition(" ")[2]) for line in counted)),
        "rejects_without_key": complete(ours.port, key=None) == 401,
        "health_checks": all(worker["health"] == "up" for worker in workers["workers"]),
    }


def _fetch(port: int, path: str) -> str:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", headers={"authorization": f"Bearer {ADMIN_KEY}"}
    )
    with urllib.request.urlopen(request, timeout=10) as reply:
        text: str = reply.read().decode()
        return text


def _wait_until_it_answers(name: str, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s and process.poll() is None:
        try:
            if complete(port) == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    ended = "did not answer" if process.poll() is None else f"ended with code {process.returncode}"
    raise DidNotStart(f"{name} {ended}: {log.read_text(errors='replace').strip()[-300:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the session to end, and kill what is left of it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _resident_pages(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
