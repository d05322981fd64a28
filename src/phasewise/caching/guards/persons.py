"""Who does it to whom, where pronouns tell: he and she, I and you."""

from __future__ import annotations

from itertools import groupby

from phasewise.caching.guards.reading import Reading
from phasewise.caching.guards.requests import asks_how_to, skips_request
from phasewise.caching.vocabulary import vocabulary

_GENDERED = {
    "he": "he", "him": "him", "his": "his", "himself": "himself", "she": "she", "her": "her", "hers": "her",
    "herself": "herself", "themselves": "themselves", "itself": "itself",
}  # fmt: skip
_CASES = vocabulary("i me they them we us")
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
    ours, theirs = _cases(one), _cases(other)
    return f"{' '.join(ours)} | {' '.join(theirs)}" if ours and theirs and ours != theirs else None


def _gendered(reading: Reading) -> list[str]:
    return [_GENDERED[lower] for lower in reading.lowers if lower in _GENDERED]


def _cases(reading: Reading) -> list[str]:
    """Whether those who are not told by gender do it or suffer it: I or me, they or them."""
    lowers = skips_request(reading.lowers)
    return sorted(reading.lower_set & _CASES) if not asks_how_to(lowers) else []


def _speakers(reading: Reading) -> list[str]:
    """I and you in their order, each run of one of them once.

    In "how do I" and "how do you" both are anybody, and so is the you of "could you explain".
    """
    lowers = skips_request(reading.lowers)
    if asks_how_to(lowers):
        lowers = tuple(lower for lower in lowers if lower not in ("i", "you", "we", "your", "my", "our"))
    named = ["i" if lower in _SPEAKER else "you" for lower in lowers if lower in _SPEAKER | _SPOKEN_TO]
    return [name for name, _ in groupby(named)]
