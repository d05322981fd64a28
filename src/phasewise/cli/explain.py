"""`phasewise explain`: why a request went to its engine, and whether the expected times were right."""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict
from typing import Annotated
from urllib.parse import quote

import orjson
import typer

from phasewise.cli.options import AdminKey
from phasewise.cli.targets import GatewayOption, ask, find_admin_key, gateway_address
from phasewise.clients.http_client import Reply
from phasewise.clients.timeline_feed import PATH
from phasewise.core.errors import ConfigError
from phasewise.core.timeline import Timeline
from phasewise.core.timeline_record import decode, to_record
from phasewise.diagnosis.analysis.expectations import held
from phasewise.fleet.config import phasewise_home
from phasewise.report.console import out
from phasewise.report.explain_view import render


def explain(
    request_id: Annotated[
        str,
        typer.Argument(
            metavar="REQUEST_ID",
            help="The `x-request-id` or the `id` of its reply, the id that `diagnose` prints, or the "
            "`x-request-id` that the client sent (the newest request that had it).",
        ),
    ],
    gateway: GatewayOption = None,
    admin_key: AdminKey = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Show why a request went to its engine: the options, the expected cost of each, and the measured times.

    The expected costs are the ones the gateway decided by, recorded before it sent the request. The chosen
    option is shown with the measured times.
    """
    home = phasewise_home(os.environ)
    url = gateway_address(gateway, home)
    timeline = asyncio.run(_timeline(url, request_id, admin_key or find_admin_key(url, home)))
    if as_json:
        text = [asdict(row) for row in held(timeline)]
        typer.echo(orjson.dumps({"timeline": to_record(timeline), "terms": text}).decode())
    else:
        out.print(render(timeline))


async def _timeline(url: str, request_id: str, admin_key: str | None) -> Timeline:
    reply = await ask(url, "GET", f"{PATH}/{quote(request_id, safe='')}", admin_key)
    return _read(reply, url, request_id)


def _read(reply: Reply, url: str, request_id: str) -> Timeline:
    if reply.status == 200:
        return decode(reply.body)
    if reply.status == 404:
        raise ConfigError(
            f"the gateway has no record of request {request_id}",
            hint=f"{url} keeps the last finished requests, 10,000 unless gateway.keep_timelines says "
            "otherwise, and none from before it was started",
        )
    raise ConfigError(
        f"{url} answered {reply.status}", hint="check that this is a phasewise gateway of the same version"
    )
