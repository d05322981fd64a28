"""Which stored answer is served to other words: never what a guard forbids, what is unknown or unproven."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.core.caching import Lesson, Neighbour, StoredAnswer
from phasewise.semantic_match.evidence import DOUBTS_ENDED_AFTER, START, Bound, EvidenceBook, Maturity
from phasewise.semantic_match.guards import Guard
from phasewise.semantic_match.matching import MatchRules, MatchVerdict, Reason, cell_report, consider

BOUND = Bound(0.01, 0.95)
NEEDED = BOUND.missing(START)
RULES = MatchRules(min_similarity=0.85, audit_share=0.05)
SERVED_DRAW, AUDIT_DRAW = 0.5, 0.01
ASKED, FORM, CONTENT = "How can I pay my bill?", "How do I pay my bill?", "How can I settle my bill?"


def make_neighbour(question=FORM, similarity=0.95, made_unix_s=1.0):
    answer = StoredAnswer(
        key="k",
        scope="s",
        tenant="t",
        namespace="n",
        model="m",
        question=question,
        text="An answer.",
        made_unix_s=made_unix_s,
        expires_unix_s=1e12,
    )
    return Neighbour(answer, similarity)


def decide(book, *neighbours, question=ASKED, domain="d", draw=SERVED_DRAW):
    return consider(question, neighbours, book, RULES, domain, draw)


def teach(book, neighbour, times, question=ASKED, right=True, domain="d", at_unix_s=5.0):
    """The first outcomes make a change known, or barred; the others are all of one cell."""
    first = min(times, DOUBTS_ENDED_AFTER)
    for count in (*[1] * first, times - first):
        match = decide(book, neighbour, question=question, domain=domain)
        for _ in range(count):
            book.learn(match.lesson(domain, right, at_unix_s))


def book_that_proved(neighbour, question=ASKED, domain="d"):
    book = EvidenceBook(BOUND)
    teach(book, neighbour, NEEDED + DOUBTS_ENDED_AFTER, question=question, domain=domain)
    return book


def test_nothing_near_is_nothing():
    for neighbours in ([], [make_neighbour(similarity=0.84)]):
        match = decide(EvidenceBook(BOUND), *neighbours)
        assert (match.verdict, match.reason) == (MatchVerdict.NOTHING, Reason.NOTHING_NEAR)
        assert match.neighbour is None


def test_a_guards_veto_is_the_reason_and_has_no_cell():
    match = decide(EvidenceBook(BOUND), make_neighbour("How can I not pay my bill?"))
    assert (match.verdict, match.reason) == (MatchVerdict.NOTHING, Guard.NEGATION)
    assert match.considered[0].cell is None
    with pytest.raises(ValueError, match="nothing to learn"):
        match.lesson("d", True, 0.0)


def test_a_new_change_is_explored_and_a_known_one_too_until_its_cell_is_proven():
    book, neighbour = EvidenceBook(BOUND), make_neighbour()
    assert decide(book, neighbour).reason == Reason.NEW_CHANGE
    teach(book, neighbour, 1)
    for _ in range(NEEDED):
        match = decide(book, neighbour)
        assert (match.verdict, match.reason) == (MatchVerdict.EXPLORE, Reason.NOT_PROVEN)
        teach(book, neighbour, 1)
    match = decide(book, neighbour)
    assert (match.verdict, match.reason, match.neighbour) == (MatchVerdict.SERVE, None, neighbour)


@pytest.mark.parametrize("stored", [FORM, CONTENT, ASKED.lower()])
def test_an_audit_is_never_served(stored):
    neighbour = make_neighbour(stored)
    book = book_that_proved(neighbour)
    assert decide(book, neighbour).verdict is MatchVerdict.SERVE
    match = decide(book, neighbour, draw=AUDIT_DRAW)
    assert (match.verdict, match.reason, match.neighbour) == (MatchVerdict.EXPLORE, Reason.AUDIT, neighbour)


def test_a_new_change_is_not_served_though_others_of_its_cell_are_proven():
    book = book_that_proved(make_neighbour(CONTENT))
    match = decide(book, make_neighbour("How can I forget my bill?"))
    assert (match.verdict, match.reason) == (MatchVerdict.EXPLORE, Reason.NEW_CHANGE)


@settings(max_examples=25)
@given(wrong=st.integers(1, 3), right=st.integers(0, 99))
def test_a_change_that_was_wrong_is_not_served_though_its_cell_is_proven(wrong, right):
    book, proven, barred = EvidenceBook(BOUND), make_neighbour(CONTENT), make_neighbour("Can I pay my bill?")
    teach(book, barred, 1)
    teach(book, barred, wrong, right=False)
    teach(book, barred, right)
    teach(book, proven, NEEDED + 1)
    match = decide(book, barred)
    assert (match.verdict, match.reason) == (MatchVerdict.EXPLORE, Reason.BARRED)


def test_what_words_of_content_stand_for_is_verified_anew_for_newer_answers():
    book = book_that_proved(make_neighbour(CONTENT, made_unix_s=1.0))
    newer = make_neighbour(CONTENT, made_unix_s=6.0)
    assert decide(book, newer).reason == Reason.STALE_CHANGE
    teach(book, newer, 1, at_unix_s=7.0)
    assert decide(book, newer).verdict is MatchVerdict.SERVE


def test_a_change_of_form_does_not_go_stale():
    book = book_that_proved(make_neighbour(FORM, made_unix_s=1.0))
    assert decide(book, make_neighbour(FORM, made_unix_s=6.0)).verdict is MatchVerdict.SERVE


def test_a_wrong_outcome_after_the_proof_ends_the_serving_of_that_change_at_once():
    neighbour = make_neighbour(CONTENT)
    book = book_that_proved(neighbour)
    book.learn(decide(book, neighbour, draw=AUDIT_DRAW).lesson("d", False, 6.0))
    assert decide(book, neighbour).reason == Reason.BARRED


def test_two_wrong_outcomes_end_the_serving_of_the_whole_cell():
    book = book_that_proved(make_neighbour(FORM))
    same = make_neighbour(ASKED.upper().replace("I", "i"))
    for _ in range(2 * NEEDED):
        book.learn(Lesson("d", "form/known", "", True, 1.0))
    assert decide(book, same).verdict is MatchVerdict.SERVE
    for _ in range(2):
        book.learn(Lesson("d", "form/known", "", False, 1.0))
    assert decide(book, same).reason == Reason.NOT_PROVEN


def test_what_a_guard_doubts_is_served_once_that_very_change_is_proven():
    neighbour = make_neighbour("If I pay late, is there a fee?")
    question = "Is there a fee when I pay late?"
    first = decide(EvidenceBook(BOUND), neighbour, question=question)
    assert first.chosen.doubt is not None
    assert first.chosen.cell == "doubted/new"
    book = book_that_proved(neighbour, question)
    assert decide(book, neighbour, question=question).verdict is MatchVerdict.SERVE


def test_the_same_words_in_other_places_are_never_served():
    neighbour = make_neighbour("Does Ben owe money to Anna?")
    match = decide(EvidenceBook(BOUND), neighbour, question="Does Anna owe money to Ben?")
    assert (match.verdict, match.reason) == (MatchVerdict.NOTHING, Guard.ORDER)


@pytest.mark.parametrize(
    ("verb", "particle", "asked", "stored"),
    [
        ("clean", "up", "How do I give up my seat?", "How do I give my seat?"),
        ("switch", "off", "How do I call off the meeting?", "How do I call the meeting?"),
        ("hand", "over", "Can I take over the company?", "Can I take the company?"),
    ],
)
def test_a_particle_proven_with_one_verb_is_new_with_another(verb, particle, asked, stored):
    book = EvidenceBook(BOUND)
    for thing in ("desk", "fan", "key"):
        without = make_neighbour(f"How do I {verb} my {thing}?")
        teach(book, without, NEEDED + 1, question=f"How do I {verb} {particle} my {thing}?")
    match = decide(book, make_neighbour(stored), question=asked)
    assert (match.verdict, match.reason) == (MatchVerdict.EXPLORE, Reason.NEW_CHANGE)


def test_an_ending_proven_with_some_words_is_new_with_another():
    book = EvidenceBook(BOUND)
    for thing in ("walk", "swim", "print"):
        teach(book, make_neighbour(f"How long is the {thing}?"), NEEDED + 1, f"How long is the {thing}ing?")
    match = decide(book, make_neighbour("How long is the train?"), question="How long is the training?")
    assert (match.verdict, match.reason) == (MatchVerdict.EXPLORE, Reason.NEW_CHANGE)


def test_behind_a_neighbour_that_is_forbidden_another_may_do():
    allowed = make_neighbour(FORM, similarity=0.9)
    book = book_that_proved(allowed)
    match = decide(book, make_neighbour("How can I not pay my bill?", similarity=0.99), allowed)
    assert (match.verdict, match.neighbour) == (MatchVerdict.SERVE, allowed)
    assert [one.veto is None for one in match.considered] == [False, True]


def test_a_known_change_is_preferred_to_a_nearer_new_one():
    known, new = make_neighbour(FORM, similarity=0.9), make_neighbour(CONTENT, similarity=0.99)
    book = book_that_proved(known)
    assert decide(book, new, known).neighbour is known


def test_the_nearest_of_the_unknown_is_explored():
    near, far = make_neighbour(CONTENT, similarity=0.95), make_neighbour("How may one pay?", similarity=0.9)
    assert decide(EvidenceBook(BOUND), near, far).neighbour is near


def test_a_lesson_is_taught_in_the_cell_that_was_settled_before_the_outcome():
    book, neighbour = EvidenceBook(BOUND), make_neighbour(CONTENT)
    match = decide(book, neighbour)
    teach(book, neighbour, 3)
    lesson = match.lesson("d", right=False, at_unix_s=9.0)
    assert (lesson.cell, lesson.right, lesson.at_unix_s) == ("content/new", False, 9.0)
    assert match.chosen.maturity is Maturity.NEW


def test_lessons_hold_no_words_of_the_questions():
    lesson = decide(EvidenceBook(BOUND), make_neighbour(CONTENT)).lesson("d", True, 0.0)
    assert not any(word in repr(lesson).lower() for word in ("settle", "pay", "bill"))


@settings(max_examples=25)
@given(
    outcomes=st.lists(st.tuples(st.sampled_from([FORM, CONTENT, ASKED.lower()]), st.booleans()), max_size=20),
    draw=st.floats(0, 1, exclude_max=True),
)
def test_what_others_were_taught_changes_nothing(outcomes, draw):
    """Not even thousands of lessons that somebody makes up for a tenant of their own."""
    mine = [make_neighbour(stored) for stored in (FORM, CONTENT, ASKED.lower())]
    alone, beside = book_that_proved(mine[0]), book_that_proved(mine[0])
    for stored, right in outcomes:
        teach(beside, make_neighbour(stored), 1, right=right, domain="theirs")
    for neighbour in mine:
        assert decide(alone, neighbour, draw=draw) == decide(beside, neighbour, draw=draw)


def test_what_is_missing_is_told_for_each_that_was_looked_at():
    book, neighbour = EvidenceBook(BOUND), make_neighbour()
    teach(book, neighbour, 2)
    reported = [cell_report(one, book, "d") for one in decide(book, neighbour).considered]
    assert [(it.cell, it.right, it.missing) for it in reported] == [("form/known", 1, NEEDED - 1)]
    vetoed = decide(book, make_neighbour("How can I not pay my bill?")).considered[0]
    assert cell_report(vetoed, book, "d") is None
