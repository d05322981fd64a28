"""Finds the known name that somebody may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST = 48
"""Of longer words nothing is guessed: comparing takes time, and a client chose the word."""


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A question with the closest known name; None if none is close."""
    close = get_close_matches(word, list(known), n=1, cutoff=0.75) if len(word) <= LONGEST else []
    return f"did you mean {close[0]}?" if close else None
