"""What the contract suite says to an engine and how it reads the answers; it asserts nothing."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import orjson

from phasewise.clients.http_client import HttpClient, Reply

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_numbers = count()
_run = f"{time.time_ns():x}"


def fresh_id() -> str:
    """An id no request has had, in this run or before it."""
    return f"contract-{_run}-{next(_numbers)}"


def chat_body(model: str, text: str = "Tell me a story.", *, max_tokens: int = 6, **fields: Any) -> bytes:
    messages = [{"role": "user", "content": text}]
    body = {"model": model, "messages": messages, "max_tokens": max_tokens, "temperature": 0}
    return orjson.dumps({**body, "ignore_eos": True, **fields})


def completion_body(
    model: str, prompt: Any = "Once upon a time", *, max_tokens: int = 6, **fields: Any
) -> bytes:
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    return orjson.dumps({**body, "ignore_eos": True, **fields})


def fresh_prompt_ids(length: int) -> list[int]:
    """Token ids that no engine has seen: what they hold in common ends at the first one or two."""
    start = time.time_ns() // 1000
    return [(start * 31 + index * 7919) % 30_000 + 100 for index in range(length)]


STREAM = {"stream": True, "stream_options": {"include_usage": True}}


@dataclass
class Streamed:
    """A stream as it was seen."""

    status: int = 0
    content_type: bytes = b""
    chunks: list[dict[str, Any]] = field(default_factory=list)
    last_event: bytes = b""
    wall_s: float = 0.0

    @property
    def content(self) -> list[dict[str, Any]]:
        """The chunks between the opening and the usage: those that carry tokens."""
        return [chunk for chunk in self.chunks if chunk["choices"] and "role" not in _delta(chunk)]

    @property
    def text(self) -> str:
        return "".join(
            _delta(chunk).get("content") or chunk["choices"][0].get("text") or "" for chunk in self.content
        )

    @property
    def finish_reasons(self) -> list[str]:
        reasons = [chunk["choices"][0]["finish_reason"] for chunk in self.content]
        return [reason for reason in reasons if reason is not None]


def _delta(chunk: dict[str, Any]) -> dict[str, Any]:
    return chunk["choices"][0].get("delta", {})


async def stream(client: HttpClient, path: str, body: bytes, request_id: str | None = None) -> Streamed:
    """Send a request and read its stream to the end."""
    seen = Streamed()
    started_s = time.monotonic()
    async with await client.send("POST", path, headers=_headers(request_id), body=body) as reply:
        seen.status = reply.status
        seen.content_type = dict(reply.headers)[b"content-type"]
        data = await reply.read_all(10_000_000)
    seen.wall_s = time.monotonic() - started_s
    for event in data.split(b"\n\n")[:-1]:
        seen.last_event = event
        if event != b"data: [DONE]":
            seen.chunks.append(orjson.loads(event.removeprefix(b"data: ")))
    return seen


async def post(client: HttpClient, path: str, body: bytes, request_id: str | None = None) -> Reply:
    return await client.fetch("POST", path, headers=_headers(request_id), body=body)


async def post_json(client: HttpClient, path: str, body: bytes, request_id: str | None = None) -> Any:
    return orjson.loads((await post(client, path, body, request_id)).body)


def _headers(request_id: str | None) -> list[tuple[bytes, bytes]]:
    headers = [(b"content-type", b"application/json")]
    return headers + ([(b"x-request-id", request_id.encode())] if request_id else [])


async def steps(client: HttpClient, since: int = 0) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header and the steps from number `since` on."""
    reply = await client.fetch("GET", f"/steps?since={since}&limit=100000")
    header, *records = [orjson.loads(line) for line in reply.body.splitlines()]
    return header, records


async def next_step(client: HttpClient) -> int:
    """The number the next step will have."""
    header, _ = await steps(client, since=1 << 40)
    return int(header["next"])


async def finished_steps(client: HttpClient, since: int, request_id: str) -> list[dict[str, Any]]:
    """The steps from `since` on, once the one in which this request ended is among them."""

    async def ended() -> list[dict[str, Any]]:
        _, records = await steps(client, since)
        ids = [request["id"] for record in records for request in record["finished"]]
        return records if request_id in ids else []

    return await until(ended, within_s=60.0)


async def running_requests(client: HttpClient) -> float:
    """How many requests the engine says are running."""
    text = (await client.fetch("GET", "/metrics")).body.decode()
    return sum(float(value) for value in re.findall(r"^vllm:num_requests_running\{.*\} (\S+)$", text, re.M))


async def until(ask: Callable[[], Any], within_s: float) -> Any:
    """Ask until the answer is true; the last answer, whatever it was, when time is up."""
    deadline_s = time.monotonic() + within_s
    while True:
        answer = await ask()
        if answer or time.monotonic() > deadline_s:
            return answer
        await asyncio.sleep(0.02)
