"""Reads from a running engine the outputs that a lever may change: greedy answers, and log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import orjson

from phasewise.clients.http_client import HttpClient, Reply
from phasewise.core.errors import MeasurementError
from phasewise.experiments.levers.accuracy_price import AccuracyReading, GreedyAnswer
from phasewise.experiments.levers.held_out_text import PASSAGES, Probe
from phasewise.loadgen.target import Target, find_target

SHOWN_CHARACTERS = 160
"""How much of an engine's rejection message is quoted."""


class _PromptRejected(Exception):
    """The engine rejected a request; the text says why."""


async def read_accuracy(
    url: str,
    probe: Probe,
    *,
    model: str | None = None,
    api_key: str | None = None,
    passages: Sequence[str] = PASSAGES,
    answer_tokens: int = 64,
) -> AccuracyReading:
    """Ask for every answer with the probe's concurrency, and for every passage one at a time."""
    client = HttpClient(url)
    try:
        target = await find_target(client, model, api_key)
        answers, answers_rejected = await _answers(client, target, probe, answer_tokens)
        read, passages_rejected = await _passages(client, target, passages)
    finally:
        client.close()
    return AccuracyReading(target.model, answers, read, answers_rejected, passages_rejected)


async def _answers(
    client: HttpClient, target: Target, probe: Probe, tokens: int
) -> tuple[tuple[GreedyAnswer, ...] | None, str | None]:
    try:
        return await probe.ask(lambda prompt: _answer(client, target, prompt, tokens)), None
    except _PromptRejected as rejection:
        return None, str(rejection)


async def _passages(
    client: HttpClient, target: Target, passages: Sequence[str]
) -> tuple[tuple[tuple[float, ...], ...] | None, str | None]:
    try:
        return tuple([await _log_probabilities(client, target, passage) for passage in passages]), None
    except _PromptRejected as rejection:
        return None, str(rejection)


async def _answer(client: HttpClient, target: Target, prompt: str, tokens: int) -> GreedyAnswer:
    asked = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
        "return_token_ids": True,
    }
    # Two candidates per token distinguish a near-tie from a real change; answers count without them too.
    reply = await _post(client, target, "/v1/chat/completions", asked | {"logprobs": True, "top_logprobs": 2})
    if reply.status == 400:
        reply = await _post(client, target, "/v1/chat/completions", asked)
    choice = _choice(reply, "answers")
    token_ids = choice.get("token_ids")
    if not isinstance(token_ids, list):
        raise _PromptRejected("the answers came without token ids, so they cannot be compared")
    return GreedyAnswer(tuple(token_ids), _leads(choice.get("logprobs")))


def _leads(logprobs: object) -> tuple[float | None, ...] | None:
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(content, list):
        return None
    return tuple(_lead(entry.get("top_logprobs") or []) for entry in content)


def _lead(candidates: list[dict[str, Any]]) -> float | None:
    best = sorted((float(candidate["logprob"]) for candidate in candidates), reverse=True)[:2]
    return next((first - second for first, second in pairwise(best)), None)


async def _log_probabilities(client: HttpClient, target: Target, passage: str) -> tuple[float, ...]:
    asked = {"prompt": passage, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
    reply = await _post(client, target, "/v1/completions", asked)
    entries = _choice(reply, "log-probabilities of a text").get("prompt_logprobs")
    if not isinstance(entries, list):
        raise _PromptRejected("the engine returns no log-probabilities of a prompt")
    # The first token has no prediction. With 0 alternatives, each of the others has one entry, its own.
    return tuple(float(next(iter(entry.values()))["logprob"]) for entry in entries if entry)


async def _post(client: HttpClient, target: Target, path: str, asked: dict[str, Any]) -> Reply:
    body = orjson.dumps({"model": target.model, **asked})
    return await client.fetch("POST", path, headers=target.headers, body=body)


def _choice(reply: Reply, what: str) -> dict[str, Any]:
    if reply.status >= 500:
        raise MeasurementError(
            f"the engine failed when asked for {what} (HTTP {reply.status}): {_words(reply)}",
            hint="its own log says why",
        )
    if reply.status != 200:
        raise _PromptRejected(f"the engine rejects {what} (HTTP {reply.status}): {_words(reply)}")
    choice: dict[str, Any] = orjson.loads(reply.body)["choices"][0]
    return choice


def _words(reply: Reply) -> str:
    text = reply.body.decode(errors="replace")
    try:
        error = orjson.loads(reply.body).get("error")
        text = error["message"] if isinstance(error, dict) else text
    except (orjson.JSONDecodeError, AttributeError, KeyError):
        pass
    return " ".join(text.split())[:SHOWN_CHARACTERS]
