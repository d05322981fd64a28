"""Negation: not, never, without, un-, -less; how often something is denied, and what."""

from __future__ import annotations

from collections import Counter

from phasewise.caching.guards.reading import Reading, content_of, is_telling, once
from phasewise.caching.vocabulary import vocabulary

_NEGATORS = vocabulary(
    "not no never none nobody nothing nowhere neither nor without non hardly barely scarcely unable except "
    "excluding unless instead lack lacks lacking fail fails failed avoid avoids avoiding prevent prevents "
    "preventing refuse refuses refused free forbid forbids forbidden exclude anti stop stops stopping nope"
)
_PREFIXES = ("un", "in", "im", "il", "ir", "dis", "non", "mis", "anti", "de", "a", "counter", "mal")
_SHORTEST_ROOT = 3


def negations_differ(one: Reading, other: Reading) -> str | None:
    """What only one of two questions denies."""
    ours, theirs = _denied(one), _denied(other)
    if ours != theirs:
        return f"{_listed(ours - theirs)} | {_listed(theirs - ours)}"
    return _by_form(one, other)


def _listed(denied: Counter[tuple[str, str]]) -> str:
    return ", ".join(sorted(" ".join(pair).strip() for pair in denied)) or "-"


@once
def _denied(reading: Reading) -> Counter[tuple[str, str]]:
    """Each word that denies, with the next word of content: what it denies."""
    denied: Counter[tuple[str, str]] = Counter()
    target = ""
    for word in reversed(reading.words):
        if word.lower in _NEGATORS:
            denied[word.lower, target] += 1
        elif is_telling(word):
            target = content_of(word)
    return denied


def _by_form(one: Reading, other: Reading) -> str | None:
    """happy and unhappy, hopeful and hopeless: the same root, in one question with a part that denies."""
    ours, theirs = one.stem_set - other.stem_set, other.stem_set - one.stem_set
    for alone, against in ((ours, theirs), (theirs, ours)):
        for stem in alone:
            if any(prefixed in against for prefixed in _denials(stem)):
                return f"{stem} | {', '.join(sorted(against))}"
    return None


def _denials(stem: str) -> list[str]:
    """How a stem's opposites are formed."""
    if len(stem) < _SHORTEST_ROOT:
        return []
    root = stem.removesuffix("ful")
    return [prefix + stem for prefix in _PREFIXES] + [root + "les", root + "less"]
