"""Asks for the engine's key at every address but those that only show whether and how it runs.

vLLM's own check covers few prefixes: /tokenize, /invocations, /pause and others stay open beside it. Loaded
with `--middleware phasewise_engine_plugin.guard.KeyGuard`; without VLLM_API_KEY it lets everything pass.
"""

from __future__ import annotations

import hmac
import os
from typing import Any

OPEN_PATHS = frozenset({"/health", "/ping", "/metrics", "/version"})
_BODY = b'{"error":{"message":"only the gateway may use this","type":"authentication_error","code":401}}'


class KeyGuard:
    """An ASGI middleware."""

    def __init__(self, app: Any) -> None:
        self._app = app
        key = os.environ.get("VLLM_API_KEY", "")
        self._expected = f"Bearer {key}".encode() if key else None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass on what may pass."""
        if self._expected is None or scope["type"] == "lifespan" or self._may_pass(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(_BODY))]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": _BODY})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _may_pass(self, scope: Any) -> bool:
        if scope["path"] in OPEN_PATHS:
            return True
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return hmac.compare_digest(given, self._expected or b"")
