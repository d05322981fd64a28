"""What a validation depends on: the machine, the versions, and whether engines can run here."""

from __future__ import annotations

import getpass
import os
import platform
import socket
from pathlib import Path

import psutil

from phasewise import __version__
from phasewise.clients.host import usable_cores
from phasewise.core.errors import ConfigError
from phasewise.experiments.lever_runs.circumstances import processor_name
from phasewise.experiments.validate.private import PrivateNames
from phasewise.experiments.validate.record import Hardware, Software
from phasewise.fleet.engines.environment import EngineEnvironment
from phasewise.fleet.local.placement import Machine, gpu_memory_and_driver, gpu_names

ENGINE_BYTES = 3.5 * 2**30
"""What an engine on a CPU takes with the demo model and its KV cache. Two run at once."""


def private_names() -> PrivateNames:
    """This machine's and this user's."""
    host = socket.gethostname()
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = ""
    return PrivateNames((host, host.partition(".")[0], user, Path.home().name))


def hardware(device: str, private: PrivateNames) -> Hardware:
    """The machine, without its name."""
    on_cpu = device == "cpu"
    memory_mib, driver = ((), "") if on_cpu else gpu_memory_and_driver(os.environ)
    return Hardware(
        processor=private.taken_out(processor_name()),
        cores=len(usable_cores()),
        memory_gib=round(psutil.virtual_memory().total / 2**30),
        gpus=() if on_cpu else tuple(map(private.taken_out, gpu_names(os.environ))),
        gpu_memory_mib=memory_mib,
        driver=private.taken_out(driver),
        system=f"{platform.system()} {platform.machine()}",
    )


def software(engine: EngineEnvironment) -> Software:
    """The versions."""
    return Software(
        phasewise=__version__,
        python=platform.python_version(),
        vllm=engine.vllm_version,
        torch=engine.torch_version,
        engine_python=engine.python_version,
        step_recorder=engine.plugin_version or "",
    )


def check_environment(engine: EngineEnvironment, machine: Machine) -> tuple[str, ...]:
    """What is unusual here; ConfigError if no engine can run."""
    notes = []
    if machine.device != "cpu" and not machine.gpus:
        raise ConfigError(
            f"the engine is built for {machine.device}, but no GPU is visible",
            hint="check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or give a CPU build with --engine-python",
        )
    if engine.plugin_version is None:
        notes.append("the engine has no step recorder: `phasewise engine install --plugin-only` adds it")
    available = psutil.virtual_memory().available
    if machine.device == "cpu" and available < 2 * ENGINE_BYTES:
        notes.append(f"{available / 2**30:.1f} GiB of memory are free: two engines may not fit")
    if (load := load_per_core()) > 0.5:
        notes.append(f"the machine was busy before the run, with a load average of {load:.1f} per core")
    return tuple(notes)


def load_per_core() -> float:
    """The load average of the last minute per core; 0 where the system has none."""
    return round(os.getloadavg()[0] / len(usable_cores()), 2) if hasattr(os, "getloadavg") else 0.0
