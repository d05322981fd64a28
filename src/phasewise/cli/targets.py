"""Gateways that a command asks: the one that was named, or the only one that runs here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import orjson
import typer

from phasewise.api.targets import address_of
from phasewise.clients.http_client import HttpClient, Reply, Timeouts, no_answer
from phasewise.core.errors import EngineUnreachable, FailureKind, FleetError, UpstreamError
from phasewise.diagnosis.gather.target import FORBIDDEN, QUICK, admin_headers, rejected_admin
from phasewise.fleet.local.gateway_run import living_gateways, lone_gateways
from phasewise.fleet.local.run_files import RunPaths, fleet_names, is_supervised, read_state

_WHICH = "The gateway's address, its fleet file or its gateway file. (default: the one that runs here)"
GatewayOption = Annotated[str | None, typer.Option("--gateway", metavar="URL|FILE.YAML", help=_WHICH)]
GatewayArgument = Annotated[str | None, typer.Argument(metavar="GATEWAY", help=_WHICH, show_default=False)]
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
