"""Whether it is asked what can be, what should be, what must be or what is."""

from __future__ import annotations

from itertools import pairwise

from phasewise.caching.guards.question_words import asked_kinds
from phasewise.caching.guards.reading import Reading, either_alone, once
from phasewise.caching.guards.requests import asks_how_to, skips_request
from phasewise.caching.vocabulary import families, vocabulary

_MODALS = families("""
can could may possible allowed permitted ok okay able|should ought|must|might|would
""")
_OBLIGES = vocabulary("have has had need needs needed got")
_ASKS = vocabulary("do does did if when would will")
_NEEDS = vocabulary("i we")
_UNDERSTOOD = ({"can"}, {"should"})


def modals_differ(one: Reading, other: Reading) -> str | None:
    """The modals that only one of two questions has. Where and how one does it is where and how one can."""
    if asks_how_to(one.lowers) and asks_how_to(other.lowers):
        return None
    ours, theirs = _modals(one), _modals(other)
    if ours ^ theirs in _UNDERSTOOD and any(map(_tells_a_manner, asked_kinds(one) & asked_kinds(other))):
        return None
    return either_alone(ours, theirs)


@once
def _modals(reading: Reading) -> frozenset[str]:
    lowers = skips_request(reading.lowers)
    found: set[str] = set()
    for place, (lower, after) in enumerate(pairwise((*lowers, ""))):
        if lower in _MODALS and after != "like":
            found.add(_MODALS[lower])
        elif lower in _OBLIGES and after == "to" and not _is_a_wish(lowers[max(0, place - 2) : place]):
            found.add("must")
    return frozenset(found)


def _is_a_wish(before: tuple[str, ...]) -> bool:
    """ "I need to hide it. How?" says what is wanted; "do I need to hide it" asks."""
    return before[-1:] != () and before[-1] in _NEEDS and before[0] not in _ASKS


def _tells_a_manner(kind: str) -> bool:
    return kind.startswith(("how", "where"))
