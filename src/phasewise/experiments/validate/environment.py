"""What a validation depends on: the machine, the versions, and whether engines can run here."""

from __future__ import annotations

import getpass
import os
import platform
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from phasewise import __version__
from phasewise.clients.host import read_cpu_times, usable_cores
from phasewise.clients.processes import listening_processes, loopback_port, process_tree
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
    return tuple(notes)


class OthersWatch:
    """How much of this machine others take from now on: processes that are not of this run, a hypervisor.

    Ours are this process, those that it started, and the engines at the URLs, which a supervisor keeps.
    """

    def __init__(self, engine_urls: Callable[[], Iterable[str]]) -> None:
        self._engine_urls = engine_urls
        self._host, self._own_s = read_cpu_times(), self._read_own_s()

    def share(self) -> float:
        """Their share of all processors so far; 0 where the system does not report it."""
        host, own_s = read_cpu_times(), self._read_own_s()
        if self._host is None or host is None or (total_s := host.total_s - self._host.total_s) <= 0:
            return 0.0
        used_s = host.busy_s + host.stolen_s - self._host.busy_s - self._host.stolen_s
        ours_s = sum(cpu_s - self._own_s.get(pid, 0.0) for pid, cpu_s in own_s.items())
        return round(min(max((used_s - ours_s) / total_s, 0.0), 1.0), 3)

    def _read_own_s(self) -> dict[int, float]:
        """What each process used so far, with those of its children that have ended."""
        ports = {port for url in self._engine_urls() if (port := loopback_port(url)) is not None}
        own_s: dict[int, float] = {}
        for root in (os.getpid(), *listening_processes(ports).values()):
            for pid in (each.pid for each in process_tree(root)):
                with suppress(psutil.Error):
                    times = psutil.Process(pid).cpu_times()
                    own_s[pid] = times.user + times.system + times.children_user + times.children_system
        return own_s
