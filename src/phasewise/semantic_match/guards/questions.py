"""What kind of answer is asked for: a person, a time, a reason, how many, yes or no."""

from __future__ import annotations

from itertools import pairwise

from phasewise.semantic_match.guards.reading import Reading, either_alone, once
from phasewise.semantic_match.words import families, vocabulary

# --- How questions are put to a machine: "how do I", "how to", "could you explain". Who asks is anybody.

_ASKS_A_FAVOUR = vocabulary("can could would will")
_FAVOURS = vocabulary(
    "explain describe give show list write help translate summarize summarise provide compare suggest "
    "recommend name teach clarify outline define elaborate tell walk share generate"
)
_ANYBODY = vocabulary("i you we one people someone")
_HOW_TO_AUXILIARIES = vocabulary("do does can could should would to must may might")


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


_QUESTION_WORDS = {
    "who": "who", "whom": "who", "whose": "whose", "what": "what", "which": "what",
    "when": "when", "where": "where", "why": "why", "how": "how",
}  # fmt: skip
_ALSO_RELATIVE = vocabulary("who whom whose which where")
_MEASURED_BY_HOW = vocabulary("many much long often far old big tall fast deep high soon heavy large late")
TIMES_ASKED_FOR = vocabulary("time day date week month year decade century hour")
"""Behind "what" they ask when; they are no units there."""
_WAYS = vocabulary("way ways method methods steps process procedure")
_REASONS = vocabulary("makes causes caused cause reason reasons")
_NEAR = 5
"""How far behind "what" a word may stand that makes it ask how: "what is the best way"."""
_WITHIN = 12
"""And how far one that makes it ask how much: "what does a flight to Rome cost"."""
_AUXILIARIES = vocabulary(
    "is are am was were do does did can could should would will shall may might must has have had"
)
_YES_OR_NO = "yes or no"
_TOLD_PLAINLY = frozenset({"what", "who", "how", _YES_OR_NO})
"""What "recursion in Python" may be meant to ask; hardly when, where or why."""
_PRICES = vocabulary("cost costs price prices fee")


def question_words_differ(one: Reading, other: Reading) -> str | None:
    """The kinds of answers two questions ask for, if they are not the same."""
    ours, theirs = asked_kinds(one), asked_kinds(other)
    if (not ours and theirs <= _TOLD_PLAINLY) or (not theirs and ours <= _TOLD_PLAINLY):
        return None
    if _is_when(ours) and _is_when(theirs) and "when" in ours | theirs:
        return None
    return either_alone(ours, theirs)


@once
def asked_kinds(reading: Reading) -> frozenset[str]:
    """The kinds of answers a question asks for; none if it has no question word and no auxiliary first."""
    found: set[str] = set()
    for place, lower in enumerate(reading.lowers):
        kind = _QUESTION_WORDS.get(lower)
        relative = lower in _ALSO_RELATIVE and not reading.words[place].opens
        if kind is not None and not (found and relative):
            found.add(_closer(kind, reading.lowers[place + 1 : place + 1 + _WITHIN]))
    if found:
        return frozenset(found)
    return _without_a_question_word(reading)


def _is_when(kinds: frozenset[str]) -> bool:
    return len(kinds) == 1 and all(kind.startswith("when") for kind in kinds)


def _closer(kind: str, after: tuple[str, ...]) -> str:
    """What the words behind a question word make of it: how many, what year, what is the way to."""
    if kind == "how":
        return _closer_how(after[0] if after else "")
    return _closer_what(after) if kind == "what" else kind


def _closer_how(following: str) -> str:
    if following == "come":
        return "why"
    return f"how {following}" if following in _MEASURED_BY_HOW else "how"


def _closer_what(after: tuple[str, ...]) -> str:
    following = after[0] if after else ""
    if following in TIMES_ASKED_FOR:
        return "when" if following == "time" else f"when {following}"
    if following in _REASONS or after[:3] in (("is", "the", "reason"), ("is", "the", "cause")):
        return "why"
    if _WAYS.intersection(after[:_NEAR]):
        return "how"
    return "how much" if _PRICES.intersection(after) else "what"


def _without_a_question_word(reading: Reading) -> frozenset[str]:
    lowers = skips_request(reading.lowers)
    if lowers[:2] == ("is", "there") and _WAYS.intersection(lowers[2:4]):
        return frozenset({"how"})
    if len(lowers) < len(reading.lowers):
        return frozenset()
    asks = any(word.opens and word.lower in _AUXILIARIES for word in reading.words)
    return frozenset({_YES_OR_NO}) if asks else frozenset()


# --- Whether it is asked what can be, what should be, what must be or what is.

_MODALS = families("""
can could may possible allowed permitted ok okay able|should ought|must|might|would
""")
_OBLIGES = vocabulary("have has had need needs needed got")
_ASKS = vocabulary("do does did if when would will")
_NEEDS = vocabulary("i we")
_UNDERSTOOD = ({"can"}, {"should"})


def modals_differ(one: Reading, other: Reading) -> str | None:
    """The modals that only one of two questions has. Where and how one does it is where and how one can."""
    if asks_how_to(one.lowers) and asks_how_to(other.lowers):
        return None
    ours, theirs = _modals(one), _modals(other)
    if ours ^ theirs in _UNDERSTOOD and any(map(_tells_a_manner, asked_kinds(one) & asked_kinds(other))):
        return None
    return either_alone(ours, theirs)


@once
def _modals(reading: Reading) -> frozenset[str]:
    lowers = skips_request(reading.lowers)
    found: set[str] = set()
    for place, (lower, after) in enumerate(pairwise((*lowers, ""))):
        if lower in _MODALS and after != "like":
            found.add(_MODALS[lower])
        elif lower in _OBLIGES and after == "to" and not _is_a_wish(lowers[max(0, place - 2) : place]):
            found.add("must")
    return frozenset(found)


def _is_a_wish(before: tuple[str, ...]) -> bool:
    """ "I need to hide it. How?" says what is wanted; "do I need to hide it" asks."""
    return before[-1:] != () and before[-1] in _NEEDS and before[0] not in _ASKS


def _tells_a_manner(kind: str) -> bool:
    return kind.startswith(("how", "where"))
