"""What lessons teach: which changes are known, which barred, which cells proven, and nobody else's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.core.caching import Lesson
from phasewise.semantic_match import evidence as evidence_book
from phasewise.semantic_match.evidence import (
    DOUBTS_ENDED_AFTER,
    FORGIVEN_AFTER,
    START,
    Bound,
    EvidenceBook,
    MatchEvidence,
    Maturity,
)
from phasewise.semantic_match.rewrite import Change, Rewrite

BOUND = Bound(0.01, 0.95)
NEEDED = BOUND.missing(START)


def make_lesson(rewrite="a", right=True, domain="d", cell="content/new", at_unix_s=1.0):
    return Lesson(domain, cell, rewrite, right, at_unix_s)


def make_rewrite(*parts):
    return Rewrite(Change.SWAPPED, parts)


def book_of(*lessons, bound=BOUND):
    book = EvidenceBook(bound)
    for lesson in lessons:
        book.learn(lesson)
    return book


lessons = st.lists(
    st.builds(
        make_lesson,
        rewrite=st.sampled_from(["", "xa", "b", "b.xa", "b.c"]),
        right=st.booleans(),
        domain=st.sampled_from(["mine", "theirs"]),
        cell=st.sampled_from(["form/known", "content/known"]),
        at_unix_s=st.floats(0, 10),
    ),
    max_size=30,
)
CHANGES = [make_rewrite(*parts) for parts in ((), ("xa",), ("b",), ("c",), ("b", "xa"), ("b", "c"))]


def knowledge(book, domain):
    return (
        [book.maturity(domain, change, since) for change in CHANGES for since in (0.0, 5.0)],
        [book.evidence(domain, cell) for cell in ("form/known", "content/known")],
    )


def test_a_change_is_new_until_it_was_verified_right():
    assert book_of().maturity("d", make_rewrite("a")) is Maturity.NEW
    assert book_of(make_lesson("a")).maturity("d", make_rewrite("a")) is Maturity.KNOWN


def test_no_change_needs_no_knowing():
    assert book_of().maturity("d", make_rewrite()) is Maturity.KNOWN


def test_a_wrong_outcome_bars_a_change_until_it_was_right_often_in_a_row():
    book = book_of(make_lesson("a"), make_lesson("a", right=False))
    for _ in range(FORGIVEN_AFTER):
        assert book.maturity("d", make_rewrite("a")) is Maturity.BARRED
        book.learn(make_lesson("a"))
    assert book.maturity("d", make_rewrite("a")) is Maturity.KNOWN


def test_a_second_wrong_outcome_is_harder_to_make_up_for():
    wrong, right = make_lesson("a", right=False), make_lesson("a")
    book = book_of(wrong, *[right] * FORGIVEN_AFTER, wrong, *[right] * FORGIVEN_AFTER)
    assert book.maturity("d", make_rewrite("a")) is Maturity.BARRED


def test_other_words_that_were_verified_before_an_answer_was_made_are_stale_for_it():
    book = book_of(make_lesson("xa.b", at_unix_s=10.0), make_lesson("b", at_unix_s=20.0))
    for change in (make_rewrite("xa"), make_rewrite("b", "xa"), make_rewrite("xa", "b")):
        assert book.maturity("d", change, since_unix_s=10.0) is Maturity.KNOWN
        assert book.maturity("d", change, since_unix_s=11.0) is Maturity.STALE
    assert book.maturity("d", make_rewrite("b"), since_unix_s=21.0) is Maturity.KNOWN


def test_known_parts_make_a_known_change_that_was_never_seen_as_a_whole():
    book = book_of(make_lesson("a"), make_lesson("b"))
    assert book.maturity("d", make_rewrite("a", "b")) is Maturity.KNOWN
    assert book.maturity("d", make_rewrite("a", "b", "c")) is Maturity.NEW


def test_a_change_that_a_guard_doubts_is_known_as_a_whole_and_after_several_outcomes_only():
    whole = make_lesson("a.b")
    book = book_of(make_lesson("a"), make_lesson("b"), *[whole] * (DOUBTS_ENDED_AFTER - 1))
    assert book.maturity("d", make_rewrite("a", "b"), doubted=True) is Maturity.NEW
    book.learn(whole)
    assert book.maturity("d", make_rewrite("a", "b"), doubted=True) is Maturity.KNOWN


def test_a_whole_that_was_wrong_is_barred_though_its_parts_are_known():
    book = book_of(make_lesson("a"), make_lesson("b"), make_lesson("a.b", right=False))
    assert book.maturity("d", make_rewrite("a", "b")) is Maturity.BARRED


def test_the_blame_falls_on_the_part_of_which_the_least_was_known():
    book = book_of(make_lesson("a"), make_lesson("a"), make_lesson("b"), make_lesson("a.b", right=False))
    assert book.maturity("d", make_rewrite("a")) is Maturity.KNOWN
    assert book.maturity("d", make_rewrite("b")) is Maturity.BARRED


def test_a_part_that_is_barred_already_takes_the_blame_again():
    book = book_of(make_lesson("b", right=False), *[make_lesson("b")] * 3, make_lesson("a.b", right=False))
    assert book.maturity("d", make_rewrite("a")) is Maturity.NEW


def test_a_cell_is_proven_after_the_right_outcomes_that_were_missing():
    book = book_of(*[make_lesson()] * (NEEDED - 1))
    report = book.report("d", "content/new")
    assert (report.proven, report.missing, report.right, report.wrong) == (False, 1, NEEDED - 1, 0)
    book.learn(make_lesson())
    assert book.report("d", "content/new").proven


def test_a_cell_nobody_told_of_is_empty():
    assert book_of().evidence("d", "form/known") == MatchEvidence()


@given(lessons=lessons)
def test_no_domain_learns_from_another(lessons):
    of_mine = [lesson for lesson in lessons if lesson.domain == "mine"]
    assert knowledge(book_of(*lessons), "mine") == knowledge(book_of(*of_mine), "mine")


@given(lessons=lessons, reads=st.lists(st.sampled_from(CHANGES), max_size=10))
def test_books_that_were_told_the_same_agree_whatever_was_read_in_between(lessons, reads):
    quiet, asked = EvidenceBook(BOUND), EvidenceBook(BOUND)
    for lesson in lessons:
        quiet.learn(lesson)
        for change in reads:
            asked.maturity("mine", change)
        asked.learn(lesson)
    for domain in ("mine", "theirs"):
        assert knowledge(quiet, domain) == knowledge(asked, domain)
    assert quiet.snapshot() == asked.snapshot()


def test_what_taught_nothing_for_the_longest_is_forgotten_first(monkeypatch):
    monkeypatch.setattr(evidence_book, "MOST_PARTS_PER_DOMAIN", 2)
    book = book_of(make_lesson("a"), make_lesson("b"), make_lesson("a"), make_lesson("c"))
    maturities = [book.maturity("d", make_rewrite(part)) for part in "abc"]
    assert maturities == [Maturity.KNOWN, Maturity.NEW, Maturity.KNOWN]


def test_what_was_barred_and_is_forgotten_is_new_and_not_known(monkeypatch):
    monkeypatch.setattr(evidence_book, "MOST_PARTS_PER_DOMAIN", 1)
    book = book_of(make_lesson("a", right=False), make_lesson("b"))
    assert book.maturity("d", make_rewrite("a")) is Maturity.NEW


@pytest.mark.parametrize(
    ("limit", "lessons"),
    [
        ("MOST_DOMAINS", [make_lesson(domain=str(name)) for name in range(5)]),
        ("MOST_CELLS_PER_DOMAIN", [make_lesson(cell=str(name)) for name in range(5)]),
    ],
)
def test_a_book_has_so_many_pages_and_no_more(monkeypatch, limit, lessons):
    monkeypatch.setattr(evidence_book, limit, 3)
    assert len(book_of(*lessons).snapshot()) == 3


def test_a_tenant_that_makes_many_domains_makes_its_own_be_forgotten(monkeypatch):
    monkeypatch.setattr(evidence_book, "MOST_DOMAINS", 4)
    many = [make_lesson(domain=f"many/{name}/m") for name in range(20)]
    book = book_of(make_lesson(domain="few/a/m"), make_lesson(domain="few/b/m"), *many)
    assert {it.domain for it in book.snapshot()} == {"few/a/m", "few/b/m", "many/18/m", "many/19/m"}


def test_a_snapshot_shows_the_cells_with_the_most_evidence():
    book = book_of(make_lesson(cell="few"), *[make_lesson(cell="many", right=False)] * 2)
    assert [(it.cell, it.right, it.wrong) for it in book.snapshot()] == [("many", 0, 2), ("few", 1, 0)]
    assert [it.cell for it in book.snapshot(1)] == ["many"]
