"""How long prompts and outputs are, in tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, log
from random import Random
from typing import Self

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
