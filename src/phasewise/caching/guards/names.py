"""Names, and whatever is meant to the letter: quotations, code, addresses, files, identifiers."""

from __future__ import annotations

import re

from phasewise.caching.guards.reading import SMALL_WORDS_AS_NAMES, Reading, either_alone, is_telling, once
from phasewise.caching.words import Word

_TO_THE_LETTER = re.compile(
    r"`[^`\n]{1,400}`"
    r'|"[^"\n]{1,400}"|“[^”\n]{1,400}”|«[^»\n]{1,400}»'
    r"|(?<!\w)'[^'\n]{1,400}'(?!\w)|(?<!\w)‘[^’\n]{1,400}’(?!\w)"
    r"|\b(?:https?|ftp|file|ssh)://[^\s<>\"]{1,400}"
    r"|(?<![\w.])(?<![+-]{2})[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){0,8}"
    r"|(?<!\w)[@#][A-Za-z_]\w{0,63}"
    r"|(?<!\w)(?<!--)(?:[~.]{0,2}/)?[\w-]{1,64}(?:/[\w.-]{1,64}){1,16}"
    r"|(?<!\w)--?[A-Za-z][\w-]{0,63}"
    r"|\b[\w-]{1,64}\.[A-Za-z]\w{0,9}\b"
    r"|\b[A-Za-z]\w{0,63}_\w{1,63}\b"
)
"""Nothing begins within a row of dashes: to try each of them would take long."""
_MARKS = re.compile("[`\"“«'‘@#/._-]")
"""One of them stands in whatever is meant to the letter; most questions have none."""
_ALSO_SMALL_WORDS = SMALL_WORDS_AS_NAMES - {"I", "A"}
_MOST_LOOKED_FOR = 32
"""In a text with more of them, each must stand as it does in the other."""
_TRAILING = ".,;:!?…"
_QUOTES = "`\"“”«»'‘’"


def letters_differ(one: Reading, other: Reading) -> str | None:
    """What is quoted, or is an address, a file or an identifier, in only one of two questions."""
    ours, theirs = _verbatim(one), _verbatim(other)
    return either_alone(_missing(ours - theirs, other.text), _missing(theirs - ours, one.text))


def names_differ(one: Reading, other: Reading) -> str | None:
    """The names that stand in one question and nowhere, however written, in the other."""
    ours = _names(one) - _known(other)
    theirs = _names(other) - _known(one)
    return either_alone(ours, theirs)


def _missing(alone: frozenset[str], other: str) -> frozenset[str]:
    """What stands nowhere in the other text, quoted or not."""
    if len(alone) > _MOST_LOOKED_FOR:
        return alone
    return frozenset(found for found in alone if not _stands_in(other, found))


def _stands_in(text: str, found: str) -> bool:
    """Whether something stands in a text, and not as a part of a longer word."""
    at = text.find(found)
    while at >= 0:
        around = text[max(0, at - 1) : at] + text[at + len(found) : at + len(found) + 1]
        if not any(letter.isalnum() or letter == "_" for letter in around):
            return True
        at = text.find(found, at + len(found))
    return False


@once
def _verbatim(reading: Reading) -> frozenset[str]:
    if not _MARKS.search(reading.text):
        return frozenset()
    return frozenset(
        found.rstrip(_TRAILING).strip(_QUOTES).strip() for found in _TO_THE_LETTER.findall(reading.text)
    ) - {""}


@once
def _known(reading: Reading) -> frozenset[str]:
    return reading.content_set | {name for word in reading.words for name in (word.stem, word.surface)}


@once
def _names(reading: Reading) -> frozenset[str]:
    """The words that are names by their letters; as written if they are also small words: IT."""
    return frozenset(
        word.surface if word.surface in _ALSO_SMALL_WORDS else word.stem
        for word in reading.words
        if _is_single_letter(word) or (reading.capitals_tell and _is_name(word))
    )


def _is_single_letter(word: Word) -> bool:
    """vitamin c, plan b."""
    return len(word.lower) == 1 and word.lower.isalpha() and is_telling(word)


def _is_name(word: Word) -> bool:
    """A capital letter, but at the beginning of a sentence only if another follows: NASA, iPhone, getName."""
    if word.surface.islower():
        return False
    if word.surface in _ALSO_SMALL_WORDS:
        return True
    inner = any(letter.isupper() for letter in word.surface[1:])
    return is_telling(word) and (inner or (word.surface[0].isupper() and not word.opens))
