"""A real gateway on a real socket, in the test's event loop, and a small client for it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import time

import orjson
import uvicorn

from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.fleet.config import GatewayConfig, GatewayFile, WorkerConfig
from phasewise.gateway.api.auth import key_sha256
from phasewise.gateway.app import build_app
from phasewise.gateway.health import PROBE_TIMEOUTS
from phasewise.gateway.processes.child import server_config
from tests.raw_server import raw_server

ADMIN_KEY = "the-admins"
ADMIN = [(b"authorization", b"Bearer " + ADMIN_KEY.encode())]
PATIENT = Timeouts(connect_s=20.0, head_s=20.0, idle_s=20.0)
"""Longer than a busy machine stands still, which must not look like a worker that fails."""


class _QuietServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self):
        yield


def worker_for(engine, name="w0", **fields):
    return WorkerConfig(
        name=name, url=engine.base_url, model=engine.model, steps_url=engine.steps_url, **fields
    )


class RunningGateway:
    """A gateway under test, spoken to over its socket."""

    def __init__(self, app, url):
        self.app = app
        self.url = url
        self.client = HttpClient(url, Timeouts(connect_s=5.0, head_s=60.0, idle_s=60.0))

    async def fetch(self, method, path, body=None, headers=()):
        data = body if isinstance(body, bytes) else b"" if body is None else orjson.dumps(body)
        return await self.client.fetch(method, path, headers=headers, body=data)

    async def chat(self, text="say something", *, headers=(), **fields):
        return await self.fetch("POST", "/v1/chat/completions", chat_body(text, **fields), headers)

    async def timeline(self, request_id):
        """The request's record, which is kept a moment after the client has its answer."""

        async def kept():
            reply = await self.fetch("GET", f"/phasewise/v1/requests/{request_id}", headers=ADMIN)
            return orjson.loads(reply.body) if reply.status == 200 else None

        return await eventually(kept)

    async def timeline_of_client(self, client_request_id):
        """The same, of the request that its client called so: for clients that never see an answer."""

        async def request_id():
            reply = await self.fetch("GET", "/phasewise/v1/requests", headers=ADMIN)
            records = map(orjson.loads, reply.body.splitlines())
            return next((it["id"] for it in records if it.get("client_id") == client_request_id), None)

        return await self.timeline(await eventually(request_id))

    async def reload(self, *workers, **options):
        """Let it read a configuration with other settings, and other workers if any are given."""
        config = GatewayConfig(**{**self.file.gateway.model_dump(exclude_unset=True), **options})
        self.file = GatewayFile(gateway=config, workers=workers or self.file.workers)
        return await self.fetch("POST", "/phasewise/v1/reload", headers=ADMIN)

    @property
    def under_way(self):
        return self.app.gateway.ledger.total_requests


async def waiting_in(client):
    """How many requests wait in the line of the gateway that `client` speaks to."""
    rows = (await client.fetch("GET", "/metrics")).body.decode().splitlines()
    return sum(float(row.split()[-1]) for row in rows if row.startswith("phasewise_waiting_requests{"))


def chat_body(text="say something", model="fake-model", **fields):
    return {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 8, **fields}


def request_id_of(reply):
    return dict(reply.headers)[b"x-request-id"].decode()


def events_of(body):
    """The JSON of every event, `[DONE]` as a string."""
    parts = [part.removeprefix(b"data: ") for part in body.split(b"\n\n") if part]
    return [part.decode() if part == b"[DONE]" else orjson.loads(part) for part in parts]


@contextlib.asynccontextmanager
async def listening(answer=None, pages=None):
    """A worker made of one coroutine, which is handed each POST's head and body and a writer.

    GET is answered with the page of that path, or an empty one.
    """

    async def serve(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                if head.startswith(b"POST"):
                    await answer(head, body, writer)
                else:
                    page = (pages or {}).get(head.split()[1].decode(), b"")
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(page) + page)

    async with raw_server(serve) as port:
        yield WorkerConfig(name="stub", url=f"http://127.0.0.1:{port}", model="fake-model")


async def eventually(check, timeout_s=60.0):
    """What `check` returns once that is true: neither None nor False, nor 0 or an empty list."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        value = check()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < deadline_s, "it did not happen in time"
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def running_gateway(
    engines,
    *,
    timeouts=PATIENT,
    poll_interval_s=0.05,
    client_timeouts=None,
    probe_timeouts=PROBE_TIMEOUTS,
    watches_loop=False,
    discover=(),
    **options,
):
    """A gateway in front of these engines (or worker configurations) until the block is left.

    It shares its event loop with the test, whose own work is no strain of the gateway unless it
    `watches_loop`.
    """
    workers = tuple(
        engine if isinstance(engine, WorkerConfig) else worker_for(engine, f"w{index}")
        for index, engine in enumerate(engines)
    )
    options.setdefault("admin_key_sha256", key_sha256(ADMIN_KEY))
    file = GatewayFile(gateway=GatewayConfig(**options), workers=workers, discover=discover)
    app = build_app(file, timeouts, poll_interval_s, client_timeouts, probe_timeouts, metrics_kept_s=0.0)
    if not watches_loop:
        app.gateway.overload.look = lambda _late_s, _worked_s: None
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = _QuietServer(server_config(file, app))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    gateway = RunningGateway(app, f"http://127.0.0.1:{listening.getsockname()[1]}")
    gateway.file = file
    app.allow_reload(file, lambda: gateway.file)
    try:
        await eventually(lambda: server.started)
        yield gateway
    finally:
        gateway.client.close()
        server.should_exit = True
        await serving
