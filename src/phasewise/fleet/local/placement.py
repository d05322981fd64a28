"""Gives every engine of a fleet its name, ports and cores or GPUs. Pure: the machine is an argument."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from phasewise.clients.host import usable_cores
from phasewise.core.errors import ConfigError
from phasewise.core.worker import Role
from phasewise.fleet.config import LLAMA_CPP, FleetConfig, Pool

STEPS_PORT_OFFSET = 10_000
SIDE_PORT_OFFSET = 20_000
HIGHEST_PORT = 65_535


@dataclass(frozen=True)
class Machine:
    """What engines may use here: `device` is what the engine environment is built for.

    `native_bf16` is whether a CPU has instructions for bfloat16 (None: unknown).
    """

    device: str
    cores: tuple[int, ...]
    gpus: tuple[int, ...] = ()
    native_bf16: bool | None = None


@dataclass(frozen=True)
class EnginePlace:
    """Where one engine runs: `cores` are its own, `spare_cores` belong to no engine."""

    name: str
    pool: Pool
    port: int
    cores: tuple[int, ...] = ()
    spare_cores: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()

    @property
    def steps_port(self) -> int:
        """Where the engine's step recorder listens."""
        return self.port + STEPS_PORT_OFFSET

    @property
    def side_port(self) -> int | None:
        """Where another engine requests this one's KV (None: it does not transfer KV)."""
        return None if self.pool.role is Role.MIXED else self.port + SIDE_PORT_OFFSET


def place_engines(fleet: FleetConfig, machine: Machine) -> list[EnginePlace]:
    """One placement per engine, in the order of the file; ConfigError when the machine is too small."""
    engines = [(f"{pool.name}-{index}", pool) for pool in fleet.pools for index in range(pool.replicas)]
    _reject_ports_off_the_scale(fleet, len(engines))
    cores = _Supply("cores", machine.cores)
    gpus = _Supply("gpus", machine.gpus)
    taken = []
    for name, pool in engines:
        wanted_cores, wanted_gpus = _wanted(pool, machine)
        taken.append((name, pool, cores.take(pool, wanted_cores), gpus.take(pool, wanted_gpus)))
    spare_cores = cores.left if machine.device == "cpu" else ()
    return [
        EnginePlace(name, pool, fleet.first_engine_port + number, own_cores, spare_cores, own_gpus)
        for number, (name, pool, own_cores, own_gpus) in enumerate(taken)
    ]


class _Supply:
    """Cores or GPUs that are not assigned yet."""

    def __init__(self, what: str, units: Sequence[int]) -> None:
        self._what = what
        self._total = len(units)
        self.left = tuple(units)

    def take(self, pool: Pool, count: int) -> tuple[int, ...]:
        if count > len(self.left):
            raise ConfigError(
                f"pool {pool.name} needs more {self._what} than there are: {count} per engine times "
                f"{pool.replicas}, but this machine has {self._total} for the whole fleet",
                hint=f"lower pools.{pool.name}.replicas or pools.{pool.name}.{self._what}",
            )
        given, self.left = self.left[:count], self.left[count:]
        return given


def _wanted(pool: Pool, machine: Machine) -> tuple[int, int]:
    """How many cores and GPUs each engine of a pool gets: of one kind at least one, of the other none."""
    on_cores = machine.device == "cpu" or pool.engine == LLAMA_CPP
    built_for, right, wrong, other = machine.device, "gpus", "cores", "CPU"
    if on_cores:
        built_for, right, wrong, other = "the CPU", "cores", "gpus", "GPU"
    if getattr(pool, wrong) is not None:
        raise ConfigError(
            f"pool {pool.name} asks for {wrong}, but the engine is built for {built_for}",
            hint=f"write pools.{pool.name}.{right}, or choose a {other} engine with --engine-python",
        )
    return (pool.cores or 1, 0) if on_cores else (0, pool.gpus or 1)


def _reject_ports_off_the_scale(fleet: FleetConfig, engines: int) -> None:
    last_port = fleet.first_engine_port + engines - 1
    offset, what = STEPS_PORT_OFFSET, "step recorder"
    if any(pool.role is not Role.MIXED for pool in fleet.pools):
        offset, what = SIDE_PORT_OFFSET, "KV side channel"
    if last_port + offset > HIGHEST_PORT:
        raise ConfigError(
            f"first_engine_port is {fleet.first_engine_port}: the last engine's {what} would need "
            f"port {last_port + offset}",
            hint=f"choose one below {HIGHEST_PORT - offset - engines + 2}",
        )
    if fleet.first_engine_port <= fleet.gateway.port <= last_port:
        raise ConfigError(
            f"gateway.port {fleet.gateway.port} is also an engine's (they use {fleet.first_engine_port} "
            f"to {last_port})",
            hint="choose another gateway.port or first_engine_port",
        )


# --- What this machine has for engines: usable cores, their data types, visible GPUs.

CPU_INFO = Path("/proc/cpuinfo")
_BF16_FLAGS = {"flags": {"avx512_bf16", "amx_bf16"}, "Features": {"bf16"}}
"""Flags of processors that compute in bfloat16, by the name of the line that lists them on x86 and on Arm."""


def this_machine(device: str) -> Machine:
    """What engines built for `device` may use here."""
    cores = usable_cores()
    if device != "cpu":
        return Machine(device, cores, visible_gpus(os.environ))
    return Machine(device, cores, native_bf16=native_bf16())


def has_native_bf16(cpu_info: str) -> bool | None:
    """Whether a processor computes in bfloat16 natively, from its /proc/cpuinfo (None: unknown)."""
    for line in cpu_info.splitlines():
        name, _, flags = line.partition(":")
        if bf16_flags := _BF16_FLAGS.get(name.strip()):
            return not bf16_flags.isdisjoint(flags.split())
    return None


def native_bf16() -> bool | None:
    """The same of this machine's processors."""
    try:
        return has_native_bf16(CPU_INFO.read_text(errors="replace"))
    except OSError:
        return None


def visible_gpus(environ: Mapping[str, str]) -> tuple[int, ...]:
    """The numbers of the usable GPUs: CUDA_VISIBLE_DEVICES if set, else all that the driver lists."""
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return tuple(int(number) for number in chosen.split(",") if number.strip().isdecimal())
    return tuple(range(len(listed_gpus())))


def gpu_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the usable GPUs."""
    listed = listed_gpus()
    return tuple(listed[number] for number in visible_gpus(environ) if number < len(listed))


def listed_gpus() -> list[str]:
    """The names of all GPUs that the driver lists, by number."""
    # As in "GPU 0: NVIDIA L4 (UUID: GPU-...)".
    lines = (line for line in _nvidia_smi("-L") if line.startswith("GPU "))
    return [line.partition(":")[2].partition("(UUID")[0].strip() for line in lines]


def gpu_memory_and_driver(environ: Mapping[str, str]) -> tuple[tuple[int, ...], str]:
    """The memory of each usable GPU in MiB, and the driver's version; empty where there is none."""
    rows = _nvidia_smi("--query-gpu=memory.total,driver_version", "--format=csv,noheader,nounits")
    listed = [(memory.strip(), driver.strip()) for memory, _, driver in (row.partition(",") for row in rows)]
    usable = [listed[number] for number in visible_gpus(environ) if number < len(listed)]
    memory_mib = tuple(int(memory) for memory, _ in usable if memory.isdecimal())
    return memory_mib, usable[0][1] if usable else ""


def _nvidia_smi(*options: str) -> list[str]:
    """What the driver's tool prints; nothing where there is none."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    try:
        answer = subprocess.run(  # noqa: S603 - the driver's own tool
            [command, *options], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return answer.stdout.splitlines()
