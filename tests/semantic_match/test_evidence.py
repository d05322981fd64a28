"""What verified matches teach: which changes are known, what may be served, if the judge is trusted."""

from itertools import count
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.semantic_match import evidence
from phasewise.semantic_match.evidence import (
    FORGIVEN_AFTER,
    MOST_DOMAINS,
    NEAR,
    NOVELTIES,
    Budget,
    EvidenceBook,
    JudgeRecord,
    KnownChange,
    Novelty,
    region_of,
)
from phasewise.semantic_match.lessons import Lesson, LessonKind

BUDGET = Budget(0.05, 0.9)
STRICT = Budget(0.01, 0.95)
DOMAIN = "acme/default/m"
NEAREST, MIDDLE, LEAST = 14, 2, 1
KEYS = count()
DIFFERENT, EQUAL = LessonKind.PLANTED_DIFFERENT, LessonKind.PLANTED_EQUAL


def match(right=True, domain=DOMAIN, region=0, change="a", asked="", stored="stored", at_unix_s=0.0):
    """Of a pair of its own, unless it is named: one that was approved counts no second time."""
    return Lesson(domain, region, change, right, at_unix_s, "", asked or f"asked{next(KEYS)}", stored)


def matches(count, *args, **named):
    return [match(*args, **named) for _ in range(count)]


def planted(right=True, kind=DIFFERENT):
    return Lesson("", 0, "", right, 0.0, kind=kind)


def make_book(*lessons, trusted=True, budget=BUDGET):
    book = EvidenceBook(budget)
    for lesson in ([planted()] * 200 if trusted else []) + list(lessons):
        book.learn(lesson)
    return book


def make_judge(rng, wrong_yes, asked, budget=STRICT, judge=None):
    judge = judge or JudgeRecord(budget)
    for _ in range(asked):
        judge.learn(DIFFERENT, rng.random() >= wrong_yes)
    return judge


def everything_known(book, domain=DOMAIN):
    """What a book says of a domain, whatever is asked."""
    known = {change: book.known(domain, change) for change in ("a", "b", "xc", "a b", "")}
    served = {region: book.may_serve(domain, region) for region in (NEAREST, MIDDLE, LEAST)}
    aliases = {key: book.alias(domain, key) for key in "pqrs"}
    return known, served, aliases, [region for region in book.regions() if region.domain == domain]


# --- changes of words ---------------------------------------------------------------------------------------


def test_a_change_is_new_until_it_was_right_and_none_is_always_known():
    book = make_book(match(change="a b"), match(change="b"))
    assert book.known(DOMAIN, "c") == book.known(DOMAIN, "a c") == KnownChange(Novelty.NEW, 0)
    assert book.known(DOMAIN, "a b") == KnownChange(Novelty.KNOWN, 1)
    assert book.known(DOMAIN, "b") == KnownChange(Novelty.KNOWN, 2)
    assert book.known(DOMAIN, "") == KnownChange(Novelty.KNOWN, NOVELTIES[-1])


@pytest.mark.parametrize("wrong", [1, 3])
def test_a_change_that_was_wrong_is_barred_until_it_was_often_right_since(wrong):
    book = make_book(match(), *matches(wrong, False), *matches(FORGIVEN_AFTER * wrong - 1))
    assert book.known(DOMAIN, "a").novelty is Novelty.BARRED
    book.learn(match())
    assert book.known(DOMAIN, "a") == KnownChange(Novelty.KNOWN, FORGIVEN_AFTER * wrong)


def test_words_put_for_others_are_stale_for_answers_made_after_they_were_last_right():
    book = make_book(match(change="xa b", at_unix_s=5.0), match(False, change="xc", at_unix_s=9.0))
    assert book.known(DOMAIN, "xa", made_unix_s=5.0) == KnownChange(Novelty.KNOWN, 1, exchanges=True)
    assert book.known(DOMAIN, "xa b", made_unix_s=5.1) == KnownChange(
        Novelty.KNOWN, 1, exchanges=True, stale=True
    )
    assert book.known(DOMAIN, "b", made_unix_s=5.1) == KnownChange(Novelty.KNOWN, 1)
    assert book.known(DOMAIN, "xc", made_unix_s=1.0).novelty is Novelty.BARRED
    book.learn(match(change="xa", at_unix_s=6.0))
    book.learn(match(change="xa", at_unix_s=2.0))
    assert not book.known(DOMAIN, "xa", made_unix_s=6.0).stale


def test_a_wrong_outcome_is_blamed_on_the_least_known_parts():
    book = make_book(*matches(5, change="a"), match(False, change="a b c"))
    assert book.known(DOMAIN, "a") == KnownChange(Novelty.KNOWN, 5)
    assert {book.known(DOMAIN, part).novelty for part in ("b", "c", "a b")} == {Novelty.BARRED}


# --- regions ------------------------------------------------------------------------------------------------


@given(st.integers(1, 9), st.floats(0, 1))
def test_a_match_counts_in_every_region_that_contains_it(run, similarity):
    book = EvidenceBook(BUDGET)
    book.learn(planted())
    book.learn(match(region=region_of(run, similarity)))
    assert {(it.least_known, it.least_similarity) for it in book.regions()} == {
        (least, near) for least in NOVELTIES for near in (0.0, NEAR) if least <= run and near <= similarity
    }


def test_while_nothing_is_known_of_the_judge_nobody_can_say_what_a_region_needs():
    (region,) = make_book(match(region=0), match(region=LEAST), trusted=False).regions()
    assert (region.right, region.proven, region.missing) == (1, False, None)


def test_a_region_is_served_once_it_is_proven_and_with_it_what_it_contains():
    book, needed = make_book(), 0
    while not book.may_serve(DOMAIN, MIDDLE):
        book.learn(match(region=MIDDLE))
        needed += 1
    assert 40 < needed < 120
    assert book.may_serve(DOMAIN, NEAREST)
    # All these matches lie in the larger region as well, so that is proven too.
    assert book.may_serve(DOMAIN, LEAST)
    nearer_only = make_book(*matches(needed, region=NEAREST), *matches(4, False, region=LEAST))
    assert nearer_only.may_serve(DOMAIN, NEAREST)
    assert not nearer_only.may_serve(DOMAIN, LEAST)


def test_three_wrong_outcomes_end_the_serving_of_a_region():
    proven = matches(300, region=NEAREST)
    assert make_book(*proven).may_serve(DOMAIN, NEAREST)
    assert not make_book(*proven, *matches(3, False, region=NEAREST)).may_serve(DOMAIN, NEAREST)


def ever_serves(rng, wrong_share, wrong_yes, wrong_no):
    """Whether a region with this share of wrong answers is ever served, as such a judge sees it."""
    book = EvidenceBook(BUDGET)
    for _ in range(350):
        book.learn(planted(rng.random() >= wrong_yes))
        book.learn(planted(rng.random() >= wrong_no, EQUAL))
        is_wrong = rng.random() < wrong_share
        says_yes = rng.random() < wrong_yes if is_wrong else rng.random() >= wrong_no
        book.learn(match(says_yes, region=LEAST))
        if book.may_serve(DOMAIN, LEAST):
            return True
    return False


@pytest.mark.parametrize(("wrong_yes", "wrong_no"), [(0.0, 0.0), (0.03, 0.0), (0.01, 0.2)])
def test_a_region_that_is_wrong_as_often_as_the_budget_is_hardly_ever_served(wrong_yes, wrong_no):
    rng = Random(3)  # noqa: S311
    assert sum(ever_serves(rng, BUDGET.wrong, wrong_yes, wrong_no) for _ in range(25)) <= 6


# --- the judge ----------------------------------------------------------------------------------------------


def test_a_judge_that_is_wrong_too_often_is_never_trusted_and_then_nothing_is_served():
    for seed in range(12):
        rng, book = Random(seed), make_book(trusted=False, budget=STRICT)  # noqa: S311
        assert not book.judge.is_refuted
        for _ in range(700):
            book.learn(planted(rng.random() >= 0.05))
            book.learn(match(region=NEAREST))
            assert not book.judge.is_trusted
            assert not book.may_serve(DOMAIN, NEAREST)
            assert book.alias(DOMAIN, "asked") is None
        assert book.judge.is_refuted


def test_a_judge_that_is_seldom_wrong_is_trusted_after_enough_planted_pairs():
    judge = make_judge(Random(5), 0.005, 300)  # noqa: S311
    assert not judge.is_trusted
    assert make_judge(Random(5), 0.005, 6_000, judge=judge).is_trusted  # noqa: S311
    assert not judge.is_refuted


def test_a_judge_that_gets_worse_is_noticed_and_starts_again():
    rng, judge = Random(5), make_judge(Random(5), 0.0, 1_500)  # noqa: S311
    assert judge.is_trusted
    make_judge(rng, 0.2, 150, judge=judge)
    assert not judge.is_trusted
    assert judge.different.right + judge.different.wrong < 150
    assert make_judge(rng, 0.2, 100, judge=judge).is_refuted


def test_a_refuted_judge_that_gets_better_is_trusted_in_the_end():
    judge = make_judge(Random(5), 0.2, 200)  # noqa: S311
    assert judge.is_refuted
    assert make_judge(Random(5), 0.0, 3_000, judge=judge).is_trusted  # noqa: S311


def test_a_strict_judges_no_to_equal_questions_is_not_counted_as_a_wrong_answer():
    strict, exact = make_book(), make_book()
    for place in range(400):
        strict.learn(planted(place % 4 != 0, EQUAL))
        exact.learn(planted(kind=EQUAL))
    # As far as the budget goes: if the judge became less strict, wrong answers could take that place.
    wrong = BUDGET.wrong
    assert 1.4 * wrong < strict.judge.tolerated_no < 1.5 * wrong
    assert 0.9 * wrong < exact.judge.tolerated_no < wrong
    assert strict.judge.wrong_share(0.08) < exact.judge.wrong_share(0.08)


def test_planted_pairs_teach_nothing_about_changes_and_count_for_every_domain():
    book = make_book(Lesson(DOMAIN, NEAREST, "a", True, 0.0, "", "p", "q", DIFFERENT))
    assert everything_known(book) == everything_known(make_book())
    book = make_book(*matches(300, domain="other/default/m", region=NEAREST))
    assert book.may_serve("other/default/m", NEAREST)


# --- aliases ------------------------------------------------------------------------------------------------


def test_a_yes_makes_an_alias_and_a_no_to_that_pair_removes_it():
    book = make_book(match(asked="p", stored="q"))
    assert book.alias(DOMAIN, "p") == "q"
    assert book.alias(DOMAIN, "q") is None
    book.learn(match(False, asked="p", stored="r"))
    assert book.aliases() == 1
    book.learn(match(False, asked="p", stored="q"))
    assert (book.alias(DOMAIN, "p"), book.aliases()) == (None, 0)


def test_a_pair_that_was_approved_counts_no_second_time():
    once = make_book(match(region=NEAREST, asked="p"))
    again = make_book(*matches(300, region=NEAREST, asked="p"))
    assert everything_known(again) == everything_known(once)
    assert not again.may_serve(DOMAIN, NEAREST)


def test_a_region_is_not_served_where_much_of_the_domain_was_rejected():
    """A judge that always approves certain changes never says no to them."""
    lessons = matches(300, region=NEAREST, change="b")
    book = make_book(*lessons, *[match(False, change=f"c{place}") for place in range(100)])
    assert book.may_serve(DOMAIN, NEAREST)
    for place in range(100_000):
        book.learn(match(False, change=f"d{place % 9}"))
        if not book.may_serve(DOMAIN, NEAREST):
            break
    assert 1_000 < place < 10_000


def test_aliases_are_served_while_few_matches_of_the_domain_are_refused():
    lessons = [match(asked=f"k{place}", stored="q") for place in range(10)]
    assert make_book(*lessons).alias(DOMAIN, "k1") == "q"
    refused = make_book(*lessons, *matches(200, False, asked="r"))
    assert (refused.alias(DOMAIN, "k1"), refused.aliases()) == (None, 10)


@given(st.lists(st.tuples(*[st.sampled_from("pqrst")] * 2, st.booleans()), max_size=40))
def test_no_alias_ever_leads_to_itself(pairs):
    book = make_book()
    book.judge._wrong_yes.most = 0.0
    for asked, stored, right in pairs:
        if asked != stored:
            book.learn(match(right, asked=asked, stored=stored))
            assert not right or book.alias(DOMAIN, asked) in "pqrst"
        assert all(book.alias(DOMAIN, key) != key for key in "pqrst")


def test_the_least_recently_taught_parts_and_aliases_are_forgotten_first(monkeypatch):
    monkeypatch.setattr(evidence, "MOST_PARTS_PER_DOMAIN", 2)
    monkeypatch.setattr(evidence, "MOST_ALIASES_PER_DOMAIN", 2)
    book = make_book(*(match(change=key, asked=key, stored=f"z{place}") for place, key in enumerate("pqpr")))
    assert [book.alias(DOMAIN, key) for key in "pqr"] == ["z2", None, "z3"]
    assert [book.known(DOMAIN, key).run for key in "pqr"] == [2, 0, 1]


# --- domains ------------------------------------------------------------------------------------------------

lessons = st.builds(
    match,
    right=st.booleans(),
    domain=st.sampled_from([DOMAIN, "acme/other/m", "acme-2/default/m", "acme/default/m/2", "acme"]),
    region=st.sampled_from([0, LEAST, NEAREST]),
    change=st.sampled_from(["a", "b", "xc", "a b", ""]),
    asked=st.sampled_from("pqrs"),
    stored=st.sampled_from("tuvw"),
)


@given(st.lists(lessons, max_size=30))
def test_books_that_read_the_same_lessons_agree_whatever_else_they_are_asked(learned):
    book, other = EvidenceBook(BUDGET), EvidenceBook(BUDGET)
    for each in (book, other):
        each.learn(planted())
    for lesson in learned:
        book.learn(lesson)
        other.learn(lesson)
        everything_known(other)
        assert everything_known(other, "acme/never-seen/m")[0]["a"] == KnownChange(Novelty.NEW, 0)
    assert everything_known(book) == everything_known(other)
    assert list(book.regions()) == list(other.regions())


@settings(max_examples=25)
@given(st.lists(lessons, max_size=30))
def test_nothing_that_one_domain_was_taught_is_known_in_another(learned):
    theirs = matches(150, domain="acme/other/m", region=NEAREST, asked="p")
    mine = [lesson for lesson in learned if lesson.domain == DOMAIN]
    assert everything_known(make_book(*theirs, *learned)) == everything_known(make_book(*mine))


def test_the_namespaces_of_one_client_evict_no_other_tenants_domains():
    others = [f"tenant{place}/default/m" for place in range(20)]
    book = make_book(*(match(domain=domain) for domain in others), trusted=False)
    for place in range(2 * MOST_DOMAINS):
        book.learn(match(domain=f"greedy/{place}/m"))
    assert all(book.known(domain, "a").novelty is Novelty.KNOWN for domain in others)
    assert book.known("greedy/0/m", "a").novelty is Novelty.NEW
    assert book.known(f"greedy/{2 * MOST_DOMAINS - 1}/m", "a").novelty is Novelty.KNOWN
    assert book.aliases() == MOST_DOMAINS
