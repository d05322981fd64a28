"""The routes of the live view: its stream, and the page that shows it in a browser."""

from __future__ import annotations

import base64
from collections.abc import Callable
from hashlib import sha256
from importlib.resources import files

from phasewise.core.errors import ConfigError, RejectionKind, RequestRejected
from phasewise.core.slo import Slo, parse_slo
from phasewise.gateway.http_errors import JSON
from phasewise.gateway.live.pages import GatewayPages
from phasewise.gateway.live.view import DEFAULT_CLASS, LiveView
from phasewise.gateway.server.client import Client, Headers

EVENTS: Headers = ((b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"))

LONGEST_WINDOW_S = 3600.0


class LiveRoutes:
    """Answers admins; streams end when the gateway is `stopping`."""

    def __init__(self, view: LiveView, pages: GatewayPages, stopping: Callable[[], bool]) -> None:
        self.view = view
        self._pages = pages
        self._stopping = stopping
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

    async def verdict(self, client: Client, since_unix_s: float, until_unix_s: float) -> None:
        """The verdict of `phasewise diagnose` on a window that has passed."""
        if not 0 < until_unix_s - since_unix_s <= LONGEST_WINDOW_S:
            raise RequestRejected(
                RejectionKind.BAD_REQUEST,
                "the window has no length, or is longer than an hour",
                param="until_unix_s",
                hint="give since_unix_s and until_unix_s",
            )
        found = await self._pages.verdict(since_unix_s, until_unix_s, self.view.slo_of(DEFAULT_CLASS))
        await client.respond(200, JSON, found)

    async def request(self, client: Client, request_id: str) -> None:
        """One request as `phasewise explain --html` draws it."""
        found = await self._pages.request(request_id)
        if found is None:
            raise RequestRejected(
                RejectionKind.NOT_FOUND, f"the gateway has no record of request {request_id[:100]}"
            )
        await client.respond(200, JSON, found)

    async def page(self, client: Client) -> None:
        """The page. It holds no figure and no key: it asks for the admin key and reads the stream with it."""
        await client.respond(200, self._page_headers, self._page)


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
