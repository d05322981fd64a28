"""Numbers: a figure, a version or an identifier with digits stands in both questions or in neither."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

from phasewise.semantic_match.guards.questions import TIMES_ASKED_FOR
from phasewise.semantic_match.guards.reading import ONLY_AFTER_A_NUMBER, UNITS, Reading, either_alone, once
from phasewise.semantic_match.words import families, is_past_form, vocabulary

_HAS_DIGIT = re.compile(r"\d")
_SIGNS = re.compile(
    r"[^\w\s.,;:!?…'\"`´“”‘’‚„«»‹›()\-–—‐/¿¡·•、。,?!:;「」$€£¥₹%°]"
    r"|(?<=[\d\s(=*+/^])[-−–](?=\s?\d)|^[-−](?=\d)|(?<=\d)\s?/(?=\s?\d)|!(?=[\w(])|\$(?!\s?\d)"
)
"""Whatever is neither a word nor plain punctuation, and dashes, slashes and marks where they reckon."""
_ORDINAL = re.compile(r"(\d{1,9})(?:st|nd|rd)")


def numbers_differ(one: Reading, other: Reading) -> str | None:
    """The numbers, and the signs beside words (of sums, of code, little pictures), that only one has."""
    ours, theirs = _figures(one), _figures(other)
    if ours == theirs:
        return None
    return f"{_listed(ours - theirs)} | {_listed(theirs - ours)}"


def _as_ordinal(lower: str) -> str:
    """1st as 1th: one spelling for what is spelled out as "first" too."""
    ordinal = _ORDINAL.fullmatch(lower)
    return f"{ordinal[1]}th" if ordinal else lower


def _listed(figures: Counter[str]) -> str:
    return ", ".join(sorted(figures)) or "-"


@once
def _figures(reading: Reading) -> Counter[str]:
    figures = Counter(
        _as_ordinal(lower) for lower in reading.lowers if not lower.isalpha() and _HAS_DIGIT.search(lower)
    )
    figures.update(map(str.strip, _SIGNS.findall(reading.text)))
    return figures


# --- Units of measure and currencies: 5 km is not 5 miles, and a price in euros is not one in dollars.

_ASKS = frozenset({"what", "which"})


def units_differ(one: Reading, other: Reading) -> str | None:
    """The units that only one of two questions names."""
    return either_alone(_units(one), _units(other))


@once
def _units(reading: Reading) -> frozenset[str]:
    found = {UNITS[lower] for lower in reading.lowers[:1] if lower in UNITS}
    for before, lower in pairwise(reading.lowers):
        if before in _ASKS and lower in TIMES_ASKED_FOR:
            continue
        if lower in UNITS:
            found.add(UNITS[lower])
        elif lower in ONLY_AFTER_A_NUMBER and before[0].isdigit():
            found.add(ONLY_AFTER_A_NUMBER[lower])
    return frozenset(found)


_QUANTIFIER_FAMILIES = """
all every everyone everybody everything everywhere entire whole|each|both|some
several|few|many|much|most mostly|only solely merely exclusively|exactly precisely|always|sometimes
often frequently|usually typically normally generally|rarely seldom|almost nearly|approximately roughly
more|less fewer|least|enough|too|very extremely highly|even|maximum max maximal|minimum min minimal|first|last
another other|same|different|half|double twice|triple thrice|single|multiple|average median|total
quarter|majority|minority|plenty|numerous|else
"""
_PAIRS = {
    ("at", "least"): "at least", ("at", "most"): "at most", ("no", "more"): "at most", ("a", "few"): "a few",
    ("a", "little"): "a little", ("per", "capita"): "per capita", ("up", "to"): "up to",
}  # fmt: skip
_QUANTIFIERS = families(_QUANTIFIER_FAMILIES)


def quantifiers_differ(one: Reading, other: Reading) -> str | None:
    """The words of amount that only one of two questions has."""
    return either_alone(_amounts(one), _amounts(other))


@once
def _amounts(reading: Reading) -> frozenset[str]:
    found = {
        _QUANTIFIERS[lower]
        for before, lower in pairwise(("", *reading.lowers))
        if lower in _QUANTIFIERS and before != "how"
    }
    found.update(_PAIRS[pair] for pair in pairwise(reading.lowers) if pair in _PAIRS)
    return frozenset(found)


# --- How many and how much: all, some, only, most, at least, exactly, first, last, more, less, very.

# --- Dates, words of time, and the tense of what is asked: is, was, will, used to, becoming.

_FAMILIES = """
now currently nowadays presently current present|yesterday|today|tomorrow|tonight|overnight|recently lately
soon shortly|already|still|ago|before beforehand prior|after afterwards afterward|until till|since|during
later|earlier|next|previous previously|last|former formerly|future|past|upcoming|latest newest|oldest|early
late|eventually|immediately instantly|ever|once|meanwhile|simultaneously|temporarily|permanently
become becoming becomes became|begin beginning|continue continuing|stop stopping
daily|weekly|monthly|yearly annually annual|hourly|nightly|quarterly|morning mornings|noon midday|midnight
afternoon afternoons|evening evenings|night nights|dawn sunrise|dusk sunset|weekend weekends|weekday weekdays
monday mon mondays|tuesday tue tues tuesdays|wednesday wed wednesdays|thursday thu thur thurs thursdays
friday fri fridays|saturday saturdays|sunday sundays|january jan|february feb|april apr|june jun|july jul
august aug|september sep sept|october oct|november nov|december dec|spring|summer|autumn|winter
christmas xmas|easter|ramadan|thanksgiving|halloween|childhood|birth|ancient|medieval|modern|contemporary
"""
_AMBIGUOUS_MONTHS = vocabulary("May March")
_PRESENT = vocabulary("am is are do does")
_PAST = vocabulary("was were did had")
_PERFECT = vocabulary("has have")
_FUTURE = vocabulary("will shall")
_MODALS = vocabulary("can could should may might must would ought")
_QUESTION_WORDS = vocabulary("who what which when where why how")
_RELATIVE = vocabulary("that which who")
_SUBJECTS = vocabulary("i you we they he she it")
_BE = vocabulary("am is are was were be been being")
_TIME_WORDS = families(_FAMILIES)


def times_differ(one: Reading, other: Reading) -> str | None:
    """The words of time that only one of two questions has, or their tenses if these differ."""
    if reported := either_alone(_times(one), _times(other)):
        return reported
    ours, theirs = _tense(one), _tense(other)
    if ours and theirs and ours != theirs and {ours, theirs} != {"present", "modal"}:
        return f"{ours} | {theirs}"
    if not ours and not theirs:
        return _verb_tenses_differ(one, other)
    return None


@once
def _times(reading: Reading) -> frozenset[str]:
    found = {_TIME_WORDS[lower] for lower in reading.lower_set if lower in _TIME_WORDS}
    found.update(word.lower for word in reading.words if word.surface in _AMBIGUOUS_MONTHS and not word.opens)
    if _is_to_come(reading):
        found.add("will")
    if _was_a_habit(reading):
        found.add("used to")
    return frozenset(found)


@once
def _is_to_come(reading: Reading) -> bool:
    return bool(reading.lower_set & _FUTURE) or ("going", "to") in pairwise(reading.lowers)


def _was_a_habit(reading: Reading) -> bool:
    """ "did he use to run", but not "what is it used to do"."""
    lowers = reading.lowers
    for place in range(len(lowers) - 1):
        if lowers[place] in ("use", "used") and lowers[place + 1] == "to":
            before = lowers[max(0, place - 3) : place]
            if not _BE.intersection(before):
                return True
    return False


@once
def _tense(reading: Reading) -> str | None:
    """What the first auxiliary tells, of the question rather than of what was said before it."""
    if _is_to_come(reading):
        return "future"
    asked = next((place for place, lower in enumerate(reading.lowers) if lower in _QUESTION_WORDS), 0)
    for place, (before, lower) in enumerate(pairwise(("", *reading.lowers))):
        if place < asked or (before in _RELATIVE and not reading.words[place - 1].opens):
            continue
        if lower in _PERFECT and place <= asked + 1 and before not in _SUBJECTS:
            return "perfect"
        if lower in _PRESENT:
            return "present"
        if lower in _PAST:
            return "past"
        if lower in _MODALS:
            return "modal"
    return None


def _verb_tenses_differ(one: Reading, other: Reading) -> str | None:
    """Without auxiliaries the verb itself tells: "who won" and "who wins"."""
    ours, theirs = _past(one), _past(other)
    shared = one.stem_set & other.stem_set
    return either_alone(ours & shared, theirs & shared)


@once
def _past(reading: Reading) -> frozenset[str]:
    return frozenset(word.stem for word in reading.words if is_past_form(word.lower))
