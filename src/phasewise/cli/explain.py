"""`phasewise explain`: why one request went where it went, and whether that was right.

The gateway keeps the decision with the request's timeline; what it says is laid out in explain_view.py.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import orjson
import typer

from phasewise.adapters.http_client import HttpClient, Reply
from phasewise.adapters.timeline_feed import PATH
from phasewise.cli.admin_key import find_admin_key
from phasewise.cli.console import out
from phasewise.cli.diagnose_options import AdminKey
from phasewise.cli.diagnose_target import address_of
from phasewise.cli.explain_view import render
from phasewise.config import phasewise_home
from phasewise.diagnosis.expectations import held
from phasewise.errors import ConfigError, EngineUnreachable, FailureKind, FleetError, UpstreamError
from phasewise.fleet.run_file import fleet_names, is_supervised, read_state
from phasewise.fleet.run_paths import RunPaths
from phasewise.model.timeline import Timeline
from phasewise.model.timeline_record import decode, to_record
from phasewise.observe.target import QUICK, admin_headers


def explain(
    request_id: Annotated[
        str, typer.Argument(metavar="REQUEST_ID", help="The `x-request-id` that its reply carried.")
    ],
    gateway: Annotated[
        str | None,
        typer.Option(
            metavar="URL|FLEET.YAML",
            help="The gateway that served it, or the file of its fleet. (default: the fleet that runs here)",
        ),
    ] = None,
    admin_key: AdminKey = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Show why a request went where it went: the ways it had, what each would have cost, and what it took.

    The terms are those that decided, written down before the request was sent. Beside the way that was taken
    stands what was then measured, so that a wrong expectation shows.
    """
    home = phasewise_home(os.environ)
    url = address_of(gateway, home) if gateway is not None else _only_gateway(home)
    timeline = asyncio.run(_timeline(url, request_id, admin_key or find_admin_key(url, home)))
    if as_json:
        told = [asdict(row) for row in held(timeline)]
        typer.echo(orjson.dumps({"timeline": to_record(timeline), "terms": told}).decode())
    else:
        out.print(render(timeline))


def _only_gateway(home: Path) -> str:
    fleets = [paths for name in fleet_names(home) if is_supervised(paths := RunPaths(home, name))]
    states = [state for paths in fleets if (state := read_state(paths)) is not None]
    if len(states) != 1:
        raise FleetError(
            f"{len(states) or 'no'} fleets run here: which gateway served the request is not clear",
            hint="name it: --gateway http://host:port",
        )
    return states[0].gateway.url


async def _timeline(url: str, request_id: str, admin_key: str | None) -> Timeline:
    client = HttpClient(url, QUICK)
    try:
        path = f"{PATH}/{quote(request_id, safe='')}"
        reply = await client.fetch("GET", path, headers=admin_headers(admin_key))
    except UpstreamError as error:
        if error.kind is FailureKind.PROTOCOL:
            raise
        raise EngineUnreachable(
            f"nothing answers at {url} ({error.kind})",
            hint="check the address; `phasewise status` tells what runs on this machine",
        ) from error
    finally:
        client.close()
    return _read(reply, url)


def _read(reply: Reply, url: str) -> Timeline:
    if reply.status == 200:
        return decode(reply.body)
    if reply.status in {401, 403}:
        raise ConfigError(f"{url} wants its admin key", hint="set PHASEWISE_ADMIN_KEY")
    if reply.status == 404:
        raise ConfigError(
            f"{url} keeps no request of this id",
            hint="take the id from the reply's x-request-id header; a request under way is kept once it has "
            "ended, the oldest are dropped for newer ones, and a restarted gateway has forgotten all",
        )
    raise ConfigError(f"{url} answered {reply.status}", hint="is that a phasewise gateway of this version?")
