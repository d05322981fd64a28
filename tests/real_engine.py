"""Starts and stops the one real vLLM that a test run shares; tests/conftest.py makes a fixture of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from phasewise.fleet.local.placement import CPU_INFO, has_native_bf16
from tests.paths import ROOT

MODEL = "smollm2-135m"
READY_WITHIN_S = 300.0
STOP_WITHIN_S = 20.0
LOG_TAIL_LINES = 40
INSTALL_HINT = "run: phasewise engine install && phasewise model fetch smollm2-135m"


@dataclass(frozen=True)
class RunningEngine:
    """An engine that answers, real or fake."""

    base_url: str
    steps_url: str
    model: str
    pid: int


@contextmanager
def running_real_engine(
    log_file: Path, *flags: str, model: Path | None = None, **variables: str
) -> Iterator[RunningEngine]:
    """A vLLM with the recorder in it, on free ports; its whole process group ends with the context.

    Another `model` than the demo's is a folder.
    """
    home = Path(os.environ.get("PHASEWISE_HOME") or ROOT / ".phasewise")
    port, steps_port = free_port(), free_port()
    command = [*_command(home, port, model or home / "models" / MODEL), *flags]
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            command,
            env=_environment(steps_port) | variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    base_url = f"http://127.0.0.1:{port}"
    try:
        wait_until_ready(process, base_url, log_file)
        yield RunningEngine(base_url, f"http://127.0.0.1:{steps_port}", MODEL, process.pid)
    finally:
        stop_group(process)


def _command(home: Path, port: int, model: Path) -> list[str]:
    python = home / "engine" / "bin" / "python"
    for needed in (python, model):
        if not needed.exists():
            raise RuntimeError(
                f"{needed} is missing, so nothing can be tried on a real engine. {INSTALL_HINT}"
            )
    return [
        # The engine ends with the test run even if that is killed and cannot clean up.
        *("setpriv", "--pdeathsig", "TERM", "taskset", "-c", str(min(os.sched_getaffinity(0)))),
        *(str(python), "-m", "vllm.entrypoints.cli.main", "serve", str(model)),
        *("--served-model-name", MODEL, "--enforce-eager"),
        *(() if model.name != MODEL else ("--max-model-len", "8192")),
        *(() if computes_in_bfloat16() else ("--dtype", "float32")),
        *("--enable-per-request-metrics", "--enable-prompt-tokens-details"),
        "--enable-logging-iteration-details",
        *("--host", "127.0.0.1", "--port", str(port)),
    ]


def computes_in_bfloat16() -> bool:
    """As `phasewise up` decides: without native bfloat16 a prefill takes three times as long."""
    return has_native_bf16(CPU_INFO.read_text()) is not False


def _environment(steps_port: int) -> dict[str, str]:
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "PHASEWISE_FIXES": "on",
        "PHASEWISE_STEPS_ADDR": f"127.0.0.1:{steps_port}",
    }


def wait_until_ready(process: subprocess.Popen[bytes], base_url: str, log_file: Path) -> None:
    """Return when the engine answers; RuntimeError with the end of its log when it does not."""
    deadline_s = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise RuntimeError(f"the engine ended with code {process.returncode}:\n{_tail(log_file)}")
        try:
            with urllib.request.urlopen(f"{base_url}/health", timeout=60):
                return
        except OSError:
            time.sleep(0.25)
    raise RuntimeError(f"the engine was not ready in {READY_WITHIN_S:g} s:\n{_tail(log_file)}")


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """Ask the engine to end, then end what is left of its process group."""
    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGINT)
        process.wait(STOP_WITHIN_S)
    # The engine's core is a process of its own, which may outlive the front end.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def free_port() -> int:
    """A port nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _tail(log_file: Path) -> str:
    return "\n".join(log_file.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
