"""Which preposition each word of content stands behind: the part it plays. From Paris, to Rome, by Kyle."""

from __future__ import annotations

from phasewise.caching.guards.reading import Reading, content_of, either_alone, is_telling, once

_ALIKE = {
    "in": "in", "at": "at", "on": "on", "inside": "in", "within": "in", "into": "to", "to": "to",
    "toward": "to", "towards": "to", "onto": "to", "from": "from", "by": "by", "with": "with",
    "using": "with", "without": "without", "for": "for", "of": "of", "about": "about", "against": "against",
    "between": "between", "among": "between", "over": "over", "above": "over", "under": "under",
    "below": "under", "before": "before", "after": "after", "like": "like", "as": "as", "than": "than",
    "via": "through", "through": "through", "across": "through", "per": "per", "since": "since",
    "until": "until", "till": "until", "during": "in", "behind": "behind", "near": "near", "off": "off",
    "out": "out", "beyond": "beyond", "around": "near",
}  # fmt: skip
PREPOSITIONS = frozenset(_ALIKE)
_DIRECTED = frozenset(
    {
        "from",
        "by",
        "without",
        "against",
        "before",
        "after",
        "over",
        "under",
        "than",
        "since",
        "until",
        "behind",
    }
)
"""Prepositions that never stand before either of two words alike."""
_THE_END = ""
"""What a preposition stands before that nothing follows: what is it made of."""
_OF_PLACE = frozenset({"in", "at", "on"})
_NEVER_OPPOSED = _OF_PLACE | frozenset({"of", "about", "near", "with", "like", "as"})


@once
def governors(reading: Reading) -> dict[str, str]:
    """Each word of content right behind a preposition, with the kind of preposition. Ann's is of Ann."""
    found: dict[str, str] = {}
    governor: str | None = None
    for word in reading.words:
        if is_telling(word):
            if word.owns or governor is not None:
                found.setdefault(content_of(word), "of" if word.owns else governor or "")
            governor = None
        elif word.lower in _ALIKE:
            governor = _ALIKE[word.lower]
    if governor is not None:
        found[_THE_END] = governor
    return found


def parts_swapped(one: Reading, other: Reading) -> str | None:
    """A word of both questions that plays another part in each: from Paris, to Paris."""
    ours, theirs = governors(one), governors(other)
    for content, governor in ours.items():
        against = theirs.get(content, governor)
        if governor != against and _opposed({governor, against}, content):
            return f"{governor} {content} | {against} {content}"
    return _moved_to_another(ours, theirs, one.content_set & other.content_set)


def _moved_to_another(ours: dict[str, str], theirs: dict[str, str], shared: frozenset[str]) -> str | None:
    """Before A, do B; do A before B: the words keep their order, the preposition goes to another."""
    for kind in sorted(_DIRECTED):
        mine = frozenset(content for content in shared if ours.get(content) == kind)
        yours = frozenset(content for content in shared if theirs.get(content) == kind)
        if mine and yours and mine != yours:
            return f"{kind}: {either_alone(mine, yours)}"
    return None


def _opposed(both: set[str], content: str) -> bool:
    """Whether two prepositions never mean the same. Before a figure few do: in 5 years, for 5 years."""
    if content[:1].isdigit():
        return not both <= _OF_PLACE
    return not both & _NEVER_OPPOSED and both != {"to", "for"}


def parts_differ(one: Reading, other: Reading) -> str | None:
    """A word of both questions behind prepositions of different kinds, or owner of something in one alone."""
    if told := governors_clash(one, other):
        return told
    return either_alone(_owners(one), _owners(other))


def governors_clash(one: Reading, other: Reading) -> str | None:
    """A word of both questions behind prepositions of different kinds."""
    ours, theirs = governors(one), governors(other)
    for content in sorted(ours.keys() & theirs.keys()):
        if ours[content] != theirs[content]:
            return f"{ours[content]} {content} | {theirs[content]} {content}"
    return None


def _owners(reading: Reading) -> frozenset[str]:
    return frozenset(content for content, governor in governors(reading).items() if governor == "of")
