"""`phasewise explain`: where one request's time went, and why it went to its engine; or which there are."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.text import Text

from phasewise.api.targets import ask, gateway_address
from phasewise.benchmark.target import WORKERS_PATH, find_target
from phasewise.cli.options import (
    AdminKey,
    AsJson,
    GatewayOption,
    in_panel,
    print_json,
    reject_unwritable,
    result_option,
    say,
    typed_options,
)
from phasewise.cli.request_list import (
    ListedOutcome,
    RankedBy,
    checked,
    explain_command,
    list_query,
    list_requests,
    read_requests,
    read_running,
)
from phasewise.clients.http_client import HttpClient
from phasewise.core.errors import ConfigError, PhasewiseError, UsageError
from phasewise.core.timeline import Timeline
from phasewise.core.timeline_record import to_record
from phasewise.costs.roofline.model_config import architecture_of
from phasewise.diagnosis.analysis.attribution import readings_of
from phasewise.diagnosis.analysis.expectations import held
from phasewise.diagnosis.analysis.request_life import RequestLife, life_of
from phasewise.diagnosis.analysis.step_reading import StepReading
from phasewise.diagnosis.diagnose import FIT_SEED
from phasewise.diagnosis.gather.request_steps import request_steps
from phasewise.diagnosis.gather.target import QUICK, engines_in
from phasewise.diagnosis.observed.observation import WatchedEngine
from phasewise.diagnosis.predict.costs import fit_window
from phasewise.fleet.config import phasewise_home
from phasewise.fleet.engines.known_models import read_model_config
from phasewise.fleet.local.run_files import find_admin_key
from phasewise.gateway.api.fields import request_id_from
from phasewise.report.console import err, out
from phasewise.report.request.page import ModelShape, request_page
from phasewise.report.request.text import record, render, render_list
from phasewise.report.request.words import ledger_of, where_the_time_went

MOST_MATCHES = 20
list_option = in_panel("With --list")
LIST_OPTIONS = {"--slowest", "--tenant", "--outcome", "--since", "--until", "--limit"}
SEVERAL = 2
"""The exit code for an id that several requests have: as for other wrong usage."""


def explain(
    ctx: typer.Context,
    request_id: Annotated[
        str | None,
        typer.Argument(
            metavar="REQUEST_ID",
            help="Any id of the request, or a unique beginning: the `id` of its reply, the `x-request-id` of "
            "the reply or of the client's request, the id that `diagnose` or --list prints.",
            show_default=False,
        ),
    ] = None,
    *,
    gateway: GatewayOption = None,
    admin_key: AdminKey = None,
    html: Annotated[
        Path | None,
        result_option(
            help="Draw the request's life on an HTML page: its steps, its KV cache; it opens offline.",
        ),
    ] = None,
    config: Annotated[
        str | None,
        result_option(
            help="With --html: the model's config.json, folder or name, for the bytes that steps read. "
            "(default: what the engine says it loaded, if that is on this machine)"
        ),
    ] = None,
    as_json: AsJson = False,
    listing: Annotated[bool, list_option("--list", help="List requests instead, the newest first.")] = False,
    slowest: Annotated[RankedBy | None, list_option(help="The slowest by this figure first.")] = None,
    tenant: Annotated[str | None, list_option(help="Only requests of this tenant.")] = None,
    outcome: Annotated[
        ListedOutcome | None, list_option(help="Only requests that ended so, or those that run now.")
    ] = None,
    since: Annotated[
        str | None,
        list_option(
            metavar="TIME",
            help="Only requests that ran at or after this time: 14:02, 14:02:30, 2026-01-31T14:02 (local "
            "time), or an age such as 15m. A time of day that is yet to come is yesterday's.",
        ),
    ] = None,
    until: Annotated[
        str | None, list_option(metavar="TIME", help="Only requests that arrived at or before this time.")
    ] = None,
    limit: Annotated[int, list_option(min=1, max=2_000, help="How many to list at most.")] = 20,
) -> None:
    """Show where one request's time went, and why it went to its engine; or list requests.

    The parts add up to the total; what no clock saw is unexplained. The engine's step record names the steps
    of other requests that it waited for. If the gateway compared options, they are shown with their expected
    costs, recorded before it sent the request, and the measured times.

    A gateway keeps its last requests in memory (`gateway.keep_timelines`). --list shows them; --slowest and
    --tenant search the newest 10,000.

    Exit codes: 0 explained, 1 an error, 2 wrong usage or an id that several requests have.
    """
    _check_mode(ctx, request_id, listing=listing)
    reject_unwritable("--html", html)
    query = list_query(slowest, tenant, outcome, since, until, limit)
    home = phasewise_home(os.environ)
    url = gateway_address(gateway, home)
    admin_key = admin_key or find_admin_key(url, home)
    if request_id is None:
        list_requests(query, gateway, url, admin_key, as_json=as_json)
        return
    found = asyncio.run(read_requests(url, admin_key, id=request_id, limit=MOST_MATCHES))[::-1]
    if not found:
        raise _not_found(request_id, url)
    if len(found) > 1:
        _list_matches(found, request_id, gateway, as_json=as_json)
        raise typer.Exit(SEVERAL)
    engines = asyncio.run(_engines(found[0], url, admin_key))
    life, missing = asyncio.run(life_and_steps(found[0], engines))
    if as_json:
        print_json(
            {
                "summary": where_the_time_went(life),
                "ledger": asdict(ledger_of(life)),
                "no_step_record": missing,
                "timeline": to_record(life.timeline),
                "terms": [asdict(row) for row in held(life.timeline)],
            }
        )
    else:
        out.print(render(life, missing))
    if html is not None:
        model = asyncio.run(model_shape(life.timeline, engines, config, home))
        html.write_text(request_page(life, model, missing), encoding="utf-8")
        say(f"wrote {html}")


def _check_mode(ctx: typer.Context, request_id: str | None, *, listing: bool) -> None:
    """UsageError unless one request is named or --list is given, each with its own options."""
    if listing == bool(request_id):
        raise UsageError(
            "--list was given together with a request id" if listing else "which request is to be explained?",
            hint="give the id of a request, or --list to see which there are",
        )
    ignored = typed_options(ctx) & ({"--html", "--config"} if listing else LIST_OPTIONS)
    if ignored:
        option = min(ignored)
        why = f"{option} does nothing with --list" if listing else f"{option} works only with --list"
        raise UsageError(why, hint=f"remove {option}" if listing else "add --list in place of the id")


def _not_found(request_id: str, url: str) -> ConfigError:
    hint = (
        f"{url} keeps the last finished requests, 10,000 unless gateway.keep_timelines says otherwise, and "
        "none of a process that has ended; `phasewise explain --list` shows them, and those that still run "
        "with --outcome running. A request that was answered 401 or 413 is not kept"
    )
    if request_id_from(request_id.encode()) is None:
        hint = (
            "it keeps a client's x-request-id of at most 64 letters, digits, dots, colons, _ and -, and "
            "ignores any other: take the x-request-id of the reply, or look for it in "
            "`phasewise explain --list --since TIME`"
        )
    return ConfigError(f"the gateway has no record of request {request_id}", hint=hint)


def _list_matches(
    found: tuple[Timeline, ...], request_id: str, gateway: str | None, *, as_json: bool
) -> None:
    """The requests that an id can mean, newest first."""
    if as_json:
        print_json({"matches": [record(timeline) for timeline in found]})
    else:
        most = "or more " if len(found) == MOST_MATCHES else ""
        out.print(
            render_list(
                found, f"{len(found)} {most}requests have an id {request_id}..., newest first", out.width
            )
        )
    command = explain_command(found[0].request_id, gateway)
    err.print(Text(f"hint: name one of them, such as `{command}`"), soft_wrap=True)


async def explained(request_id: str, url: str, admin_key: str | None) -> tuple[RequestLife, tuple[str, ...]]:
    """The life of one request that has ended or is open, and why there is no step record, if so."""
    found = await read_requests(url, admin_key, id=request_id, limit=1)
    if not found:
        running = await read_running(url, admin_key)
        found = tuple(timeline for timeline in running if timeline.request_id == request_id)
    if not found:
        raise _not_found(request_id, url)
    return await life_and_steps(found[0], await _engines(found[0], url, admin_key))


async def life_and_steps(
    timeline: Timeline, engines: tuple[WatchedEngine, ...]
) -> tuple[RequestLife, tuple[str, ...]]:
    """The life of a request with the steps that its engines still hold, and why there are none, if so."""
    steps = await request_steps(timeline, engines)
    readings: dict[str, tuple[StepReading, ...]] = {}
    for name, ranks in steps.logs.items():
        alone = {name: ranks}  # an engine's steps are read with its own costs
        readings |= readings_of(alone, fit_window(alone, np.random.default_rng(FIT_SEED)))
    return life_of(timeline, readings), steps.missing


async def _engines(timeline: Timeline, url: str, admin_key: str | None) -> tuple[WatchedEngine, ...]:
    """The engines that served the request."""
    names = {attempt.worker.name for attempt in timeline.attempts}
    if not names:
        return ()
    workers = checked(await ask(url, "GET", WORKERS_PATH, admin_key), url)
    return tuple(engine for engine in engines_in(workers) if engine.name in names)


async def model_shape(
    timeline: Timeline, engines: tuple[WatchedEngine, ...], config: str | None, home: Path
) -> ModelShape:
    """The shape of the model: as named, or as the engine says it loaded it."""
    name = config or timeline.model
    for engine in engines if config is None else ():
        client = HttpClient(engine.url, QUICK)
        with suppress(PhasewiseError):
            name = (await find_target(client, timeline.model)).root or name
        client.close()
    try:
        return ModelShape(architecture_of(read_model_config(name, home, os.environ)))
    except ConfigError as error:
        if config is not None:
            raise
        return ModelShape(None, error.message)
