"""What a diagnosis may be asked about: an address, or a fleet file, which stands for its running fleet."""

from __future__ import annotations

from pathlib import Path

from phasewise.adapters.address import origin
from phasewise.compare.arms import FLEET_FILES
from phasewise.config import load_fleet
from phasewise.errors import ConfigError, FleetError
from phasewise.fleet.run_file import is_supervised, read_state
from phasewise.fleet.run_paths import RunPaths
from phasewise.observe.target import TargetKind, WatchTarget


def is_fleet_file(target: str) -> bool:
    """Whether a file is meant, by its ending."""
    return target.endswith(FLEET_FILES)


def address_of(target: str, home: Path) -> str:
    """The address to look at; FleetError where the file's fleet does not run."""
    if is_fleet_file(target):
        return _gateway_of(Path(target), home)
    if "://" not in target:
        raise ConfigError(
            f"{target!r} is neither an address nor a fleet file",
            hint="give http://host:port of a gateway or an engine, or a file that ends in .yaml",
        )
    return origin(target)


def subject_of(target: WatchTarget) -> str:
    """What was looked at, for the head of a verdict."""
    if target.kind is not TargetKind.GATEWAY:
        return f"{target.url} (vLLM engine)"
    engines = f"{len(target.engines)} engine{'s' if len(target.engines) != 1 else ''}"
    return f"{target.url} (gateway, {engines})"


def _gateway_of(file: Path, home: Path) -> str:
    fleet = load_fleet(file)
    paths = RunPaths(home, fleet.name)
    state = read_state(paths) if is_supervised(paths) else None
    if state is None:
        raise FleetError(
            f"fleet {fleet.name} of {file} is not running",
            hint=f"start it with `phasewise up {file} --detach`, or add --verify to have it started, put "
            "under load and judged; a fleet that runs under another --name is found by its gateway's address",
        )
    return state.gateway.url
