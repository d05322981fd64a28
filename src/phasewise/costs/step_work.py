"""What one engine step carries, counted in what can be observed from outside.

How long it takes is a cost's to say; how the counts are gained from a step record is step_history.py's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class StepKind(StrEnum):
    """Which phases a step serves."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class StepWork:
    """What one step carries.

    `attention_token_pairs` counts, over the prompt tokens of the step, the tokens each one attends to;
    `kv_read_tokens` adds up the context lengths of the sequences that decode.
    """

    prompt_tokens: int = 0
    decode_tokens: int = 0
    requests: int = 0
    attention_token_pairs: int = 0
    kv_read_tokens: int = 0

    @property
    def tokens(self) -> int:
        """All tokens the step computes."""
        return self.prompt_tokens + self.decode_tokens

    @property
    def kind(self) -> StepKind:
        """Which phases it serves."""
        if not self.prompt_tokens:
            return StepKind.DECODE
        return StepKind.MIXED if self.decode_tokens else StepKind.PREFILL

    def without_prompts(self) -> StepWork:
        """What is left when nothing is prefilled: the sequences that decode, with one token each."""
        return StepWork(
            decode_tokens=self.decode_tokens, requests=self.decode_tokens, kv_read_tokens=self.kv_read_tokens
        )


StepSeconds = Callable[[StepWork], float]
"""How long a step takes. A `StepCost` is one, and so is any function of the work."""


def chunk_pairs(tokens: int, context_tokens: int) -> int:
    """The pairs of a prompt's chunk: its tokens attend to all before it, and to those up to themselves."""
    return tokens * context_tokens + tokens * (tokens + 1) // 2


def decoding(contexts_tokens: list[int]) -> StepWork:
    """A step in which sequences of these lengths get a token each."""
    streams = len(contexts_tokens)
    return StepWork(decode_tokens=streams, requests=streams, kv_read_tokens=sum(contexts_tokens))


def prefilling(tokens: int, context_tokens: int = 0) -> StepWork:
    """A step that computes one chunk of a prompt, of which `context_tokens` are there already."""
    return StepWork(
        prompt_tokens=tokens, requests=1, attention_token_pairs=chunk_pairs(tokens, context_tokens)
    )
