"""Pairs whose truth is known: edits that ask for another answer, edits that do not, and how often."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.semantic_match.evidence import Budget, JudgeRecord
from phasewise.semantic_match.guards import Guard, objection
from phasewise.semantic_match.languages import LANGUAGES
from phasewise.semantic_match.lessons import LessonKind
from phasewise.semantic_match.planted import (
    CHECKED_SHARE,
    PER_JUDGED,
    is_worth_judging,
    plant,
    planted_wanted,
)
from phasewise.semantic_match.reading import read
from tests.semantic_match.questions import BOOKINGS

DIFFERENT, EQUAL = LessonKind.PLANTED_DIFFERENT, LessonKind.PLANTED_EQUAL
FLIGHTS = {
    "en": "How do I get from Rome to Oslo?",
    "de": "Wie komme ich von Rom nach Oslo?",
    "es": "¿Cómo llego de Roma a Oslo?",
    "fr": "Comment aller de Rome vers Oslo?",
    "it": "Come vado da Roma a Oslo?",
    "pt": "Como vou de Roma para Oslo?",
}
each_language = pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.name)


def edits(question, kind, tries=200):
    """All edits that some draw makes."""
    rng = Random(1)  # noqa: S311
    return {plant(question, kind, rng.random) for _ in range(tries)}


def objections(question, kind=DIFFERENT):
    return {objection(read(question), read(edited)) for edited in edits(question, kind)}


@each_language
def test_an_edit_that_is_to_differ_changes_a_thing_a_number_a_name_or_a_negation(language):
    question = BOOKINGS[language.name].question
    assert objections(question) >= {None, Guard.NUMBERS, Guard.NAMES, Guard.NEGATION}
    assert Guard.NUMBERS in objections(question.replace(BOOKINGS[language.name].number[0], "17"))


@each_language
def test_most_edits_that_are_to_differ_are_such_that_no_guard_objects_to(language):
    rng, question = Random(1), BOOKINGS[language.name].question  # noqa: S311
    planted = [plant(question, DIFFERENT, rng.random) for _ in range(400)]
    free = sum(objection(read(question), read(edited)) is None for edited in planted)
    assert 0.75 < free / 400 < 0.97


@each_language
def test_a_word_is_put_for_its_opposite(language):
    how = FLIGHTS[language.name].split()[0]
    for one, other in language.opposites:
        assert {f"{how} x {other} x", f"{how} x {one} x"} <= (
            edits(f"{how} x {one} x", DIFFERENT) | edits(f"{how} x {other} x", DIFFERENT)
        )


@each_language
def test_a_negation_is_taken_away_where_there_is_one(language):
    how = FLIGHTS[language.name].split()[0]
    for phrase, negated in language.negate:
        assert f"{how} x {phrase} x" in edits(f"{how} x {negated} x", DIFFERENT)


@each_language
def test_two_names_change_places_unless_they_are_only_listed(language):
    question = FLIGHTS[language.name]
    assert objections(question) >= {Guard.ORDER, Guard.NAMES}
    before, _, behind = question.rsplit(" ", 2)
    assert Guard.ORDER not in objections(f"{before} {min(language.joins)} {behind}")
    assert Guard.ORDER not in objections(f"{before}, {behind}")


@pytest.mark.parametrize(
    ("question", "edited"),
    [("Is it open?", "Is it open"), ("is it open", "is it open?"), ("cd ..", "cd ..?")],
)
def test_an_edit_that_is_to_be_equal_drops_or_adds_a_question_mark(question, edited):
    assert edits(question, EQUAL) == {edited}


@pytest.mark.parametrize("question", ["is it on", "", "?!", "我想退款"])
def test_a_question_with_nothing_to_edit_makes_no_pair_that_differs(question):
    assert edits(question, DIFFERENT) == {None}


@given(st.text(max_size=60), st.sampled_from([DIFFERENT, EQUAL]), st.randoms(use_true_random=False))
def test_an_edit_is_never_the_question_itself(question, kind, rng):
    assert plant(question, kind, rng.random) != question


# --- how often ----------------------------------------------------------------------------------------------


def make_judge(outcomes):
    judge = JudgeRecord(Budget(0.05, 0.9))
    for right in outcomes:
        judge.learn(DIFFERENT, right)
    return judge


UNSETTLED, TRUSTED, REFUTED = make_judge([]), make_judge([True] * 300), make_judge([False] * 50)


def test_until_it_is_settled_the_judge_is_asked_about_some_planted_pairs_for_each_real_one():
    rng = Random(2)  # noqa: S311
    wanted = [planted_wanted(UNSETTLED, rng.random) for _ in range(600)]
    assert {len(kinds) for kinds in wanted} == {PER_JUDGED}
    assert {kind for kinds in wanted for kind in kinds} == {DIFFERENT, EQUAL}
    different = sum(kinds.count(DIFFERENT) for kinds in wanted)
    assert different == pytest.approx(600 * PER_JUDGED * 2 / 3, rel=0.1)


@pytest.mark.parametrize("judge", [TRUSTED, REFUTED], ids=["trusted", "refuted"])
def test_a_settled_judge_is_checked_now_and_then(judge):
    assert len(planted_wanted(judge, lambda: CHECKED_SHARE - 1e-9)) == 1
    assert planted_wanted(judge, lambda: CHECKED_SHARE) == []


def test_a_trusted_judge_with_a_wrong_no_gets_equal_pairs_until_enough_is_known_of_that():
    judge = make_judge([True] * 300)
    judge.learn(EQUAL, right=False)
    assert planted_wanted(judge, lambda: 0.99) == [EQUAL] * PER_JUDGED


def test_real_pairs_are_judged_unless_the_judge_is_refuted():
    assert (TRUSTED.is_trusted, REFUTED.is_refuted) == (True, True)
    assert [is_worth_judging(judge) for judge in (UNSETTLED, TRUSTED, REFUTED)] == [True, True, False]
