"""Gives every engine of a fleet its name, ports and cores or GPUs. Pure: what the machine has is an argument.

What is then run there is engine_command.py's to say; whether a port is free is port_check.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phasewise.config import FleetConfig, Pool
from phasewise.errors import ConfigError
from phasewise.model.worker import Role

STEPS_PORT_OFFSET = 10_000
SIDE_PORT_OFFSET = 20_000
HIGHEST_PORT = 65_535


@dataclass(frozen=True)
class Machine:
    """What engines may use here: `device` is the one the engine environment is built for."""

    device: str
    cores: tuple[int, ...]
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class Place:
    """Where one engine runs: `cores` are its own, `spare_cores` are nobody's."""

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
        """Where another engine asks for this one's KV (None: it hands none over)."""
        return None if self.pool.role is Role.MIXED else self.port + SIDE_PORT_OFFSET


def place_engines(fleet: FleetConfig, machine: Machine) -> list[Place]:
    """One place per engine, in the order of the file; ConfigError when the machine is too small."""
    engines = [(f"{pool.name}-{index}", pool) for pool in fleet.pools for index in range(pool.replicas)]
    _refuse_ports_off_the_scale(fleet, len(engines))
    cores = _Supply("cores", machine.cores)
    gpus = _Supply("gpus", machine.gpus)
    taken = [
        (name, pool, cores.take(pool, _cores_of(pool, machine)), gpus.take(pool, _gpus_of(pool, machine)))
        for name, pool in engines
    ]
    spare_cores = cores.left if machine.device == "cpu" else ()
    return [
        Place(name, pool, fleet.first_engine_port + number, own_cores, spare_cores, own_gpus)
        for number, (name, pool, own_cores, own_gpus) in enumerate(taken)
    ]


class _Supply:
    """Cores or GPUs that have not been given away."""

    def __init__(self, what: str, units: Sequence[int]) -> None:
        self._what = what
        self._total = len(units)
        self.left = tuple(units)

    def take(self, pool: Pool, count: int) -> tuple[int, ...]:
        if count > len(self.left):
            raise ConfigError(
                f"pool {pool.name} needs {self._what} that are not there: {count} per engine times "
                f"{pool.replicas}, and this machine has {self._total} for the whole fleet",
                hint=f"lower pools.{pool.name}.replicas or pools.{pool.name}.{self._what}",
            )
        given, self.left = self.left[:count], self.left[count:]
        return given


def _cores_of(pool: Pool, machine: Machine) -> int:
    if machine.device == "cpu":
        return pool.cores or 1
    if pool.cores is not None:
        raise ConfigError(
            f"pool {pool.name} asks for cores, but the engine is built for {machine.device}",
            hint=f"write pools.{pool.name}.gpus, or choose a CPU engine with --engine-python",
        )
    return 0


def _gpus_of(pool: Pool, machine: Machine) -> int:
    if machine.device != "cpu":
        return pool.gpus or 1
    if pool.gpus is not None:
        raise ConfigError(
            f"pool {pool.name} asks for gpus, but the engine is built for the CPU",
            hint=f"write pools.{pool.name}.cores, or choose a GPU engine with --engine-python",
        )
    return 0


def _refuse_ports_off_the_scale(fleet: FleetConfig, engines: int) -> None:
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
            f"gateway.port {fleet.gateway.port} is also an engine's (they take {fleet.first_engine_port} "
            f"to {last_port})",
            hint="choose another gateway.port or first_engine_port",
        )
