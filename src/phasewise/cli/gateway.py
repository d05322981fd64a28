"""`phasewise gateway`: put a gateway in front of engines that already run."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import orjson
import typer
from pydantic import ValidationError

from phasewise.cli.help_style import RESULT
from phasewise.cli.options import key_or_its_file
from phasewise.cli.targets import LONE_GATEWAY_KEY
from phasewise.clients.http_client import HttpClient, Timeouts, origin
from phasewise.clients.step_feed import default_steps_url
from phasewise.core.errors import ConfigError, EngineUnreachable, PhasewiseError, UpstreamError
from phasewise.fleet.config import (
    ApiKey,
    CacheConfig,
    GatewayConfig,
    GatewayFile,
    SemanticConfig,
    WorkerConfig,
    load_gateway_file,
    phasewise_home,
)
from phasewise.fleet.local.run_files import run_folder
from phasewise.gateway.api.auth import key_sha256
from phasewise.gateway.serve import serve
from phasewise.report.console import err, fail

ASK_TIMEOUTS = Timeouts(connect_s=3.0, head_s=10.0, idle_s=10.0)
LISTEN = "Listen"
KEYS = "Keys"
ANSWERS = "Answer cache"
ADMIN_KEY_VARIABLE = "PHASEWISE_ADMIN_KEY"


class CacheMode(StrEnum):
    """What the answer cache does."""

    OFF = "off"
    SHADOW = "shadow"
    SERVE = "serve"


def gateway(
    ctx: typer.Context,
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="URL",
            help="Engine addresses, such as http://127.0.0.1:8000, or one gateway file with all settings.",
        ),
    ],
    port: Annotated[int, typer.Option(help="Port to listen on.", rich_help_panel=LISTEN)] = 8080,
    host: Annotated[str, typer.Option(help="Address to listen on.", rich_help_panel=LISTEN)] = "127.0.0.1",
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            help="File with one client key per line. Required to listen on other addresses than this "
            "machine's.",
            rich_help_panel=KEYS,
        ),
    ] = None,
    admin_key: Annotated[
        str | None,
        typer.Option(
            envvar=ADMIN_KEY_VARIABLE,
            callback=key_or_its_file,
            help="Key for the admin routes, or @FILE. (default: generated once and kept in a file)",
            rich_help_panel=KEYS,
        ),
    ] = None,
    cache: Annotated[
        CacheMode,
        typer.Option(
            help="Cache answers: `shadow` serves none and counts what it would serve (`phasewise cache "
            "stats`), `serve` serves them.",
            rich_help_panel=ANSWERS,
        ),
    ] = CacheMode.OFF,
    semantic: Annotated[
        bool,
        typer.Option(
            "--semantic",
            help="With --cache: match questions semantically, with the embedding model minilm-l6. "
            "Other cache settings need a gateway file.",
            rich_help_panel=ANSWERS,
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print addresses and files as one JSON object.", rich_help_panel=RESULT),
    ] = False,
) -> None:
    """Serve one OpenAI-compatible address in front of running engines, and time every phase.

    Runs until interrupted. Asks each engine which model it serves. Exit code 2 when a file
    cannot be used.
    """
    if len(targets) == 1 and _is_file(targets[0]):
        _serve_file(Path(targets[0]), ctx)
        return
    workers = asyncio.run(_ask_all([origin(url) for url in targets]))
    key, key_file = (admin_key, None) if admin_key else _kept_admin_key(phasewise_home(os.environ))
    answers = _cache_config(cache, semantic)

    def read() -> GatewayFile:
        keys = _read_keys(api_key_file) if api_key_file is not None else ()
        config = _gateway_config(host, port, keys, key, answers)
        return GatewayFile(gateway=config, workers=tuple(workers))

    _announce(read(), key_file, as_json)
    serve(read, api_key_file)


def _is_file(target: str) -> bool:
    return "://" not in target and (target.endswith((".yaml", ".yml", ".json")) or Path(target).is_file())


def _serve_file(path: Path, ctx: typer.Context) -> None:
    """Serve as a file says. Exit code 2 shows the parent process that the file is wrong."""
    typed = [each.opts[0] for each in ctx.command.params if _is_typed(ctx, each.name or "")]
    try:
        if typed:
            raise ConfigError(f"{', '.join(typed)} was given together with {path}", hint="set it in the file")
        serve(partial(load_gateway_file, path), path)
    except PhasewiseError as error:
        fail(error)
        raise typer.Exit(2) from None


def _is_typed(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return name != "targets" and source is not None and source.name == "COMMANDLINE"


def _cache_config(mode: CacheMode, semantic: bool) -> CacheConfig | None:
    if mode is CacheMode.OFF:
        if semantic:
            raise ConfigError("--semantic requires --cache", hint="add --cache shadow")
        return None
    return CacheConfig(
        mode="serve" if mode is CacheMode.SERVE else "shadow",
        semantic=SemanticConfig() if semantic else None,
    )


def _gateway_config(
    host: str, port: int, keys: tuple[ApiKey, ...], admin_key: str, cache: CacheConfig | None
) -> GatewayConfig:
    try:
        return GatewayConfig(
            host=host, port=port, api_keys=keys, admin_key_sha256=key_sha256(admin_key), cache=cache
        )
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        option = f"--{problem['loc'][0]}: " if problem["loc"] else ""
        raise ConfigError(
            option + problem["msg"].removeprefix("Value error, "),
            hint="set client keys with --api-key-file" if not keys else None,
        ) from error


async def _ask_all(urls: list[str]) -> list[WorkerConfig]:
    # Not named after their addresses: names appear in /metrics, which needs no key.
    return list(await asyncio.gather(*(_ask(f"engine-{index}", url) for index, url in enumerate(urls))))


async def _ask(name: str, url: str) -> WorkerConfig:
    """What the engine at this address serves, and whether a step recorder runs in it."""
    client = HttpClient(url, ASK_TIMEOUTS)
    try:
        reply = await client.fetch("GET", "/v1/models")
        model = str(orjson.loads(reply.body)["data"][0]["id"])
    except UpstreamError as error:
        raise EngineUnreachable(
            f"no engine answers: {error.message}",
            hint="start the engine first, for example: vllm serve MODEL --enable-per-request-metrics",
        ) from error
    except (orjson.JSONDecodeError, LookupError, TypeError) as error:
        raise EngineUnreachable(
            f"{url}/v1/models does not answer with a list of models",
            hint="give the address of an OpenAI-compatible engine",
        ) from error
    finally:
        client.close()
    return WorkerConfig(name=name, url=url, model=model, steps_url=await _steps_url(url))


async def _steps_url(url: str) -> str | None:
    steps_url = default_steps_url(url)
    if steps_url is None:
        return None
    client = HttpClient(steps_url, Timeouts(connect_s=1.0, head_s=2.0, idle_s=2.0))
    try:
        reply = await client.fetch("GET", "/steps?limit=1")
    except UpstreamError:
        return None
    finally:
        client.close()
    return steps_url if reply.status == 200 else None


def _read_keys(path: Path) -> tuple[ApiKey, ...]:
    try:
        lines = path.read_text(encoding="utf-8").split()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})", hint="check the path") from error
    if not lines:
        raise ConfigError(f"{path} has no keys", hint="write one key per line")
    return tuple(ApiKey(sha256=key_sha256(line)) for line in lines)


def _kept_admin_key(home: Path) -> tuple[str, Path]:
    """The admin key of this machine's gateways, generated on first use."""
    path = run_folder(home) / LONE_GATEWAY_KEY
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        key = path.read_text(encoding="utf-8").strip()
        if not key:
            raise ConfigError(
                f"{path} is empty", hint="delete the file; the next start generates a new key"
            ) from None
        return key, path
    key = f"pw-admin-{secrets.token_urlsafe(24)}"
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(key + "\n")
    return key, path


def _announce(file: GatewayFile, key_file: Path | None, as_json: bool) -> None:
    address = f"http://{file.gateway.host}:{file.gateway.port}"
    where = f"${ADMIN_KEY_VARIABLE}" if key_file is None else str(key_file)
    if as_json:
        workers = [worker.model_dump(mode="json") for worker in file.workers]
        typer.echo(json.dumps({"url": f"{address}/v1", "admin_key": where, "workers": workers}))
        return
    for worker in file.workers:
        steps = "with step records" if worker.steps_url else "without step records"
        text = f"{worker.name}: {worker.url} serves {worker.model}, {steps}"
        err.print(text, markup=False, soft_wrap=True)
    err.print(f"admin key: {where}", markup=False, soft_wrap=True)
    typer.echo(f"{address}/v1")
