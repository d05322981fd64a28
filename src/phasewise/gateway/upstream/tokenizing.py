"""Asks a worker for the tokens of a prompt and of the answer so far, and checks that they spell it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import orjson

from phasewise.clients.http_client import HttpClient
from phasewise.core.errors import FailureKind, UpstreamError
from phasewise.gateway.upstream.resumption import LEAD, MARK, TOKENS_BEFORE, Resumption, TokensSoFar

TOKENIZE_WITHIN_S = 30.0
"""A worker that does not return a prompt's tokens within this time does not resume the answer."""
_JSON = (b"content-type", b"application/json")


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
    reply = await _led_answer_tokens(worker, plan, lead)
    if not lead:
        return reply
    lead_ids = (await _tokenize(worker, plan.lead_question(lead))).ids
    size = len(lead_ids)
    return replace(reply, ids=reply.ids[size:]) if reply.ids[:size] == lead_ids else None


async def _led_answer_tokens(worker: HttpClient, plan: Resumption, lead: str) -> _Tokenized:
    if question := plan.marked_answer_question(lead):
        reply = await _tokenize(worker, question)
        if reply.words and reply.words[-1] == MARK:
            return replace(reply, ids=reply.ids[:-1])
    return await _tokenize(worker, plan.answer_question(lead))


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
    reply = await worker.fetch("POST", path, headers=[_JSON], body=question)
    if reply.status != 200:
        raise UpstreamError(failure_of_continuing(reply.status), f"{path} answered with HTTP {reply.status}")
    try:
        fields = orjson.loads(reply.body)
    except orjson.JSONDecodeError:
        fields = None
    if not isinstance(fields, dict):
        raise UpstreamError(FailureKind.PROTOCOL, f"{path} did not answer with a JSON object")
    return fields
