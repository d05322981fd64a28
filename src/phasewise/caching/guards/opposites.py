"""Opposites: where one question has a word and the other its antonym, they ask for opposite things."""

from __future__ import annotations

from phasewise.caching.guards.opposite_words import OPPOSED
from phasewise.caching.guards.reading import Reading, is_telling
from phasewise.caching.stems import stem_of

_ARTICLES = frozenset({"a", "an", "the"})
_ENDINGS = (("er", "ee"), ("or", "ee"))


def opposites_differ(one: Reading, other: Reading) -> str | None:
    """A word of one question whose opposite stands in the other; each is in its own alone."""
    ours, theirs = _stems(one), _stems(other)
    for stem in sorted(ours - theirs):
        for opposite in OPPOSED.get(stem, ()):
            if opposite in theirs and opposite not in ours:
                return f"{stem} | {opposite}"
    return _degrees_or_parties(ours - theirs - _doers(one), theirs - ours - _doers(other))


def _stems(reading: Reading) -> frozenset[str]:
    return frozenset(word.stem for word in reading.words)


def _doers(reading: Reading) -> frozenset[str]:
    """Words like teacher and owner, which end as bigger does: an article before them, and no noun behind."""
    words = reading.words
    return frozenset(
        word.stem
        for place, word in enumerate(words)
        if word.lower.endswith("er")
        and place
        and words[place - 1].lower in _ARTICLES
        and (place + 1 == len(words) or not is_telling(words[place + 1]))
    )


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
