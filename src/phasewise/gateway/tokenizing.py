"""Asks a worker for the tokens of a prompt and of the answer so far, and whether they spell it.

The worker computes nothing for that. What is asked is resumption.py's to say.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import orjson

from phasewise.adapters.http_client import HttpClient
from phasewise.errors import FailureKind, UpstreamError
from phasewise.gateway.resumption import LEAD, MARK, TOKENS_BEFORE, Resumption, TokensSoFar

TOKENIZE_WITHIN_S = 30.0
"""A worker that does not tell a prompt's tokens within this time is not the one to go on."""
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
            FailureKind.TIMED_OUT, f"the worker told no tokens in {TOKENIZE_WITHIN_S:g} s"
        ) from None
    except UpstreamError as error:
        if error.kind is not FailureKind.CLOSED:
            raise
        # It has computed nothing for this request, which cannot have ended it: as if it had not been there.
        raise UpstreamError(FailureKind.REFUSED, "the worker went away before it could go on") from error
    return TokensSoFar(prompt_ids, answer.ids, answer.max_model_len)


def failure_of_continuing(status: int) -> FailureKind:
    """Whose fault it is that a worker does not do its part in going on.

    A worker that refuses what it is asked is well: it, or what it serves, is not made for being asked that.
    """
    return FailureKind.NOT_CONTINUED if 400 <= status < 500 else FailureKind.SERVER_ERROR


@dataclass(frozen=True, slots=True)
class _Tokenized:
    ids: list[int]
    words: list[str]
    max_model_len: int


async def _spelling_tokens(worker: HttpClient, plan: Resumption, before: list[int]) -> _Tokenized:
    """Tokens that spell the answer so far where it stands, behind the prompt's last.

    Alone they would not show it: a tokenizer that puts a space before a text takes it off what it spells.
    """
    text = await _detokenize(worker, plan, before) + plan.text
    for lead in ("", LEAD):
        told = await _answer_tokens(worker, plan, lead)
        if told is not None and await _detokenize(worker, plan, before + told.ids) == text:
            return told
    raise UpstreamError(FailureKind.NOT_CONTINUED, "the tokens of the answer so far do not spell it")


async def _answer_tokens(worker: HttpClient, plan: Resumption, lead: str) -> _Tokenized | None:
    """The answer's tokens, read behind a lead; None where the two cannot be told apart."""
    told = await _led_answer_tokens(worker, plan, lead)
    if not lead:
        return told
    lead_ids = (await _tokenize(worker, plan.lead_question(lead))).ids
    size = len(lead_ids)
    return replace(told, ids=told.ids[size:]) if told.ids[:size] == lead_ids else None


async def _led_answer_tokens(worker: HttpClient, plan: Resumption, lead: str) -> _Tokenized:
    if question := plan.marked_answer_question(lead):
        told = await _tokenize(worker, question)
        if told.words and told.words[-1] == MARK:
            return replace(told, ids=told.ids[:-1])
    return await _tokenize(worker, plan.answer_question(lead))


async def _tokenize(worker: HttpClient, question: bytes) -> _Tokenized:
    told = await _ask(worker, "/tokenize", question)
    try:
        return _Tokenized(told["tokens"], told.get("token_strs") or [], int(told["max_model_len"]))
    except (KeyError, TypeError, ValueError):
        raise UpstreamError(FailureKind.PROTOCOL, "/tokenize did not tell tokens") from None


async def _detokenize(worker: HttpClient, plan: Resumption, ids: list[int]) -> str:
    if not ids:
        return ""
    told = await _ask(worker, "/detokenize", plan.spelling_question(ids))
    if not isinstance(text := told.get("prompt"), str):
        raise UpstreamError(FailureKind.PROTOCOL, "/detokenize did not tell a text")
    return text


async def _ask(worker: HttpClient, path: str, question: bytes) -> dict[str, Any]:
    reply = await worker.fetch("POST", path, headers=[_JSON], body=question)
    if reply.status != 200:
        raise UpstreamError(failure_of_continuing(reply.status), f"{path} answered with HTTP {reply.status}")
    try:
        told = orjson.loads(reply.body)
    except orjson.JSONDecodeError:
        told = None
    if not isinstance(told, dict):
        raise UpstreamError(FailureKind.PROTOCOL, f"{path} did not answer with a JSON object")
    return told
