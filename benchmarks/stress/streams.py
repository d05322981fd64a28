"""A client that streams one answer and notes what it saw. When and how often it asks is left to others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import orjson

from phasewise.benchmark.generator import now_s
from phasewise.benchmark.workload.prompts import write_text
from phasewise.clients.http_client import Headers, HttpClient, StreamedReply
from phasewise.clients.sse import EventSplitter, content_text, event_data, parse_chunk
from phasewise.core.errors import UpstreamError
from phasewise.core.request import Endpoint

ERROR_BODY_LIMIT_BYTES = 64 * 1024
HEADERS = ((b"content-type", b"application/json"),)


@dataclass(slots=True)
class Answer:
    """What a client saw, on the clock of phasewise's generator; `failure` says how the conversation broke."""

    sent_s: float
    status: int = 0
    code: str | None = None
    retry_after: str | None = None
    first_s: float | None = None
    last_s: float = 0.0
    chunks: int = 0
    text: str = ""
    finish_reason: str | None = None
    done: bool = False
    error_event: str | None = None
    failure: str | None = None

    @property
    def whole(self) -> bool:
        """Whether the answer came to its end."""
        return self.done and self.finish_reason is not None and self.error_event is None

    @property
    def tpot_s(self) -> float | None:
        """Time per chunk after the first; the engines here write a token per chunk."""
        if self.first_s is None or self.chunks < 2:
            return None
        return (self.last_s - self.first_s) / (self.chunks - 1)


def chat_body(model: str, prompt: str, max_tokens: int) -> bytes:
    """A streamed request for exactly so many tokens."""
    return orjson.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "min_tokens": max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
    )


def prompts(count: int, words: int, seed: int) -> list[str]:
    """Texts that share no beginning."""
    rng = Random(seed)
    return [write_text(words, rng) for _ in range(count)]


async def ask(
    client: HttpClient,
    body: bytes,
    on_content: Callable[[int], None] | None = None,
    *,
    keep_text: bool = False,
    headers: Headers = HEADERS,
) -> Answer:
    """Send a request and read what comes; `on_content` is called with each content's number, from 1 on."""
    answer = Answer(now_s())
    try:
        async with await client.send("POST", Endpoint.CHAT, headers=headers, body=body) as reply:
            answer.status = reply.status
            if reply.status == 200:
                await reply.pour(_Listener(answer, on_content, keep_text))
            else:
                await _read_rejection(reply, answer)
    except UpstreamError as error:
        answer.failure = str(error.kind)
    return answer


async def _read_rejection(reply: StreamedReply, answer: Answer) -> None:
    headers = dict(reply.headers)
    retry_after = headers.get(b"retry-after")
    answer.retry_after = None if retry_after is None else retry_after.decode()
    answer.code = _error_code(await reply.read_all(ERROR_BODY_LIMIT_BYTES))


def _error_code(body: bytes) -> str | None:
    try:
        return str(orjson.loads(body)["error"]["code"])
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return None


class _Listener:
    """Notes what a stream says, at the moment it says it."""

    __slots__ = ("_answer", "_keep_text", "_on_content", "_splitter")

    def __init__(self, answer: Answer, on_content: Callable[[int], None] | None, keep_text: bool) -> None:
        self._answer = answer
        self._on_content = on_content
        self._keep_text = keep_text
        self._splitter = EventSplitter()

    def __call__(self, data: bytes) -> None:
        at_s = now_s()
        answer = self._answer
        for event in self._splitter.feed(data):
            chunk = parse_chunk(event)
            answer.done = answer.done or chunk.done
            if chunk.error is not None:
                answer.error_event = _error_code(event_data(event)) or chunk.error
            answer.finish_reason = chunk.finish_reason or answer.finish_reason
            if chunk.has_content:
                answer.chunks += 1
                answer.last_s = at_s
                if self._keep_text:
                    answer.text += content_text(event)
                if answer.first_s is None:
                    answer.first_s = at_s
                if self._on_content is not None:
                    self._on_content(answer.chunks)
