"""`phasewise explain`: why one request went where it went, and whether that was right.

The gateway keeps the decision with the request's timeline; what it says is laid out in explain_view.py.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict
from typing import Annotated
from urllib.parse import quote

import orjson
import typer

from phasewise.adapters.http_client import Reply
from phasewise.adapters.timeline_feed import PATH
from phasewise.cli.admin_key import find_admin_key
from phasewise.cli.console import out
from phasewise.cli.diagnose_options import AdminKey
from phasewise.cli.explain_view import render
from phasewise.cli.gateway_target import GatewayOption, ask, gateway_address
from phasewise.config import phasewise_home
from phasewise.diagnosis.expectations import held
from phasewise.errors import ConfigError
from phasewise.model.timeline import Timeline
from phasewise.model.timeline_record import decode, to_record


def explain(
    request_id: Annotated[
        str, typer.Argument(metavar="REQUEST_ID", help="The `x-request-id` that its reply carried.")
    ],
    gateway: GatewayOption = None,
    admin_key: AdminKey = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Show why a request went where it went: the ways it had, what each would have cost, and what it took.

    The terms are those that decided, written down before the request was sent. Beside the way that was taken
    stands what was then measured, so that a wrong expectation shows.
    """
    home = phasewise_home(os.environ)
    url = gateway_address(gateway, home)
    timeline = asyncio.run(_timeline(url, request_id, admin_key or find_admin_key(url, home)))
    if as_json:
        told = [asdict(row) for row in held(timeline)]
        typer.echo(orjson.dumps({"timeline": to_record(timeline), "terms": told}).decode())
    else:
        out.print(render(timeline))


async def _timeline(url: str, request_id: str, admin_key: str | None) -> Timeline:
    return _read(await ask(url, "GET", f"{PATH}/{quote(request_id, safe='')}", admin_key), url)


def _read(reply: Reply, url: str) -> Timeline:
    if reply.status == 200:
        return decode(reply.body)
    if reply.status == 404:
        raise ConfigError(
            f"{url} keeps no request of this id",
            hint="take the id from the reply's x-request-id header; a request under way is kept once it has "
            "ended, the oldest are dropped for newer ones, and a restarted gateway has forgotten all",
        )
    raise ConfigError(f"{url} answered {reply.status}", hint="is that a phasewise gateway of this version?")
