"""What one engine answered and how well it predicted a text: the nouns of accuracy.

How they are read from an engine is accuracy.py's matter; what two of them mean together, accuracy_price.py's.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy answer: its tokens, and by how much each was likelier than the next best, in nats.

    `leads` is None where the engine does not tell; one entry is None where it named no second candidate.
    """

    token_ids: tuple[int, ...]
    leads: tuple[float | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class AccuracyReading:
    """An engine's answers to fixed prompts and its log-probabilities of fixed passages.

    What the engine refused is None, with the reason beside it.
    """

    model: str
    answers: tuple[Answer, ...] | None
    passages: tuple[tuple[float, ...], ...] | None
    answers_refused: str | None = None
    passages_refused: str | None = None

    @property
    def perplexity(self) -> float | None:
        """How many equally likely tokens the engine wavered between, on average over all passages."""
        if self.passages is None:
            return None
        tokens = sum(map(len, self.passages))
        return exp(-sum(map(sum, self.passages)) / tokens)
