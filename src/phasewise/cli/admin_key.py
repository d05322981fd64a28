"""Finds the admin key of a gateway that runs on this machine, in the run folder it was written to.

A key is only ever offered to an address on this machine.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from phasewise.config import LOOPBACK_HOSTS
from phasewise.fleet.paths import run_folder
from phasewise.fleet.run_file import fleet_names, read_state
from phasewise.fleet.run_paths import RunPaths

LONE_GATEWAY_KEY = "admin-key"
"""The key file of gateways that were started without a fleet."""


def find_admin_key(url: str, home: Path) -> str | None:
    """The key of the gateway at this address, None where there is none to be found."""
    if urlsplit(url).hostname not in LOOPBACK_HOSTS:
        return None
    fleets = [RunPaths(home, name) for name in fleet_names(home)]
    fitting = [paths.admin_key for paths in fleets if _gateway_port(paths) == urlsplit(url).port]
    for path in (*fitting, run_folder(home) / LONE_GATEWAY_KEY):
        if path.is_file():
            return path.read_text(encoding="ascii").strip()
    return None


def _gateway_port(paths: RunPaths) -> int | None:
    state = read_state(paths)
    return urlsplit(state.gateway.url).port if state is not None else None
