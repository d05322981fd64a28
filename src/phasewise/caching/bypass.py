"""Which requests the cache has no part in: their answer is not to be had twice, or cannot be judged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from phasewise.caching.identity import plain_texts
from phasewise.model.caching import Bypass
from phasewise.model.request import Endpoint

LONGEST_QUESTION = 32_768
"""In characters: what is longer takes more room than its answer is likely to save."""
LONGEST_BY_MEANING = 1_000
"""In characters. Small embedders read 256 tokens: texts that differ only further on are equal to them."""
MOST_WORDS_BY_MEANING = 60
"""Guards read sentences, not essays, and while they read nothing else moves in a gateway."""
FOLLOW_UP_WORDS = 3
"""A turn of so few words within a conversation means what was said before: "yes", "the second one"."""

_TOOL_FIELDS = ("tools", "tool_choice", "functions", "function_call")
_SEVERAL_FIELDS = ("n", "best_of")
_LOGPROB_FIELDS = ("logprobs", "top_logprobs", "prompt_logprobs", "logprob_token_ids")
_OTHER_SHAPES = ("continue_final_message", "echo", "suffix", "use_beam_search", "return_tokens_as_token_ids")
_TELLING_FIELDS = frozenset({*_TOOL_FIELDS, *_SEVERAL_FIELDS, *_LOGPROB_FIELDS, *_OTHER_SHAPES, "seed"})
"""Most requests have none of them, and need not be asked for each."""
_NUMBERS = (int, float)
_TOO_LARGE = 2**63
_TOOL_ROLES = ("tool", "function")
_TOOL_CALLS = ("tool_calls", "function_call")
_WORD = re.compile(r"\w+")


def why_bypassed(endpoint: Endpoint, fields: Mapping[str, Any], max_temperature: float) -> Bypass | None:
    """Why this request is neither answered from the cache nor kept there; None if it may be.

    A request without a temperature did not ask for variety.
    """
    if not endpoint.generates:
        return Bypass.NOT_CHAT
    if not _TELLING_FIELDS.isdisjoint(fields) and (why := _asks_for_more(fields)) is not None:
        return why
    temperature = fields.get("temperature")
    if temperature is not None and not (
        type(temperature) in _NUMBERS and 0 <= temperature <= max_temperature
    ):
        return Bypass.TEMPERATURE
    why = _unfit_prompt(fields) if endpoint is Endpoint.COMPLETIONS else _unfit_conversation(fields)
    return why or (Bypass.LARGE_NUMBER if _holds_large_number(fields) else None)


def may_match_by_meaning(endpoint: Endpoint, question: str) -> bool:
    """Whether other words could ask the same: a raw prompt has no turns, and a long text is no question."""
    return (
        endpoint is Endpoint.CHAT
        and len(question) <= LONGEST_BY_MEANING
        and len(_WORD.findall(question)) <= MOST_WORDS_BY_MEANING
    )


def _asks_for_more(fields: Mapping[str, Any]) -> Bypass | None:
    """Why a request is no plain question, by the fields that few have."""
    if any(fields.get(name) for name in _OTHER_SHAPES):
        return Bypass.NOT_CHAT
    if any(fields.get(name) for name in _TOOL_FIELDS):
        return Bypass.TOOLS
    if fields.get("seed") is not None:
        return Bypass.SEED
    if any(fields.get(name) not in (None, 1) for name in _SEVERAL_FIELDS):
        return Bypass.SEVERAL_ANSWERS
    # 0 asks for the chosen token's, so it is not the same as False.
    if any(fields.get(name) is not None and fields[name] is not False for name in _LOGPROB_FIELDS):
        return Bypass.LOGPROBS
    return None


def _unfit_prompt(fields: Mapping[str, Any]) -> Bypass | None:
    prompt = fields.get("prompt")
    return _unfit_text(prompt if isinstance(prompt, str) else None)


def _unfit_text(text: str | None) -> Bypass | None:
    if text is None or not text.strip():
        return Bypass.NO_USER_TURN
    return Bypass.TOO_LONG if len(text) > LONGEST_QUESTION else None


def _unfit_conversation(fields: Mapping[str, Any]) -> Bypass | None:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        return Bypass.NO_USER_TURN
    for message in messages:
        if why := _unfit_message(message):
            return why
    last = messages[-1]
    question = "\n".join(plain_texts(last.get("content")) or ()) if last.get("role") == "user" else ""
    if why := _unfit_text(question):
        return why
    spoken = any(message.get("role") == "assistant" for message in messages)
    if spoken and len(_WORD.findall(question)) <= FOLLOW_UP_WORDS:
        return Bypass.SHORT_FOLLOW_UP
    return None


def _unfit_message(message: object) -> Bypass | None:
    if not isinstance(message, dict):
        return Bypass.NO_USER_TURN
    if message.get("role") in _TOOL_ROLES or any(message.get(name) for name in _TOOL_CALLS):
        return Bypass.TOOLS
    content = message.get("content")
    return Bypass.MEDIA if isinstance(content, list) and content and plain_texts(content) is None else None


def _holds_large_number(fields: Mapping[str, Any]) -> bool:
    """Whether a number stands anywhere that was rounded when the body was read, and is not for the engine."""
    left: list[Any] = list(fields.values())
    while left:
        value = left.pop()
        kind = type(value)
        if kind is dict:
            left.extend(value.values())
        elif kind is list:
            left.extend(value)
        elif (kind is int or kind is float) and abs(value) >= _TOO_LARGE:
            return True
    return False
