"""Guards: which questions never share an answer without a judge, in each language, and which may."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.semantic_match.guards import Guard, objection
from phasewise.semantic_match.reading import read
from tests.semantic_match.questions import BOOKINGS

each_language = pytest.mark.parametrize("booking", BOOKINGS.values(), ids=BOOKINGS)


def guard(asked, stored):
    """The guard that objects, whichever of the two is asked."""
    found = objection(read(asked), read(stored))
    assert objection(read(stored), read(asked)) is found
    return found


@each_language
def test_another_number_name_or_count_of_negations_is_objected_to(booking):
    question, digits = booking.question, booking.question.replace(booking.number[0], "3")
    assert guard(question, question.replace(*booking.number)) is Guard.NUMBERS
    assert guard(question, question.replace(f"{booking.number[0]} ", "")) is Guard.NUMBERS
    assert guard(digits, digits.replace("3", "4")) is Guard.NUMBERS
    assert guard(digits, digits.replace("3", "3.5")) is Guard.NUMBERS
    assert guard(question, question.replace(*booking.name)) is Guard.NAMES
    assert guard(question, question.replace(booking.name[0], "x")) is Guard.NAMES
    assert guard(question, question.replace(*(f" {word} " for word in booking.negation))) is Guard.NEGATION


@each_language
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('"blue sky"', '"blue sea"'),
        ("«oui»", "«Oui»"),
        ("`ls -l`", "`ls -L`"),
        ("https://a.example/x", "https://a.example/X"),
        ("a@b.example", "a@c.example"),
        ("my_name", "my name"),
        ("C#", "C"),
    ],
)
def test_another_quoted_text_code_or_address_is_objected_to(booking, one, other):
    asked, stored = (f"{booking.question} {text} " for text in (one, other))
    assert guard(asked, stored) is Guard.VERBATIM
    assert guard(asked, f" {asked}") is None


@each_language
def test_a_harmless_rewording_is_not_objected_to(booking):
    for rewording in (booking.reworded, booking.question.lower(), booking.question.rstrip(" ?")):
        assert guard(booking.question, rewording) is None, rewording


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Does Anna owe money to Ben?", "Does Ben owe money to Anna?"),
        ("Is it for 2 adults and 3 children?", "Is it for 3 adults and 2 children?"),
        ("Schuldet Anna dem Ben Geld?", "Schuldet Ben dem Anna Geld?"),
        ("我欠你钱", "你欠我钱"),
    ],
)
def test_the_same_words_in_another_order_are_objected_to(one, other):
    assert guard(one, other) is Guard.ORDER


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Why isn't it open", "Why is it not open"),
        ("I can't log in", "I cannot log in"),
        ("I can’t log in", "I can't log in"),
        ("Where is the Louvre in Paris?", "where in paris is that louvre"),
        ("How do I reset it?", "How do I repair it?"),
    ],
)
def test_what_other_words_mean_is_no_guards_matter(one, other):
    assert guard(one, other) is None


@given(st.text(max_size=40), st.text(max_size=40))
def test_objections_are_mutual_and_nothing_is_objected_to_in_the_same_text(one, other):
    guard(one, other)
    assert guard(one, one) is None


def test_the_first_guard_that_objects_is_named():
    base = "Is `x` open 5 days for Anna and not Ben"
    changes = {
        Guard.VERBATIM: "is `y` open 6 days for Carl and Dora",
        Guard.NUMBERS: "is `x` open 6 days for Carl and Dora",
        Guard.NAMES: "is `x` open 5 days for Carl and Dora",
        Guard.NEGATION: "is `x` open 5 days for Anna and Ben",
        Guard.ORDER: "is `x` open 5 days for Ben and not Anna",
    }
    assert list(changes) == list(Guard)
    assert {expected: guard(base, other) for expected, other in changes.items()} == {it: it for it in Guard}
