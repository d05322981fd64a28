"""Content: a word that stands in one question alone, and is no filler, changes what is asked.

The most general of the guards, and the only one that may be wrong often: what changed may be a mere synonym.
"""

from __future__ import annotations

from itertools import pairwise

from phasewise.caching.guards.reading import Reading, either_alone
from phasewise.caching.guards.roles import parts_differ
from phasewise.caching.guards.voice import voices_agree
from phasewise.caching.vocabulary import vocabulary

_PARTICLES = vocabulary("up down out off over under through along around across behind away back")
_BE = vocabulary("am is are was were")
_DO = vocabulary("do does did")
_DETERMINERS = vocabulary("a an the my your his her its our their this that these those")
_OPINION = "think"


def contents_differ(one: Reading, other: Reading) -> str | None:
    """The words of content that only one of two questions has, or small words that change the others."""
    if told := either_alone(one.content_set, other.content_set):
        return told
    if voices_agree(one, other):
        return None
    # In another order the parts are the guard of order's.
    parts = parts_differ(one, other) if one.contents == other.contents else None
    return parts or _small_words_differ(one, other)


def _small_words_differ(one: Reading, other: Reading) -> str | None:
    """give and give up; is it open and does it open; the train and the training."""
    if told := either_alone(one.lower_set & _PARTICLES, other.lower_set & _PARTICLES):
        return told
    ours, theirs = _first_helper(one), _first_helper(other)
    if ours and theirs and ours != theirs and _OPINION not in one.content_set:
        return f"{ours} | {theirs}"
    return either_alone(_doings(one), _doings(other))


def _first_helper(reading: Reading) -> str | None:
    for lower in reading.lowers:
        if lower in _BE or lower in _DO:
            return "be" if lower in _BE else "do"
    return None


def _doings(reading: Reading) -> frozenset[str]:
    """Nouns in -ing, told by the article before them."""
    return frozenset(
        after
        for before, after in pairwise(reading.lowers)
        if before in _DETERMINERS and after.endswith("ing")
    )
