"""A question as the guards read it: made once, looked at by each of them.

What a difference between two readings means is each guard's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import field, replace
from functools import lru_cache
from typing import Any, TypeVar

from phasewise.caching.guards.opinions import opinion_last
from phasewise.caching.guards.spelled_numbers import in_digits
from phasewise.caching.guards.synonyms import usual_name
from phasewise.caching.guards.unit_names import UNITS
from phasewise.caching.words import FUNCTION_WORDS, Word, is_function_word, words
from phasewise.model.noun import noun

_CURRENCIES = {"$": "dollars", "€": "euros", "£": "pounds sterling", "¥": "yen", "₹": "rupees"}
_PRICE = re.compile(r"([$€£¥₹])\s?(\d[\d.,]*)")
_DEGREES = re.compile(r"°\s?([CFcf])\b")
_PERCENT = re.compile(r"(?<=\d)\s?%")

SMALL_WORDS_AS_NAMES = frozenset({"I", "A", "IT", "US", "WHO"})
"""Words that, in capitals, may be names or are always written so."""


@noun
class Reading:
    """A question, its words, and of those the ones that carry content.

    `contents` are stems in their order, of synonyms the usual one; whose opinion is asked for stands last.
    `capitals_tell` says whether a capital letter makes a name here. `facts` are those found `once`.
    """

    text: str
    words: tuple[Word, ...]
    lowers: tuple[str, ...]
    lower_set: frozenset[str]
    stem_set: frozenset[str]
    contents: tuple[str, ...]
    content_set: frozenset[str]
    capitals_tell: bool
    facts: dict[Callable[[Reading], Any], Any] = field(default_factory=dict, compare=False, repr=False)


_Fact = TypeVar("_Fact")


def once(find: Callable[[Reading], _Fact]) -> Callable[[Reading], _Fact]:
    """What a guard finds in a reading, looked for the first time only: a question meets several neighbours.

    Nobody may change what was found.
    """

    def fact(reading: Reading) -> _Fact:
        facts = reading.facts
        if find not in facts:
            facts[find] = find(reading)
        found: _Fact = facts[find]
        return found

    return fact


@lru_cache(maxsize=32)
def read(text: str) -> Reading:
    """What the guards look at in a text. The last few are kept: a question meets several neighbours."""
    found = in_digits(words(_symbols_as_words(text)))
    capitals_tell = _capitals_tell(found)
    if capitals_tell:
        found = tuple(map(_as_name, found))
    lowers = tuple(word.lower for word in found)
    contents = tuple(map(content_of, opinion_last([word for word in found if is_telling(word)], found)))
    stem_set = frozenset(word.stem for word in found)
    return Reading(
        text, found, lowers, frozenset(lowers), stem_set, contents, frozenset(contents), capitals_tell
    )


def is_telling(word: Word) -> bool:
    """Whether a word carries content of its own."""
    return word.lower not in FUNCTION_WORDS


def content_of(word: Word) -> str:
    """What stands for the content of a word: its stem, or the usual one of those that mean the same."""
    return UNITS.get(word.lower) or usual_name(word.stem)


def either_alone(one: frozenset[str], other: frozenset[str]) -> str | None:
    """The words that stand in one set alone, for people to read; None if there are none."""
    if one == other:
        return None
    return f"{_listed(one - other)} | {_listed(other - one)}"


def _capitals_tell(found: tuple[Word, ...]) -> bool:
    """Whether capital letters tell names: in A Title or in SHOUTING even words like "in" have them."""
    small = [
        word
        for word in found
        if not word.opens and is_function_word(word.lower) and word.surface not in SMALL_WORDS_AS_NAMES
    ]
    return sum(word.surface[0].isupper() for word in small) * 2 <= len(small)


def _as_name(word: Word) -> Word:
    """The A of "should I do A before B" is no article."""
    return replace(word, lower="A", stem="A") if word.surface == "A" and not word.opens else word


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "-"


def _symbols_as_words(text: str) -> str:
    text = _PRICE.sub(lambda match: f"{match[2]} {_CURRENCIES[match[1]]} ", text)
    text = _DEGREES.sub(lambda match: " celsius " if match[1] in "Cc" else " fahrenheit ", text)
    return _PERCENT.sub(" percent ", text)
