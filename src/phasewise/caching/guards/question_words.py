"""What kind of answer is asked for: a person, a time, a reason, how many, yes or no."""

from __future__ import annotations

from phasewise.caching.guards.reading import Reading, either_alone, once
from phasewise.caching.guards.requests import skips_request
from phasewise.caching.vocabulary import vocabulary

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
