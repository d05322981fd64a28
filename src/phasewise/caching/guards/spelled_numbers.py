"""Numbers that are spelled out, as digits: "twenty five" and "25", "first" and "1st"."""

from __future__ import annotations

import re
from collections.abc import Sequence

from phasewise.caching.guards.unit_names import is_unit
from phasewise.caching.vocabulary import vocabulary
from phasewise.caching.words import Word

_NAMES_BELOW_TWENTY = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen
"""
_ONES = {name: value for value, name in enumerate(_NAMES_BELOW_TWENTY.split())}
_TENS = {
    "twenty": 20, "thirty": 30, "forty": 40, "fourty": 40, "fifty": 50,
    "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90,
}  # fmt: skip
_SCALES = {
    "dozen": 12, "hundred": 100, "thousand": 1_000, "million": 10**6, "billion": 10**9, "trillion": 10**12,
}  # fmt: skip
_ORDINALS = {
    "first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8,
    "ninth": 9, "tenth": 10, "eleventh": 11, "twelfth": 12, "thirteenth": 13, "fourteenth": 14,
    "fifteenth": 15, "sixteenth": 16, "seventeenth": 17, "eighteenth": 18, "nineteenth": 19, "twentieth": 20,
    "thirtieth": 30, "hundredth": 100,
}  # fmt: skip
_BEGIN_NUMBERS = frozenset({*_ONES, *_TENS, *_SCALES, *_ORDINALS})
_LONGEST = 16
"""In words. Longer ones are read as two, on both sides alike."""
_DIGITS = re.compile(r"\d{1,15}|\d{1,3}(?:,\d{3}){1,5}")
_MEASURE = re.compile(r"(\d[\d.,]*)([a-z]{1,12})")
_ONE_IS_A_PRONOUN_AFTER = vocabulary(
    "which this that the does can should could would no any every each another"
)


def in_digits(read: Sequence[Word]) -> tuple[Word, ...]:
    """The same words, with numbers in digits and units apart from their numbers; places count anew."""
    if not any(word.lower in _BEGIN_NUMBERS or word.lower[0].isdigit() for word in read):
        return tuple(read)
    written: list[tuple[str, Word]] = []
    at = 0
    while at < len(read):
        value, length = _number_at(read, at)
        if length:
            written.append((value, read[at]))
            at += length
        else:
            written.extend((part, read[at]) for part in _parts(read[at]))
            at += 1
    return tuple(
        word if lower == word.lower and place == word.place else _renamed(word, lower, place)
        for place, (lower, word) in enumerate(written)
    )


def _renamed(word: Word, lower: str, place: int) -> Word:
    same = lower == word.lower
    return Word(
        word.surface if same else lower, lower, word.stem if same else lower, place, word.opens, word.owns
    )


def _parts(word: Word) -> tuple[str, ...]:
    """5km as 5 and km; 1,000 as 1000."""
    lower = word.lower
    if not lower[0].isdigit():
        return (lower,)
    if _DIGITS.fullmatch(lower):
        return (lower.replace(",", ""),)
    measure = _MEASURE.fullmatch(lower)
    if measure and is_unit(measure[2]):
        return measure[1].replace(",", ""), measure[2]
    return (lower,)


def _number_at(read: Sequence[Word], at: int) -> tuple[str, int]:
    """The number that begins here and how many words it takes; no words if none does."""
    total = current = 0
    place = at
    while place < min(len(read), at + _LONGEST):
        lower = read[place].lower
        if lower in _ORDINALS and not (place > at and read[place].opens):
            return f"{total + current + _ORDINALS[lower]}th", place + 1 - at
        if lower == "and" and place > at and read[place - 1].lower in _SCALES and _goes_on(read, place + 1):
            place += 1
            continue
        if lower in _SCALES:
            current = max(current, 1) * _SCALES[lower]
            if _SCALES[lower] >= 1_000:
                total, current = total + current, 0
        elif (small := _small(read, place)) is not None and _fits(current, small, place > at):
            current += small
        else:
            break
        place += 1
    return (str(total + current), place - at) if place > at else ("", 0)


def _small(read: Sequence[Word], place: int) -> int | None:
    lower = read[place].lower
    if lower == "one" and not _one_is_a_number(read, place):
        return None
    if lower in _ONES or lower in _TENS:
        return _ONES.get(lower, _TENS.get(lower))
    followed = place + 1 < len(read) and read[place + 1].lower in _SCALES
    return int(lower.replace(",", "")) if followed and _DIGITS.fullmatch(lower) else None


def _fits(current: int, small: int, begun: bool) -> bool:
    """Whether a small number continues the one before: fifty two does, five two is two numbers."""
    if not begun or current == 0:
        return True
    return current % 100 == 0 or (current % 10 == 0 and current % 100 >= 20 and small < 10)


def _goes_on(read: Sequence[Word], place: int) -> bool:
    return place < len(read) and (read[place].lower in _ONES or read[place].lower in _TENS)


def _one_is_a_number(read: Sequence[Word], place: int) -> bool:
    """ "one apple", but not "which one" nor "one of them"."""
    if place and read[place - 1].lower in _ONE_IS_A_PRONOUN_AFTER:
        return False
    return place + 1 < len(read) and read[place + 1].lower not in _AFTER_A_PRONOUN


_AFTER_A_PRONOUN = vocabulary("of is are was were to can should do does in on for with and or that")
