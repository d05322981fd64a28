"""Strews pairs of questions from elsewhere over a stream: which stands where, and what its answer is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from random import Random

from .grammar import Kind
from .pairs import QuestionPair
from .requests import FRESH, REPEAT, Request

_JOINED = re.compile(r"\b(\w+) and (\w+)\b")


def strew(
    pairs: Sequence[QuestionPair], late: frozenset[Kind], length: int, rng: Random
) -> dict[int, Request]:
    """Where the pairs' questions stand: at most a third of all places, late kinds in the last third."""
    answers = _answer_classes(pairs)
    chosen = rng.sample(list(pairs), min(len(pairs), length // 6))
    strewn: dict[int, Request] = {}
    seen: set[str] = set()
    anywhere, at_the_end = (
        rng.sample(range(start, length), length - start) for start in (0, -(-2 * length // 3))
    )
    for pair in sorted(chosen, key=lambda pair: not _is_late(pair, late)):
        free = at_the_end if _is_late(pair, late) else anywhere
        first, second = sorted((_not_taken(free, strewn), _not_taken(free, strewn)))
        for place, text, kind in ((first, pair.a, FRESH), (second, pair.b, pair.kind)):
            strewn[place] = Request(text, answers[text], f"checklist {kind}", place * 3 // length)
    for place in sorted(strewn):
        request = strewn[place]
        if request.text in seen:
            strewn[place] = Request(request.text, request.answer_class, REPEAT, request.third)
        seen.add(request.text)
    return strewn


def _not_taken(places: list[int], taken: Mapping[int, Request]) -> int:
    while (place := places.pop()) in taken:
        pass
    return place


def _is_late(pair: QuestionPair, late: frozenset[Kind]) -> bool:
    return Kind.ROLES in late and pair.kind == "role/order"


def _answer_classes(pairs: Sequence[QuestionPair]) -> dict[str, str]:
    """Which answer each text has."""
    leader: dict[str, str] = {}

    def lead(text: str) -> str:
        while leader.setdefault(text, text) != text:
            text = leader[text]
        return text

    for pair in pairs:
        one, other = lead(_as_meant(pair.a)), lead(_as_meant(pair.b))
        if pair.duplicate:
            leader[other] = one
    texts = {text for pair in pairs for text in (pair.a, pair.b)}
    return {text: f"checklist|{lead(_as_meant(text))}" for text in texts}


def _as_meant(text: str) -> str:
    """Whom "and" joins may be named in any order, and one word of the checklist is spelled in two ways."""
    return _JOINED.sub(lambda found: " and ".join(sorted(found.groups())), text.replace("advisor", "adviser"))
