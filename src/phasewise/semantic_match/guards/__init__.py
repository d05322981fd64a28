"""What embeddings cannot see: differences of a word or two between questions that ask for different answers.

Each guard is a pure function of two readings that names what differs, or None. Whether a match that passes
all of them is safe is the bound's to learn.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from phasewise.core.value import value
from phasewise.semantic_match.guards.content import contents_differ, unread_language_differs
from phasewise.semantic_match.guards.names import letters_differ, names_differ, persons_differ, targets_differ
from phasewise.semantic_match.guards.negation import connectives_differ, negations_differ, opposites_differ
from phasewise.semantic_match.guards.numbers import (
    numbers_differ,
    quantifiers_differ,
    times_differ,
    units_differ,
)
from phasewise.semantic_match.guards.order import order_differs
from phasewise.semantic_match.guards.questions import modals_differ, question_words_differ
from phasewise.semantic_match.guards.reading import Reading, read


class Guard(StrEnum):
    """What differs between two questions: a closed vocabulary, used in timelines and metrics."""

    NUMBERS = "numbers"
    UNITS = "units"
    TIMES = "times"
    NEGATION = "negation"
    CONNECTIVES = "connectives"
    QUANTIFIERS = "quantifiers"
    QUESTION_WORD = "question_word"
    MODAL = "modal"
    PERSONS = "persons"
    OPPOSITES = "opposites"
    TARGETS = "targets"
    NAMES = "names"
    VERBATIM = "verbatim"
    LANGUAGE = "language"
    ORDER = "order"
    CONTENT = "content"


@value
class Veto:
    """Why a stored answer is not given: what differs, and the words concerned.

    `detail` is text of the questions: for whoever asks for an explanation, never for logs or metrics.
    """

    guard: Guard
    detail: str


GUARDS_BUT_CONTENT: tuple[tuple[Guard, Callable[[Reading, Reading], str | None]], ...] = (
    (Guard.NUMBERS, numbers_differ),
    (Guard.UNITS, units_differ),
    (Guard.TIMES, times_differ),
    (Guard.NEGATION, negations_differ),
    (Guard.CONNECTIVES, connectives_differ),
    (Guard.QUANTIFIERS, quantifiers_differ),
    (Guard.QUESTION_WORD, question_words_differ),
    (Guard.MODAL, modals_differ),
    (Guard.PERSONS, persons_differ),
    (Guard.OPPOSITES, opposites_differ),
    (Guard.TARGETS, targets_differ),
    (Guard.NAMES, names_differ),
    (Guard.VERBATIM, letters_differ),
    (Guard.LANGUAGE, unread_language_differs),
    (Guard.ORDER, order_differs),
)
"""All but the one that objects to synonyms too, the cheapest first."""


def veto(question: str, stored: str) -> Veto | None:
    """Why the answer to a stored question must not be given to this one; None if no guard objects."""
    one, other = read(question), read(stored)
    if (objection := _but_content(one, other)) is not None:
        return objection
    detail = contents_differ(one, other)
    return Veto(Guard.CONTENT, detail) if detail is not None else None


def veto_but_content(question: str, stored: str) -> Veto | None:
    """The same without the guard of content."""
    return _but_content(read(question), read(stored))


def _but_content(one: Reading, other: Reading) -> Veto | None:
    for guard, differs in GUARDS_BUT_CONTENT:
        if (detail := differs(one, other)) is not None:
            return Veto(guard, detail)
    return None
