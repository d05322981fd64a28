"""What guards compare of a question, in any language: its words, numbers, names, negations, quoted text."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import lru_cache

from phasewise.core.value import value
from phasewise.semantic_match.languages import LANGUAGES

_QUOTED = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*`"
    r'|"[^"\n]*"|“[^“”\n]*”|«[^«»\n]*»|„[^„“\n]*“|「[^「」\n]*」',
    re.DOTALL,
)
_WITHOUT_SPACES = r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
_LETTER = r"(?:[^\W_]|[\u0300-\u060b\u060d-\u061a\u061c-\u061e\u0620-\u0963\u0966-\u1fff])"
"""A letter, a digit, or a mark that belongs to one, as vowel signs do in Hindi and Thai."""
_PART = rf"(?:(?!{_WITHOUT_SPACES}){_LETTER})+"
_WORD = re.compile(rf"{_WITHOUT_SPACES}|{_PART}(?:[.\-]{_PART})*")
"""A character is a word where no spaces are written, as in Chinese."""
_SENTENCE_BEGINS = frozenset(".?!:,;\n¿¡…")
_HARMLESS = frozenset(".,;:?!'\"’()[]-–—…¿¡·„“”«»「」。、，？！：；")
"""Marks that say nothing by themselves. A piece of text with any other is compared to the letter."""
_ENDS = ".,;:?…。、，？：；"
_NEGATIONS = frozenset(word for language in LANGUAGES for word in language.negations)
_NEGATION_ENDING = re.compile(
    rf"(?:{'|'.join(re.escape(end) for language in LANGUAGES for end in language.negation_endings)})\b"
)
_NUMBERS = frozenset(word for language in LANGUAGES for word in language.numbers)


@value
class Reading:
    """A question as guards see it.

    `words` are in lower case, in order, without marks. `numbers` are as written, with signs and currencies.
    `names` are the words with a capital letter where no sentence begins. `verbatim` is quoted text, and what
    has marks of code, formulas, addresses or symbols, to the letter and in order.
    """

    words: tuple[str, ...]
    numbers: Counter[str]
    names: frozenset[str]
    negations: int
    verbatim: tuple[str, ...]


@lru_cache(maxsize=4_096)
def read(text: str) -> Reading:
    """Read a question. All languages' lists apply, because questions mix them and do not name theirs."""
    text = unicodedata.normalize("NFC", text).replace("’", "'")
    words: list[str] = []
    names: set[str] = set()
    end = 0
    for found in _WORD.finditer(text):
        written = found[0]
        begins = not end or not _SENTENCE_BEGINS.isdisjoint(text[end : found.start()])
        if any(letter.isupper() for letter in (written[1:] if begins else written)) and len(written) > 1:
            names.add(written.casefold())
        words.append(written.casefold())
        end = found.end()
    pieces = [piece.rstrip(_ENDS).casefold() for piece in text.split()]
    return Reading(
        words=tuple(words),
        numbers=Counter(
            [piece for piece in pieces if any(map(_is_numeral, piece))]
            + [word for word in words if word in _NUMBERS]
        ),
        names=frozenset(names),
        negations=sum(word in _NEGATIONS for word in words) + len(_NEGATION_ENDING.findall(text.lower())),
        verbatim=(*_QUOTED.findall(text), *filter(_is_special, _QUOTED.sub(" ", text).split())),
    )


def _is_numeral(letter: str) -> bool:
    return letter.isdigit() or unicodedata.category(letter) == "No"


def _is_special(piece: str) -> bool:
    return any(
        not (letter.isalnum() or letter in _HARMLESS or unicodedata.category(letter).startswith("M"))
        for letter in piece
    )
