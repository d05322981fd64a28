"""How many and how much: all, some, only, most, at least, exactly, first, last, more, less, very."""

from __future__ import annotations

from itertools import pairwise

from phasewise.caching.guards.reading import Reading, either_alone, once
from phasewise.caching.vocabulary import families

_FAMILIES = """
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
_QUANTIFIERS = families(_FAMILIES)


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
