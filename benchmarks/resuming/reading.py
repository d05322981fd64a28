"""Reads one stream to its end, whatever happens to it, and says how it ended.

What it should have been is the scripts' to know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from phasewise.clients.http_client import HttpClient
from phasewise.clients.sse import EventSplitter, event_data
from phasewise.core.errors import UpstreamError

from .asking import text_of

WHOLE = "whole"
CUT = "cut off without a word"
WENT_ON = "went on after its end"


@dataclass
class Read:
    """What came of a stream. `ended` is `WHOLE`, the code of an error, `CUT` or `WENT_ON`."""

    text: str = ""
    chunks: int = 0
    ended: str = CUT
    request_id: str = ""
    ids: frozenset[str] = frozenset()
    usage: dict[str, Any] | None = None


async def read_stream(
    client: HttpClient, path: str, body: dict[str, Any], on_chunk: Callable[[Read], None] | None = None
) -> Read:
    """Ask for a stream and read it; `on_chunk` is told of every chunk with text."""
    read = Read()
    headers = [(b"content-type", b"application/json")]
    try:
        async with await client.send("POST", path, headers=headers, body=orjson.dumps(body)) as reply:
            read.request_id = dict(reply.headers).get(b"x-request-id", b"").decode()
            if reply.status != 200:
                read.ended = str(orjson.loads(await reply.read_all(1 << 20))["error"]["code"])
                return read
            splitter = EventSplitter()
            while data := await reply.read():
                for event in splitter.feed(data):
                    _note(read, event_data(event), on_chunk)
    except (UpstreamError, orjson.JSONDecodeError):
        read.ended = CUT
    return read


def _note(read: Read, data: bytes, on_chunk: Callable[[Read], None] | None) -> None:
    if not data:
        return
    if read.ended != CUT:
        read.ended = WENT_ON
        return
    if data == b"[DONE]":
        read.ended = WHOLE
        return
    chunk = orjson.loads(data)
    if "error" in chunk:
        read.ended = str(chunk["error"]["code"])
        return
    read.ids |= {chunk["id"]}
    read.usage = chunk.get("usage") or read.usage
    if text := text_of(chunk):
        read.text += text
        read.chunks += 1
        if on_chunk is not None:
            on_chunk(read)
