"""Opposites: where one question has a word and the other its antonym, they ask for opposite things."""

from __future__ import annotations

from functools import lru_cache

from phasewise.caching.guards.opposite_words import OPPOSED, with_ending
from phasewise.caching.guards.reading import Reading, is_telling, once
from phasewise.caching.stems import stem_of

_ARTICLES = frozenset({"a", "an", "the"})
_PARTIES = (("er", "ee"), ("or", "ee"), ("er", "est"))
_OPPOSED_PREFIXES = (
    ("over", "under"), ("hyper", "hypo"), ("super", "sub"), ("pre", "post"), ("up", "down"), ("in", "out"),
    ("micro", "macro"), ("intra", "inter"), ("mono", "poly"), ("uni", "multi"), ("homo", "hetero"),
    ("endo", "exo"), ("en", "de"), ("im", "ex"), ("in", "ex"), ("pro", "anti"), ("maxi", "mini"),
)  # fmt: skip
_SHORTEST_ROOT = 3


def opposites_differ(one: Reading, other: Reading) -> str | None:
    """A word of one question whose opposite stands in the other; each is in its own alone."""
    ours, theirs = one.stem_set, other.stem_set
    for stem in sorted(ours - theirs):
        for opposite in OPPOSED.get(stem, ()):
            if opposite in theirs and opposite not in ours:
                return f"{stem} | {opposite}"
    return _degrees_or_parties(ours - theirs - _doers(one), theirs - ours - _doers(other))


@once
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
    """big and bigger, employer and employee, overpaid and underpaid: one root, otherwise begun or ended."""
    for alone, against in ((ours, theirs), (theirs, ours)):
        for stem in sorted(alone):
            for form in sorted(_turned(stem) & against):
                return f"{stem} | {form}"
    return None


@lru_cache(maxsize=4_096)
def _turned(stem: str) -> frozenset[str]:
    """The stems of the forms of a word that turn the question."""
    forms = {form for ending in ("er", "est") for form in with_ending(stem, ending)}
    for end, turned in _PARTIES:
        if stem.endswith(end):
            forms.add(stem.removesuffix(end) + turned)
    for one, other in _OPPOSED_PREFIXES:
        rest = stem.removeprefix(one)
        if rest != stem and len(rest) >= _SHORTEST_ROOT:
            forms.add(other + rest)
    return frozenset(map(stem_of, forms))
