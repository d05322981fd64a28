"""Targets: an address, the file of a running fleet or gateway, kept evidence, the gateway that runs here."""

from __future__ import annotations

from pathlib import Path

import orjson

from phasewise.benchmark.compare.arms import FLEET_FILES
from phasewise.clients.http_client import HttpClient, Reply, Timeouts, is_address, no_answer, origin
from phasewise.core.errors import EngineUnreachable, FailureKind, FleetError, UpstreamError, UsageError
from phasewise.core.units import counted
from phasewise.diagnosis.gather.target import FORBIDDEN, QUICK, WatchTarget, admin_headers, rejected_admin
from phasewise.diagnosis.observed.bundle import MAGIC
from phasewise.diagnosis.observed.observation import EngineSeen, Observed, TargetKind
from phasewise.engines.known import engine_named
from phasewise.fleet.config import is_gateway_file, load_fleet, load_gateway_file
from phasewise.fleet.local.gateway_run import gateway_url, living_gateways, lone_gateways
from phasewise.fleet.local.run_files import RunPaths, fleet_names, is_supervised, read_state


def is_fleet_file(target: str) -> bool:
    """Whether the target is a file, by its suffix."""
    return target.endswith(FLEET_FILES)


def is_evidence_file(target: str) -> bool:
    """Whether the target is a file of kept evidence, by its first bytes."""
    path = Path(target)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def address_of(target: str, home: Path) -> str:
    """The target's address; FleetError if the file's fleet does not run."""
    if is_fleet_file(target):
        return _gateway_of(Path(target), home)
    if not is_address(target) or Path(target).exists():
        raise UsageError(
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
        watched = (each.engine if isinstance(each, EngineSeen) else each for each in target.engines)
        kind = next((engine.kind for engine in watched), None)
        return f"{target.url} ({engine_named(kind).TITLE} engine)"
    engines = counted(len(target.engines), "engine")
    return f"{target.url} (gateway, {engines})"


def _gateway_of(file: Path, home: Path) -> str:
    if is_gateway_file(file):
        config = load_gateway_file(file).gateway
        here = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - one that listens everywhere listens here
        return gateway_url(config.model_copy(update={"host": here.get(config.host, config.host)}))
    fleet = load_fleet(file)
    paths = RunPaths(home, fleet.name)
    state = read_state(paths) if is_supervised(paths) else None
    if state is None:
        raise FleetError(
            f"fleet {fleet.name} of {file} is not running",
            hint=f"start it with `phasewise up {file} --detach`, or let `phasewise compare {file} --fix` "
            "start it, put a load on it and diagnose it; if it runs under another --name, give its "
            "gateway's address",
        )
    return state.gateway.url


GATEWAY_ARGUMENT = "the gateway's address"
"""What an error calls the argument."""


def gateway_address(given: str | None, home: Path, parameter: str = "--gateway") -> str:
    """The gateway that was named by this parameter, or the only one that runs here."""
    if given is not None:
        return address_of(given, home)
    fleets = [paths for name in fleet_names(home) if is_supervised(paths := RunPaths(home, name))]
    states = [state for paths in fleets if (state := read_state(paths)) is not None]
    urls = [state.gateway.url for state in states]
    urls += [gateway.url for gateway in lone_gateways(living_gateways(home), states)]
    urls = list(dict.fromkeys(urls))  # two have the same while one takes over
    if len(urls) != 1:
        option = f"{parameter} " if parameter.startswith("-") else ""
        raise FleetError(
            f"{len(urls) or 'no'} gateways run here, so {parameter} is required",
            hint=f"give {' or '.join(option + url for url in urls)}"
            if urls
            else f"start a fleet with `phasewise up`, or give {option}http://host:port",
        )
    return urls[0]


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
            no_answer(url, error),
            hint="check the address; `phasewise status` shows what runs on this machine",
        ) from error
    finally:
        client.close()
    if reply.status in {401, FORBIDDEN}:
        raise rejected_admin(url, reply, admin_key)
    return reply
