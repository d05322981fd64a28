"""Resumes a broken answer on another worker: the request bodies for it.

The worker is asked for the tokens of the prompt and of the text that the client has, and then to complete
both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from phasewise.core.request import Endpoint
from phasewise.core.request_fields import FIELDS, OBSTACLES, fields_where
from phasewise.gateway.upstream.response import Answer

# --- Whether an answer that broke off can be resumed seamlessly on another worker, and what prevents it.
#
# The new worker gets the tokens so far as its prompt and knows nothing else about them. The table of fields
# says which ones depend on the answer so far or add more than text to it; an unknown field counts as one of
# these.

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why an answer cannot be resumed. It names fields, never their values."""

    reason: str


SENT_AGAIN = frozenset(fields_where(lambda row: row.resume == "same"))
TOKENIZED = {on: fields_where(lambda row: row.resume == "tokens", on) for on in Endpoint}
_IGNORED = frozenset(fields_where(lambda row: row.type == "ignored", Endpoint.CHAT))
COUNTED = fields_where(lambda row: row.resume == "rest")

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def obstacle(fields: Fields, answer: Answer, text: str) -> Obstacle | None:
    """The first obstacle; None if the answer can be resumed."""
    if answer.saw_other_than_text or not text:
        return Obstacle(f"the answer so far: {OBSTACLES['not_text']}")
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
    if name in _IGNORED:
        return None
    row = FIELDS.get(name)
    if row is not None and row.obstacle is not None:
        # To Python 0 is False and 1 is True; to an engine `logprobs: 0` asks for something.
        is_off = any(value == off and isinstance(value, bool) == isinstance(off, bool) for off in row.off)
        return None if is_off else row.obstacle
    return "this field is unknown" if row is None or row.resume is None else None


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
    is_one = isinstance(prompt, str) or (
        isinstance(prompt, list)
        and prompt
        and (len(prompt) == 1 or all(isinstance(item, int) for item in prompt))
    )
    return None if is_one else "prompt: there are several"


def _media(fields: Fields, text: str) -> str | None:
    for message in fields.get("messages") or ():
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list) and not all(_is_text_part(part) for part in content):
            return "messages: images and sound are not in the tokens of a prompt"
    return None


def _is_text_part(part: object) -> bool:
    return isinstance(part, str) or (isinstance(part, dict) and part.get("type") == "text")


def _uncountable(fields: Fields, text: str) -> str | None:
    for name in COUNTED:
        if not isinstance(fields.get(name), int | None):
            return f"{name}: it is no whole number"
    return None


def _stop_across_the_break(fields: Fields, text: str) -> str | None:
    stops = _long_stops(fields)
    if fields.get("include_stop_str_in_output"):
        if any(text.endswith(stop[:size]) for stop in stops for size in range(1, len(stop))):
            # The new worker would not see the whole of it.
            return "stop: the answer so far ends with the beginning of a stop string"
    elif stops and not _greedy(fields):
        return "stop: a word that the engine had kept back in part would be chosen again"
    return None


def keeps_back(fields: Fields) -> bool:
    """Whether an engine holds back the end of its text, because it may begin a stop string.

    The text that it has sent may then end within a word.
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


ENGINES_SHORT_ANSWER_TOKENS = 16
"""The default max_tokens of /v1/completions."""
MARK = "x"
"""Put after a line's end to have it read as in mid-text: at a text's end some tokenizers join lines' ends."""
LEAD = "\n"
"""Put before a text to have it read as in mid-text: some tokenizers put a space before all that they read."""
TOKENS_BEFORE = 8
"""How many of the prompt's tokens precede the answer's when their spelling is checked."""
LONGEST_WORD = 64


@dataclass(frozen=True, slots=True)
class TokensSoFar:
    """The tokens so far according to a worker: the prompt's, the answer's, and its max_model_len."""

    prompt_ids: list[int]
    answer_ids: list[int]
    max_model_len: int


@dataclass(frozen=True, slots=True)
class Resumption:
    """A broken answer that can be resumed: the request's fields, and what its client has.

    The new worker resumes after `text`. `again` is the end of the client's text, if that may end within a
    word: the new worker writes it again. `client_id` is the id of the client's chunks, `created` their time.
    """

    endpoint: Endpoint
    fields: dict[str, Any]
    answer: Answer
    text: str
    again: str
    client_id: str
    created: int | None

    def answer_so_far(self) -> Answer:
        """Notes for the new attempt, with the content that the client already has."""
        going_on = Answer()
        going_on.content_times_s.extend(self.answer.content_times_s)
        going_on.text_escaped.extend(self.answer.text_escaped)
        going_on.finish_reason, going_on.finished_s = self.answer.finish_reason, self.answer.finished_s
        return going_on

    # --- what is asked of /tokenize -------------------------------------------------------------------------

    def known_prompt_ids(self) -> list[int] | None:
        """The prompt's tokens, if the client sent token ids."""
        prompt = self._prompt()
        return prompt if isinstance(prompt, list) else None

    def prompt_question(self) -> bytes:
        """Asks for the prompt's tokens."""
        prompt = {} if self.endpoint is Endpoint.CHAT else {"prompt": self._prompt()}
        return self._question(TOKENIZED[self.endpoint], **prompt)

    def lead_question(self, lead: str) -> bytes:
        """Asks for the tokens of what is put before the text."""
        return self._question((), prompt=lead, add_special_tokens=False)

    def answer_question(self, lead: str = "") -> bytes:
        """Asks for the tokens of the answer so far."""
        return self._question((), prompt=lead + self.text, add_special_tokens=False)

    def marked_answer_question(self, lead: str = "") -> bytes | None:
        """Asks for them with a mark at the end, if that may make a difference."""
        if not self.text.endswith("\n"):
            return None
        marked = lead + self.text + MARK
        return self._question((), prompt=marked, add_special_tokens=False, return_token_strs=True)

    def spelling_question(self, ids: list[int]) -> bytes:
        """Asks what tokens spell."""
        return self._question((), tokens=ids)

    def _question(self, names: tuple[str, ...], **more: object) -> bytes:
        asked = {name: self.fields[name] for name in ("model", *names) if name in self.fields.keys() - more}
        return orjson.dumps(asked | more)

    def _prompt(self) -> str | list[int] | None:
        prompt: Any = self.fields.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
            prompt = prompt[0]
        return prompt if isinstance(prompt, str | list) else None

    # --- what is asked of /v1/completions -------------------------------------------------------------------

    def continuation(self, tokens: TokensSoFar) -> bytes | None:
        """Asks for the rest; None if nothing is left to write."""
        left = self._tokens_left(tokens)
        if left < 1 or self.answer.finish_reason is not None:
            return None
        written = len(tokens.answer_ids)
        body = {name: value for name, value in self.fields.items() if name in SENT_AGAIN}
        body["prompt"] = tokens.prompt_ids + tokens.answer_ids
        body["max_tokens"] = left
        if least := self.fields.get("min_tokens"):
            body["min_tokens"] = max(0, least - written)
        if penalty := self.fields.get("frequency_penalty"):
            body["logit_bias"] = self._bias(float(penalty), tokens.answer_ids)
        return orjson.dumps(body)

    def _tokens_left(self, tokens: TokensSoFar) -> int:
        written = len(tokens.answer_ids)
        free = tokens.max_model_len - len(tokens.prompt_ids) - written
        limit = self._limit()
        return free if limit is None else min(free, limit - written)

    def _limit(self) -> int | None:
        fields = self.fields
        if self.endpoint is Endpoint.COMPLETIONS:
            limit: int | None = fields.get("max_tokens")
            return ENGINES_SHORT_ANSWER_TOKENS if limit is None else limit
        limit = fields.get("max_completion_tokens")
        return fields.get("max_tokens") if limit is None else limit

    def _bias(self, penalty: float, answer_ids: list[int]) -> dict[str, float]:
        """The frequency penalty of the answer so far, which is prompt to the new worker."""
        bias = dict(self.fields.get("logit_bias") or {})
        for token, count in Counter(answer_ids).items():
            bias[str(token)] = bias.get(str(token), 0.0) - penalty * count
        return bias


def resumption(
    endpoint: Endpoint, body: bytes, answer: Answer, earlier: Resumption | None
) -> Resumption | Obstacle:
    """How to resume the broken answer, or why not. `earlier` is its previous resumption, if any."""
    if not endpoint.is_completion:
        return Obstacle(f"answers of {endpoint.value} cannot be resumed yet")
    fields = orjson.loads(body)
    try:
        text = orjson.loads(b'"%b"' % bytes(answer.text_escaped))
    except orjson.JSONDecodeError:
        return Obstacle("the answer so far: it is not text")
    if found := obstacle(fields, answer, text):
        return found
    client_id, created = answer.engine_request_id, answer.created
    if earlier is not None:
        client_id, created = earlier.client_id, earlier.created
    # If the client has the end of the answer, nothing was held back.
    is_open = answer.finish_reason is None
    again = _last_word(text) if is_open and keeps_back(fields) else ""
    if client_id is None or len(again) > LONGEST_WORD or len(again) == len(text):
        return Obstacle("the answer so far: it is too short to resume")
    return Resumption(endpoint, fields, answer, text[: len(text) - len(again)], again, client_id, created)


def _last_word(text: str) -> str:
    """The last word with the space before it, or the space at the end."""
    before = text.rstrip()
    if len(before) == len(text) and before:
        before = before[: -len(before.rsplit(None, 1)[-1])].rstrip()
    return text[len(before) :]
