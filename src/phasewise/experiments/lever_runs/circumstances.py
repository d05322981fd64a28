"""The conditions under which a measurement is valid: the machine, the versions, the model."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil

from phasewise import __version__
from phasewise.clients.host import usable_cores
from phasewise.experiments.lever_runs.launch import EngineSize
from phasewise.fleet.config.gateway import Frozen
from phasewise.fleet.engines.environment import EngineEnvironment
from phasewise.fleet.local.placement import gpu_names

CPU_INFO = Path("/proc/cpuinfo")
UNKNOWN = "unknown"


class Circumstances(Frozen):
    """Where, with what and how thoroughly levers were measured.

    Digests stand for the model's files and for the rules of measuring (the base engine, the length of blocks,
    the margin).
    """

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
    """The circumstances of a run on this machine."""
    return Circumstances(
        model=model,
        model_digest=model_digest,
        engine=size,
        device=engine.device,
        processor=processor_name(),
        cores=len(usable_cores()),
        memory_gib=round(psutil.virtual_memory().total / 2**30),
        gpus=gpu_names(os.environ) if engine.device != "cpu" else (),
        vllm=engine.vllm_version,
        phasewise=__version__,
        effort=effort,
        pairs=pairs,
        seed=seed,
        rules_digest=rules_digest,
    )


def processor_name(info: Path = CPU_INFO) -> str:
    """The model of this machine's processor."""
    try:
        lines = info.read_text().splitlines()
    except OSError:
        return platform.machine() or UNKNOWN
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine() or UNKNOWN)
