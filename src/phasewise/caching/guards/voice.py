"""Active and passive: "did Kyle steal the house" asks what "was the house stolen by Kyle" asks.

Who does it and who suffers it change places with the voice; if they don't, the roles have changed.
"""

from __future__ import annotations

from phasewise.caching.guards.reading import Reading, content_of, is_telling, once
from phasewise.caching.stems import is_past_form
from phasewise.caching.vocabulary import vocabulary
from phasewise.model.noun import noun

_BE = vocabulary("am is are was were be been being get gets got")
_ASKED = vocabulary("who whom what which")
_ANYBODY = vocabulary("i you we they one someone somebody to")
_ASKING_AUXILIARIES = vocabulary("do does did can could should would will may might must to")


@noun
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
    contents = tuple(content_of(word) for word in active.words if is_telling(word))
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
        if content_of(word) == passive.verb and is_telling(word):
            return be and is_past_form(word.lower) and not passive.has_agent
    return False


@once
def _passive(reading: Reading) -> Passive | None:
    words = reading.words
    be: int | None = None
    for place, word in enumerate(words):
        if word.lower in _BE:
            be = place
        elif be is not None and is_telling(word):
            has_agent = place + 1 < len(words) and words[place + 1].lower == "by"
            if has_agent or is_past_form(word.lower):
                return _parsed(reading, be, place, has_agent)
    return None


def _parsed(reading: Reading, be: int, verb: int, has_agent: bool) -> Passive:
    def telling(start: int, end: int) -> tuple[str, ...]:
        return tuple(content_of(word) for word in reading.words[start:end] if is_telling(word))

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
