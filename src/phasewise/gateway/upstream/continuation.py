"""Continues a broken answer on another worker: its tokens for the text so far, its completion as the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from phasewise.clients.http_client import HttpClient
from phasewise.clients.sse import DONE, EventSplitter, event_data
from phasewise.core.errors import FailureKind, UpstreamError
from phasewise.core.request import Endpoint
from phasewise.gateway.http_errors import JSON
from phasewise.gateway.upstream.response import Answer, StreamRelay
from phasewise.gateway.upstream.resumption import LEAD, MARK, TOKENS_BEFORE, Resumption, TokensSoFar

# --- Asks a worker for the tokens of a prompt and of the answer so far, and checks that they spell it.

TOKENIZE_WITHIN_S = 30.0
"""A worker that does not return a prompt's tokens within this time does not resume the answer."""


async def tokens_so_far(worker: HttpClient, plan: Resumption) -> TokensSoFar:
    """The tokens of the prompt and of the answer so far, as this worker reads them."""
    try:
        async with asyncio.timeout(TOKENIZE_WITHIN_S):
            prompt_ids = plan.known_prompt_ids()
            if prompt_ids is None:
                prompt_ids = (await _tokenize(worker, plan.prompt_question())).ids
            answer = await _spelling_tokens(worker, plan, prompt_ids[-TOKENS_BEFORE:])
    except TimeoutError:
        raise UpstreamError(
            FailureKind.TIMED_OUT, f"the worker returned no tokens in {TOKENIZE_WITHIN_S:g} s"
        ) from None
    except UpstreamError as error:
        if error.kind is not FailureKind.CLOSED:
            raise
        # It has computed nothing for this request, which cannot have crashed it: as if it were unreachable.
        raise UpstreamError(
            FailureKind.CONNECTION_REFUSED, "the worker went away before it could go on"
        ) from error
    return TokensSoFar(prompt_ids, answer.ids, answer.max_model_len)


def failure_of_continuing(status: int) -> FailureKind:
    """The kind of failure of a worker that does not resume an answer.

    A worker that rejects the request is healthy; it, or its model, does not support this.
    """
    return FailureKind.NOT_CONTINUED if 400 <= status < 500 else FailureKind.SERVER_ERROR


@dataclass(frozen=True, slots=True)
class _Tokenized:
    ids: list[int]
    words: list[str]
    max_model_len: int


async def _spelling_tokens(worker: HttpClient, plan: Resumption, before: list[int]) -> _Tokenized:
    """Tokens that spell the answer so far after the prompt's last tokens.

    On their own they do not show it: a tokenizer that puts a space before a text removes it from the
    spelling.
    """
    text = await _detokenize(worker, plan, before) + plan.text
    for lead in ("", LEAD):
        reply = await _answer_tokens(worker, plan, lead)
        if reply is not None and await _detokenize(worker, plan, before + reply.ids) == text:
            return reply
    raise UpstreamError(FailureKind.NOT_CONTINUED, "the tokens of the answer so far do not spell it")


async def _answer_tokens(worker: HttpClient, plan: Resumption, lead: str) -> _Tokenized | None:
    """The answer's tokens, read after a lead; None if the two cannot be separated."""
    reply = None
    if question := plan.marked_answer_question(lead):
        marked = await _tokenize(worker, question)
        if marked.words and marked.words[-1] == MARK:
            reply = replace(marked, ids=marked.ids[:-1])
    if reply is None:
        reply = await _tokenize(worker, plan.answer_question(lead))
    if not lead:
        return reply
    lead_ids = (await _tokenize(worker, plan.lead_question(lead))).ids
    size = len(lead_ids)
    return replace(reply, ids=reply.ids[size:]) if reply.ids[:size] == lead_ids else None


async def _tokenize(worker: HttpClient, question: bytes) -> _Tokenized:
    reply = await _ask(worker, "/tokenize", question)
    if "tokens" in reply and "max_model_len" not in reply:
        # As of llama.cpp, which is healthy, and asked in other words.
        raise UpstreamError(FailureKind.NOT_CONTINUED, "/tokenize is not vLLM's")
    try:
        return _Tokenized(reply["tokens"], reply.get("token_strs") or [], int(reply["max_model_len"]))
    except (KeyError, TypeError, ValueError):
        raise UpstreamError(FailureKind.PROTOCOL, "/tokenize returned no tokens") from None


async def _detokenize(worker: HttpClient, plan: Resumption, ids: list[int]) -> str:
    if not ids:
        return ""
    reply = await _ask(worker, "/detokenize", plan.spelling_question(ids))
    if not isinstance(text := reply.get("prompt"), str):
        raise UpstreamError(FailureKind.PROTOCOL, "/detokenize returned no text")
    return text


async def _ask(worker: HttpClient, path: str, question: bytes) -> dict[str, Any]:
    reply = await worker.fetch("POST", path, headers=JSON, body=question)
    if reply.status != 200:
        raise UpstreamError(failure_of_continuing(reply.status), f"{path} answered with HTTP {reply.status}")
    try:
        fields = orjson.loads(reply.body)
    except orjson.JSONDecodeError:
        fields = None
    if not isinstance(fields, dict):
        raise UpstreamError(FailureKind.PROTOCOL, f"{path} did not answer with a JSON object")
    return fields


# --- Makes a completion that resumes a broken answer look like the rest of that answer.
#
# Ids, shape and counts become those of the stream that the client reads.


@dataclass(frozen=True, slots=True)
class ClientsView:
    """What the chunks of the client's stream have in common, and its tokens so far."""

    endpoint: Endpoint
    client_id: str
    created: int | None
    prompt_tokens: int
    answer_tokens: int

    def chunk(self, chunk: Mapping[str, Any]) -> dict[str, Any]:
        """A completion's chunk as one of the client's."""
        seen = {**chunk, "id": self.client_id}
        if self.created is not None:
            seen["created"] = self.created
        if isinstance(chunk.get("choices"), list):
            seen["choices"] = [self._choice(choice) for choice in chunk["choices"]]
        if isinstance(chunk.get("usage"), dict):
            seen["usage"] = self._usage(chunk["usage"])
        if self.endpoint is Endpoint.CHAT:
            seen["object"] = "chat.completion.chunk"
        return seen

    def _choice(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        if self.endpoint is Endpoint.COMPLETIONS:
            return dict(choice)
        seen = {
            "index": 0,
            "delta": {"content": choice.get("text", "")},
            "logprobs": None,
            "finish_reason": choice.get("finish_reason"),
        }
        if choice.get("finish_reason") is not None:
            seen["stop_reason"] = choice.get("stop_reason")
        return seen

    def _usage(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        # Tokens before the break are prompt to the new worker and answer to the client.
        written = self.answer_tokens + int(usage.get("completion_tokens") or 0)
        seen = {
            **usage,
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + written,
            "completion_tokens": written,
        }
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict) and isinstance(cached := details.get("cached_tokens"), int):
            seen["prompt_tokens_details"] = {**details, "cached_tokens": min(cached, self.prompt_tokens)}
        return seen


class ContinuedStream(StreamRelay):
    """Relays the rest of an answer. The client already has the text that is written `again`."""

    __slots__ = ("_again", "_raw", "_view")

    def __init__(self, answer: Answer, view: ClientsView, *, again: str = "", hide_usage: bool) -> None:
        super().__init__(answer, hide_usage=hide_usage)
        self._raw = EventSplitter()
        self._view = view
        self._again = again

    def feed(self, data: bytes, at_s: float) -> bytes:
        """What may be sent to the client now that `data` has come."""
        seen = b"".join(map(self._as_the_clients, self._raw.feed(data)))
        return super().feed(seen, at_s) if seen else b""

    def takes_usual(self, data: bytes, start: int, end: int, at_s: float) -> bool:
        """Nothing passes as it came."""
        del data, start, end, at_s
        return False

    def _as_the_clients(self, event: bytes) -> bytes:
        try:
            chunk = orjson.loads(event_data(event))
        except orjson.JSONDecodeError:
            return event + b"\n\n"
        if not isinstance(chunk, dict) or "choices" not in chunk:
            return event + b"\n\n"
        try:
            return self._chunk_as_the_clients(chunk)
        except (AttributeError, TypeError, ValueError):
            raise UpstreamError(FailureKind.PROTOCOL, "the worker's chunks are not a completion's") from None

    def _chunk_as_the_clients(self, chunk: dict[str, Any]) -> bytes:
        if self.answer.engine_request_id is None:
            self.answer.engine_request_id = chunk.get("id")
        if self._again:
            self._take_out_again(chunk["choices"])
        return _event(self._view.chunk(chunk))

    def _take_out_again(self, choices: list[dict[str, Any]]) -> None:
        for choice in choices:
            text = choice.get("text") or ""
            size = min(len(text), len(self._again))
            if text[:size] != self._again[:size] or (size < len(self._again) and choice.get("finish_reason")):
                raise UpstreamError(FailureKind.NOT_CONTINUED, "the worker resumed with another word")
            choice["text"], self._again = text[size:], self._again[size:]


def completion_ending(model: str, finish_reason: str | None) -> bytes:
    """A completion without text, for an answer that only lacks its end.

    Without a finish reason, because the client already has it.
    """
    frame = {"object": "text_completion", "model": model}
    end = {"index": 0, "text": "", "logprobs": None, "finish_reason": finish_reason, "stop_reason": None}
    nothing = {"prompt_tokens": 0, "total_tokens": 0, "completion_tokens": 0}
    usage = _event({**frame, "choices": [], "usage": nothing})
    return (_event({**frame, "choices": [end]}) if finish_reason else b"") + usage + DONE + b"\n\n"


def _event(chunk: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(chunk) + b"\n\n"
