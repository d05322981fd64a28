"""`phasewise cache`: inspect and purge a gateway's answer cache."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated, Any

import orjson
import typer

from phasewise.api.targets import GATEWAY_ARGUMENT, ask, gateway_address
from phasewise.cli.options import AdminKey, AsJson, GatewayArgument, GatewayOption, print_json
from phasewise.clients.http_client import Timeouts
from phasewise.core.errors import ConfigError, UsageError
from phasewise.core.units import counted
from phasewise.fleet.config import phasewise_home
from phasewise.fleet.local.run_files import find_admin_key
from phasewise.report.cache_view import render_explanation, render_report
from phasewise.report.console import err, out

PATH = "/phasewise/v1/cache"
PATIENT = Timeouts(connect_s=3.0, head_s=45.0, idle_s=45.0)
"""The gateway allows its store half a minute for these requests."""

Tenant = Annotated[
    str | None, typer.Option(help="The tenant whose answers are meant, as client keys name it.")
]
Namespace = Annotated[
    str | None, typer.Option(help="The namespace, as clients send it in x-phasewise-cache-namespace.")
]


def stats(gateway: GatewayArgument = None, *, admin_key: AdminKey = None, as_json: AsJson = False) -> None:
    """Show what the cache served, or would have served, what the judge said of it, and what it saved.

    The last line says what to do next. The counts are those of one gateway since it started.
    """
    report = _asked(gateway, admin_key, "GET", PATH, named=GATEWAY_ARGUMENT)
    if as_json:
        print_json(report)
    else:
        out.print(render_report(report))


def purge(
    gateway: GatewayArgument = None,
    *,
    tenant: Tenant = None,
    namespace: Namespace = None,
    tag: Annotated[
        str | None, typer.Option(help="Only answers with this tag, from x-phasewise-cache-tags.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete all answers of every tenant.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation of --all.")] = False,
    admin_key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Delete the stored answers that match every option given. What was learned about matches is kept."""
    named = {"tenant": tenant, "namespace": namespace, "tag": tag}
    order: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    if everything == bool(order):
        raise UsageError(
            "give either --all or a selection of answers",
            hint="select by --tenant, --namespace or --tag; an answer has to match all that are given",
        )
    if everything and not yes:
        typer.confirm("Delete every answer of every tenant?", abort=True, err=True)
    purged = _asked(
        gateway, admin_key, "POST", f"{PATH}/purge", order or {"all": True}, named=GATEWAY_ARGUMENT
    )
    if as_json:
        print_json(purged)
    else:
        count = purged["purged"]
        out.print(f"{counted(count, 'answer')} deleted")


def explain(
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="The question: the text of the last user message.")
    ],
    model: Annotated[
        str | None,
        typer.Option(help="The model of the request. (default: the gateway's only model)"),
    ] = None,
    system: Annotated[str | None, typer.Option(help="The system prompt of the requests.")] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Another field of the requests, such as max_tokens=64: only requests with equal fields "
            "share answers. May be given several times.",
        ),
    ] = None,
    tenant: Tenant = None,
    namespace: Namespace = None,
    show_text: Annotated[
        bool,
        typer.Option("--show-text", help="Also show the beginnings of the stored questions."),
    ] = False,
    gateway: GatewayOption = None,
    admin_key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Show what the cache would do with a question, and why.

    Lists similar stored questions, the guards that reject them, and how well each change of words is known.
    The cache is not changed.
    """
    question = {
        "model": model or _only_model(gateway, admin_key),
        "text": text,
        "system": system,
        "fields": dict(map(_field, field or ())),
        "tenant": tenant,
        "namespace": namespace,
        "show_text": show_text,
    }
    described = {name: value for name, value in question.items() if value is not None}
    explanation = _asked(gateway, admin_key, "POST", f"{PATH}/explain", described)
    if as_json:
        print_json(explanation)
    else:
        out.print(render_explanation(explanation))


def _asked(
    gateway: str | None,
    admin_key: str | None,
    method: str,
    path: str,
    body: object = None,
    named: str = "--gateway",
) -> dict[str, Any]:
    home = phasewise_home(os.environ)
    url = gateway_address(gateway, home, named)
    key = admin_key or find_admin_key(url, home)
    reply = asyncio.run(ask(url, method, path, key, body, PATIENT))
    try:
        answer: dict[str, Any] = orjson.loads(reply.body)
        if reply.status == 200:
            return answer
        message, _, hint = str(answer["error"]["message"]).partition(". hint: ")
    except (orjson.JSONDecodeError, LookupError, TypeError):
        raise ConfigError(
            f"{url} answered {reply.status}, which no gateway of this version does",
            hint="check that this is a phasewise gateway of the same version",
        ) from None
    raise ConfigError(f"{url}: {message}", hint=hint or None)


def _only_model(gateway: str | None, admin_key: str | None) -> str:
    workers = _asked(gateway, admin_key, "GET", "/phasewise/v1/workers")["workers"]
    models = sorted({str(worker["model"]) for worker in workers})
    if len(models) != 1:
        raise UsageError(
            f"the gateway serves {len(models)} models, so --model is required",
            hint=f"use --model with one of: {', '.join(models)}",
        )
    err.print(f"model: {models[0]}", markup=False, soft_wrap=True)
    return models[0]


def _field(given: str) -> tuple[str, Any]:
    """NAME=VALUE as a pair; the value is parsed as JSON, or else taken as text."""
    name, is_given, value = given.partition("=")
    if not is_given or not name:
        raise UsageError("--field takes NAME=VALUE", hint="such as --field max_tokens=64")
    try:
        return name, orjson.loads(value)
    except orjson.JSONDecodeError:
        return name, value
