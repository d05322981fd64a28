"""Which stored answer is served to other words: never one that a guard forbids, is unknown or unproven."""

from itertools import count

import pytest

from phasewise.core.caching import Neighbour, StoredAnswer
from phasewise.semantic_match.evidence import FORGIVEN_AFTER, Budget, EvidenceBook, KnownChange, Novelty
from phasewise.semantic_match.guards import Guard
from phasewise.semantic_match.lessons import Lesson, LessonKind
from phasewise.semantic_match.matching import (
    EXCHANGES_AUDITED,
    STALE_AUDITED,
    MatchRules,
    MatchVerdict,
    Reason,
    consider,
    lesson_of,
)

RULES = MatchRules(min_similarity=0.85, audit_share=0.05)
DOMAIN = "acme/default/m"
NEVER_AUDITED = 0.99
ASKED = "How can I pay my bill?"
EXCHANGED, ADDED, SAME, NEGATED = (
    "How do I pay my bill?",
    "How can I pay my bill now?",
    "how can I pay my bill",
    "How can I not pay my bill?",
)


KEYS = count()


def make_neighbour(question=EXCHANGED, similarity=0.96, key="stored", made_unix_s=1.0):
    names = {"scope": "s", "tenant": "acme", "namespace": "default", "model": "m"}
    answer = StoredAnswer(
        key, question=question, text="An answer.", made_unix_s=made_unix_s, expires_unix_s=1e12, **names
    )
    return Neighbour(answer, similarity)


def make_book():
    """A book that trusts the judge."""
    book = EvidenceBook(Budget(0.05, 0.9))
    for _ in range(200):
        book.learn(Lesson("", 0, "", True, 0.0, kind=LessonKind.PLANTED_DIFFERENT))
    return book


def decide(book, *neighbours, question=ASKED, domain=DOMAIN, draw=NEVER_AUDITED):
    return consider(question, neighbours, book, RULES, domain, draw)


def teach(book, neighbour, times=1, right=True, domain=DOMAIN):
    for _ in range(times):
        chosen = decide(book, neighbour, domain=domain).chosen
        # A pair that was approved counts no second time.
        book.learn(lesson_of(chosen, f"asked{next(KEYS)}", domain, right, 5.0))
    return book


def proven_book(*neighbours):
    book = make_book()
    for neighbour in neighbours or [make_neighbour()]:
        teach(book, neighbour, 150)
    return book


@pytest.mark.parametrize("neighbours", [[], [make_neighbour(similarity=0.849)]], ids=["none", "far"])
def test_nothing_near_is_nothing(neighbours):
    match = decide(make_book(), *neighbours)
    assert (match.verdict, match.reason) == (MatchVerdict.NOTHING, Reason.NOTHING_NEAR)
    assert match.neighbour is None
    assert match.considered == ()


def test_a_guards_name_is_the_reason_and_what_it_forbids_is_never_explored():
    forbidden = make_neighbour(NEGATED)
    match = decide(proven_book(), forbidden, make_neighbour("How can 2 of us pay?", 0.9))
    assert (match.verdict, match.reason) == (MatchVerdict.NOTHING, Guard.NEGATION)
    assert [(one.guard, one.region, one.change) for one in match.considered] == [
        (Guard.NEGATION, 0, ""),
        (Guard.NUMBERS, 0, ""),
    ]


def test_a_new_change_is_explored_and_a_known_one_too_until_its_region_is_proven():
    book, neighbour = make_book(), make_neighbour()
    assert decide(book, neighbour).reason is Reason.NEW_CHANGE
    teach(book, neighbour)
    match = decide(book, neighbour)
    assert (match.verdict, match.reason) == (MatchVerdict.EXPLORE, Reason.NOT_PROVEN)
    match = decide(teach(book, neighbour, 150), neighbour)
    assert (match.verdict, match.reason, match.neighbour) == (MatchVerdict.SERVE, None, neighbour)
    assert match.chosen.known.run == 151


def test_a_change_that_was_wrong_is_barred_though_its_neighbourhood_is_proven():
    book, barred = proven_book(), make_neighbour("How can I dodge my bill?")
    assert decide(book, barred).reason is Reason.NEW_CHANGE
    teach(book, barred, right=False)
    assert decide(book, barred).reason is Reason.BARRED
    teach(book, barred, FORGIVEN_AFTER - 1)
    assert decide(book, barred).reason is Reason.BARRED
    assert decide(teach(book, barred), barred).verdict is MatchVerdict.SERVE


@pytest.mark.parametrize(
    ("stored", "made_unix_s", "times"),
    [
        (EXCHANGED, 1.0, EXCHANGES_AUDITED),
        (EXCHANGED, 6.0, STALE_AUDITED),
        (ADDED, 6.0, 1),
        (SAME, 6.0, 1),
    ],
)
def test_a_share_is_audited_and_more_often_where_words_are_put_for_others(stored, made_unix_s, times):
    book = proven_book(make_neighbour(stored))
    neighbour, share = make_neighbour(stored, made_unix_s=made_unix_s), RULES.audit_share * times
    assert decide(book, neighbour, draw=share).verdict is MatchVerdict.SERVE
    match = decide(book, neighbour, draw=share - 1e-9)
    assert (match.verdict, match.reason, match.neighbour) == (MatchVerdict.EXPLORE, Reason.AUDIT, neighbour)


def test_the_best_known_neighbour_is_chosen_and_the_nearest_of_those_known_alike():
    near_new, far_new = (
        make_neighbour("How can I skip my bill?", 0.99),
        make_neighbour("How may one pay?", 0.9),
    )
    barred, known = make_neighbour("How can I dodge my bill?", 0.98), make_neighbour(EXCHANGED, 0.87)
    book = teach(teach(make_book(), barred, right=False), known)
    assert decide(book, make_neighbour(NEGATED, 0.999), near_new, barred, far_new, known).neighbour is known
    assert decide(book, near_new, barred, far_new).neighbour is near_new
    assert decide(book, barred, far_new).neighbour is far_new
    assert decide(book, barred).neighbour is barred


def test_whom_is_chosen_does_not_depend_on_what_is_proven():
    """Else matches before and after the proof would be of another sort, and the proof would say nothing."""
    proven, nearer = make_neighbour(EXCHANGED, 0.96), make_neighbour(ADDED, 0.97)
    book = teach(proven_book(proven), nearer)
    assert decide(book, nearer, proven).neighbour is nearer


def test_every_neighbour_that_was_considered_is_told():
    book = teach(make_book(), make_neighbour())
    match = decide(book, make_neighbour(NEGATED, 0.99), make_neighbour(), make_neighbour(ADDED, 0.9))
    assert [(one.guard, one.known, one.region) for one in match.considered] == [
        (Guard.NEGATION, None, 0),
        (None, KnownChange(Novelty.KNOWN, 1, exchanges=True), 11),
        (None, KnownChange(Novelty.NEW, 0), 0),
    ]


def test_a_lesson_names_the_match_as_it_was_seen_before_the_outcome():
    book, neighbour = make_book(), make_neighbour(key="k2")
    chosen = decide(book, neighbour).chosen
    teach(book, neighbour, 3)
    lesson = lesson_of(chosen, "k1", DOMAIN, False, 9.0, "judge/2")
    assert lesson == Lesson(DOMAIN, 0, chosen.change, False, 9.0, "judge/2", "k1", "k2")
    later = lesson_of(decide(book, neighbour).chosen, "k1", DOMAIN, True, 9.0)
    assert (later.region, later.change) == (12, chosen.change)
    assert not any(word in repr(later).lower() for word in ("bill", "pay", "answer."))


def test_the_same_change_is_unknown_in_another_domain():
    match = decide(proven_book(), make_neighbour(), domain="acme/other/m")
    assert match.reason is Reason.NEW_CHANGE
