"""Guards: what two questions must have in common before one answer may serve both, in any language."""

from __future__ import annotations

from enum import StrEnum

from phasewise.semantic_match.reading import Reading


class Guard(StrEnum):
    """What differs between two questions whose answers are therefore not shared without a judge.

    `order`: both have the same words in another order, so that nothing shows who does what to whom.
    """

    VERBATIM = "verbatim"
    NUMBERS = "numbers"
    NAMES = "names"
    NEGATION = "negation"
    ORDER = "order"


def objection(asked: Reading, stored: Reading) -> Guard | None:
    """The first guard that objects. What it means that other words differ is learned from outcomes."""
    if asked.verbatim != stored.verbatim:
        return Guard.VERBATIM
    if asked.numbers != stored.numbers:
        return Guard.NUMBERS
    if not (asked.names <= set(stored.words) and stored.names <= set(asked.words)):
        return Guard.NAMES
    if asked.negations != stored.negations:
        return Guard.NEGATION
    if asked.words != stored.words and sorted(asked.words) == sorted(stored.words):
        return Guard.ORDER
    return None
