"""A fleet with one lever moved, as a copy: whoever wrote the file keeps it as it is.

Which lever, and to what, is the advice's to say; what it does to an engine stands in fleet/levers.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from phasewise.config import FleetConfig, Levers, Pool, byte_size, fleet_from
from phasewise.diagnosis.fix import LeverChange
from phasewise.errors import ConfigError
from phasewise.fleet.engine_command import DEFAULT_CPU_KV_BYTES
from phasewise.fleet.levers import LEVERS
from phasewise.fleet.role_presets import levers_of
from phasewise.fleet.run_file import write_private

REPLICAS = "replicas"
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class FleetChange:
    """A changed fleet, and the lines in which it differs from the one it was made from."""

    fleet: FleetConfig
    lines: tuple[str, ...]

    def write(self, folder: Path, name: str) -> Path:
        """Write the fleet into a folder of our own."""
        file = folder / f"{name}.yaml"
        # JSON is YAML.
        write_private(file, self.fleet.model_dump_json(exclude_none=True, indent=1).encode())
        return file


def changed_fleet(fleet: FleetConfig, change: LeverChange, *, on_cpu: bool) -> FleetChange:
    """The fleet with the lever moved in every pool; ConfigError where the file stands in the way.

    Replicas are those of the whole fleet: what it lacks of them is added to its first pool. On a CPU we know
    how much KV memory an engine has whose file does not say.
    """
    if change.name == REPLICAS:
        return _with_more_engines(fleet, change)
    data = fleet.model_dump()
    lines: list[str] = []
    for pool, facts in zip(fleet.pools, data["pools"], strict=True):
        _refuse_hidden_flag(pool, change.name)
        before, after = _current(pool, change.name), _new_value(pool, change, on_cpu)
        facts["levers"][change.name] = after
        lines.append(f"pools.{pool.name}.levers.{change.name}: {_shown(before)} -> {_shown(after)}")
    made = fleet_from(data, "the changed fleet")
    if made == fleet:
        raise ConfigError(
            f"{change.name} is {_shown(_current(fleet.pools[0], change.name))} already",
            hint="the fleet file has what the advice asks for: diagnose again with more traffic",
        )
    return FleetChange(made, tuple(lines))


def _with_more_engines(fleet: FleetConfig, change: LeverChange) -> FleetChange:
    engines = sum(pool.replicas for pool in fleet.pools)
    wanted = round(engines * change.times) if change.times is not None else int(change.value or 0)
    if wanted <= engines:
        raise ConfigError(
            f"the fleet has {engines} engines already",
            hint="the fleet file has what the advice asks for: diagnose again with more traffic",
        )
    data, pool = fleet.model_dump(), fleet.pools[0]
    after = pool.replicas + wanted - engines
    data["pools"][0][REPLICAS] = after
    line = f"pools.{pool.name}.{REPLICAS}: {pool.replicas} -> {after}"
    return FleetChange(fleet_from(data, "the changed fleet"), (line,))


def _refuse_hidden_flag(pool: Pool, name: str) -> None:
    # The engine would be given the same flag twice, and which one counts is its secret.
    flags = {flag for lever in LEVERS if lever.name == name for flag in _spellings(lever.flag)}
    hidden = next((flag for flag in pool.engine_flags if flag.partition("=")[0] in flags), None)
    if hidden is not None:
        raise ConfigError(
            f"pools.{pool.name}.engine_flags sets {hidden.partition('=')[0]} itself",
            hint=f"write it as pools.{pool.name}.levers.{name}, so that it can be changed",
        )


def _spellings(flag: str) -> tuple[str, ...]:
    if "[no-]" in flag:
        return flag.replace("[no-]", ""), flag.replace("[no-]", "no-")
    return (flag,)


def _current(pool: Pool, name: str) -> object:
    if name not in Levers.model_fields:
        raise ConfigError(f"there is no lever {name!r}", hint="see docs/reference/fleet-file.md")
    return getattr(levers_of(pool), name)


def _new_value(pool: Pool, change: LeverChange, on_cpu: bool) -> object:
    if change.times is None:
        return change.fleet_value
    current = _current(pool, change.name)
    if change.name == "kv_memory":
        if current is not None or on_cpu:
            held = DEFAULT_CPU_KV_BYTES if current is None else byte_size(str(current))
            return f"{max(round(held * change.times / _MIB), 1)}MiB"
    elif isinstance(current, int) and not isinstance(current, bool):
        return max(round(current * change.times), 1)
    raise ConfigError(
        f"pools.{pool.name} does not say what {change.name} is now, so that it cannot be made "
        f"{change.times:g} times as much",
        hint=f"write pools.{pool.name}.levers.{change.name} into the fleet file",
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
