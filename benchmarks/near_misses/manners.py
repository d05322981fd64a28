"""The manner in which a question is put: courtesy, contractions, case and marks. None changes its answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random

_CONTRACTIONS = (
    (r"\b(what|where|how|who|when) is\b", r"\1's"),
    (r"\b(do|does|did|is|are|was|were|should|would|could) not\b", r"\1n't"),
    (r"\bcannot\b", "can't"),
    (r"\bI am\b", "I'm"),
    (r"\bI have\b(?= \w+(?:ed|en|t)\b)", "I've"),
)
_FILLER_PLACE = re.compile(r"^((?:how|where|when|why) (?:do|can|should) I|can I|should I)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Manners:
    """Words that a set of questions is wrapped in. `asking` holds a clause at its {}."""

    asking: tuple[str, ...]
    greetings: tuple[str, ...]
    thanks: tuple[str, ...]
    fillers: tuple[str, ...]


@dataclass(frozen=True)
class Manner:
    """How courteous and careful one is: drawn once, so that two questions can be put in the same manner."""

    asking: str
    greeting: str
    thanks: str
    filler: str
    contracts: bool
    careless: str


def plain_manner(manners: Manners, rng: Random) -> Manner:
    """No manners but those that a clause needs."""
    return Manner(rng.choice(manners.asking), "", "", "", contracts=False, careless="")


def draw_manner(manners: Manners, rng: Random) -> Manner:
    """Most people add one thing or two, some nothing."""

    def sometimes(choices: tuple[str, ...], share: float) -> str:
        return rng.choice(choices) if rng.random() < share else ""

    return Manner(
        asking=rng.choice(manners.asking),
        greeting=sometimes(manners.greetings, 0.25),
        thanks=sometimes(manners.thanks, 0.2),
        filler=sometimes(manners.fillers, 0.2),
        contracts=rng.random() < 0.5,
        careless=sometimes(("lower", "no mark", "lower, no mark", "doubled mark"), 0.2),
    )


def in_manner(text: str, manner: Manner) -> str:
    """The text, a sentence or a clause, as somebody of this manner writes it."""
    if text[-1] not in ".?!":
        text = manner.asking.format(text)
    if manner.filler:
        text = _FILLER_PLACE.sub(rf"\1 {manner.filler}", text)
    if manner.contracts:
        for pattern, short in _CONTRACTIONS:
            text = re.sub(
                pattern, short, text, flags=re.IGNORECASE if "what" in pattern or "do|" in pattern else 0
            )
    text = text[0].upper() + text[1:]
    text = " ".join(part for part in (manner.greeting, text, manner.thanks) if part)
    return _careless(text, manner.careless)


def _careless(text: str, how: str) -> str:
    if "lower" in how:
        text = text.lower()
    if "no mark" in how:
        text = text.rstrip("?.!")
    if "doubled" in how:
        text = text.replace("?", "??")
    return text
