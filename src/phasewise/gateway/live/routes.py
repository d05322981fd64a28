"""The routes of the live view: its stream, and the page that shows it in a browser."""

from __future__ import annotations

import base64
from collections.abc import Callable
from hashlib import sha256
from importlib.resources import files

from phasewise.core.errors import ConfigError, RejectionKind, RequestRejected
from phasewise.core.slo import Slo, parse_slo
from phasewise.gateway.http_errors import JSON
from phasewise.gateway.live.view import LiveView
from phasewise.gateway.server.client import Client, Headers

EVENTS: Headers = ((b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"))


class LiveRoutes:
    """Answers admins; streams end when the gateway is `stopping`."""

    def __init__(self, view: LiveView, stopping: Callable[[], bool]) -> None:
        self.view = view
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
