"""`phasewise gateway`: put a gateway in front of engines that already run."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from pydantic import ValidationError

from phasewise.cli.options import in_panel, print_json, result_option, typed_options
from phasewise.clients.engine_metrics import identify_engine
from phasewise.clients.http_client import HttpClient, Timeouts, origin
from phasewise.clients.key_file import key_or_its_file
from phasewise.core.errors import ConfigError, PhasewiseError, UpstreamError, UsageError
from phasewise.core.worker import UNKNOWN_MODEL
from phasewise.engines.known import USUAL
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
from phasewise.fleet.local.gateway_run import gateway_url, living_gateways, picker_address
from phasewise.fleet.local.port_check import WantedPort, reject_taken_ports
from phasewise.fleet.local.run_files import LONE_GATEWAY_KEY, run_folder
from phasewise.gateway.api.auth import key_sha256
from phasewise.gateway.health import POLL_INTERVAL_S, find_recorder, first_model
from phasewise.gateway.processes.order import GatewaySource, RestartProgress, read_keys
from phasewise.gateway.processes.start import restart_gateway, start_gateway
from phasewise.report.console import err, fail

ASK_TIMEOUTS = Timeouts(connect_s=3.0, head_s=10.0, idle_s=10.0)
listen_option = in_panel("Listen")
key_option = in_panel("Keys")
answers_option = in_panel("Answer cache")
envoy_option = in_panel("Envoy")
_WITH_A_FILE = {"targets", "--restart", "--endpoint-picker", "--picker-port"}
ADMIN_KEY_VARIABLE = "PHASEWISE_ADMIN_KEY"


class CacheMode(StrEnum):
    """What the answer cache does."""

    OFF = "off"
    SHADOW = "shadow"
    SERVE = "serve"


def gateway(
    ctx: typer.Context,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="URL",
            help="Engine addresses, such as http://127.0.0.1:8000, or one gateway file with all settings.",
        ),
    ] = None,
    port: Annotated[int, listen_option(help="Port to listen on.")] = 8080,
    host: Annotated[str, listen_option(help="Address to listen on.")] = "127.0.0.1",
    api_key_file: Annotated[
        Path | None,
        key_option(
            help="File with one client key per line. Required to listen on other addresses than this "
            "machine's."
        ),
    ] = None,
    admin_key: Annotated[
        str | None,
        key_option(
            envvar=ADMIN_KEY_VARIABLE,
            callback=key_or_its_file,
            help="Key for the admin routes, or @FILE. (default: generated once and kept in a file)",
        ),
    ] = None,
    cache: Annotated[
        CacheMode,
        answers_option(
            help="Cache answers: `shadow` serves none and counts what it would serve (`phasewise cache "
            "stats`), `serve` serves them."
        ),
    ] = CacheMode.OFF,
    semantic: Annotated[
        bool,
        answers_option(
            "--semantic",
            help="With --cache: match questions semantically, with the embedding model minilm-l6. "
            "Other cache settings need a gateway file.",
        ),
    ] = False,
    restart: Annotated[
        bool,
        listen_option(
            "--restart",
            help="Replace the processes of the gateway at this address one by one, with the code and "
            "the file that are on disk now: no connection fails, and streams finish within drain_s.",
        ),
    ] = False,
    endpoint_picker: Annotated[
        bool,
        envoy_option(
            "--endpoint-picker",
            help="Also place requests for Envoy, as an endpoint picker of the Gateway API Inference "
            "Extension. Needs the extra `envoy`.",
        ),
    ] = False,
    picker_port: Annotated[
        int, envoy_option(help="Port on which Envoy asks, by gRPC.", min=1, max=65535)
    ] = 9002,
    as_json: Annotated[
        bool, result_option("--json", help="Print addresses and files as one JSON object.")
    ] = False,
) -> None:
    """Serve one OpenAI-compatible address in front of running engines, and time every phase.

    Runs until interrupted. Asks each engine which model it serves; one that does not answer is tried again
    while the gateway serves. Exit code 2 when a file cannot be used or the port is taken.
    """
    targets = targets or []
    asked_at = picker_port if endpoint_picker else None
    if asked_at is None and "--picker-port" in typed_options(ctx):
        raise typer.BadParameter("--picker-port requires --endpoint-picker")
    if restart:
        with _usage_errors():
            _restart(targets, host, port)
        return
    if not targets:
        raise typer.BadParameter("name an engine's address, or a gateway file", param_hint="URL")
    if len(targets) == 1 and _is_file(targets[0]):
        _serve_file(Path(targets[0]), ctx, admin_key, asked_at)
        return
    with _usage_errors():
        _reject_taken_ports(host, port, "--port", asked_at)
    workers = asyncio.run(_ask_all([origin(url) for url in targets]))
    home = phasewise_home(os.environ)
    key, key_file = (admin_key, None) if admin_key else _kept_admin_key(home)
    answers = _cache_config(cache, semantic)

    keys = read_keys(api_key_file) if api_key_file is not None else ()
    file = GatewayFile(gateway=_gateway_config(host, port, keys, key, answers), workers=tuple(workers))
    source = GatewaySource(
        given=file.model_dump_json(), api_key_file=None if api_key_file is None else str(api_key_file)
    )
    where = f"${ADMIN_KEY_VARIABLE}" if key_file is None else str(key_file)
    if as_json:
        print_json(
            {
                "url": f"{gateway_url(file.gateway)}/v1",
                "endpoint_picker": None if asked_at is None else picker_address(file.gateway, asked_at),
                "admin_key": where,
                "workers": [worker.model_dump(mode="json") for worker in workers],
            }
        )
    else:
        for worker in workers:
            if worker.model != UNKNOWN_MODEL:  # of the others a warning was printed
                steps = "with step records" if worker.steps_url else "without step records"
                text = f"{worker.name}: {worker.url} serves {worker.model}, {steps}"
                err.print(text, markup=False, soft_wrap=True)
        _announce(file.gateway, where, asked_at)
    with _usage_errors():
        start_gateway(file, source, home, asked_at)


def _restart(targets: list[str], host: str, port: int) -> None:
    """Of the gateway at the address that a file names, or the options."""
    if targets:
        if len(targets) > 1 or not _is_file(targets[0]):
            raise UsageError(
                "--restart takes the gateway's file, or --host and --port", hint="leave engines out"
            )
        config = load_gateway_file(Path(targets[0])).gateway
        host, port = config.host, config.port
    address, home = f"{f'[{host}]' if ':' in host else host}:{port}", _home()
    found = [] if home is None else living_gateways(home)
    there = [gateway for gateway in found if urlsplit(gateway.url).netloc == address]
    if not there:
        raise ConfigError(
            f"no gateway of yours runs at {address}",
            hint="start it without --restart; one that another user started, or with another PHASEWISE_HOME, "
            "is restarted there",
        )

    def report(progress: RestartProgress) -> None:
        if not progress.error:
            err.print(f"replaced {progress.replaced} of {progress.of}", markup=False)

    restart_gateway(there[-1], report)


def _is_file(target: str) -> bool:
    return "://" not in target and (target.endswith((".yaml", ".yml", ".json")) or Path(target).is_file())


def _serve_file(path: Path, ctx: typer.Context, admin_key: str | None, picker_port: int | None) -> None:
    """Serve as a file says. Exit code 2 shows the parent process that the file is wrong."""
    home = _home()
    with _usage_errors():
        if typed := typed_options(ctx) - _WITH_A_FILE:
            raise UsageError(
                f"{', '.join(sorted(typed))} was given together with {path}", hint="set it in the file"
            )
        file = load_gateway_file(path)
        config = file.gateway
        _reject_taken_ports(config.host, config.port, f"gateway.port in {path}", picker_port)
        source = GatewaySource(path=str(path.absolute()))
        if home is not None and config.admin_key_sha256 is None:
            with suppress(OSError):  # without a folder to keep a key in, the admin routes stay closed
                key = admin_key or _kept_admin_key(home)[0]
                source = replace(source, admin_key_sha256=key_sha256(key))
        file = source.with_admin_key(file)
        _announce(file.gateway, _where_the_key_is(config, admin_key, home), picker_port)
        start_gateway(file, source, home, picker_port)


def _home() -> Path | None:
    """Where the gateway is recorded; None for a user without a home, as in some containers."""
    try:
        return phasewise_home(os.environ)
    except RuntimeError:
        return None


@contextmanager
def _usage_errors() -> Iterator[None]:
    """A domain error within is printed, and ends the command with code 2."""
    try:
        yield
    except PhasewiseError as error:
        fail(error)
        raise typer.Exit(2) from None


def _reject_taken_ports(host: str, port: int, setting: str, picker_port: int | None) -> None:
    remedy = f"choose another with {setting}; the processes of a gateway of yours are replaced with --restart"
    wanted, other = [WantedPort(port, host, "the gateway", remedy)], "choose another with --picker-port"
    if picker_port is not None:
        if not all(map(find_spec, ("grpc", "grpc_health"))):
            missing = "the endpoint picker needs packages that are not installed"
            raise ConfigError(missing, hint="pip install 'phasewise[envoy]'")
        if picker_port == port:
            raise UsageError(f"the endpoint picker cannot use the gateway's own port {port}", hint=other)
        wanted.append(WantedPort(picker_port, host, "the endpoint picker", other))
    # Whoever opened listeners for this gateway listens at its port.
    reject_taken_ports(wanted[1:] if "LISTEN_FDS" in os.environ else wanted)


def _cache_config(mode: CacheMode, semantic: bool) -> CacheConfig | None:
    if mode is CacheMode.OFF:
        if semantic:
            raise UsageError("--semantic requires --cache", hint="add --cache shadow")
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
        raise UsageError(
            option + problem["msg"].removeprefix("Value error, "),
            hint="set client keys with --api-key-file" if not keys else None,
        ) from error


async def _ask_all(urls: list[str]) -> list[WorkerConfig]:
    # Not named after their addresses: names appear in /metrics, which needs no key.
    return list(await asyncio.gather(*(_ask(f"engine-{index}", url) for index, url in enumerate(urls))))


async def _ask(name: str, url: str) -> WorkerConfig:
    """What the engine at this address serves, and whether a step recorder runs in it.

    If it does not say, the gateway asks it again while it serves.
    """
    client = HttpClient(url, ASK_TIMEOUTS)
    try:
        model = await first_model(client)
        kind = await identify_engine(client)
    except UpstreamError as error:
        # Not even a wrong address keeps the gateway from serving with the others.
        hint = "" if error.hint is None else f" hint: {error.hint}."
        err.print(
            f"warning: {name}: {error.message}. The gateway starts without it, tries it again every "
            f"{POLL_INTERVAL_S:g} s and uses it once it says what it serves.{hint}",
            markup=False,
            soft_wrap=True,
        )
        return WorkerConfig(name=name, url=url, model=UNKNOWN_MODEL)
    finally:
        client.close()
    # Engines of one kind are taken to have the same weights in the same number format.
    weights = "" if kind is None or kind is USUAL else kind.TITLE
    return WorkerConfig(name=name, url=url, model=model, steps_url=await find_recorder(url), weights=weights)


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


def _where_the_key_is(in_file: GatewayConfig, admin_key: str | None, home: Path | None) -> str:
    if in_file.admin_key_sha256 is not None:
        return "the one of the file"
    if admin_key:
        return f"${ADMIN_KEY_VARIABLE}"
    return "" if home is None else str(run_folder(home) / LONE_GATEWAY_KEY)


def _announce(config: GatewayConfig, key: str, picker_port: int | None) -> None:
    closed = "none, because it could not be kept: admin routes are closed"
    if config.log.format == "text":  # whoever reads the log as JSON reads nothing else there
        if picker_port is not None:
            how = "without TLS" if config.tls is None else "with TLS"
            text = f"endpoint picker: {picker_address(config, picker_port)} (gRPC {how})"
            err.print(text, markup=False, soft_wrap=True)
        err.print(f"admin key: {key if config.admin_key_sha256 else closed}", markup=False, soft_wrap=True)
    typer.echo(f"{gateway_url(config)}/v1")
