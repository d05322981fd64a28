"""Says what this machine has for engines: the cores we may use and the GPUs that are visible.

Who gets which of them is placement.py's to decide.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping

from phasewise.fleet.placement import Machine


def this_machine(device: str) -> Machine:
    """What engines built for `device` may use here."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    return Machine(device, cores, () if device == "cpu" else visible_gpus(os.environ))


def visible_gpus(environ: Mapping[str, str]) -> tuple[int, ...]:
    """The numbers of the GPUs we may use: CUDA_VISIBLE_DEVICES if set, else all the driver lists."""
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return tuple(int(number) for number in chosen.split(",") if number.strip().isdecimal())
    return tuple(range(len(_listed_gpus())))


def gpu_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """What the GPUs that we may use are called."""
    listed = _listed_gpus()
    return tuple(listed[number] for number in visible_gpus(environ) if number < len(listed))


def _listed_gpus() -> list[str]:
    """The names of all GPUs that the driver lists, by number."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    try:
        answer = subprocess.run(  # noqa: S603 - the driver's own tool
            [command, "-L"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return []
    # As in "GPU 0: NVIDIA L4 (UUID: GPU-...)".
    lines = (line for line in answer.stdout.splitlines() if line.startswith("GPU "))
    return [line.partition(":")[2].partition("(UUID")[0].strip() for line in lines]
