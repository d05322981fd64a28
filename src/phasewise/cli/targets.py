"""Targets of a diagnosis: an address, or a fleet file for its running fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import orjson
import typer

from phasewise.clients.http_client import HttpClient, Reply, Timeouts, origin
from phasewise.core.errors import ConfigError, EngineUnreachable, FailureKind, FleetError, UpstreamError
from phasewise.core.units import counted
from phasewise.diagnosis.gather.target import QUICK, WatchTarget, admin_headers
from phasewise.diagnosis.observed.bundle import MAGIC
from phasewise.diagnosis.observed.observation import Observed, TargetKind
from phasewise.experiments.compare.arms import FLEET_FILES
from phasewise.fleet.config import LOOPBACK_HOSTS, load_fleet
from phasewise.fleet.local.run_files import RunPaths, fleet_names, is_supervised, read_state, run_folder


def is_fleet_file(target: str) -> bool:
    """Whether the target is a file, by its suffix."""
    return target.endswith(FLEET_FILES)


def is_evidence_file(target: str) -> bool:
    """Whether the target is a file of kept evidence, by its first bytes."""
    path = Path(target)
    if "://" in target or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def address_of(target: str, home: Path) -> str:
    """The target's address; FleetError if the file's fleet does not run."""
    if is_fleet_file(target):
        return _gateway_of(Path(target), home)
    if "://" not in target:
        raise ConfigError(
            f"{target!r} {_what_is_wrong(Path(target))}",
            hint="give http://host:port of a gateway or an engine, a file that ends in .yaml, or one that "
            "`phasewise diagnose --save-evidence` wrote",
        )
    return origin(target)


def _what_is_wrong(path: Path) -> str:
    """Why a target without a scheme is none."""
    if path.is_dir():
        return "is a directory"
    if path.is_file():
        return "is a file that phasewise did not write" if path.stat().st_size else "is an empty file"
    return "is neither an address nor a file"


def subject_of(target: WatchTarget | Observed) -> str:
    """The target in words, for the head of a verdict."""
    if target.kind is not TargetKind.GATEWAY:
        return f"{target.url} (vLLM engine)"
    engines = counted(len(target.engines), "engine")
    return f"{target.url} (gateway, {engines})"


def _gateway_of(file: Path, home: Path) -> str:
    fleet = load_fleet(file)
    paths = RunPaths(home, fleet.name)
    state = read_state(paths) if is_supervised(paths) else None
    if state is None:
        raise FleetError(
            f"fleet {fleet.name} of {file} is not running",
            hint=f"start it with `phasewise up {file} --detach`, or let `phasewise verify {file}` start it, "
            "put a load on it and diagnose it; if it runs under another --name, give its "
            "gateway's address",
        )
    return state.gateway.url


# --- Requests to a gateway's admin routes.
#


GatewayOption = Annotated[
    str | None,
    typer.Option(
        "--gateway",
        metavar="URL|FLEET.YAML",
        help="The gateway's address, or its fleet file. (default: the fleet that runs here)",
    ),
]


def gateway_address(given: str | None, home: Path) -> str:
    """The gateway that was named, or the only one that runs here."""
    if given is not None:
        return address_of(given, home)
    fleets = [paths for name in fleet_names(home) if is_supervised(paths := RunPaths(home, name))]
    states = [state for paths in fleets if (state := read_state(paths)) is not None]
    if len(states) != 1:
        raise FleetError(
            f"{len(states) or 'no'} fleets run here, so --gateway is required",
            hint="give --gateway http://host:port",
        )
    return states[0].gateway.url


async def ask(
    url: str,
    method: str,
    path: str,
    admin_key: str | None,
    body: object = None,
    timeouts: Timeouts = QUICK,
) -> Reply:
    """The gateway's reply to an admin request; an error without a reply or with a wrong key."""
    client = HttpClient(url, timeouts)
    data = b"" if body is None else orjson.dumps(body)
    try:
        reply = await client.fetch(method, path, headers=admin_headers(admin_key), body=data)
    except UpstreamError as error:
        if error.kind is FailureKind.PROTOCOL:
            raise
        raise EngineUnreachable(
            f"nothing answers at {url} ({error.kind})",
            hint="check the address; `phasewise status` shows what runs on this machine",
        ) from error
    finally:
        client.close()
    if reply.status in {401, 403}:
        raise ConfigError(f"{url} requires its admin key", hint="set PHASEWISE_ADMIN_KEY")
    return reply


# --- Finds the admin key of a gateway on this machine, in its run folder.
#
# A key is sent only to an address on this machine.

LONE_GATEWAY_KEY = "admin-key"
"""The key file of gateways that were started without a fleet."""


def find_admin_key(url: str, home: Path) -> str | None:
    """The key of the gateway at this address; None if there is none."""
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
