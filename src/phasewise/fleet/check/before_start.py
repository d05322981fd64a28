"""Whether a fleet that is not running could be started here."""

from __future__ import annotations

from collections.abc import Iterator

import psutil

from phasewise.core.errors import FleetError, PhasewiseError
from phasewise.core.units import gib
from phasewise.core.worker import Role
from phasewise.fleet.check.judgement import CheckFinding, Mistake
from phasewise.fleet.config import KV_TRANSFER_FLAG, LLAMA_CPP, FleetConfig, Pool, byte_size, find_flag
from phasewise.fleet.config.fleet import json_object
from phasewise.fleet.engines.command import DEFAULT_CPU_KV_BYTES
from phasewise.fleet.engines.environment import EngineEnvironment, device_for
from phasewise.fleet.local.plan import FleetPlan
from phasewise.fleet.local.port_check import reject_taken_ports, wanted_ports

ENGINE_BYTES = 2 * 2**30
"""What an engine of the demo model takes on a CPU beside its KV; a larger model takes more."""
LLAMA_CPP_BYTES = 512 * 2**20
"""What llama.cpp takes for it, with its KV."""


def obstacles(
    fleet: FleetConfig, plan: FleetPlan, engine: EngineEnvironment | None
) -> tuple[CheckFinding, ...]:
    """What would keep the fleet from starting, or its engines from transferring KV."""
    return (
        *environment_obstacles(fleet, engine),
        *_of_connectors(fleet),
        *_of_ports(plan),
        *_of_memory(fleet, engine),
    )


def no_environment(message: str, hint: str | None) -> CheckFinding:
    """The finding where no engine is installed."""
    fix = hint or "run `phasewise engine install`"
    return CheckFinding(Mistake.NO_ENGINE_ENVIRONMENT, "engine environment", message, fix)


def no_plan(error: PhasewiseError) -> CheckFinding:
    """What is said where the fleet cannot even be laid out: too few cores, or an engine that lacks a part."""
    fix = error.hint or "ask for fewer engines, or for fewer cores or GPUs for each"
    return CheckFinding(Mistake.DOES_NOT_FIT, "fleet", error.message, fix)


def environment_obstacles(fleet: FleetConfig, engine: EngineEnvironment | None) -> Iterator[CheckFinding]:
    """What the engine environment lacks, if a pool needs one."""
    if engine is None:
        return
    disaggregated = any(pool.role is not Role.MIXED for pool in fleet.pools)
    if disaggregated and not engine.nixl:
        words = f"the engine environment of {engine.python} has no nixl, which KV transfers need"
        yield CheckFinding(Mistake.NO_NIXL, "engine environment", words, "run `phasewise engine install`")
    if engine.plugin_version is None:
        words = f"the engine environment of {engine.python} has no phasewise plugin"
        if engine.device == "cpu":
            words += ", without which KV transfers take ten times as long on few cores"
        fix = "run `phasewise engine install --plugin-only`"
        yield CheckFinding(Mistake.NO_PLUGIN, "engine environment", words, fix)


def _of_connectors(fleet: FleetConfig) -> Iterator[CheckFinding]:
    """Pools whose own connector hides failures; the connector that phasewise sets does not."""
    for pool in fleet.pools:
        if pool.role is not Role.DECODE:
            continue
        flag = find_flag(pool.engine_flags, KV_TRANSFER_FLAG)
        settings = (None if flag is None else json_object(flag.value)) or {}
        if settings.get("kv_load_failure_policy") == "recompute":
            yield CheckFinding(
                Mistake.FALL_BACK_ALLOWED,
                f"pool {pool.name}",
                f"engines of pool {pool.name} would silently recompute a prompt when its KV cannot be "
                "fetched",
                f'write "kv_load_failure_policy":"fail" in its {KV_TRANSFER_FLAG}: the gateway then decides',
            )


def _of_ports(plan: FleetPlan) -> Iterator[CheckFinding]:
    for wanted in wanted_ports(plan):
        try:
            reject_taken_ports([wanted])
        except FleetError as error:
            yield CheckFinding(
                Mistake.PORT_TAKEN, wanted.wanted_by, error.message, error.hint or wanted.remedy
            )


def _of_memory(fleet: FleetConfig, engine: EngineEnvironment | None) -> Iterator[CheckFinding]:
    free = psutil.virtual_memory().available
    on_cores = (pool for pool in fleet.pools if pool.engine == LLAMA_CPP or device_for(engine) == "cpu")
    wanted = sum(pool.replicas * _engine_bytes(pool) for pool in on_cores)
    if wanted > free:
        words = f"the engines want about {gib(wanted)} of memory, and {gib(free)} are free"
        fix = "lower replicas or levers.kv_cache_memory_bytes, or stop what else runs here"
        yield CheckFinding(Mistake.DOES_NOT_FIT, "memory", words, fix)


def _engine_bytes(pool: Pool) -> int:
    if pool.engine == LLAMA_CPP:
        return LLAMA_CPP_BYTES
    asked = pool.levers.kv_cache_memory_bytes
    return ENGINE_BYTES + (DEFAULT_CPU_KV_BYTES if asked is None else byte_size(asked))
