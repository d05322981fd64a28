"""Asks an engine or a gateway over HTTP, plainly or streamed, and takes answers apart.

What is asked, and what is made of the answers, is the scripts' matter.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson

from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.clients.sse import EventSplitter, event_data

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
PATIENT = Timeouts(connect_s=10.0, head_s=300.0, idle_s=300.0)


class AskFailed(Exception):
    """An answer that is not one; the text says which."""


async def ask(client: HttpClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """A plain answer."""
    reply = await client.fetch(
        "POST", path, headers=[(b"content-type", b"application/json")], body=orjson.dumps(body)
    )
    if reply.status != 200:
        raise AskFailed(f"{path} answered with HTTP {reply.status}: {reply.body[:300].decode()}")
    reported: dict[str, Any] = orjson.loads(reply.body)
    return reported


async def stream(client: HttpClient, path: str, body: dict[str, Any]) -> AsyncIterator[bytes]:
    """The events of a streamed answer as they come, without the lines that part them."""
    headers = [(b"content-type", b"application/json")]
    async with await client.send("POST", path, headers=headers, body=orjson.dumps(body)) as reply:
        if reply.status != 200:
            rejection = await reply.read_all(1 << 20)
            raise AskFailed(f"{path} answered with HTTP {reply.status}: {rejection[:300].decode()}")
        splitter = EventSplitter()
        while data := await reply.read():
            for event in splitter.feed(data):
                yield event


def chunk_of(event: bytes) -> dict[str, Any] | None:
    """An event as JSON; None for the mark that ends a stream and for comments."""
    data = event_data(event)
    return None if data in {b"", b"[DONE]"} else orjson.loads(data)


def text_of(chunk: dict[str, Any]) -> str:
    """The text that a chunk adds, of either endpoint."""
    if not chunk.get("choices"):
        return ""
    choice = chunk["choices"][0]
    return choice["delta"].get("content") or "" if "delta" in choice else choice["text"]
