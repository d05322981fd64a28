"""A gateway in a process of its own, as a user starts one, and the file it is started with."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

import yaml

from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.core.errors import UpstreamError
from tests.gateway.harness import eventually
from tests.real_engine import free_port

STARTS_WITHIN_S = 60.0


class GatewayProcess:
    """A gateway that answers; `client` speaks to it."""

    def __init__(self, process, port):
        self.process = process
        self.port = port
        self.client = HttpClient(
            f"http://127.0.0.1:{port}", Timeouts(connect_s=30.0, head_s=120.0, idle_s=120.0)
        )

    async def rejects_connections(self):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except (ConnectionRefusedError, ConnectionResetError):  # reset: it was accepted as the port closed
            return True
        writer.close()
        return False

    async def ended(self, within_s=60.0):
        """Its exit code and what it wrote to standard error."""
        _, errors = await asyncio.wait_for(self.process.communicate(), within_s)
        return self.process.returncode, errors.decode()


async def start(path, stderr=asyncio.subprocess.PIPE):
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "phasewise.cli", "gateway", str(path)),
        stderr=stderr,
        env={**os.environ, "PHASEWISE_HOME": str(home_of(path))},
    )


def home_of(path):
    """Where a gateway that was started with this file is recorded."""
    return path.parent / "home"


@contextlib.asynccontextmanager
async def running_process(folder, *engines, slots=256, stderr=asyncio.subprocess.PIPE, **settings):
    """A gateway process before these engines until the block is left, with `settings` under `gateway`."""
    port = free_port()
    process = await start(_write_file(folder, engines, slots, {"port": port, **settings}), stderr)
    gateway = GatewayProcess(process, port)
    try:
        await eventually(lambda: _answers(gateway.client), timeout_s=STARTS_WITHIN_S)
        yield gateway
    finally:
        gateway.client.close()
        if process.returncode is None:
            process.kill()
            await process.communicate()


def _write_file(folder, engines, slots, settings):
    path = folder / "gateway.yaml"
    workers = [
        {"name": f"w{number}", "url": it.base_url, "model": it.model, "slots": slots}
        for number, it in enumerate(engines)
    ]
    path.write_text(yaml.safe_dump({"gateway": settings, "workers": workers}))
    return path


async def _answers(client):
    try:
        return (await client.fetch("GET", "/health")).status == 200
    except UpstreamError:
        return False
