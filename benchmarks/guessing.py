"""What n-gram drafting would have achieved on a known answer, as vLLM does it with one length of match."""

from __future__ import annotations

from collections.abc import Sequence

from phasewise.diagnosis.predict.setup import DraftReading


def guess_answer(
    prompt_ids: Sequence[int], answer_ids: Sequence[int], *, guessed_tokens: int, match_tokens: int
) -> DraftReading:
    """The steps and the drafts of the answer, with matches of this length."""
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
    """The first position of each n-gram in the text so far, except at its end."""

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
