"""Asks a worker for the tokens of a prompt and of the answer so far; it computes nothing for that.

What is asked is resumption.py's to say.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import orjson

from phasewise.adapters.http_client import HttpClient
from phasewise.errors import FailureKind, UpstreamError
from phasewise.gateway.resumption import MARK, Resumption, TokensSoFar

TOKENIZE_WITHIN_S = 30.0
"""A worker that does not tell a prompt's tokens within this time is not the one to go on."""
_JSON = (b"content-type", b"application/json")


async def tokens_so_far(worker: HttpClient, plan: Resumption) -> TokensSoFar:
    """The tokens of the prompt and of the answer so far, as this worker reads them."""
    try:
        async with asyncio.timeout(TOKENIZE_WITHIN_S):
            answer_ids, max_model_len = await _answer_tokens(worker, plan)
            prompt_ids = plan.known_prompt_ids()
            if prompt_ids is None:
                prompt_ids = (await _tokenize(worker, plan.prompt_question())).ids
    except TimeoutError:
        raise UpstreamError(
            FailureKind.TIMED_OUT, f"the worker told no tokens in {TOKENIZE_WITHIN_S:g} s"
        ) from None
    except UpstreamError as error:
        if error.kind is not FailureKind.CLOSED:
            raise
        # It has computed nothing for this request, which cannot have ended it: as if it had not been there.
        raise UpstreamError(FailureKind.REFUSED, "the worker went away before it could go on") from error
    return TokensSoFar(prompt_ids, answer_ids, max_model_len)


async def _answer_tokens(worker: HttpClient, plan: Resumption) -> tuple[list[int], int]:
    if question := plan.marked_answer_question():
        told = await _tokenize(worker, question)
        if told.words and told.words[-1] == MARK:
            return told.ids[:-1], told.max_model_len
    told = await _tokenize(worker, plan.answer_question())
    return told.ids, told.max_model_len


@dataclass(frozen=True, slots=True)
class _Tokenized:
    ids: list[int]
    words: list[str]
    max_model_len: int


async def _tokenize(worker: HttpClient, question: bytes) -> _Tokenized:
    reply = await worker.fetch("POST", "/tokenize", headers=[_JSON], body=question)
    if reply.status != 200:
        raise UpstreamError(FailureKind.SERVER_ERROR, f"/tokenize answered with HTTP {reply.status}")
    try:
        told = orjson.loads(reply.body)
        return _Tokenized(told["tokens"], told.get("token_strs") or [], int(told["max_model_len"]))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        raise UpstreamError(FailureKind.PROTOCOL, "/tokenize did not tell tokens") from None
