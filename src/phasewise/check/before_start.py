"""Whether a fleet that does not run yet could be started here. Starting it is fleet/'s."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from phasewise.check.judgement import Finding, Mistake
from phasewise.config import KV_TRANSFER_FLAG, FleetConfig, byte_size, find_flag
from phasewise.config.engine_flags import json_object
from phasewise.errors import FleetError, PhasewiseError
from phasewise.fleet.engine_command import DEFAULT_CPU_KV_BYTES
from phasewise.fleet.engine_env import EngineEnvironment
from phasewise.fleet.plan import FleetPlan
from phasewise.fleet.port_check import refuse_taken_ports, wanted_ports
from phasewise.model.worker import Role

ENGINE_BYTES = 2 * 2**30
"""What an engine of the demo model takes on a CPU beside its KV; a larger model takes more."""
_MEMORY = Path("/proc/meminfo")


def obstacles(fleet: FleetConfig, plan: FleetPlan, engine: EngineEnvironment) -> tuple[Finding, ...]:
    """What would keep the fleet from starting, or from handing over once it runs."""
    return (
        *environment_obstacles(fleet, engine),
        *_of_connectors(fleet),
        *_of_ports(plan),
        *_of_memory(fleet, engine),
    )


def no_environment(message: str, hint: str | None) -> Finding:
    """What is said where no engine is installed at all."""
    fix = hint or "run `phasewise engine install`"
    return Finding(Mistake.NO_ENGINE_ENVIRONMENT, "engine environment", message, fix)


def no_plan(error: PhasewiseError) -> Finding:
    """What is said where the fleet cannot even be laid out: too few cores, or an engine that lacks a part."""
    fix = error.hint or "see docs/reference/fleet-file.md"
    return Finding(Mistake.DOES_NOT_FIT, "fleet", error.message, fix)


def environment_obstacles(fleet: FleetConfig, engine: EngineEnvironment) -> Iterator[Finding]:
    """What the engine environment lacks."""
    parted = any(pool.role is not Role.MIXED for pool in fleet.pools)
    if parted and not engine.nixl:
        words = f"the engine environment of {engine.python} has no nixl, without which no KV is handed over"
        yield Finding(Mistake.NO_NIXL, "engine environment", words, "run `phasewise engine install`")
    if engine.plugin_version is None:
        words = f"the engine environment of {engine.python} lacks phasewise's plugin"
        if engine.device == "cpu":
            words += ", without which hand-overs take ten times as long on few cores"
        fix = "run `phasewise engine install --plugin-only`"
        yield Finding(Mistake.NO_PLUGIN, "engine environment", words, fix)


def _of_connectors(fleet: FleetConfig) -> Iterator[Finding]:
    """Pools whose own connector hides failures; the one that phasewise sets does not."""
    for pool in (it for it in fleet.pools if it.role is Role.DECODE):
        flag = find_flag(pool.engine_flags, KV_TRANSFER_FLAG)
        settings = (None if flag is None else json_object(flag.value)) or {}
        if settings.get("kv_load_failure_policy") == "recompute":
            yield Finding(
                Mistake.FALL_BACK_ALLOWED,
                f"pool {pool.name}",
                f"engines of pool {pool.name} would compute a prompt themselves when its KV cannot be "
                "fetched, without a word",
                f'write "kv_load_failure_policy":"fail" in its {KV_TRANSFER_FLAG}: the gateway then decides',
            )


def _of_ports(plan: FleetPlan) -> Iterator[Finding]:
    for wanted in wanted_ports(plan):
        try:
            refuse_taken_ports([wanted])
        except FleetError as error:
            yield Finding(Mistake.PORT_TAKEN, wanted.wanted_by, error.message, error.hint or wanted.remedy)


def _of_memory(fleet: FleetConfig, engine: EngineEnvironment) -> Iterator[Finding]:
    if engine.device != "cpu" or (free := _available_bytes()) is None:
        return
    wanted = sum(pool.replicas * (ENGINE_BYTES + _kv_bytes(pool.levers.kv_memory)) for pool in fleet.pools)
    if wanted > free:
        words = f"the engines want about {_gib(wanted)} of memory, and {_gib(free)} are free"
        fix = "lower replicas or levers.kv_memory, or stop what else runs here"
        yield Finding(Mistake.DOES_NOT_FIT, "memory", words, fix)


def _kv_bytes(asked: str | None) -> int:
    return DEFAULT_CPU_KV_BYTES if asked is None else byte_size(asked)


def _available_bytes() -> int | None:
    try:
        lines = _MEMORY.read_text().splitlines()
    except OSError:
        return None
    found = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return next((int(kib) * 1024 for kib in found), None)


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
