"""What a measurement holds for: the machine, the versions, the model. With others it is another one.

It reads what the system tells; what was measured is kept by results.py.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from phasewise import __version__
from phasewise.fleet.engine_env import EngineEnvironment
from phasewise.fleet.machine import gpu_names
from phasewise.levers.engine_size import EngineSize

CPU_INFO = Path("/proc/cpuinfo")
MEMORY_INFO = Path("/proc/meminfo")
UNKNOWN = "unknown"


class Circumstances(BaseModel):
    """Where, with what and how thoroughly levers were measured.

    Digests stand for what is too long to write down: the model's files, and the rules of measuring (the base
    engine, the length of blocks, the margin).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    model_digest: str = ""
    engine: EngineSize = EngineSize()
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
    rules_digest: str = ""


def circumstances(
    model: str,
    model_digest: str,
    engine: EngineEnvironment,
    size: EngineSize,
    *,
    effort: str,
    pairs: int,
    seed: int,
    rules_digest: str,
) -> Circumstances:
    """Those of a run on this machine."""
    return Circumstances(
        model=model,
        model_digest=model_digest,
        engine=size,
        device=engine.device,
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(memory_bytes("MemTotal") / 2**30),
        gpus=gpu_names(os.environ) if engine.device != "cpu" else (),
        vllm=engine.vllm_version,
        phasewise=__version__,
        effort=effort,
        pairs=pairs,
        seed=seed,
        rules_digest=rules_digest,
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
