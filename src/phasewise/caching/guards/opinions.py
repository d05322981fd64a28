"""Whose opinion a question asks for: "who do critics think is best" and "who is best according to critics".

Both ask the same, and differ in where the critics stand; here they are put last.
"""

from __future__ import annotations

from collections.abc import Sequence

from phasewise.caching.vocabulary import vocabulary
from phasewise.caching.words import Word

_HOLDS = vocabulary("think believe consider reckon")
_AUXILIARIES = vocabulary("do does did")


def opinion_last(telling: list[Word], everything: Sequence[Word]) -> list[Word]:
    """The telling words, with the verb of opinion and those who hold it at the end."""
    span = _think_span(everything) or _according_span(everything)
    if span is None:
        return telling
    start, end = span
    holders = [word for word in telling if start <= word.place <= end]
    rest = [word for word in telling if not start <= word.place <= end]
    verb = [word for word in holders if _is_mark(word)]
    return rest + verb + [word for word in holders if not _is_mark(word)]


def _is_mark(word: Word) -> bool:
    return word.lower in _HOLDS or word.lower == "according"


def _think_span(everything: Sequence[Word]) -> tuple[int, int] | None:
    """From the auxiliary to the verb, of "do critics think"."""
    since: int | None = None
    for word in everything:
        if word.lower in _AUXILIARIES:
            since = word.place
        elif word.lower in _HOLDS and since is not None and word.place > since + 1:
            return since, word.place
    return None


def _according_span(everything: Sequence[Word]) -> tuple[int, int] | None:
    """From "according to" to the end, or to where the question begins: "according to critics, who"."""
    for place, word in enumerate(everything[:-1]):
        if word.lower == "according" and everything[place + 1].lower == "to":
            end = place + 2
            while end < len(everything) and everything[end].lower not in _QUESTION_OPENERS:
                end += 1
            return place, end - 1
    return None


_QUESTION_OPENERS = vocabulary("who whom what which when where why how is are was were do does did can")
