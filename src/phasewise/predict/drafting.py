"""How many tokens a step yields when tokens are guessed by n-gram, told from answers or from counters.

A guess is looked up in the text so far, so whoever has an answer and its prompt can tell, without an engine,
what would have been guessed and what of it was right. The texts stay with the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phasewise.diagnosis.surroundings import Drafts


@dataclass(frozen=True, slots=True)
class DraftReading:
    """So many steps after an answer's first token, the tokens they yielded and the tokens they guessed."""

    steps: float
    tokens: float
    drafted: float


@dataclass(frozen=True, slots=True)
class Drafting:
    """What guessing brings per step of a stream: tokens yielded, at least one, and tokens guessed."""

    tokens_per_step: float
    drafted_per_step: float


NO_GUESSES = Drafting(1.0, 0.0)


def drafting_of(readings: Sequence[DraftReading]) -> Drafting:
    """All readings together; without any, nothing is guessed."""
    steps = sum(reading.steps for reading in readings)
    if steps <= 0:
        return NO_GUESSES
    yielded = sum(reading.tokens for reading in readings) / steps
    return Drafting(max(yielded, 1.0), sum(reading.drafted for reading in readings) / steps)


def reading_of_counters(drafts: Drafts, carried_per_step: float | None) -> DraftReading | None:
    """An engine's counters. They leave out a stream's steps in which nothing was guessed; the step record,
    which tells how many tokens a step carried for a stream, guessed ones among them, has those, too."""
    if carried_per_step is None or carried_per_step <= 1:
        return None
    steps = max(drafts.drafted_tokens / (carried_per_step - 1), drafts.drafts)
    return DraftReading(steps, steps + drafts.accepted_tokens, drafts.drafted_tokens)


def guess_answer(
    prompt_ids: Sequence[int], answer_ids: Sequence[int], *, guessed_tokens: int, match_tokens: int
) -> DraftReading:
    """What n-gram lookup would have made of an answer that is known: matches of so many tokens, as vLLM does
    when it is told the longest match alone."""
    text = [*prompt_ids, *answer_ids]
    followed_by = _Places(match_tokens)
    at, steps, drafted = len(prompt_ids) + 1, 0, 0
    while at < len(text):
        followed_by.read_to(text, at)
        guess = followed_by.guess(text, at, guessed_tokens)
        right = 0
        while right < len(guess) and at + right < len(text) and guess[right] == text[at + right]:
            right += 1
        drafted += len(guess)
        steps += 1
        at += right + 1
    return DraftReading(steps, max(len(answer_ids) - 1, 0), drafted)


class _Places:
    """Where each run of so many tokens stood first in the text read so far, without its very end."""

    def __init__(self, match_tokens: int) -> None:
        self._match_tokens = match_tokens
        self._first: dict[tuple[int, ...], int] = {}
        self._read = match_tokens

    def read_to(self, text: Sequence[int], end: int) -> None:
        for at in range(self._read, end):
            self._first.setdefault(tuple(text[at - self._match_tokens : at]), at)
        self._read = max(self._read, end)

    def guess(self, text: Sequence[int], end: int, tokens: int) -> Sequence[int]:
        at = self._first.get(tuple(text[max(end - self._match_tokens, 0) : end]))
        return () if at is None else text[at : min(at + tokens, end)]
