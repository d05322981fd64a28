"""Decoding without a KV cache: every output token is the first token of a request of its own.

The engine computes prompt and answer so far from the beginning, for each token, as it would have to if it
kept nothing. The exchange over loopback that each token takes comes on top. Greedy answers are the engine's
own, but for near ties: prompts and single tokens go through other kernels, which round otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from phasewise.adapters.engine_report import read_report
from phasewise.adapters.http_client import HttpClient, Reply
from phasewise.adapters.vllm_metrics import fetch_metrics
from phasewise.errors import ConfigError, EngineUnreachable, FailureKind, UpstreamError
from phasewise.gateway.asgi import Headers
from phasewise.gateway.http_errors import JSON
from phasewise.levers.recompute_order import Order, read_order
from phasewise.levers.restrained_app import Asked
from phasewise.model.request import Endpoint

CACHE_OFF = "start it with prefix_cache: false, which is --no-enable-prefix-caching"
STREAM: Headers = ((b"content-type", b"text/event-stream; charset=utf-8"),)
DONE = b"data: [DONE]\n\n"
UNFINISHED = "\ufffd"
"""What a tokenizer writes for bytes that are no character yet."""


@dataclass(frozen=True, slots=True)
class _Token:
    """One token, as the engine wrote it."""

    token_id: int
    text: str
    ended: bool


class _Refused(Exception):
    """The engine did not do what it was asked; carries its reply."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(f"HTTP {reply.status}")
        self.reply = reply


@dataclass(frozen=True, slots=True)
class Recomputation:
    """Answers chats on behalf of an engine, a token at a time."""

    engine: HttpClient

    async def __call__(self, asked: Asked) -> None:
        """Answer one request; before the first token the engine's own refusal is handed on."""
        order = read_order(asked.body)
        try:
            await self._stream(order, asked)
        except _Refused as refused:
            reply, client = refused.reply, asked.client
            if client.started:
                raise UpstreamError(
                    FailureKind.SERVER_ERROR, f"the engine answered with HTTP {reply.status}"
                ) from refused
            await client.respond(reply.status, JSON, reply.body)

    async def _stream(self, order: Order, asked: Asked) -> None:
        headers = _headers_onward(asked)
        ids, room_tokens = _prompt(await self._ask("/tokenize", order.conversation, headers))
        prompt_tokens, wanted = len(ids), max(min(order.max_tokens, room_tokens), 1)
        events = _Events(asked, order.model)
        held: list[int] = []
        written, reason = 0, None
        while reason is None:
            said = await self._ask(Endpoint.COMPLETIONS, order.step(ids, written), headers)
            token = _token(said)
            ids.append(token.token_id)
            written += 1
            reason = "stop" if token.ended else "length" if written == wanted else None
            if not asked.client.started:
                await asked.client.start(200, STREAM)
                await events.delta({"role": "assistant", "content": ""})
            await events.delta({"content": await self._text(token, held, order, headers)}, reason)
        if order.include_usage:
            await events.usage(prompt_tokens, written)
        await asked.client.finish(DONE)

    async def _text(self, token: _Token, held: list[int], order: Order, headers: Headers) -> str:
        """What a token adds to the answer; those that are parts of one character are held until it is whole.

        To the engine the parts before it belong to a prompt that ends within a character. It then takes the
        whole prompt for new text, so its tokenizer is asked instead.
        """
        if token.ended or (token.text and not held):
            return token.text
        held.append(token.token_id)
        said = await self._ask("/detokenize", {"model": order.model, "tokens": held}, headers)
        with _as_vllm_says():
            text: str = orjson.loads(said)["prompt"]
        if text.endswith(UNFINISHED):
            return ""
        # One that has no text and is no part of a character is a mark, such as that of the answer's end.
        whole = text if len(held) > 1 else ""
        held.clear()
        return whole

    async def _ask(self, path: str, body: Mapping[str, Any], headers: Headers) -> bytes:
        reply = await self.engine.fetch("POST", path, headers=headers, body=orjson.dumps(body))
        if reply.status != 200:
            raise _Refused(reply)
        return reply.body


@dataclass(frozen=True, slots=True)
class _Events:
    """Writes the stream as vLLM would."""

    asked: Asked
    model: str

    async def delta(self, delta: Mapping[str, str], reason: str | None = None) -> None:
        """A chunk of the answer."""
        await self._send([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}])

    async def usage(self, prompt_tokens: int, output_tokens: int) -> None:
        """The chunk that counts."""
        counts = {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens}
        await self._send([], usage={**counts, "total_tokens": prompt_tokens + output_tokens})

    async def _send(self, choices: list[dict[str, Any]], **more: object) -> None:
        chunk = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": self.model,
            "choices": choices,
            **more,
        }
        await self.asked.client.send_part(b"data: " + orjson.dumps(chunk) + b"\n\n")

    @property
    def _id(self) -> str:
        named = (value for name, value in self.asked.headers if name == b"x-request-id")
        return f"chatcmpl-{next(named, b'recomputed').decode(errors='replace')}"


def _headers_onward(asked: Asked) -> Headers:
    # Ours are other requests, in JSON whatever the client called its own, and each with an id of its own.
    return [*JSON, *((name, value) for name, value in asked.headers if name == b"authorization")]


def _prompt(said: bytes) -> tuple[list[int], int]:
    """The prompt's tokens, and how many may follow them."""
    with _as_vllm_says():
        reply = orjson.loads(said)
        ids: list[int] = reply["tokens"]
        return ids, int(reply["max_model_len"]) - len(ids)


def _token(said: bytes) -> _Token:
    with _as_vllm_says():
        reply = orjson.loads(said)
        (choice,) = reply["choices"]
        (token_id,) = choice["token_ids"]
        cached_tokens = read_report(reply["usage"], None).cached_tokens
        token = _Token(token_id, choice["text"], choice["finish_reason"] == "stop")
    if cached_tokens:
        raise UpstreamError(
            FailureKind.PROTOCOL,
            f"the engine took {cached_tokens} tokens from its prefix cache: nothing is shown without a KV "
            f"cache there ({CACHE_OFF})",
        )
    return token


@contextmanager
def _as_vllm_says() -> Iterator[None]:
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UpstreamError(
            FailureKind.PROTOCOL, "the engine's reply lacks what vLLM's replies hold (token ids, usage)"
        ) from error


async def check_cache_is_off(engine: HttpClient) -> None:
    """Refuse an engine that says it keeps a prefix cache; one that does not say is watched reply by reply."""
    try:
        said = (await fetch_metrics(engine)).infos.get("cache_config_info", {})
    except UpstreamError as error:
        if error.kind is FailureKind.PROTOCOL:
            return
        raise EngineUnreachable(
            f"nothing answers at {engine.base_url}", hint="check the address and that the engine is ready"
        ) from error
    if said.get("enable_prefix_caching") == "True":
        raise ConfigError(
            f"the engine at {engine.base_url} has a prefix cache, so that it would not compute anew what it "
            "has computed before",
            hint=CACHE_OFF,
        )
