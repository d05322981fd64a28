"""What a measurement holds for: the machine, the versions, the model. With others it is another one.

It reads what the system tells; what was measured is kept by results.py.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from phasewise import __version__
from phasewise.fleet.engine_env import EngineEnvironment

CPU_INFO = Path("/proc/cpuinfo")
MEMORY_INFO = Path("/proc/meminfo")
UNKNOWN = "unknown"


class Circumstances(BaseModel):
    """Where, with what and how thoroughly levers were measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    device: str
    processor: str
    cores: int
    memory_gib: int
    gpus: tuple[str, ...]
    vllm: str
    phasewise: str
    effort: str
    pairs: int
    seed: int


def circumstances(model: str, engine: EngineEnvironment, effort: str, pairs: int, seed: int) -> Circumstances:
    """Those of a run on this machine."""
    return Circumstances(
        model=model,
        device=engine.device,
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(memory_bytes("MemTotal") / 2**30),
        gpus=_gpus() if engine.device != "cpu" else (),
        vllm=engine.vllm_version,
        phasewise=__version__,
        effort=effort,
        pairs=pairs,
        seed=seed,
    )


def memory_bytes(field: str, info: Path = MEMORY_INFO) -> int:
    """A line of the kernel's account of memory; 0 where there is none."""
    try:
        lines = info.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)


def _processor(info: Path = CPU_INFO) -> str:
    try:
        lines = info.read_text().splitlines()
    except OSError:
        return platform.machine() or UNKNOWN
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine() or UNKNOWN)


def _gpus() -> tuple[str, ...]:
    command = shutil.which("nvidia-smi")
    if command is None:
        return ()
    try:
        answer = subprocess.run(  # noqa: S603 - the driver's own tool
            [command, "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in answer.stdout.splitlines() if line.strip())
