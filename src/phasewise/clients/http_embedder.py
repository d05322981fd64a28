"""Embeds texts with a server of OpenAI's /v1/embeddings, over keep-alive connections.

A malformed reply is an error. Callers set deadlines.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import numpy as np
import orjson

from phasewise.clients.embedding_folder import space_name, unit_vector
from phasewise.clients.http_client import Access, Headers, HttpClient, Reply, Timeouts, origin
from phasewise.clients.key_file import read_key
from phasewise.core.caching import Vector
from phasewise.core.errors import (
    EmbedderBusy,
    EmbedderRejected,
    EmbedderUnreachable,
    UpstreamError,
)

MOST_UNDER_WAY = 64
"""Open requests at once; a server that needs more than this is too slow for every caller."""
_TIMEOUTS = Timeouts(connect_s=2.0, head_s=10.0, idle_s=10.0)
_MOST_DIMENSIONS = 16_384
_JSON: Headers = ((b"content-type", b"application/json"),)
_REJECTED_THE_TEXT = frozenset({400, 413, 422})


class HttpEmbedder:
    """An embedder behind HTTP; the model's name identifies its space, at any address."""

    def __init__(self, url: str, model: str, api_key_file: str | None = None) -> None:
        self._model = model
        key = None if api_key_file is None else read_key(Path(api_key_file), "the embedding server's key")
        self._client = HttpClient(origin(url), _TIMEOUTS, Access(key))
        self._dimensions = 0
        self._under_way = 0

    @property
    def space(self) -> str:
        """The model's name in a readable form, and a digest of its exact spelling."""
        return space_name(self._model, sha256(self._model.encode()).hexdigest())

    @property
    def dimensions(self) -> int:
        """How many numbers a vector holds; 0 before the start."""
        return self._dimensions

    async def start(self) -> None:
        """Learn how many dimensions there are."""
        self._dimensions = len(await self._ask("warm"))

    async def embed(self, text: str) -> Vector:
        """The text's vector, of unit length whatever the server sends."""
        if self._under_way >= MOST_UNDER_WAY:
            raise EmbedderBusy(f"{self._under_way} texts are being embedded already")
        self._under_way += 1
        try:
            values = await self._ask(text)
        finally:
            self._under_way -= 1
        if len(values) != self._dimensions:
            raise EmbedderUnreachable(
                f"the embedding server returned {len(values)} numbers, but {self._dimensions} at the start",
                hint="it may serve another model now: restart the gateway",
            )
        return unit_vector(values)

    async def close(self) -> None:
        """Close the connections."""
        self._client.close()

    async def _ask(self, text: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        body = orjson.dumps({"model": self._model, "input": text, "encoding_format": "float"})
        try:
            reply = await self._client.fetch("POST", "/v1/embeddings", headers=_JSON, body=body)
        except UpstreamError as error:
            raise EmbedderUnreachable(f"the embedding server does not answer: {error.message}") from None
        return _numbers(reply)


def _numbers(reply: Reply) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The vector in a reply. Error messages of the server may quote the text, so they are not repeated."""
    if reply.status != 200:
        kind = EmbedderRejected if reply.status in _REJECTED_THE_TEXT else EmbedderUnreachable
        raise kind(f"the embedding server answered with HTTP {reply.status}", hint=_HINTS.get(reply.status))
    try:
        (entry,) = orjson.loads(reply.body)["data"]
        values = entry["embedding"]
        if not 0 < len(values) <= _MOST_DIMENSIONS:
            raise ValueError
        if not all(type(value) in (int, float) for value in values):
            raise ValueError
        return np.array(values, np.float64)
    except (ValueError, TypeError, LookupError, OverflowError):
        raise EmbedderUnreachable(
            "the embedding server's reply has no vector", hint="it must implement OpenAI's /v1/embeddings"
        ) from None


_HINTS = {
    401: "gateway.cache.semantic.embedder.api_key_file must hold a key that it accepts",
    403: "gateway.cache.semantic.embedder.api_key_file must hold a key that it accepts",
    404: "check the model's name in gateway.cache.semantic.embedder, and that its url has no /v1",
}
