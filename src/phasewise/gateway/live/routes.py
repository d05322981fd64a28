"""The routes of the live view: its stream, the page that shows it in a browser, and what that page asks for.

A past window is judged, and a single request drawn, in a process of its own, so that no stream waits for it.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import subprocess
import sys
from collections.abc import Callable, Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Any

import orjson

from phasewise.core.errors import ConfigError, RejectionKind, RequestRejected
from phasewise.core.slo import Slo, parse_slo
from phasewise.gateway.http_errors import JSON
from phasewise.gateway.live.view import LiveView
from phasewise.gateway.processes.records import AllRecords
from phasewise.gateway.server.client import Client, Headers
from phasewise.scheduling import World
from phasewise.scheduling.world import Health

logger = logging.getLogger("phasewise.gateway")

EVENTS: Headers = ((b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"))

LONGEST_WINDOW_S = 3600.0
COMMAND = (sys.executable, "-m", "phasewise.cli.gateway_pages")
TIMEOUT_S = 120.0
MOST_LINES = 10_000
MOST_OPEN = 1_000


class LiveRoutes:
    """Answers admins; streams end when the gateway is `stopping`. `slo` gives the objective that is judged.

    What a page asks for is judged and drawn by another process, one question at a time.
    """

    def __init__(
        self,
        view: LiveView,
        world: World,
        records: AllRecords,
        url: str,
        slo: Callable[[], Slo],
        stopping: Callable[[], bool],
    ) -> None:
        self.view = view
        self._world = world
        self._records = records
        self._url = url
        self._slo = slo
        self._stopping = stopping
        self._asking = asyncio.Lock()
        self._page, self._page_headers = _load_page()

    async def live(self, client: Client, slo: str | None, *, streamed: bool) -> None:
        """One snapshot, or one every second until the client leaves."""
        objective = _objective(slo)
        with self.view.listening():
            if not streamed:
                await client.respond(200, JSON, await self.view.next(objective))
                return
            await client.start(200, EVENTS)
            client.direct.keep_reading()
            while not client.left and not self._stopping():
                await client.send_part(b"data: " + await self.view.next(objective) + b"\n\n")
            await client.finish()

    async def page(self, client: Client) -> None:
        """The page. It holds no figure and no key: it asks for the admin key and reads the stream with it."""
        await client.respond(200, self._page_headers, self._page)

    async def verdict(self, client: Client, since_unix_s: float, until_unix_s: float) -> None:
        """The verdict of `phasewise diagnose` on a window that has passed, with the whole page in `html`."""
        if not 0 < until_unix_s - since_unix_s <= LONGEST_WINDOW_S:
            raise RequestRejected(
                RejectionKind.BAD_REQUEST,
                "the window has no length, or is longer than an hour",
                param="until_unix_s",
                hint="give since_unix_s and until_unix_s",
            )
        ended = await self._records.after("", MOST_LINES, since_unix_s)
        under_way = await self._records.open(MOST_OPEN)
        slo = self._slo()
        order = {
            "do": "verdict",
            "url": self._url,
            "since": since_unix_s,
            "until": until_unix_s,
            "slo": (slo.ttft_s, slo.tpot_s),
        }
        await client.respond(200, JSON, await self._ask(order, ended.texts + under_way.texts))

    async def request(self, client: Client, request_id: str) -> None:
        """One request as `phasewise explain --html` draws it, with the page in `html`."""
        line = await self._records.request(request_id, or_open=True)
        if line is None:
            raise RequestRejected(
                RejectionKind.NOT_FOUND, f"the gateway has no record of request {request_id[:100]}"
            )
        await client.respond(200, JSON, await self._ask({"do": "request"}, [line]))

    async def _ask(self, order: dict[str, Any], lines: Sequence[bytes]) -> bytes:
        if self._asking.locked():
            raise RequestRejected(
                RejectionKind.OVERLOADED,
                "another question is being answered",
                hint="try again soon",
            )
        async with self._asking:
            done = await asyncio.to_thread(_run, {**order, "engines": self._engines()}, lines)
        if done is None:
            raise RequestRejected(
                RejectionKind.OVERLOADED, "it could not be judged", hint="the gateway's log says why"
            )
        return done

    def _engines(self) -> list[dict[str, Any]]:
        return [
            {
                "name": state.worker.name,
                "url": state.worker.url,
                "steps_url": state.worker.steps_url,
                "model": state.worker.model,
                "out_of_service": "" if state.health is Health.UP else state.note or state.health.value,
                "loads": self.view.readings(state.worker.name).kept,
            }
            for state in self._world.cluster.snapshot()
        ]


def _run(order: dict[str, Any], lines: Sequence[bytes]) -> bytes | None:
    given = b"\n".join((orjson.dumps(order), *lines))
    try:
        done = subprocess.run(  # noqa: S603 - a command of our own
            COMMAND, input=given, capture_output=True, timeout=TIMEOUT_S, check=True
        )
    except (subprocess.SubprocessError, OSError) as error:
        said = getattr(error, "stderr", None) or b""
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        logger.error("a question of the live view was not answered: %s %s", type(error).__name__, last)
        return None
    return done.stdout


def _objective(text: str | None) -> Slo | None:
    if text is None:
        return None
    try:
        return parse_slo(text)
    except ConfigError as error:
        raise RequestRejected(
            RejectionKind.BAD_REQUEST, error.message, param="slo", hint=error.hint
        ) from None


def _load_page() -> tuple[bytes, Headers]:
    """The page, and headers that allow its own script and no other address than this gateway's."""
    page = (files("phasewise.gateway.live") / "page.html").read_bytes()
    script = page.partition(b"<script>")[2].partition(b"</script>")[0]
    digest = base64.b64encode(sha256(script).digest())
    policy = (
        b"default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; img-src data:; "
        b"frame-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        b"script-src 'sha256-" + digest + b"'"
    )
    headers: Headers = (
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-security-policy", policy),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cache-control", b"no-store"),
    )
    return page, headers
