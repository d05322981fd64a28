"""How a broken answer goes on elsewhere: what is asked of the worker that goes on, in bytes.

The worker is asked for the tokens of the prompt and of the text that the client has, and then to complete
both together. Asking is exchange.py's, what comes back continued_stream.py's.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import orjson

from phasewise.gateway.answer import Answer
from phasewise.gateway.resumability import CARRIED, Obstacle, keeps_back, obstacle
from phasewise.model.request import Endpoint

ENGINES_SHORT_ANSWER_TOKENS = 16
"""What /v1/completions writes when it is not told how much."""
MARK = "x"
"""Put after a line's end to have it read as in mid-text: at a text's end some tokenizers join lines' ends."""
LEAD = "\n"
"""Put before a text to have it read as in mid-text: some tokenizers put a space before all that they read."""
TOKENS_BEFORE = 8
"""So many of the prompt's tokens stand before the answer's when it is looked at what they spell."""
LONGEST_WORD = 64
_LAST_WORD = re.compile(r"\s*\S*\Z")
_TEMPLATE_FIELDS = ("messages", "add_generation_prompt", "add_special_tokens", "chat_template_kwargs")
_TEXT_FIELDS = ("add_special_tokens",)


@dataclass(frozen=True, slots=True)
class TokensSoFar:
    """What a worker says of the tokens so far: the prompt's, the answer's, and how many it takes in all."""

    prompt_ids: list[int]
    answer_ids: list[int]
    max_model_len: int


@dataclass(frozen=True, slots=True)
class Resumption:
    """An answer that broke off and can go on: the request's fields, and what its client has.

    `text` is what the new worker goes on from. `again` is the last of what the client has, if that may end
    within a word: the new worker writes it again. `client_id` is the id that the client's chunks carry,
    `created` their time.
    """

    endpoint: Endpoint
    fields: dict[str, Any]
    answer: Answer
    text: str
    again: str
    client_id: str
    created: int | None

    def answer_so_far(self) -> Answer:
        """Notes to go on with: the content so far is the client's, the rest will be the new worker's."""
        going_on = Answer()
        going_on.content_times_s.extend(self.answer.content_times_s)
        going_on.text_escaped.extend(self.answer.text_escaped)
        going_on.finish_reason, going_on.finished_s = self.answer.finish_reason, self.answer.finished_s
        return going_on

    # --- what is asked of /tokenize -------------------------------------------------------------------------

    def known_prompt_ids(self) -> list[int] | None:
        """The prompt's tokens where the client itself gave them."""
        prompt = self._prompt()
        return prompt if isinstance(prompt, list) else None

    def prompt_question(self) -> bytes:
        """Asks for the prompt's tokens."""
        if self.endpoint is Endpoint.CHAT:
            return self._question(_TEMPLATE_FIELDS)
        return self._question(_TEXT_FIELDS, prompt=self._prompt())

    def lead_question(self, lead: str) -> bytes:
        """Asks for the tokens of what is put before the text."""
        return self._question((), prompt=lead, add_special_tokens=False)

    def answer_question(self, lead: str = "") -> bytes:
        """Asks for the tokens of the answer so far."""
        return self._question((), prompt=lead + self.text, add_special_tokens=False)

    def marked_answer_question(self, lead: str = "") -> bytes | None:
        """Asks for them with a mark at the end, where that may make a difference."""
        if not self.text.endswith("\n"):
            return None
        marked = lead + self.text + MARK
        return self._question((), prompt=marked, add_special_tokens=False, return_token_strs=True)

    def spelling_question(self, ids: list[int]) -> bytes:
        """Asks what tokens spell."""
        return self._question((), tokens=ids)

    def _question(self, names: tuple[str, ...], **more: object) -> bytes:
        asked = {name: self.fields[name] for name in ("model", *names) if name in self.fields}
        return orjson.dumps(asked | more)

    def _prompt(self) -> str | list[int] | None:
        prompt: Any = self.fields.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
            prompt = prompt[0]
        return prompt if isinstance(prompt, str | list) else None

    # --- what is asked of /v1/completions -------------------------------------------------------------------

    def continuation(self, tokens: TokensSoFar) -> bytes | None:
        """Asks to go on; None where nothing is left to write."""
        left = self._tokens_left(tokens)
        if left < 1 or self.answer.finish_reason is not None:
            return None
        written = len(tokens.answer_ids)
        body = {name: value for name, value in self.fields.items() if name in CARRIED}
        body["prompt"] = tokens.prompt_ids + tokens.answer_ids
        body["max_tokens"] = left
        if least := self.fields.get("min_tokens"):
            body["min_tokens"] = max(0, least - written)
        if penalty := self.fields.get("frequency_penalty"):
            body["logit_bias"] = self._bias(float(penalty), tokens.answer_ids)
        return orjson.dumps(body)

    def _tokens_left(self, tokens: TokensSoFar) -> int:
        written = len(tokens.answer_ids)
        room = tokens.max_model_len - len(tokens.prompt_ids) - written
        limit = self._limit()
        return room if limit is None else min(room, limit - written)

    def _limit(self) -> int | None:
        fields = self.fields
        if self.endpoint is Endpoint.COMPLETIONS:
            limit: int | None = fields.get("max_tokens")
            return ENGINES_SHORT_ANSWER_TOKENS if limit is None else limit
        limit = fields.get("max_completion_tokens")
        return fields.get("max_tokens") if limit is None else limit

    def _bias(self, penalty: float, answer_ids: list[int]) -> dict[str, float]:
        """The frequency penalty of what was written before, which the new worker takes for the prompt."""
        bias = dict(self.fields.get("logit_bias") or {})
        for token, count in Counter(answer_ids).items():
            bias[str(token)] = bias.get(str(token), 0.0) - penalty * count
        return bias


def resumption(
    endpoint: Endpoint, body: bytes, answer: Answer, earlier: Resumption | None
) -> Resumption | Obstacle:
    """How the answer that broke off goes on. `earlier` is how it went on before, if it broke before."""
    fields = orjson.loads(body)
    try:
        text = orjson.loads(b'"%b"' % bytes(answer.text_escaped))
    except orjson.JSONDecodeError:
        return Obstacle("the answer so far: it is no text")
    if found := obstacle(fields, answer, text):
        return found
    client_id, created = answer.engine_request_id, answer.created
    if earlier is not None:
        client_id, created = earlier.client_id, earlier.created
    # Of an answer whose end the client has, nothing was kept back.
    is_open = answer.finish_reason is None
    last_word = _LAST_WORD.search(text) if is_open and keeps_back(fields) else None
    again = last_word[0] if last_word else ""
    if client_id is None or len(again) > LONGEST_WORD or len(again) == len(text):
        return Obstacle("the answer so far: there is not enough of it to go on from")
    return Resumption(endpoint, fields, answer, text[: len(text) - len(again)], again, client_id, created)
