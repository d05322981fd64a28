"""Opposites: where one question has a word and the other its antonym, they ask for opposite things."""

from __future__ import annotations

from phasewise.caching.guards.opposite_words import OPPOSED
from phasewise.caching.guards.reading import Reading
from phasewise.caching.stems import stem_of

_ENDINGS = (("er", "ee"), ("or", "ee"))


def opposites_differ(one: Reading, other: Reading) -> str | None:
    """A word of one question whose opposite stands in the other; each is in its own alone."""
    ours, theirs = _stems(one), _stems(other)
    for stem in sorted(ours - theirs):
        for opposite in OPPOSED.get(stem, ()):
            if opposite in theirs and opposite not in ours:
                return f"{stem} | {opposite}"
    return _degrees_or_parties(ours - theirs, theirs - ours)


def _stems(reading: Reading) -> frozenset[str]:
    return frozenset(word.stem for word in reading.words)


def _degrees_or_parties(ours: frozenset[str], theirs: frozenset[str]) -> str | None:
    """big, bigger and biggest; employer and employee: one root, and what follows it turns the question."""
    for alone, against in ((ours, theirs), (theirs, ours)):
        for stem in sorted(alone):
            for form in sorted(_turned(stem) & against):
                return f"{stem} | {form}"
    return None


def _turned(stem: str) -> frozenset[str]:
    root = stem.removesuffix("e")
    forms = {stem_of(f"{base}{end}") for base in _roots(root) for end in ("er", "est")}
    for end, turned in _ENDINGS:
        if stem.endswith(end):
            forms.add(stem_of(stem.removesuffix(end) + turned))
    if stem.endswith("er"):
        forms.add(stem_of(stem.removesuffix("er") + "est"))
    return frozenset(forms)


def _roots(root: str) -> tuple[str, ...]:
    if not root:
        return ()
    return root, root + root[-1], root[:-1] + "i" if root.endswith("y") else root
