"""A question as the guards read it: made once, looked at by each of them.

What a difference between two readings means is each guard's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import lru_cache
from typing import Any, TypeVar

from phasewise.core.value import value
from phasewise.semantic_match.words import (
    FUNCTION_WORDS,
    Word,
    families,
    is_function_word,
    stem_of,
    vocabulary,
    words,
)

# --- Whose opinion a question asks for: "who do critics think is best" and "who is best according to
# critics".
#
# Both ask the same, and differ in where the critics stand; here they are put last.

_HOLDS = vocabulary("think believe consider reckon")
_AUXILIARIES = vocabulary("do does did")


def opinion_last(telling: list[Word], everything: Sequence[Word]) -> list[Word]:
    """The telling words, with the verb of opinion and those who hold it at the end."""
    span = _think_span(everything) or _according_span(everything)
    if span is None:
        return telling
    start, end = span
    holders = [word for word in telling if start <= word.place <= end]
    rest = [word for word in telling if not start <= word.place <= end]
    verb = [word for word in holders if _is_mark(word)]
    return rest + verb + [word for word in holders if not _is_mark(word)]


def _is_mark(word: Word) -> bool:
    return word.lower in _HOLDS or word.lower == "according"


def _think_span(everything: Sequence[Word]) -> tuple[int, int] | None:
    """From the auxiliary to the verb, of "do critics think"."""
    since: int | None = None
    for word in everything:
        if word.lower in _AUXILIARIES:
            since = word.place
        elif word.lower in _HOLDS and since is not None and word.place > since + 1:
            return since, word.place
    return None


def _according_span(everything: Sequence[Word]) -> tuple[int, int] | None:
    """From "according to" to the end, or to where the question begins: "according to critics, who"."""
    for place, word in enumerate(everything[:-1]):
        if word.lower == "according" and everything[place + 1].lower == "to":
            end = place + 2
            while end < len(everything) and everything[end].lower not in _QUESTION_OPENERS:
                end += 1
            return place, end - 1
    return None


_QUESTION_OPENERS = vocabulary("who whom what which when where why how is are was were do does did can")


# --- The names of units and currencies, and which of them say so only behind a number: 5 m, 3 in.

_NAMES = """
km kms kilometer kilometers kilometre kilometres|mi mile miles|meter meters metre metres
cm centimeter centimeters centimetre centimetres|mm millimeter millimeters millimetre millimetres
inch inches|ft feet|yd yards|lightyear lightyears|acre acres|hectare hectares|knot knots|mph|kmh kph
kg kgs kilo kilos kilogram kilograms|gram grams|mg milligram milligrams|lb lbs|oz ounce ounces|ton tons
tonne tonnes|liter liters litre litres|ml milliliter milliliters millilitre millilitres|gallon gallons gal
pint pints|quart quarts|cup cups|tbsp tablespoon tablespoons|tsp teaspoon teaspoons
celsius centigrade|fahrenheit|kelvin|joule joules|calorie calories|kcal|kwh|watt watts|kw kilowatt kilowatts
volt volts|amp amps ampere amperes|hz hertz|mhz|ghz|psi|bar|pascal pascals|degree degrees|radian radians
bit bits|byte bytes|kb kilobyte kilobytes|mb megabyte megabytes|gb gigabyte gigabytes gig gigs
tb terabyte terabytes|kib|mib|gib|mbps|gbps|ms millisecond milliseconds|sec secs seconds|min mins minutes
hr hrs hours hour|day days|week weeks|fortnight|month months|year years yr yrs|decade decades
century centuries|quarter quarters|percent|percentage percentages|am|pm
dollar dollars usd bucks|euro euros eur|sterling gbp quid|yen jpy|rupee rupees inr|yuan renminbi rmb cny
franc francs chf|krona kronor sek|peso pesos mxn|real reais brl|won krw|ruble rubles rub|lira liras try
cent cents|penny pence|bitcoin bitcoins btc|ether eth ethereum|token tokens
"""
ONLY_AFTER_A_NUMBER = {
    "m": "meter", "g": "gram", "l": "liter", "s": "sec", "h": "hr", "k": "kelvin", "c": "celsius",
    "f": "fahrenheit", "in": "inch", "foot": "ft", "pound": "pound", "pounds": "pound", "yard": "yd",
    "second": "sec", "minute": "min", "am": "am", "pm": "pm", "bar": "bar", "try": "lira", "real": "real",
    "won": "won", "rub": "ruble", "d": "day", "w": "watt", "v": "volt", "t": "ton", "b": "byte", "x": "x",
}  # fmt: skip
"""Words that mean something else elsewhere."""

UNITS = {name: usual for name, usual in families(_NAMES).items() if name not in ONLY_AFTER_A_NUMBER}
"""Every name of a unit, with the one that stands for all of them."""


def is_unit(lower: str) -> bool:
    """Whether a word that stands behind a number is a unit."""
    return lower in UNITS or lower in ONLY_AFTER_A_NUMBER


# --- Numbers that are spelled out, as digits: "twenty five" and "25", "first" and "1st".

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


# --- Words that mean the same wherever they stand in a question. Few: what is doubtful is left to the bound.

_GROUPS = """
think believe according reckon|big large|buy purchase|begin start commence|end finish complete
quick fast rapid|fix repair|remove delete erase|picture photo photograph|car automobile|movie film
phone telephone
tv television|doctor physician|lawyer attorney|adviser advisor|kid child|mom mother|dad father
grandma grandmother|grandpa grandfather|sick ill|glad happy
hard difficult|easy simple|smart intelligent clever|rich wealthy|afraid scared
incorrect wrong|create make|help assist aid|show display
choose select pick|need require|happen occur|allow permit
use utilize utilise|speak talk|signup register|login signin
app application|info information|vs versus|difference distinction
usa america|uk britain|bike bicycle|plane airplane aeroplane aircraft
fridge refrigerator|maths math mathematics|ad advert advertisement|lab laboratory|exam examination
pc computer|config configuration|db database|repo repository|env environment|docs documentation|k8s kubernetes
js javascript|ts typescript|py python|postgres postgresql|ok okay
sofa couch|petrol gasoline|trash rubbish garbage
"""


_USUAL = {stem_of(name): stem_of(usual) for name, usual in families(_GROUPS).items()}


def usual_name(stem: str) -> str:
    """The one stem that stands for all that mean the same."""
    return _USUAL.get(stem, stem)


_CURRENCIES = {"$": "dollars", "€": "euros", "£": "pounds sterling", "¥": "yen", "₹": "rupees"}
_PRICE = re.compile(r"([$€£¥₹])\s?(\d[\d.,]*)")
_DEGREES = re.compile(r"°\s?([CFcf])\b")
_PERCENT = re.compile(r"(?<=\d)\s?%")

SMALL_WORDS_AS_NAMES = frozenset({"I", "A", "IT", "US", "WHO"})
"""Words that, in capitals, may be names or are always written so."""


@value
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
    capitals_are_distinctive: bool
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
    capitals_are_distinctive = _capitals_are_distinctive(found)
    if capitals_are_distinctive:
        found = tuple(map(_as_name, found))
    lowers = tuple(word.lower for word in found)
    contents = tuple(map(content_of, opinion_last([word for word in found if is_distinctive(word)], found)))
    stem_set = frozenset(word.stem for word in found)
    return Reading(
        text,
        found,
        lowers,
        frozenset(lowers),
        stem_set,
        contents,
        frozenset(contents),
        capitals_are_distinctive,
    )


def is_distinctive(word: Word) -> bool:
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


def _capitals_are_distinctive(found: tuple[Word, ...]) -> bool:
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
