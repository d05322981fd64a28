"""Sends requests over connections of their own, byte for byte as told, and says what an answer means."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson

from .kinds import Request

PIECE_BYTES = 8_192
READ_BYTES = 256 * 1024
GIVE_UP_S = 600.0
FIRST_WORD = b'":" t'
"""Where the text of a fake engine's answer begins, in any reply."""


@dataclass(slots=True)
class Answer:
    """What came back; `failure` says how the conversation broke."""

    ttft_s: float = GIVE_UP_S
    data: bytes = b""
    failure: str | None = None

    @property
    def status(self) -> int:
        """The status; 0 without an answer."""
        words = self.data[:32].split(b" ")
        return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0

    def rejection(self) -> str | None:
        """Its status and code, if this is no answer; then it was rejected."""
        if self.status == 200:
            return None
        try:
            error = orjson.loads(self.body())["error"]
            return f"{self.status} {error.get('code')}: {error.get('message')}"[:160]
        except (ValueError, LookupError, TypeError, AttributeError):
            return f"{self.status} {self.failure or ''}".strip()

    def body(self) -> bytes:
        """What follows the head, without its framing."""
        head, _, rest = self.data.partition(b"\r\n\r\n")
        if b"transfer-encoding: chunked" not in head.lower():
            return rest
        parts: list[bytes] = []
        while True:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size, 16)
            if not length:
                return b"".join(parts)
            parts.append(rest[:length])
            rest = rest[length + 2 :]

    def meaning(self) -> Any:  # noqa: ANN401 - to be compared
        """Everything that must not depend on who answered: texts, log-probabilities, ends, usage."""
        if self.failure is not None:
            return self.failure
        try:
            body = self.body()
            if not body.startswith(b"data: "):
                reply = orjson.loads(body)
                return [_choice(choice, "message") for choice in reply["choices"]], _usage(reply)
            *events, last, rest = body.split(b"\n\n")
            chunks = [orjson.loads(event.removeprefix(b"data: ")) for event in events]
        except (ValueError, LookupError) as error:
            return f"unreadable: {error}"
        said: dict[int, list[Any]] = {}
        for chunk in chunks:
            for choice in chunk["choices"]:
                said.setdefault(choice["index"], []).append(_choice(choice, "delta"))
        whole = {index: _joined(parts) for index, parts in said.items()}
        return whole, [usage for usage in map(_usage, chunks) if usage], (last, rest)


def _choice(choice: dict[str, Any], holder: str) -> tuple[str, Any, str | None]:
    text = choice.get("text") or choice.get(holder, {}).get("content") or ""
    return text, choice["logprobs"], choice["finish_reason"]


def _joined(parts: Sequence[tuple[str, Any, str | None]]) -> tuple[str, list[Any], list[str]]:
    texts, likely, ends = zip(*parts, strict=True)
    return "".join(texts), [each for each in likely if each], [end for end in ends if end]


def _usage(reply: dict[str, Any]) -> tuple[int, ...] | None:
    usage = reply.get("usage")
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return None if usage is None else tuple(usage[name] for name in names)


async def send(url: str, request: Request) -> Answer:
    """Send one request, and read until the other side closes."""
    answer, began_s = Answer(), time.monotonic()
    try:
        async with asyncio.timeout(GIVE_UP_S):
            reader, writer = await asyncio.open_connection(*_address(url), limit=READ_BYTES)
            try:
                await _converse(reader, writer, request, answer, began_s)
            finally:
                writer.transport.abort()
    except TimeoutError:
        answer.failure = "nothing came in time"
    except OSError as error:
        answer.failure = f"{type(error).__name__}: {error}"
    return answer


async def _converse(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    request: Request,
    answer: Answer,
    began_s: float,
) -> None:
    sending = asyncio.create_task(_write(writer, request))
    parts: list[bytes] = []
    try:
        while part := await reader.read(READ_BYTES):
            parts.append(part)
            if answer.ttft_s == GIVE_UP_S and FIRST_WORD in part:
                answer.ttft_s = time.monotonic() - began_s
    finally:
        # A server may answer and close before it has read everything.
        sending.cancel()
        with suppress(OSError, asyncio.CancelledError):
            await sending
        answer.data = b"".join(parts)


async def _write(writer: asyncio.StreamWriter, request: Request) -> None:
    lines = [
        f"POST {request.path} HTTP/{request.version}",
        "host: localhost",
        "content-type: application/json",
        *(f"{name}: {value}" for name, value in (request.headers or {}).items()),
        "transfer-encoding: chunked" if request.is_chunked else f"content-length: {len(request.body)}",
        *(["connection: close"] if request.version == "1.1" else []),
    ]
    writer.write("\r\n".join([*lines, "\r\n"]).encode())
    if not request.is_chunked:
        writer.write(request.body)
        await writer.drain()
        return
    for start in range(0, len(request.body), PIECE_BYTES):
        piece = request.body[start : start + PIECE_BYTES]
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await writer.drain()
    writer.write(b"0\r\n\r\n")


async def burst(urls: Sequence[str], requests: Sequence[Request]) -> list[Answer]:
    """All of them at once, in turn over these addresses."""
    sent = (send(urls[number % len(urls)], request) for number, request in enumerate(requests))
    return await asyncio.gather(*sent)


@asynccontextmanager
async def idle_connections(url: str, count: int) -> AsyncIterator[None]:
    """Connections that have asked once and wait."""
    held = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection(*_address(url))
        writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        held.append(writer)
    try:
        yield
    finally:
        for writer in held:
            writer.transport.abort()


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return str(parts.hostname), int(parts.port or 80)
