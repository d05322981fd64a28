"""`phasewise gateway`: put a gateway before engines that already run."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import orjson
import typer
from pydantic import ValidationError

from phasewise.adapters.address import origin
from phasewise.adapters.http_client import HttpClient, Timeouts
from phasewise.adapters.step_feed import default_steps_url
from phasewise.cli.admin_key import LONE_GATEWAY_KEY
from phasewise.cli.console import err
from phasewise.config import (
    ApiKey,
    CacheConfig,
    GatewayConfig,
    GatewayFile,
    SemanticConfig,
    WorkerConfig,
    phasewise_home,
)
from phasewise.errors import ConfigError, EngineUnreachable, UpstreamError
from phasewise.fleet.paths import run_folder
from phasewise.gateway.auth import key_sha256
from phasewise.gateway.server import serve

ASK_TIMEOUTS = Timeouts(connect_s=3.0, head_s=10.0, idle_s=10.0)
ADMIN_KEY_VARIABLE = "PHASEWISE_ADMIN_KEY"


class CacheMode(StrEnum):
    """What becomes of answers."""

    OFF = "off"
    SHADOW = "shadow"
    SERVE = "serve"


def gateway(
    urls: Annotated[
        list[str], typer.Argument(metavar="URL...", help="Engines, such as http://127.0.0.1:8000")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8080,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help="File with one client key per line. Needed to listen beyond this machine."),
    ] = None,
    admin_key: Annotated[
        str | None,
        typer.Option(envvar=ADMIN_KEY_VARIABLE, help="Key for the admin routes. Default: kept in a file."),
    ] = None,
    cache: Annotated[
        CacheMode,
        typer.Option(
            help="Keep answers: shadow serves none and reports what it would have (`phasewise cache stats`), "
            "serve gives them again."
        ),
    ] = CacheMode.OFF,
    semantic: Annotated[
        bool,
        typer.Option(
            "--semantic",
            help="With --cache: match questions by meaning too, by the embedding model minilm-l6. "
            "Everything else about it is set in a fleet file.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print where things are as one JSON object.")
    ] = False,
) -> None:
    """Serve one OpenAI-compatible address before engines that already run, and time every phase.

    Runs until it is interrupted. Each engine is asked which model it serves.
    """
    workers = asyncio.run(_ask_all([origin(url) for url in urls]))
    keys = _read_keys(api_key_file) if api_key_file is not None else ()
    key, key_file = (admin_key, None) if admin_key else _kept_admin_key(phasewise_home(os.environ))
    config = _gateway_config(host, port, keys, key, _cache_config(cache, semantic))
    file = GatewayFile(gateway=config, workers=tuple(workers))
    _announce(file, key_file, as_json)
    serve(file)


def _cache_config(mode: CacheMode, semantic: bool) -> CacheConfig | None:
    if mode is CacheMode.OFF:
        if semantic:
            raise ConfigError("--semantic says nothing without --cache", hint="add --cache shadow")
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
            hint="client keys are given by --api-key-file" if not keys else None,
        ) from error


async def _ask_all(urls: list[str]) -> list[WorkerConfig]:
    # Not named after their addresses: names stand in /metrics, which anyone may read.
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
        raise ConfigError(f"{path} holds no key", hint="write one key per line")
    return tuple(ApiKey(sha256=key_sha256(line)) for line in lines)


def _kept_admin_key(home: Path) -> tuple[str, Path]:
    """The admin key of this machine's gateways, made when first asked for."""
    path = run_folder(home) / LONE_GATEWAY_KEY
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        key = path.read_text(encoding="utf-8").strip()
        if not key:
            raise ConfigError(f"{path} is empty", hint="remove it; the next start makes a new key") from None
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
        told = f"{worker.name}: {worker.url} serves {worker.model}, {steps}"
        err.print(told, markup=False, soft_wrap=True)
    err.print(f"admin key: {where}", markup=False, soft_wrap=True)
    typer.echo(f"{address}/v1")
