"""The gateway that a command asks something as an admin: which one is meant, and what it answers.

What the answers mean is the commands' to say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import orjson
import typer

from phasewise.adapters.http_client import HttpClient, Reply, Timeouts
from phasewise.cli.diagnose_target import address_of
from phasewise.errors import ConfigError, EngineUnreachable, FailureKind, FleetError, UpstreamError
from phasewise.fleet.run_file import fleet_names, is_supervised, read_state
from phasewise.fleet.run_paths import RunPaths
from phasewise.observe.target import QUICK, admin_headers

GatewayOption = Annotated[
    str | None,
    typer.Option(
        "--gateway",
        metavar="URL|FLEET.YAML",
        help="The gateway to ask, or the file of its fleet. (default: the fleet that runs here)",
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
            f"{len(states) or 'no'} fleets run here: which gateway is meant is not clear",
            hint="name it: --gateway http://host:port",
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
    """The gateway's reply to an admin's request; an error where there is none, or the key is not its."""
    client = HttpClient(url, timeouts)
    data = b"" if body is None else orjson.dumps(body)
    try:
        reply = await client.fetch(method, path, headers=admin_headers(admin_key), body=data)
    except UpstreamError as error:
        if error.kind is FailureKind.PROTOCOL:
            raise
        raise EngineUnreachable(
            f"nothing answers at {url} ({error.kind})",
            hint="check the address; `phasewise status` tells what runs on this machine",
        ) from error
    finally:
        client.close()
    if reply.status in {401, 403}:
        raise ConfigError(f"{url} wants its admin key", hint="set PHASEWISE_ADMIN_KEY")
    return reply
