"""Pairs of questions whose truth is known, by which the judge is judged: a stored question and an edit of it.

An edit that changes a thing, a number, a name, a negation, an opposite or an order asks for another answer;
one that drops or adds a question mark does not. What a language needs stands in its file under languages/.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from phasewise.semantic_match.evidence import JudgeRecord
from phasewise.semantic_match.guards import objection
from phasewise.semantic_match.languages import LANGUAGES, Language
from phasewise.semantic_match.lessons import LessonKind
from phasewise.semantic_match.reading import read

PER_JUDGED = 2
"""Planted pairs for each real one, until the judge is trusted or refuted."""
CHECKED_SHARE = 0.1
"""Afterwards, this share of real pairs is followed by a planted one."""
DIFFERENT_SHARE = 2 / 3
EQUAL_WANTED = 6_000
UNGUARDED_SHARE = 0.8

Draw = Callable[[], float]
"""Random in [0, 1)."""

_JOINS = frozenset(word for language in LANGUAGES for word in language.joins)
_NEXT_NUMBER = 3
"""How far away in a language's list another number is: neighbours there may be forms of one."""
_LONG = 4
"""Shorter words seldom carry the meaning."""
_DIGITS = re.compile(r"\d{1,6}")
_WORD = re.compile(r"[^\W\d_]+")
_NAME = re.compile(r"(?<=[^\W_] )[^\W\d_a-zß-öø-ÿ][^\W\d_]+(?: [^\W\d_a-zß-öø-ÿ][^\W\d_]+)?")
"""One or two words with a capital letter behind another word."""


def is_worth_judging(judge: JudgeRecord) -> bool:
    """Whether real pairs are judged. A refuted judge gets planted ones, to notice if it has changed."""
    return not judge.is_refuted


def planted_wanted(judge: JudgeRecord, draw: Draw) -> list[LessonKind]:
    """Which planted pairs the judge is asked about with a real one.

    Of a trusted judge whose "no" was wrong now and then, it is worth to know how often: it is credited.
    """
    different, equal = LessonKind.PLANTED_DIFFERENT, LessonKind.PLANTED_EQUAL
    if judge.is_trusted and judge.equal.wrong and judge.equal.right < EQUAL_WANTED:
        return [equal] * PER_JUDGED
    is_settled = judge.is_trusted or judge.is_refuted
    count = int(draw() < CHECKED_SHARE) if is_settled else PER_JUDGED
    return [different if draw() < DIFFERENT_SHARE else equal for _ in range(count)]


def plant(question: str, kind: LessonKind, draw: Draw) -> str | None:
    """The question, edited; None if it has nothing to edit.

    Most edits that change its meaning are such that no guard objects to, as a judge gets no others.
    """
    if kind is LessonKind.PLANTED_EQUAL:
        return question.removesuffix("?") if question.endswith("?") else f"{question}?"
    language = _language_of(question)
    here = read(question)
    edits = [edited for edited in _different(question, language, draw) if edited != question]
    unguarded = [edited for edited in edits if objection(here, read(edited)) is None]
    found = unguarded if unguarded and draw() < UNGUARDED_SHARE else edits
    return found[int(draw() * len(found))] if found else None


def _language_of(question: str) -> Language:
    words = set(_WORD.findall(question.casefold()))
    return max(LANGUAGES, key=lambda language: len(words & language.common))


def _different(question: str, language: Language, draw: Draw) -> Iterator[str]:
    yield from _other_word(question, language, draw)
    yield from _other_number(question, language, draw)
    names = list(_NAME.finditer(question))
    if names:
        name, other = names[0], language.names[int(draw() * len(language.names))]
        yield question[: name.start()] + other + question[name.end() :]
    # Not at its beginning: "is it" and "is it not" ask the same.
    yield from _exchanged(question, language.negate, r"(?<=\w )")
    yield from _exchanged(question, language.opposites, r"\b")
    if len(names) > 1:
        yield from _other_order(question, names[0], names[1])


def _other_number(question: str, language: Language, draw: Draw) -> Iterator[str]:
    if found := _DIGITS.search(question):
        yield question[: found.start()] + str(int(found[0]) + 1 + int(draw() * 8)) + question[found.end() :]
        return
    for found in _WORD.finditer(question):
        if (word := found[0].casefold()) in language.numbers:
            place = language.numbers.index(word) + _NEXT_NUMBER
            other = language.numbers[place % len(language.numbers)]
            yield question[: found.start()] + other + question[found.end() :]
            return


def _exchanged(question: str, pairs: Sequence[tuple[str, str]], behind: str) -> Iterator[str]:
    """With the first of these phrases that it has put for the other of its pair."""
    for pair in pairs:
        for one, other in (pair[::-1], pair):
            if found := re.search(rf"{behind}{re.escape(one)}\b", question, re.IGNORECASE):
                yield question[: found.start()] + other + question[found.end() :]
                return


def _other_order(question: str, one: re.Match[str], other: re.Match[str]) -> Iterator[str]:
    """Two names exchanged, unless they are only listed."""
    between = question[one.end() : other.start()]
    if _JOINS.isdisjoint(between.casefold().split()) and "," not in between:
        yield question[: one.start()] + other[0] + between + one[0] + question[other.end() :]


def _other_word(question: str, language: Language, draw: Draw) -> Iterator[str]:
    """Another thing in the place of the last word that carries meaning, if it is written in small letters."""
    words = [found for found in _WORD.finditer(question) if len(found[0]) >= _LONG]
    words = [found for found in words if found[0].islower() and found[0] not in language.common]
    if words:
        place, other = words[-1], language.things[int(draw() * len(language.things))]
        yield question[: place.start()] + other + question[place.end() :]
