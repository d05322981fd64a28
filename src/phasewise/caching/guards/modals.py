"""Whether it is asked what can be, what should be, what must be or what is."""

from __future__ import annotations

from itertools import pairwise

from phasewise.caching.guards.question_words import asked_kinds
from phasewise.caching.guards.reading import Reading, either_alone
from phasewise.caching.guards.requests import asks_how_to, skips_request
from phasewise.caching.vocabulary import families, vocabulary

_MODALS = families("""
can could may possible allowed permitted ok okay able|should ought|must|might|would
""")
_OBLIGES = vocabulary("have has had need needs needed got")
_WITHOUT_CAN = frozenset({"where", "how"})


def modals_differ(one: Reading, other: Reading) -> str | None:
    """The modals that only one of two questions has. Where and how one does it is where and how one can."""
    if asks_how_to(one.lowers) and asks_how_to(other.lowers):
        return None
    ours, theirs = _modals(one), _modals(other)
    if ours ^ theirs == {"can"} and _WITHOUT_CAN & asked_kinds(one) & asked_kinds(other):
        return None
    return either_alone(ours, theirs)


def _modals(reading: Reading) -> frozenset[str]:
    lowers = skips_request(reading.lowers)
    found: set[str] = set()
    for lower, after in pairwise((*lowers, "")):
        if lower in _MODALS and after != "like":
            found.add(_MODALS[lower])
        elif lower in _OBLIGES and after == "to":
            found.add("must")
    return frozenset(found)
