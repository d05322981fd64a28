"""Dates, words of time, and the tense of what is asked: is, was, will, used to, becoming."""

from __future__ import annotations

from itertools import pairwise

from phasewise.caching.guards.reading import Reading, either_alone, once
from phasewise.caching.stems import is_past_form
from phasewise.caching.vocabulary import families, vocabulary

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
    if told := either_alone(_times(one), _times(other)):
        return told
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
