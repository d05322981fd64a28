"""Who does it to whom, where pronouns tell: he and she, I and you."""

from __future__ import annotations

from itertools import groupby

from phasewise.caching.guards.reading import Reading, once
from phasewise.caching.guards.requests import asks_how_to, skips_request
from phasewise.caching.vocabulary import vocabulary

_GENDERED = {
    "he": "he", "him": "him", "his": "his", "himself": "himself", "she": "she", "her": "her", "hers": "her",
    "herself": "herself", "themselves": "themselves", "itself": "itself",
}  # fmt: skip
_CASES = (("i", "me"), ("they", "them"), ("we", "us"))
_SPEAKER = vocabulary("i me my mine myself we us our ours ourselves")
_SPOKEN_TO = vocabulary("you your yours yourself yourselves")


def persons_differ(one: Reading, other: Reading) -> str | None:
    """Who is spoken of, in their order, if that is not the same in both questions."""
    ours, theirs = _gendered(one), _gendered(other)
    if ours != theirs:
        return f"{' '.join(ours) or '-'} | {' '.join(theirs) or '-'}"
    ours, theirs = _speakers(one), _speakers(other)
    if ours and theirs and ours != theirs:
        return f"{' '.join(ours)} | {' '.join(theirs)}"
    for subject, object_ in _CASES:
        if _only(subject, object_, one, other) or _only(subject, object_, other, one):
            return f"{subject} | {object_}"
    return None


def _only(subject: str, object_: str, one: Reading, other: Reading) -> bool:
    """Whether somebody acts in one question and suffers in the other: who did I call, who called me."""
    return (
        subject in one.lower_set
        and object_ in other.lower_set
        and object_ not in one.lower_set
        and subject not in other.lower_set
        and not asks_how_to(one.lowers)
    )


@once
def _gendered(reading: Reading) -> list[str]:
    return [_GENDERED[lower] for lower in reading.lowers if lower in _GENDERED]


@once
def _speakers(reading: Reading) -> list[str]:
    """I and you in their order, each run of one of them once.

    In "how do I" and "how do you" both are anybody, and so is the you of "could you explain".
    """
    lowers = skips_request(reading.lowers)
    if asks_how_to(lowers):
        lowers = tuple(lower for lower in lowers if lower not in ("i", "you", "we", "your", "my", "our"))
    named = ["i" if lower in _SPEAKER else "you" for lower in lowers if lower in _SPEAKER | _SPOKEN_TO]
    return [name for name, _ in groupby(named)]
