"""Real proxies with their Debian packages' own files and nothing more than an address to pass requests to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
from pathlib import Path

import pytest

from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.core.errors import UpstreamError
from tests.deploy.envoy import envoy_program
from tests.gateway.harness import eventually
from tests.real_engine import free_port

PATIENT = Timeouts(connect_s=30.0, head_s=60.0, idle_s=60.0)

ENVOY = """
static_resources:
  listeners:
    - address: {socket_address: {address: 127.0.0.1, port_value: %(port)d}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: in
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
                route_config:
                  virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: gateway}}]}]
  clusters:
    - name: gateway
      load_assignment:
        cluster_name: gateway
        endpoints:
          - lb_endpoints:
              - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %(gateway)d}}}
"""  # noqa: E501 - its names are as long


def nginx(folder: Path, port: int, gateway: str) -> list[str]:
    """Debian's file, with this server in place of those that are enabled."""
    text = packaged("nginx", "/etc/nginx/nginx.conf")
    server = f"""server {{
        listen 127.0.0.1:{port};
        client_max_body_size 32m;
        location / {{ proxy_pass {gateway}; }}
    }}"""
    text = text.replace("include /etc/nginx/sites-enabled/*;", server)
    text = text.replace("/run/nginx.pid", f"{folder}/pid").replace("/var/log/nginx", str(folder))
    (folder / "nginx.conf").write_text(text)
    return ["nginx", "-c", str(folder / "nginx.conf"), "-g", "daemon off;"]


def haproxy(folder: Path, port: int, gateway: str) -> list[str]:
    """Debian's file, without its control socket, and with this proxy."""
    text = re.sub(r"(?m)^\s*stats socket .*$", "", packaged("haproxy", "/etc/haproxy/haproxy.cfg"))
    text += (
        f"\nlisten gateway\n\tbind 127.0.0.1:{port}\n\tserver one {gateway.removeprefix('http://')} check\n"
    )
    (folder / "haproxy.cfg").write_text(text)
    return ["haproxy", "-db", "-f", str(folder / "haproxy.cfg")]


def envoy(folder: Path, port: int, gateway: str) -> list[str]:
    """Envoy has no file of its own: all that is not said here is its default."""
    (folder / "envoy.yaml").write_text(ENVOY % {"port": port, "gateway": int(gateway.rpartition(":")[2])})
    options = ["--use-dynamic-base-id", "--concurrency", "1", "--log-level", "error"]
    return [str(envoy_program()), "--config-path", str(folder / "envoy.yaml"), *options]


def packaged(program: str, path: str) -> str:
    """The file that a package brings; the test is skipped where the package is missing."""
    if shutil.which(program) is None or not Path(path).exists():
        missing = pytest.fail if os.environ.get("CI") else pytest.skip
        missing(f"{program} is missing: apt-get install {program}")
    return Path(path).read_text()


@contextlib.asynccontextmanager
async def proxy_before(command, folder, gateway):
    """The address of a proxy in front of the gateway of this address."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(*command(folder, port, gateway))
    client = HttpClient(f"http://127.0.0.1:{port}", PATIENT)

    async def answers():
        assert process.returncode is None, "the proxy ended"
        with contextlib.suppress(UpstreamError):
            return (await client.fetch("GET", "/health")).status == 200

    try:
        await eventually(answers)
        yield client
    finally:
        client.close()
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await asyncio.wait_for(process.wait(), 60)
