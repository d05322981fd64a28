"""Decoding without a KV cache: every output token is the first token of its own request.

For each token the engine computes prompt and answer so far from the beginning, as it would have to without a
KV cache. The loopback exchange of each token adds to that. Greedy answers equal the engine's own except at
near-ties: prompts and single tokens use different kernels, which round differently.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from phasewise.clients.engine_metrics import fetch_metrics
from phasewise.clients.engine_report import read_report
from phasewise.clients.http_client import HttpClient, Reply
from phasewise.core.engine_metrics import Series
from phasewise.core.errors import (
    ConfigError,
    EngineUnreachable,
    FailureKind,
    RejectionKind,
    RequestRejected,
    UpstreamError,
)
from phasewise.core.request import Endpoint
from phasewise.experiments.lever_runs.handicap_app import HeldRequest
from phasewise.gateway.http_errors import JSON
from phasewise.gateway.server.client import Headers

# --- Which requests an engine without a KV cache can serve: chats that can be answered token by token.

MOST_OUTPUT_TOKENS = 64
"""The work grows with the square of the output: longer answers would take too long."""
TAKEN = frozenset({
    *("model", "messages", "max_tokens", "max_completion_tokens", "min_tokens", "ignore_eos"),
    *("temperature", "stream", "stream_options"),
})  # fmt: skip
"""Fields that work token by token; others would be ignored, so they are rejected."""


@dataclass(frozen=True, slots=True)
class Order:
    """A client's request, as far as it can be served without a cache."""

    model: str
    messages: object
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    include_usage: bool

    @property
    def conversation(self) -> dict[str, object]:
        """The request to the engine's tokenizer."""
        return {"model": self.model, "messages": self.messages}

    def step(self, ids: list[int], written: int) -> dict[str, object]:
        """The request to the engine for the next token."""
        return {
            "model": self.model,
            "prompt": ids,
            "max_tokens": 1,
            # Each token is a first one to the engine: it may end the answer only where the whole may end.
            "min_tokens": int(written < self.min_tokens),
            "ignore_eos": self.ignore_eos,
            "temperature": 0,
            "return_token_ids": True,
        }


def read_order(body: bytes) -> Order:
    """Read a request's body; unsupported fields are rejected by name."""
    fields = _fields(body)
    max_tokens = fields.get("max_completion_tokens", fields.get("max_tokens"))
    if type(max_tokens) is not int or not 1 <= max_tokens <= MOST_OUTPUT_TOKENS:
        raise _rejection(f"answers without a KV cache have 1 to {MOST_OUTPUT_TOKENS} tokens", "max_tokens")
    if fields.get("stream") is not True:
        raise _rejection("answers without a KV cache are streamed", "stream")
    if fields.get("temperature") != 0:
        raise _rejection("answers without a KV cache are greedy: ask for temperature 0", "temperature")
    options = fields.get("stream_options")
    return Order(
        model=str(fields.get("model", "")),
        messages=fields.get("messages"),
        max_tokens=max_tokens,
        min_tokens=int(fields.get("min_tokens") or 0),
        ignore_eos=fields.get("ignore_eos") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
    )


def _fields(body: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        fields = None
    if not isinstance(fields, dict):
        raise _rejection("the request's body is not a JSON object")
    for name in fields:
        if name not in TAKEN:
            raise _rejection("this field is not supported without a KV cache: remove it", name)
    return fields


def _rejection(message: str, param: str | None = None) -> RequestRejected:
    return RequestRejected(RejectionKind.BAD_REQUEST, message, param=param)


CACHE_OFF = "start it with prefix_cache: false, which is --no-enable-prefix-caching"
STREAM: Headers = ((b"content-type", b"text/event-stream; charset=utf-8"),)
DONE = b"data: [DONE]\n\n"
UNFINISHED = "\ufffd"
"""What a tokenizer writes for an incomplete character."""


@dataclass(frozen=True, slots=True)
class _ScoredToken:
    """One token, as the engine wrote it."""

    token_id: int
    text: str
    ended: bool


class _Rejected(Exception):
    """The engine rejected a request; carries its reply."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(f"HTTP {reply.status}")
        self.reply = reply


@dataclass(frozen=True, slots=True)
class Recomputation:
    """Answers chats for an engine, token by token."""

    engine: HttpClient

    async def __call__(self, asked: HeldRequest) -> None:
        """Answer one request; before the first token, the engine's own rejection is forwarded."""
        order = read_order(asked.body)
        try:
            await self._stream(order, asked)
        except _Rejected as rejected:
            reply, client = rejected.reply, asked.client
            if client.started:
                raise UpstreamError(
                    FailureKind.SERVER_ERROR, f"the engine answered with HTTP {reply.status}"
                ) from rejected
            await client.respond(reply.status, JSON, reply.body)

    async def _stream(self, order: Order, asked: HeldRequest) -> None:
        headers = _headers_onward(asked)
        ids, context_tokens_left = _prompt(await self._ask("/tokenize", order.conversation, headers))
        prompt_tokens, wanted = len(ids), max(min(order.max_tokens, context_tokens_left), 1)
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

    async def _text(self, token: _ScoredToken, held: list[int], order: Order, headers: Headers) -> str:
        """What a token adds to the answer; parts of one character are held until it is complete.

        For the engine the held parts are in a prompt that ends within a character. It then returns the whole
        prompt as new text, so its tokenizer is used instead.
        """
        if token.ended or (token.text and not held):
            return token.text
        held.append(token.token_id)
        said = await self._ask("/detokenize", {"model": order.model, "tokens": held}, headers)
        with _as_vllm_says():
            text: str = orjson.loads(said)["prompt"]
        if text.endswith(UNFINISHED):
            return ""
        # A token without text that is no part of a character is a marker, such as the end of the answer.
        whole = text if len(held) > 1 else ""
        held.clear()
        return whole

    async def _ask(self, path: str, body: Mapping[str, Any], headers: Headers) -> bytes:
        reply = await self.engine.fetch("POST", path, headers=headers, body=orjson.dumps(body))
        if reply.status != 200:
            raise _Rejected(reply)
        return reply.body


@dataclass(frozen=True, slots=True)
class _Events:
    """Writes the stream as vLLM would."""

    asked: HeldRequest
    model: str

    async def delta(self, delta: Mapping[str, str], reason: str | None = None) -> None:
        """A chunk of the answer."""
        await self._send([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}])

    async def usage(self, prompt_tokens: int, output_tokens: int) -> None:
        """The chunk with the usage."""
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


def _headers_onward(asked: HeldRequest) -> Headers:
    # These are separate requests: in JSON whatever the client's content type, each with its own id.
    return [*JSON, *((name, value) for name, value in asked.headers if name == b"authorization")]


def _prompt(said: bytes) -> tuple[list[int], int]:
    """The prompt's tokens, and how many may follow them."""
    with _as_vllm_says():
        reply = orjson.loads(said)
        ids: list[int] = reply["tokens"]
        return ids, int(reply["max_model_len"]) - len(ids)


def _token(said: bytes) -> _ScoredToken:
    with _as_vllm_says():
        reply = orjson.loads(said)
        (choice,) = reply["choices"]
        (token_id,) = choice["token_ids"]
        cached_tokens = read_report(reply["usage"], None).cached_tokens
        token = _ScoredToken(token_id, choice["text"], choice["finish_reason"] == "stop")
    if cached_tokens:
        raise UpstreamError(
            FailureKind.PROTOCOL,
            f"the engine took {cached_tokens} tokens from its prefix cache, so this does not show decoding "
            f"without a KV cache ({CACHE_OFF})",
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
    """Reject an engine that reports a prefix cache; if it reports nothing, each reply is checked."""
    try:
        said = (await fetch_metrics(engine)).infos.get(Series.CACHE_CONFIG, {})
    except UpstreamError as error:
        if error.kind is FailureKind.PROTOCOL:
            return
        raise EngineUnreachable(
            f"nothing answers at {engine.base_url}", hint="check the address and that the engine is ready"
        ) from error
    if said.get("enable_prefix_caching") == "True":
        raise ConfigError(
            f"the engine at {engine.base_url} has a prefix cache, so it would not compute again what it has "
            "computed before",
            hint=CACHE_OFF,
        )
