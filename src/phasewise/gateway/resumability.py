"""Whether an answer that broke off can go on elsewhere as if nothing had happened: what stands in the way.

A worker that goes on is given the tokens so far as its prompt and has no other memory of them. Every field
that looks back at the answer, or adds to it more than text, stands here with the reason; a field that stands
nowhere is taken for one of those. How an answer goes on is resumption.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from phasewise.gateway.answer import Answer

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why an answer cannot go on elsewhere. It names fields, never what they hold."""

    reason: str


@dataclass(frozen=True, slots=True)
class Harmless:
    """The values of a field that do not stand in the way, and why all others do."""

    values: tuple[object, ...]
    reason: str


_STRUCTURE = "the grammar's state at the break is not known"
_BEYOND_TEXT = "its chunks hold more than text"
_RENDERED = "it changes the prompt in a way that /tokenize cannot be told"
_LOOKS_BACK = "it looks back at tokens written before the break"

HARMLESS: dict[str, Harmless] = {
    "n": Harmless((None, 1), "several answers are interleaved"),
    "best_of": Harmless((None, 1), "several answers compete"),
    "use_beam_search": Harmless((None, False), "several answers compete"),
    "logprobs": Harmless((None, False), _BEYOND_TEXT),
    "prompt_logprobs": Harmless((None,), _BEYOND_TEXT),
    "logprob_token_ids": Harmless((None, []), _BEYOND_TEXT),
    "echo": Harmless((None, False), "the prompt is a part of the answer"),
    "suffix": Harmless((None, ""), "the answer is written between two texts"),
    "tools": Harmless((None, []), "a call may follow the text, which only a parser of calls would find"),
    "response_format": Harmless((None, {"type": "text"}), _STRUCTURE),
    "structured_outputs": Harmless((None,), _STRUCTURE),
    "guided_json": Harmless((None,), _STRUCTURE),
    "guided_regex": Harmless((None,), _STRUCTURE),
    "guided_choice": Harmless((None,), _STRUCTURE),
    "guided_grammar": Harmless((None,), _STRUCTURE),
    "guided_decoding_backend": Harmless((None,), _STRUCTURE),
    "guided_whitespace_pattern": Harmless((None,), _STRUCTURE),
    "presence_penalty": Harmless((None, 0), "a word before and after the break would count twice"),
    "bad_words": Harmless((None, []), _LOOKS_BACK),
    "repetition_detection": Harmless((None,), _LOOKS_BACK),
    "thinking_token_budget": Harmless((None, -1), _LOOKS_BACK),
    "include_reasoning": Harmless((None, True), "the client was not sent all that was written"),
    "skip_special_tokens": Harmless((None, True), "text and special tokens are mixed"),
    "reasoning_effort": Harmless((None,), _RENDERED),
    "documents": Harmless((None, []), _RENDERED),
    "continue_final_message": Harmless((None, False), _RENDERED),
    "truncate_prompt_tokens": Harmless((None,), _RENDERED),
}
"""Fields that stand in the way unless they hold one of these values."""

# fmt: off
CARRIED = frozenset(
    {
        "model", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty",
        "logit_bias", "seed", "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos",
        "spaces_between_special_tokens", "allowed_token_ids", "stream", "stream_options",
        # the gateway's own
        "cache_salt", "priority",
    }
)
"""Fields that mean the same to the worker that goes on."""
REBUILT = frozenset(
    {
        "messages", "prompt", "add_generation_prompt", "add_special_tokens", "chat_template_kwargs",
        "max_tokens", "max_completion_tokens", "min_tokens",
    }
)
"""Fields whose meaning goes into the prompt's tokens, or into what is left to write."""
WITHOUT_EFFECT = frozenset(
    {
        "user", "tool_choice", "parallel_tool_calls", "top_logprobs", "return_tokens_as_token_ids",
        "truncation_side", "length_penalty",
    }
)
"""Fields that change nothing as long as those they go with are not set."""
# fmt: on

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def obstacle(fields: Fields, answer: Answer, text: str) -> Obstacle | None:
    """The first thing that stands in the way; None if the answer can go on."""
    if answer.saw_other_than_text or not text:
        return Obstacle(f"the answer so far: {_BEYOND_TEXT}")
    if REPLACEMENT in text:
        return Obstacle("the answer so far: some of its tokens are not text")
    for name, value in fields.items():
        if reason := _field_obstacle(name, value):
            return Obstacle(f"{name}: {reason}")
    for rule in _RULES:
        if found := rule(fields, text):
            return Obstacle(found)
    return None


def _field_obstacle(name: str, value: object) -> str | None:
    if harmless := HARMLESS.get(name):
        return None if any(_same(value, it) for it in harmless.values) else harmless.reason
    if name in CARRIED or name in REBUILT or name in WITHOUT_EFFECT:
        return None
    return "nobody has thought about this field"


def _same(value: object, other: object) -> bool:
    # To Python 0 is False and 1 is True; to an engine `logprobs: 0` asks for something.
    return value == other and isinstance(value, bool) == isinstance(other, bool)


# --- what depends on more than one field ------------------------------------------------------------------


def _seeded(fields: Fields, text: str) -> str | None:
    if fields.get("seed") is None or _greedy(fields):
        return None
    return "seed: the random numbers used before the break would be used again"


def _doubly_penalised(fields: Fields, text: str) -> str | None:
    if fields.get("frequency_penalty") in {None, 0} or fields.get("repetition_penalty") in {None, 1}:
        return None
    return "frequency_penalty: beside repetition_penalty the past cannot be made up for"


def _several_prompts(fields: Fields, text: str) -> str | None:
    prompt = fields.get("prompt", "")
    if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and _is_one_prompt(prompt)):
        return None
    return "prompt: there are several"


def _is_one_prompt(prompt: list[Any]) -> bool:
    return len(prompt) == 1 or all(isinstance(item, int) for item in prompt)


def _media(fields: Fields, text: str) -> str | None:
    for message in fields.get("messages") or ():
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list) and not all(_is_text_part(part) for part in content):
            return "messages: images and sound are not in the tokens of a prompt"
    return None


def _is_text_part(part: object) -> bool:
    return isinstance(part, str) or (isinstance(part, dict) and part.get("type") == "text")


def _uncountable(fields: Fields, text: str) -> str | None:
    for name in ("max_tokens", "max_completion_tokens", "min_tokens"):
        if not isinstance(fields.get(name), int | None):
            return f"{name}: it is no whole number"
    return None


def _stop_across_the_break(fields: Fields, text: str) -> str | None:
    stops = _long_stops(fields)
    if fields.get("include_stop_str_in_output"):
        if any(text.endswith(stop[:size]) for stop in stops for size in range(1, len(stop))):
            # The worker that goes on would not see the whole of it.
            return "stop: the answer so far ends with the beginning of a stop string"
    elif stops and not _greedy(fields):
        return "stop: a word that the engine had kept back in part would be chosen anew"
    return None


def keeps_back(fields: Fields) -> bool:
    """Whether an engine keeps back the end of what it wrote, which may begin a stop string.

    What it has sent then ends anywhere within a word.
    """
    return bool(_long_stops(fields)) and not fields.get("include_stop_str_in_output")


def _long_stops(fields: Fields) -> list[str]:
    stops = fields.get("stop") or []
    return [str(stop) for stop in ([stops] if isinstance(stops, str) else stops) if len(str(stop)) > 1]


def _greedy(fields: Fields) -> bool:
    return fields.get("temperature") == 0


_RULES: tuple[Callable[[Fields, str], str | None], ...] = (
    _seeded,
    _doubly_penalised,
    _several_prompts,
    _media,
    _uncountable,
    _stop_across_the_break,
)
