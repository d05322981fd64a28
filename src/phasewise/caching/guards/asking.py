"""What kind of answer is asked for: who, when, how many; whether one can, should or must."""

from __future__ import annotations

from itertools import pairwise

from phasewise.caching.guards.reading import Reading, either_alone
from phasewise.caching.vocabulary import vocabulary

_QUESTION_WORDS = {
    "who": "who", "whom": "who", "whose": "whose", "what": "what", "which": "what",
    "when": "when", "where": "where", "why": "why", "how": "how",
}  # fmt: skip
_ALSO_RELATIVE = vocabulary("who whom whose which where")
_MEASURED_BY_HOW = vocabulary("many much long often far old big tall fast deep high soon heavy large late")
_MODALS = {
    "can": "can", "could": "can", "may": "can", "should": "should", "ought": "should", "must": "must",
    "might": "might", "would": "would",
}  # fmt: skip
_OBLIGES = vocabulary("have has had need needs needed got")
_ASKS_A_FAVOUR = vocabulary("can could would will")
_FAVOURS = vocabulary(
    "explain describe give show list write help translate summarize summarise provide compare suggest "
    "recommend name teach clarify outline define elaborate tell walk share generate"
)
_ANYBODY = vocabulary("i you we one people someone")
_HOW_TO_AUXILIARIES = vocabulary("do does can could should would to must may might")


def question_words_differ(one: Reading, other: Reading) -> str | None:
    """The question words of two questions, if they ask for other kinds of answers."""
    return either_alone(_asked(one), _asked(other))


def modals_differ(one: Reading, other: Reading) -> str | None:
    """Whether one question asks what may be, the other what should or must."""
    ours, theirs = _modals(one), _modals(other)
    if asks_how_to(one.lowers) and asks_how_to(other.lowers):
        return None
    if ours ^ theirs == {"can"} and {"where", "how"} & _asked(one) & _asked(other):
        return None
    return either_alone(ours, theirs)


def asks_how_to(lowers: tuple[str, ...]) -> bool:
    """Whether a question opens with "how to", "how do I", "how can one"."""
    return (
        len(lowers) > 2
        and lowers[0] == "how"
        and lowers[1] in _HOW_TO_AUXILIARIES
        and (lowers[1] == "to" or lowers[2] in _ANYBODY)
    )


def skips_request(lowers: tuple[str, ...]) -> tuple[str, ...]:
    """The words without the "could you" of a request."""
    asks = len(lowers) > 2 and lowers[0] in _ASKS_A_FAVOUR and lowers[1] == "you" and lowers[2] in _FAVOURS
    return lowers[2:] if asks else lowers


def _asked(reading: Reading) -> frozenset[str]:
    lowers = reading.lowers
    found: set[str] = set()
    for place, lower in enumerate(lowers):
        kind = _QUESTION_WORDS.get(lower)
        if kind is None or (found and lower in _ALSO_RELATIVE and not _opens(reading, place)):
            continue
        after = lowers[place + 1] if place + 1 < len(lowers) else ""
        if kind == "what" and after == "time":
            kind = "when"
        elif kind == "how" and after in _MEASURED_BY_HOW:
            kind = f"how {after}"
        found.add(kind)
    return frozenset(found)


def _opens(reading: Reading, place: int) -> bool:
    return reading.words[place].opens


def _modals(reading: Reading) -> frozenset[str]:
    lowers = skips_request(reading.lowers)
    found = {_MODALS[lower] for lower in lowers if lower in _MODALS}
    if any(first in _OBLIGES and second == "to" for first, second in pairwise(lowers)):
        found.add("must")
    return frozenset(found)
