"""Estimates how many tokens prompts and answers have, before a tokenizer or an engine has seen them.

Only request_flow writes it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from phasewise.core.request import GenerationRequest
from phasewise.scheduling.online_fit import TwoPartFit

ASSUMED_OUTPUT_TOKENS = 256
"""The output length that is assumed before any answer was seen."""
_MEMORY_ANSWERS = 20.0
_TEXT_BYTES_PER_TOKEN = (1.0, 16.0)
"""A prompt outside this range is hardly text and is not learned from: a few such prompts must not make all
texts look short."""
_TENANTS = 1_024
"""The most tenants that are remembered: the least recent are forgotten, or clients could fill the memory."""


@dataclass(slots=True)
class _Answers:
    """The mean length of a tenant's answers, and the mean share of their limit."""

    mean_tokens: float
    mean_share: float


class LengthEstimator:
    """Learns prompt tokens per byte for each model, and answer lengths for each model and tenant."""

    def __init__(self) -> None:
        self._prompts: dict[str, TwoPartFit] = {}
        self._answers: OrderedDict[tuple[str, str], _Answers] = OrderedDict()

    def learn(self, request: GenerationRequest, prompt_tokens: int | None, output_tokens: int | None) -> None:
        """A request had so many tokens; None if unknown."""
        least, most = _TEXT_BYTES_PER_TOKEN
        if prompt_tokens and least <= request.text_bytes / prompt_tokens <= most:
            # The chat template adds a fixed number of tokens to every prompt.
            fit = self._prompts.setdefault(request.model, TwoPartFit())
            fit.learn(float(request.text_bytes), 1.0, float(prompt_tokens))
        if output_tokens:
            self._learn_answer(request, float(output_tokens))

    def prompt_tokens(self, request: GenerationRequest) -> int:
        """The expected length of the prompt."""
        fit = self._prompts.get(request.model)
        if fit is None:
            return request.estimated_prompt_tokens
        return max(1, round(fit.expected(request.text_bytes, 1.0)))

    def output_tokens(self, request: GenerationRequest) -> int:
        """The expected length of the answer, from the tenant's earlier answers and the request's limit."""
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
