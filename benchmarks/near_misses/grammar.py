"""How a question is put: frames with slots for what is asked, and several ways to ask for the same.

Two questions have the same answer if, and only if, they come of the same frame with the same values in its
slots. The frames themselves stand in questions/, changes of manner in manners.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_SLOT = re.compile(r"\{(\w+)\}")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiouAEIOU])(?!(?:uni|use|eu|one)[a-z]*)")
_SPACES = re.compile(r"\s+")
_SPACE_BEFORE_MARK = re.compile(r" (?=[,.?!])")


class Kind(StrEnum):
    """What two questions of different answers differ in.

    `sense`: words that mean the same in one question and not in another. `turned`: a rewording that was right
    until something changed in the world.
    """

    NEGATION = "negation"
    ANTONYM = "antonym"
    NUMBER = "number"
    UNIT = "unit"
    TIME = "time"
    ROLES = "roles"
    NAME = "name"
    QUANTIFIER = "quantifier"
    MODIFIER = "modifier"
    TARGET = "target"
    QUESTION_WORD = "question_word"
    SENSE = "sense"
    TURNED = "turned"


@dataclass(frozen=True)
class Pool:
    """Values for a slot. Those of a group fit the same sentence and make it another question."""

    kind: Kind
    groups: tuple[tuple[str, ...], ...]

    def words(self) -> set[str]:
        """All words of its values, in lower case."""
        return {word for group in self.groups for value in group for word in plain_words(value)}


def pool(kind: Kind, groups: str) -> Pool:
    """A pool as it is written here: semicolons part groups, bars their values, which may be empty."""
    split = tuple(tuple(value.strip() for value in group.split("|")) for group in groups.split(";"))
    if any(len(set(group)) < 2 for group in split):
        raise ValueError(f"a group of the pool {groups!r} has nothing to exchange")
    return Pool(kind, split)


@dataclass(frozen=True)
class Frame:
    """One thing to ask for, with its slots.

    A form that ends in a mark is a sentence; any other is a clause that needs words around it ("could you
    tell me ..."). In both, [a|b] are ways to say the same, {slot} is filled. `swap` names two slots whose
    exchange turns the roles round. `mends_articles`: "a" before a vowel becomes "an", as in English.
    """

    name: str
    domain: str
    forms: tuple[str, ...]
    slots: Mapping[str, Pool]
    swap: tuple[str, str] | None = None
    mends_articles: bool = True

    def kinds(self) -> set[Kind]:
        """Which near misses of its questions can be made."""
        return {pool.kind for pool in self.slots.values()} | ({Kind.ROLES} if self.swap else set())


def frame(name: str, domain: str, forms: str, swap: tuple[str, str] | None = None, **slots: Pool) -> Frame:
    """A frame as it is written here: one form a line."""
    lines = tuple(line.strip() for line in forms.strip().splitlines())
    for line in lines:
        if set(_SLOT.findall(line)) != set(slots):
            raise ValueError(f"{name}: the form {line!r} does not fill the slots {sorted(slots)}")
    return Frame(name, domain, lines, slots, swap)


@dataclass(frozen=True)
class Question:
    """What is asked for, however it is put."""

    frame: Frame
    values: tuple[tuple[str, str], ...]

    def answer_class(self, turned: bool = True) -> str:
        """Equal for questions of the same answer; before the world `turned`, some more of them are."""
        said = [
            value for name, value in self.values if turned or self.frame.slots[name].kind is not Kind.TURNED
        ]
        return "|".join([self.frame.name, *said])


def draw_question(frame: Frame, rng: Random) -> Question:
    """Some question of the frame. Two slots of one pool get different values."""
    values: dict[str, str] = {}
    for name, values_of in frame.slots.items():
        for _ in range(100):
            value = rng.choice(rng.choice(values_of.groups))
            if value not in values.values() or not value:
                break
        values[name] = value
    return Question(frame, tuple(values.items()))


def near_miss(question: Question, kind: Kind, rng: Random) -> Question:
    """Another question that differs in one value of this kind (or in two exchanged)."""
    values = dict(question.values)
    if kind is Kind.ROLES:
        assert question.frame.swap is not None
        one, other = question.frame.swap
        values[one], values[other] = values[other], values[one]
        return replace(question, values=tuple(values.items()))
    name = rng.choice([name for name, of in question.frame.slots.items() if of.kind is kind])
    group = next(group for group in question.frame.slots[name].groups if values[name] in group)
    others = [value for value in group if value != values[name]]
    values[name] = rng.choice([value for value in others if value == "" or value not in values.values()])
    return replace(question, values=tuple(values.items()))


def reworded_turn(question: Question, rng: Random) -> Question:
    """The same question before the world turned, with other words for what will turn."""
    values = dict(question.values)
    for name, of in question.frame.slots.items():
        if of.kind is Kind.TURNED:
            values[name] = rng.choice(next(group for group in of.groups if values[name] in group))
    return replace(question, values=tuple(values.items()))


def put(question: Question, form: int, rng: Random) -> str:
    """The question in one of its frame's forms, with words chosen where there is a choice."""
    text = _CHOICE.sub(lambda found: _usual_first(found[1].split("|"), rng), question.frame.forms[form])
    values = dict(question.values)
    text = _SLOT.sub(lambda found: values[found[1]], text)
    text = _SPACE_BEFORE_MARK.sub("", _SPACES.sub(" ", text)).strip()
    return _ARTICLE.sub(r"\1n ", text) if question.frame.mends_articles else text


def usual_form(frame: Frame, rng: Random) -> int:
    """One of the forms; the first are the usual ones."""
    return int(_usual_first([str(place) for place in range(len(frame.forms))], rng))


def plain_words(text: str) -> list[str]:
    """The words of a text in lower case, without marks."""
    return re.findall(r"\w+(?:['’.-]\w+)*", text.lower())


def _usual_first(choices: list[str], rng: Random) -> str:
    return rng.choices(choices, weights=[1 / (1 + place) for place in range(len(choices))])[0]
