"""Content: a word that stands in one question alone, and is no filler, changes what is asked.

The most general of the guards, and the only one that may be wrong often: what changed may be a mere synonym.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

from phasewise.semantic_match.guards.reading import Reading, either_alone, once
from phasewise.semantic_match.guards.roles import parts_differ, voices_agree
from phasewise.semantic_match.words import is_function_word, vocabulary

_PARTICLES = vocabulary("up down out off over under through along around across behind away back")
_BE = vocabulary("am is are was were")
_DO = vocabulary("do does did")
_DETERMINERS = vocabulary("a an the my your his her its our their this that these those")
_OPINION = "think"


def contents_differ(one: Reading, other: Reading) -> str | None:
    """The words of content that only one of two questions has, or small words that change the others."""
    if reported := either_alone(one.content_set, other.content_set):
        return reported
    if voices_agree(one, other):
        return None
    # In another order the parts are the guard of order's.
    parts = parts_differ(one, other) if one.contents == other.contents else None
    return parts or _small_words_differ(one, other)


def _small_words_differ(one: Reading, other: Reading) -> str | None:
    """give and give up; is it open and does it open; the train and the training."""
    if reported := either_alone(one.lower_set & _PARTICLES, other.lower_set & _PARTICLES):
        return reported
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


# --- Languages the other guards do not read: there any other wording may mean anything.
#
# English has to show itself, by its small words above all. What does not is compared by the letter: no
# language has to be known in order to be refused, and questions of keywords alone are refused with them.

LEAST_ENGLISH_SHARE = 0.25
"""Of a question's words, but for names, that must be known as English. Most questions have half and more."""

_LATIN = re.compile(r"[\x00-\u024f\u1e00-\u1eff\u2000-\u2bff]*")
_FOREIGN = vocabulary(
    "der das dem ein eine einen ist sind nicht kein und oder wie wer wo wann warum ich du mit zu auf für "
    "el la los las un una es que qué como cómo cuál quién dónde por para y le les des est sont ne pas et "
    "ou où qui quoi quand pourquoi avec dans sur je tu il elle nous vous lo gli che è sono perché chi "
    "dove quando della het een niet wat hoe waar wanneer waarom og ikke hvad hvor nie jest jak czy gdzie "
    "kto não é são um uma os onde quem och inte vad er det kan bir bu mi nasil nerede hai kaise kya nahi "
    "mera meri mujhe karna kahan ang mga ba po ko na ako ito hindi paano saan ano sino"
)
"""Where one of them stands among English words, two languages are mixed, and one of them is not read."""
_SHARED = vocabulary(
    "a an all also am any are as at be but by do for had has have he her his i if in is its may me my no of "
    "off on once or over per so then to under us via was we will one here"
)
"""Small words of English that are words of other languages too: alone they say nothing."""
_COMMON = vocabulary(
    "get gets make makes made know knows think thinks want wants need needs find found give gives given tell "
    "told use uses used using mean means cost costs take takes took keep wrote written learn explain "
    "describe happen happens happened become became speak said seen eat drink sleep believe send sent bought "
    "paid people year years day days week weeks thing things way ways child children house money country "
    "world good bad better worse best old big small cheap cheapest safe healthy many much often far more "
    "less only least different wrong never always ever already another according"
)
"""Words of content that nearly every English question could have, and other languages have not borrowed."""
_COMPANIONS = {
    "is": vocabulary("a an to by or be"),
    "are": vocabulary("an to by be for of"),
    "was": vocabulary("a to by or"),
    "will": vocabulary("a to by be my"),
}
"""First words that other languages begin with too, but with none of these behind them."""
_BEFORE_I = vocabulary("do am may will had")
_WORD = re.compile(r"[^\W\d_]+")
_NOT = re.compile(r"(?:\b(?:wo|sha))?n['’]t\b", re.IGNORECASE)


def unread_language_differs(one: Reading, other: Reading) -> str | None:
    """That two questions are worded differently, in a language whose negations and numbers are not known."""
    if (_is_english(one) and _is_english(other)) or _letters(one) == _letters(other):
        return None
    return "not read as English, and worded differently"


@once
def _is_english(reading: Reading) -> bool:
    """By all of its words: what was dropped as saying nothing tells the language all the same."""
    surfaces = _WORD.findall(_NOT.sub(" not", reading.text))
    lowers = [surface.casefold() for surface in surfaces]
    if not lowers or not all(map(_LATIN.fullmatch, lowers)):
        return False
    foreign = sum(
        2 * (surface in _FOREIGN) + (not surface.isascii()) for surface in (lowers[0], *surfaces[1:])
    )
    english = sum(map(_only_english, lowers)) or (not foreign and _asks_by_its_order(reading.lowers))
    shared = sum(lower in _SHARED for lower in lowers)
    names = sum(surface[0].isupper() and surface != "I" for surface in surfaces[1:])
    return english >= max(foreign, 1) and english + shared >= LEAST_ENGLISH_SHARE * (len(lowers) - names)


def _only_english(lower: str) -> bool:
    return lower in _COMMON or (is_function_word(lower) and lower not in _SHARED)


def _asks_by_its_order(lowers: tuple[str, ...]) -> bool:
    """Is Ann a nurse? Do I pay? Of words that other languages have too, but not together."""
    first, *behind = lowers
    if first in _BEFORE_I and behind[:1] == ["i"]:
        return True
    return not _COMPANIONS.get(first, frozenset()).isdisjoint(behind)


@once
def _letters(reading: Reading) -> str:
    """The text without case, and with a space for every run of what is no letter, mark, figure or symbol."""
    plain = unicodedata.normalize("NFKC", reading.text).casefold()
    return " ".join("".join(map(_or_space, plain)).split())


def _or_space(character: str) -> str:
    return character if unicodedata.category(character)[0] in "LMNS" else " "
