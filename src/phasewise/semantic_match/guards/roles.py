"""Which preposition each word of content stands behind: the part it plays. From Paris, to Rome, by Kyle."""

from __future__ import annotations

from phasewise.core.value import value
from phasewise.semantic_match.guards.reading import Reading, content_of, either_alone, is_distinctive, once
from phasewise.semantic_match.words import is_past_form, vocabulary

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
        if is_distinctive(word):
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
    if reported := governors_clash(one, other):
        return reported
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


# --- Active and passive: "did Kyle steal the house" asks what "was the house stolen by Kyle" asks.
#
# Who does it and who suffers it change places with the voice; if they don't, the roles have changed.

_BE = vocabulary("am is are was were be been being get gets got")
_ASKED = vocabulary("who whom what which")
_ANYBODY = vocabulary("i you we they one someone somebody to")
_ASKING_AUXILIARIES = vocabulary("do does did can could should would will may might must to")


@value
class Passive:
    """A passive sentence: what stands before it, who suffers, the verb, and what follows.

    With an agent ("by") the tail begins with it, unless it is the agent that is asked for: by whom.
    """

    before: tuple[str, ...]
    subject: tuple[str, ...]
    verb: str
    tail: tuple[str, ...]
    has_agent: bool
    asks_agent: bool


def voices_agree(one: Reading, other: Reading) -> bool | None:
    """Whether an active and a passive question give the same parts to the same people.

    None if they do not differ in voice, so that their order can be compared as it is.
    """
    ours, theirs = _passive(one), _passive(other)
    if ours is not None and (theirs is None or theirs.verb != ours.verb):
        return _same_parts(ours, other)
    if theirs is not None and ours is None:
        return _same_parts(theirs, one)
    return None


def _same_parts(passive: Passive, active: Reading) -> bool | None:
    contents = tuple(content_of(word) for word in active.words if is_distinctive(word))
    if passive.verb not in contents or _is_passive_there(passive, active):
        return None
    at = contents.index(passive.verb)
    doer, after = contents[:at], contents[at + 1 :]
    if passive.asks_agent:
        return active.lowers[0] in _ASKED and doer == passive.before and after == passive.subject
    if not passive.has_agent and not active.lower_set & _ANYBODY:
        return False
    agent = len(doer) - len(passive.before)
    if _fits_agent(passive, agent) and doer == passive.before + passive.tail[:agent]:
        return after == passive.subject + passive.tail[agent:]
    # "which house did Kyle steal": what is asked for stands first, whatever the voice.
    agent = len(doer) - len(passive.subject)
    return (
        _fits_agent(passive, agent)
        and not passive.before
        and bool(active.lower_set & _ASKING_AUXILIARIES)
        and doer == passive.subject + passive.tail[:agent]
        and after == passive.tail[agent:]
        and active.lowers[-1] not in _BE
    )


def _fits_agent(passive: Passive, agent: int) -> bool:
    return agent >= 1 if passive.has_agent else agent == 0


def _is_passive_there(passive: Passive, active: Reading) -> bool:
    """Whether the verb has the form of a participle behind a form of "be" in the other question too."""
    be = False
    for word in active.words:
        be = be or word.lower in _BE
        if content_of(word) == passive.verb and is_distinctive(word):
            return be and is_past_form(word.lower) and not passive.has_agent
    return False


@once
def _passive(reading: Reading) -> Passive | None:
    words = reading.words
    be: int | None = None
    for place, word in enumerate(words):
        if word.lower in _BE:
            be = place
        elif be is not None and is_distinctive(word):
            has_agent = place + 1 < len(words) and words[place + 1].lower == "by"
            if has_agent or is_past_form(word.lower):
                return _parsed(reading, be, place, has_agent)
    return None


def _parsed(reading: Reading, be: int, verb: int, has_agent: bool) -> Passive:
    def telling(start: int, end: int) -> tuple[str, ...]:
        return tuple(content_of(word) for word in reading.words[start:end] if is_distinctive(word))

    before, between = telling(0, be), telling(be + 1, verb)
    tail = telling(verb + 1, len(reading.words))
    asks_agent = "by" in reading.lowers and bool(reading.lower_set & _ASKED) and not tail
    return Passive(
        before=before if between else (),
        subject=between or before,
        verb=content_of(reading.words[verb]),
        tail=tail,
        has_agent=has_agent,
        asks_agent=asks_agent,
    )
