"""Learns how many tokens prompts and answers have, before a tokenizer or an engine has seen them.

Pure; written by request_flow only. What the tokens cost is pace_book.py's.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from phasewise.costs.online_fit import TwoPartFit
from phasewise.model.request import GenerationRequest

ASSUMED_OUTPUT_TOKENS = 256
"""What a request is taken to write while nobody knows better."""
_MEMORY_ANSWERS = 20.0
_TEXT_BYTES_PER_TOKEN = (1.0, 16.0)
"""A prompt outside of this is hardly text: what it holds says nothing of the length of texts, and a few such
among many must not make all texts look short."""
_TENANTS = 1_024
"""Beyond this many, those not heard of for longest are forgotten: clients must not be able to fill memory."""


@dataclass(slots=True)
class _Answers:
    """How long a tenant's answers are, and what share of the length it allows them."""

    mean_tokens: float
    mean_share: float


class SizeBook:
    """Bytes of prompts against tokens for each model, and answers' lengths for each model and tenant."""

    def __init__(self) -> None:
        self._prompts: dict[str, TwoPartFit] = {}
        self._answers: OrderedDict[tuple[str, str], _Answers] = OrderedDict()

    def learn(self, request: GenerationRequest, prompt_tokens: int | None, output_tokens: int | None) -> None:
        """A request turned out to have so many tokens; None where nobody could see."""
        if prompt_tokens and _is_text(request.text_bytes / prompt_tokens):
            # A template adds some tokens to every prompt, which no byte of the client's stands for.
            fit = self._prompts.setdefault(request.model, TwoPartFit())
            fit.learn(float(request.text_bytes), 1.0, float(prompt_tokens))
        if output_tokens:
            self._learn_answer(request, float(output_tokens))

    def prompt_tokens(self, request: GenerationRequest) -> int:
        """How long the prompt is taken to be."""
        fit = self._prompts.get(request.model)
        if fit is None:
            return request.estimated_prompt_tokens
        return max(1, round(fit.expected(request.text_bytes, 1.0)))

    def output_tokens(self, request: GenerationRequest) -> int:
        """How long the answer is expected to be: as the tenant's were, in proportion to what it may write."""
        answers, limit = self._answers.get((request.model, request.tenant)), request.max_output_tokens
        if answers is None:
            return min(ASSUMED_OUTPUT_TOKENS, limit or ASSUMED_OUTPUT_TOKENS)
        return max(1, round(answers.mean_tokens if limit is None else answers.mean_share * limit))

    def _learn_answer(self, request: GenerationRequest, tokens: float) -> None:
        key, limit = (request.model, request.tenant), request.max_output_tokens
        share = min(1.0, tokens / limit) if limit else None
        answers = self._answers.pop(key, None) or _Answers(tokens, 1.0 if share is None else share)
        answers.mean_tokens += (tokens - answers.mean_tokens) / _MEMORY_ANSWERS
        if share is not None:
            answers.mean_share += (share - answers.mean_share) / _MEMORY_ANSWERS
        self._answers[key] = answers
        if len(self._answers) > _TENANTS:
            self._answers.popitem(last=False)


def _is_text(bytes_per_token: float) -> bool:
    least, most = _TEXT_BYTES_PER_TOKEN
    return least <= bytes_per_token <= most
