"""Envoy as deploy/envoy/endpoint-picker.yaml configures it, on free ports, as a process of its own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from stress.processes import free_port, running

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.deploy.envoy import envoy_program  # noqa: E402

EXAMPLE = ROOT / "deploy" / "envoy" / "endpoint-picker.yaml"
CERTIFICATE = ROOT / "tests" / "clients" / "localhost-for-tests-only.pem"
READY_WITHIN_S = 30.0
TYPES = "type.googleapis.com/envoy.extensions"
Config = dict[str, Any]


@dataclass(slots=True)
class PickerPorts:
    """Where a phasewise with an endpoint picker listens."""

    http: int
    grpc: int


def envoy_version() -> str:
    """Of the Envoy that is tried."""
    run = subprocess.run([str(envoy_program()), "--version"], capture_output=True, text=True, check=True)
    return run.stdout.split("version: ")[-1].strip()


def configuration(listen: int, picker: PickerPorts, engines: Sequence[int]) -> Config:
    """The example with other ports."""
    config: Config = yaml.safe_load(EXAMPLE.read_text())
    resources = config["static_resources"]
    resources["listeners"][0]["address"]["socket_address"]["port_value"] = listen
    ports = {"engines": list(engines), "picker": [picker.grpc], "phasewise": [picker.http]}
    for cluster in resources["clusters"]:
        cluster["load_assignment"]["endpoints"] = [_endpoints(ports[cluster["name"]])]
    return config


def _endpoints(ports: Iterable[int]) -> Config:
    addresses = [{"socket_address": {"address": "127.0.0.1", "port_value": port}} for port in ports]
    return {"lb_endpoints": [{"endpoint": {"address": it}} for it in addresses]}


def manager_of(config: Config) -> Config:
    """Its HTTP connection manager."""
    manager: Config = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
    found: Config = manager["typed_config"]
    return found


def ext_proc_of(config: Config) -> Config:
    """Its ext_proc filter."""
    found: Config = next(
        it["typed_config"] for it in manager_of(config)["http_filters"] if it["name"].endswith("ext_proc")
    )
    return found


def with_trailers(config: Config) -> None:
    """Let HTTP/1.1 trailers through, which Envoy drops otherwise."""
    manager_of(config)["http_protocol_options"] = {"enable_trailers": True}
    engines = config["static_resources"]["clusters"][0]
    options = {"http_protocol_options": {"enable_trailers": True}}
    kind = f"{TYPES}.upstreams.http.v3.HttpProtocolOptions"
    engines["typed_extension_protocol_options"] = {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": kind,
            "explicit_http_config": options,
        }
    }


def with_subset_header(config: Config) -> None:
    """Take the subset hint from the header x-subset, as a gateway's own filter would set it."""
    rule = {
        "header": "x-subset",
        "on_header_present": {
            "metadata_namespace": "envoy.lb.subset_hint",
            "key": "x-gateway-destination-endpoint-subset",
            "type": "STRING",
        },
    }
    kind = f"{TYPES}.filters.http.header_to_metadata.v3.Config"
    hint = {"name": "subset", "typed_config": {"@type": kind, "request_rules": [rule]}}
    manager_of(config)["http_filters"].insert(0, hint)


def by_header(config: Config) -> None:
    """Follow the header instead of the metadata, as where Envoy does not know the engines."""
    engines = config["static_resources"]["clusters"][0]
    for name in ("load_balancing_policy", "load_assignment"):
        del engines[name]
    name = "x-gateway-destination-endpoint"
    engines |= {"type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED"}
    engines["original_dst_lb_config"] = {"use_http_header": True, "http_header_name": name}


def trusting(config: Config) -> None:
    """Leave a client's own header in the request, so that only the picker stands against it."""
    del manager_of(config)["early_header_mutation_extensions"]


def with_pickers(*pickers: PickerPorts) -> Callable[[Config], None]:
    """Ask one of these each time."""

    def change(config: Config) -> None:
        (cluster,) = (it for it in config["static_resources"]["clusters"] if it["name"] == "picker")
        cluster["load_assignment"]["endpoints"] = [_endpoints(it.grpc for it in pickers)]

    return change


def by_tls(config: Config) -> None:
    """Ask the picker over TLS, and check its certificate."""
    trusted = {"trusted_ca": {"filename": str(CERTIFICATE)}}
    context = {"alpn_protocols": ["h2"], "validation_context": trusted}
    kind = f"{TYPES}.transport_sockets.tls.v3.UpstreamTlsContext"
    tls = {"@type": kind, "sni": "localhost", "common_tls_context": context}
    (cluster,) = (it for it in config["static_resources"]["clusters"] if it["name"] == "picker")
    cluster["transport_socket"] = {"name": "envoy.transport_sockets.tls", "typed_config": tls}


def fail_open(config: Config) -> None:
    """Let requests through without the picker."""
    ext_proc_of(config)["failure_mode_allow"] = True


@asynccontextmanager
async def envoy(
    picker: PickerPorts, engines: Sequence[int], *changes: Callable[[Config], None]
) -> AsyncIterator[int]:
    """Envoy with the example's configuration and these changes; its port."""
    listen = free_port()
    config = configuration(listen, picker, engines)
    for change in changes:
        change(config)
    with tempfile.TemporaryDirectory() as folder:
        path, log = Path(folder) / "envoy.json", Path(folder) / "envoy.log"
        path.write_text(json.dumps(config))
        command = [str(envoy_program()), "-c", str(path), "--concurrency", "1", "-l", "error"]
        with (
            log.open("wb") as written,
            running([*command, "--disable-hot-restart"], stderr=written) as process,
        ):
            await until_open(listen, process, log)
            yield listen


@asynccontextmanager
async def phasewise(
    engines: Sequence[int], gateway: Config | None = None, slots: int = 64
) -> AsyncIterator[tuple[PickerPorts, subprocess.Popen[bytes]]]:
    """A gateway with an endpoint picker in front of these engines."""
    ports = PickerPorts(free_port(), free_port())
    workers = [
        {"name": f"engine-{index}", "url": f"http://127.0.0.1:{port}", "model": "m", "slots": slots}
        for index, port in enumerate(engines)
    ]
    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder) / "gateway.yaml", Path(folder) / "gateway.log"
        file.write_text(json.dumps({"gateway": {"port": ports.http, **(gateway or {})}, "workers": workers}))
        command = [sys.executable, "-m", "phasewise.cli", "gateway", str(file)]
        picking = ["--endpoint-picker", "--picker-port", str(ports.grpc)]
        home = {"PHASEWISE_HOME": folder}
        with (
            log.open("wb") as written,
            running([*command, *picking], stderr=written, environment=home) as process,
        ):
            # That of HTTP is open before anything is started.
            await until_open(ports.grpc, process, log)
            yield ports, process


async def until_open(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when something listens there."""
    deadline_s = time.monotonic() + READY_WITHIN_S
    while process.poll() is None and time.monotonic() < deadline_s:
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.05)
    raise SystemExit(f"nothing listens on port {port}: {_end_of(log)}")


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]
