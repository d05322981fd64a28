"""A copy of a fleet with levers or engine flags changed; the original file stays unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from phasewise.core.errors import ConfigError
from phasewise.diagnosis.advice.fix import LeverChange
from phasewise.fleet.config import FleetConfig, Levers, Pool, byte_size, fleet_from
from phasewise.fleet.engines.command import DEFAULT_CPU_KV_BYTES, LEVER_FLAGS, levers_of
from phasewise.fleet.local.run_files import write_private

REPLICAS = "replicas"
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class FleetChange:
    """A changed fleet, and the lines in which it differs from the original."""

    fleet: FleetConfig
    lines: tuple[str, ...]

    def write(self, folder: Path, name: str) -> Path:
        """Write the fleet into a temporary folder."""
        file = folder / f"{name}.yaml"
        # JSON is YAML.
        write_private(file, self.fleet.model_dump_json(exclude_none=True, indent=1).encode())
        return file


def changed_fleet(fleet: FleetConfig, change: LeverChange, *, on_cpu: bool) -> FleetChange:
    """The fleet with the lever changed in every pool; ConfigError if the file prevents it.

    Replicas count the whole fleet: missing ones are added to its first pool. On a CPU the default size of the
    KV cache is known.
    """
    if change.name == REPLICAS:
        return _with_more_engines(fleet, change)
    data = fleet.model_dump()
    lines: list[str] = []
    for pool, facts in zip(fleet.pools, data["pools"], strict=True):
        _reject_hidden_flag(pool, change.name)
        before, after = _current(pool, change.name), _new_value(pool, change, on_cpu)
        facts["levers"][change.name] = after
        lines.append(f"pools.{pool.name}.levers.{change.name}: {_shown(before)} -> {_shown(after)}")
    made = fleet_from(data, "the changed fleet")
    if made == fleet:
        raise ConfigError(
            f"{change.name} is {_shown(_current(fleet.pools[0], change.name))} already",
            hint="the fleet file already has the suggested value: diagnose again with more traffic",
        )
    return FleetChange(made, tuple(lines))


def fleet_with_settings(fleet: FleetConfig, settings: Sequence[str], *, on_cpu: bool) -> FleetChange:
    """The fleet with every NAME=VALUE of `--set`: a lever, `replicas`, or an engine flag with its dashes."""
    lines: tuple[str, ...] = ()
    for setting in settings:
        name, has_value, text = setting.partition("=")
        if name.startswith("--"):
            change = _with_engine_flag(fleet, setting)
        elif has_value:
            change = changed_fleet(fleet, _lever_change(name, text), on_cpu=on_cpu)
        else:
            raise ConfigError(
                f"--set {setting} has no value",
                hint="write a lever as --set prefix_cache=false, an engine flag as --set --block-size=32",
            )
        fleet, lines = change.fleet, (*lines, *change.lines)
    return FleetChange(fleet, lines)


def _lever_change(name: str, text: str) -> LeverChange:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {name}={text} is no YAML value", hint="quote it for your shell") from error
    return LeverChange(name, value)


def _with_engine_flag(fleet: FleetConfig, flag: str) -> FleetChange:
    name = flag.partition("=")[0]
    lever = next((lever for lever, flag in LEVER_FLAGS.items() if name in _spellings(flag)), None)
    if lever is not None:
        raise ConfigError(f"--set {flag}: this flag has a lever", hint=f"use --set {lever}=VALUE")
    data = fleet.model_dump()
    for pool in data["pools"]:
        # The engine uses the last of equal flags.
        pool["engine_flags"] = (*pool["engine_flags"], flag)
    lines = tuple(f"pools.{pool.name}.engine_flags: + {flag}" for pool in fleet.pools)
    return FleetChange(fleet_from(data, "the changed fleet"), lines)


def _with_more_engines(fleet: FleetConfig, change: LeverChange) -> FleetChange:
    engines = sum(pool.replicas for pool in fleet.pools)
    wanted = round(engines * change.times) if change.times is not None else int(str(change.value or 0))
    if wanted <= engines:
        raise ConfigError(
            f"the fleet has {engines} engines already",
            hint="the fleet file already has the suggested value: diagnose again with more traffic",
        )
    data, pool = fleet.model_dump(), fleet.pools[0]
    after = pool.replicas + wanted - engines
    data["pools"][0][REPLICAS] = after
    line = f"pools.{pool.name}.{REPLICAS}: {pool.replicas} -> {after}"
    return FleetChange(fleet_from(data, "the changed fleet"), (line,))


def _reject_hidden_flag(pool: Pool, name: str) -> None:
    # The engine would get the same flag twice.
    flags = _spellings(LEVER_FLAGS.get(name, ""))
    hidden = next((flag for flag in pool.engine_flags if flag.partition("=")[0] in flags), None)
    if hidden is not None:
        raise ConfigError(
            f"pools.{pool.name}.engine_flags sets {hidden.partition('=')[0]} itself",
            hint=f"set pools.{pool.name}.levers.{name} instead, so that it can be changed",
        )


def _spellings(flag: str) -> tuple[str, ...]:
    if "[no-]" in flag:
        return flag.replace("[no-]", ""), flag.replace("[no-]", "no-")
    return (flag,)


def _current(pool: Pool, name: str) -> object:
    if name not in Levers.model_fields:
        raise ConfigError(f"unknown lever {name!r}", hint=f"levers: {', '.join(Levers.model_fields)}")
    return getattr(levers_of(pool), name)


def _new_value(pool: Pool, change: LeverChange, on_cpu: bool) -> object:
    if change.times is None:
        return change.fleet_value
    current = _current(pool, change.name)
    if change.name == "kv_cache_memory_bytes":
        if current is not None or on_cpu:
            held = DEFAULT_CPU_KV_BYTES if current is None else byte_size(str(current))
            return f"{max(round(held * change.times / _MIB), 1)}MiB"
    elif isinstance(current, int) and not isinstance(current, bool):
        return max(round(current * change.times), 1)
    raise ConfigError(
        f"pools.{pool.name} does not set {change.name}, so that it cannot be made "
        f"{change.times:g} times as much",
        hint=f"set pools.{pool.name}.levers.{change.name} in the fleet file",
    )


def _shown(value: object) -> str:
    if value is None:
        return "the engine's default"
    if isinstance(value, bool):
        return "true" if value else "false"
    if hasattr(value, "model_dump"):
        value = value.model_dump()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_shown(inner)}" for key, inner in value.items()) + "}"
    return str(value)
