"""Four kinds of traffic in one table, sized to fit a context of 8,192 tokens.

They are round figures after the shapes of published traces, and differ in which phase they load. With a trace
of the real traffic, replay that instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import exp, log
from random import Random
from typing import Self

from phasewise.benchmark.workload.prompts import TEMPLATE_TOKENS
from phasewise.core.errors import UsageError

_REDRAWS = 16
"""How often lengths outside the bounds are drawn again before they are cut, so that few lie on a bound."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal lengths around a median, within bounds: lengths of real traffic have such a long tail.

    `spread` is the standard deviation of the logarithm: 0 is a fixed length, 0.5 means that two thirds lie
    between 0.6 and 1.6 medians.
    """

    median_tokens: int
    spread: float
    low_tokens: int
    high_tokens: int

    def __post_init__(self) -> None:
        if not 1 <= self.low_tokens <= self.median_tokens <= self.high_tokens or self.spread < 0:
            raise UsageError(
                f"lengths around {self.median_tokens} tokens are not within "
                f"{self.low_tokens} to {self.high_tokens}",
                hint="use at least 1 token, and a median within the bounds",
            )

    @classmethod
    def fixed(cls, tokens: int) -> Self:
        """Always the same length."""
        return cls(tokens, 0.0, tokens, tokens)

    def draw(self, rng: Random) -> int:
        """One length."""
        if self.spread == 0:
            return self.median_tokens
        for _ in range(_REDRAWS):
            tokens = round(exp(rng.gauss(log(self.median_tokens), self.spread)))
            if self.low_tokens <= tokens <= self.high_tokens:
                return tokens
        return min(max(tokens, self.low_tokens), self.high_tokens)

    def capped(self, high_tokens: int) -> Lengths:
        """The same lengths with a lower upper bound."""
        if high_tokens >= self.high_tokens:
            return self
        return replace(
            self,
            median_tokens=min(self.median_tokens, high_tokens),
            low_tokens=min(self.low_tokens, high_tokens),
            high_tokens=high_tokens,
        )


OWN_TOKENS = 8
"""The fewest tokens that a prompt has after a shared system prompt."""
FOLLOW_UP = Lengths(median_tokens=48, spread=0.6, low_tokens=8, high_tokens=256)
"""A follow-up question: some sentences, whatever came before."""


class PresetName(StrEnum):
    """The kinds of traffic that can be selected by name."""

    CHAT = "chat"
    RAG = "rag"
    CODEGEN = "codegen"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a kind of traffic.

    `shared_prefix_tokens` is the system prompt that `shared_share` of the requests begin with; it counts as
    part of the prompt's length. There are `shared_prefixes` different ones, all equally likely. `follow_up`
    is what a user writes in a conversation's later turns.
    """

    about: str
    prompt: Lengths
    output: Lengths
    shared_prefix_tokens: int = 0
    shared_share: float = 0.0
    shared_prefixes: int = 1
    follow_up: Lengths = FOLLOW_UP

    def __post_init__(self) -> None:
        if self.shared_prefixes < 1:
            raise UsageError(
                f"{self.shared_prefixes} shared prefixes", hint="use 1 or more; none is a length of 0"
            )


PRESETS = {
    PresetName.CHAT: Shape(
        about="People in a conversation: short prompts after a system prompt, answers read as they stream.",
        prompt=Lengths(median_tokens=320, spread=0.7, low_tokens=48, high_tokens=2048),
        output=Lengths(median_tokens=128, spread=0.6, low_tokens=16, high_tokens=512),
        shared_prefix_tokens=128,
        shared_share=0.8,
    ),
    PresetName.RAG: Shape(
        about="Questions over retrieved passages: long distinct prompts, brief answers; prefill dominates.",
        prompt=Lengths(median_tokens=2400, spread=0.4, low_tokens=768, high_tokens=6144),
        output=Lengths(median_tokens=96, spread=0.5, low_tokens=16, high_tokens=384),
        shared_prefix_tokens=256,
        shared_share=1.0,
    ),
    PresetName.CODEGEN: Shape(
        about="An editor that sends files and gets functions back: both phases matter.",
        prompt=Lengths(median_tokens=1200, spread=0.6, low_tokens=128, high_tokens=5120),
        output=Lengths(median_tokens=320, spread=0.6, low_tokens=32, high_tokens=1536),
        shared_prefix_tokens=512,
        shared_share=0.5,
    ),
    PresetName.BATCH: Shape(
        about="Documents processed overnight: nothing shared, steady lengths, only throughput counts.",
        prompt=Lengths(median_tokens=768, spread=0.3, low_tokens=256, high_tokens=2048),
        output=Lengths(median_tokens=256, spread=0.3, low_tokens=64, high_tokens=768),
    ),
}


def with_lengths(
    shape: Shape,
    prompt_tokens: int | None,
    output_tokens: int | None,
    shared_prefix_tokens: int | None,
    shared_prefixes: int | None,
) -> Shape:
    """The shape with the lengths that were given."""
    if prompt_tokens is not None:
        shape = replace(shape, prompt=Lengths.fixed(prompt_tokens))
        if shared_prefix_tokens is None:
            # A fixed length drops the preset's system prompt, which may not even fit.
            shape = replace(shape, shared_prefix_tokens=0)
    if output_tokens is not None:
        shape = replace(shape, output=Lengths.fixed(output_tokens))
    if shared_prefix_tokens is not None:
        shape = _behind_prefix(shape, shared_prefix_tokens)
    if shared_prefixes is not None:
        shape = replace(shape, shared_prefixes=shared_prefixes)
    return shape


def _behind_prefix(shape: Shape, prefix_tokens: int) -> Shape:
    """The shape with a system prompt of this length before every prompt.

    The preset's shortest prompts get longer to hold it. If the prefix is longer than the preset's own, all
    prompts get longer by the difference, so that the users' part stays. A fixed prompt length is kept.
    """
    exact = shape.prompt.spread == 0
    if prefix_tokens < 0 or (exact and 0 < prefix_tokens > shape.prompt.low_tokens - TEMPLATE_TOKENS - 1):
        raise UsageError(
            f"a shared prefix of {prefix_tokens} tokens does not fit prompts of {shape.prompt.low_tokens}",
            hint=f"raise --prompt-tokens or lower --shared-prefix-tokens: a prompt has {TEMPLATE_TOKENS} "
            "tokens of a chat template and a word of its own",
        )
    shortest = prefix_tokens + TEMPLATE_TOKENS + OWN_TOKENS
    prompt = shape.prompt
    if not exact and prefix_tokens and prompt.low_tokens < shortest:
        longer = max(prefix_tokens - shape.shared_prefix_tokens, 0)
        median_tokens = max(prompt.median_tokens + longer, shortest)
        high_tokens = max(prompt.high_tokens + longer, median_tokens)
        prompt = replace(prompt, median_tokens=median_tokens, low_tokens=shortest, high_tokens=high_tokens)
    return replace(shape, prompt=prompt, shared_prefix_tokens=prefix_tokens, shared_share=1.0)
