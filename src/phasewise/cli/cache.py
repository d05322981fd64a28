"""`phasewise cache`: what a gateway's answer cache does, what it would do with a question, and to empty it.

What is printed is laid out in cache_view.py; judging rules by a file of pairs is cache_evaluate.py's.
"""

from __future__ import annotations

import asyncio
import os
from typing import Annotated, Any

import orjson
import typer

from phasewise.adapters.http_client import Timeouts
from phasewise.cli.admin_key import find_admin_key
from phasewise.cli.cache_evaluate import evaluate
from phasewise.cli.cache_view import render_explanation, render_report
from phasewise.cli.console import err, out
from phasewise.cli.diagnose_options import AdminKey
from phasewise.cli.gateway_target import GatewayOption, ask, gateway_address
from phasewise.config import phasewise_home
from phasewise.errors import ConfigError

PATH = "/phasewise/v1/cache"
PATIENT = Timeouts(connect_s=3.0, head_s=45.0, idle_s=45.0)
"""The gateway gives its store half a minute for these."""

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Tenant = Annotated[str | None, typer.Option(help="Whose answers: the tenant of the clients' keys.")]
Namespace = Annotated[
    str | None, typer.Option(help="Which answers, as clients name it in x-phasewise-cache-namespace.")
]

app = typer.Typer(
    help="What a gateway's answer cache does or would do; empty it; try rules on pairs of questions.",
    no_args_is_help=True,
)
app.command("evaluate")(evaluate)


@app.command("stats")
def stats(gateway: GatewayOption = None, admin_key: AdminKey = None, as_json: AsJson = False) -> None:
    """Say what the cache served or would have served, how often that was wrong, and what it saved.

    Ends with what to do next. The counts are one gateway's, since it started.
    """
    report = _asked(gateway, admin_key, "GET", PATH)
    if as_json:
        typer.echo(orjson.dumps(report).decode())
    else:
        out.print(render_report(report))


@app.command("purge")
def purge(
    tenant: Tenant = None,
    namespace: Namespace = None,
    tag: Annotated[
        str | None, typer.Option(help="Answers that were kept with this tag, from x-phasewise-cache-tags.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Forget all answers, of every tenant.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before --all.")] = False,
    gateway: GatewayOption = None,
    admin_key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Forget answers: those that all of what is named holds for. What was learned of matches is kept."""
    named = {"tenant": tenant, "namespace": namespace, "tag": tag}
    order: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    if everything == bool(order):
        raise ConfigError(
            "say which answers to forget, or --all, but not both",
            hint="by --tenant, --namespace or --tag; several together narrow it down",
        )
    if everything and not yes:
        typer.confirm("Forget every answer of every tenant?", abort=True, err=True)
    purged = _asked(gateway, admin_key, "POST", f"{PATH}/purge", order or {"all": True})
    if as_json:
        typer.echo(orjson.dumps(purged).decode())
    else:
        count = purged["purged"]
        out.print(f"{count:,} answer{'s' if count != 1 else ''} forgotten")


@app.command("explain")
def explain(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The question: the last user turn.")],
    model: Annotated[
        str | None,
        typer.Option(help="The model that would be asked. (default: the gateway's, if it has one)"),
    ] = None,
    system: Annotated[str | None, typer.Option(help="The system prompt that the requests have.")] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="A further field of the requests, such as max_tokens=64: who may share an answer depends on "
            "all of them. May be given several times.",
        ),
    ] = None,
    tenant: Tenant = None,
    namespace: Namespace = None,
    show_text: Annotated[
        bool, typer.Option("--show-text", help="Show how the stored questions begin, and which words differ.")
    ] = False,
    gateway: GatewayOption = None,
    admin_key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Say what the cache would do with a question, and why: what is near, what forbids it, what is proven.

    Nothing is kept or learned of it.
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
    told = {name: value for name, value in question.items() if value is not None}
    explanation = _asked(gateway, admin_key, "POST", f"{PATH}/explain", told)
    if as_json:
        typer.echo(orjson.dumps(explanation).decode())
    else:
        out.print(render_explanation(explanation))


def _asked(
    gateway: str | None, admin_key: str | None, method: str, path: str, body: object = None
) -> dict[str, Any]:
    home = phasewise_home(os.environ)
    url = gateway_address(gateway, home)
    key = admin_key or find_admin_key(url, home)
    reply = asyncio.run(ask(url, method, path, key, body, PATIENT))
    try:
        answer: dict[str, Any] = orjson.loads(reply.body)
        if reply.status == 200:
            return answer
        message, _, hint = str(answer["error"]["message"]).partition(". hint: ")
    except (orjson.JSONDecodeError, LookupError, TypeError):
        raise ConfigError(
            f"{url} answered {reply.status}, and not as a gateway does",
            hint="is that a phasewise gateway of this version?",
        ) from None
    raise ConfigError(f"{url}: {message}", hint=hint or None)


def _only_model(gateway: str | None, admin_key: str | None) -> str:
    workers = _asked(gateway, admin_key, "GET", "/phasewise/v1/workers")["workers"]
    models = sorted({str(worker["model"]) for worker in workers})
    if len(models) != 1:
        raise ConfigError(
            f"the gateway serves {len(models)} models: which one is meant is not clear",
            hint=f"add --model: {', '.join(models)}",
        )
    err.print(f"model: {models[0]}", markup=False, soft_wrap=True)
    return models[0]


def _field(given: str) -> tuple[str, Any]:
    """NAME=VALUE, the value as JSON or else as the text it is."""
    name, is_given, value = given.partition("=")
    if not is_given or not name:
        raise ConfigError("--field takes NAME=VALUE", hint="such as --field max_tokens=64")
    try:
        return name, orjson.loads(value)
    except orjson.JSONDecodeError:
        return name, value
