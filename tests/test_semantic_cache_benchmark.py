"""The pieces of benchmarks/semantic_cache.py: that its truth is true, its words are new, and it can fail."""

from __future__ import annotations

import random
import sys
from collections import defaultdict

import numpy as np
import pytest

from benchmarks.near_misses import development, held_out
from benchmarks.near_misses.grammar import Kind, draw_question, frame, near_miss, pool
from benchmarks.near_misses.known_words import CLOSED_CLASSES, told_words, words_told_already
from benchmarks.near_misses.library import Library
from benchmarks.near_misses.pairs import QuestionPair, make_pairs
from benchmarks.near_misses.play import Arm, BoundArm, Given, Outcome, made_ready, play
from benchmarks.near_misses.requests import REPEAT, Request
from benchmarks.near_misses.sets import EVEN, ODD, checklist_rows, development_stream, held_out_stream
from benchmarks.near_misses.stream import Stream
from benchmarks.near_misses.tally import exact_interval, kind_shares, summary, worst_kind
from phasewise.clients.memory_answers import ProcessAnswers
from phasewise.core.caching import StoredAnswer
from phasewise.fleet.config import SemanticConfig
from phasewise.gateway.answer_cache.semantic import NEIGHBOURS
from tests.paths import ROOT

BENCHMARKS = ROOT / "benchmarks"
LIBRARIES = [pytest.param(it.LIBRARY, id=it.LIBRARY.name) for it in (development, held_out)]
LENGTH = 3_000


@pytest.fixture(scope="module")
def stream():
    return list(held_out_stream(7, LENGTH))


def test_no_word_that_is_held_out_stands_on_a_guards_list():
    assert words_told_already(held_out.LIBRARY) == set()


def test_words_on_guards_lists_are_noticed():
    assert {"monday", "kilometres", "without"} <= told_words()
    reported = Library(
        "told",
        (frame("one", "x", "Is it {what}?", what=pool(Kind.ANTONYM, "hot|cold")),),
        held_out.LIBRARY.manners,
        frozenset(),
    )
    assert words_told_already(reported) == {"hot", "cold"}


def test_nothing_that_is_held_out_was_there_to_tune_on():
    shared = held_out.LIBRARY.words_that_matter() & development.LIBRARY.words_that_matter()
    assert shared <= CLOSED_CLASSES
    forms = [{form for each in it.LIBRARY.frames for form in each.forms} for it in (held_out, development)]
    assert not forms[0] & forms[1]


@pytest.mark.parametrize("library", LIBRARIES)
def test_pairs_are_of_all_kinds_and_differ(library):
    pairs = make_pairs(library, 3, 800)
    assert len(pairs) == 800
    assert {pair.kind for pair in pairs if not pair.duplicate} == set(Kind) - {Kind.TURNED}
    assert all(pair.a != pair.b for pair in pairs)
    assert all(pair.duplicate == pair.kind.startswith("paraphrase") for pair in pairs)


def test_there_are_thousands_of_pairs_and_a_seed_makes_the_same_ones_again():
    assert len(make_pairs(held_out.LIBRARY, 1, 3_000)) == 3_000
    assert make_pairs(held_out.LIBRARY, 5, 50) == make_pairs(held_out.LIBRARY, 5, 50)
    assert make_pairs(held_out.LIBRARY, 5, 50) != make_pairs(held_out.LIBRARY, 6, 50)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_near_miss_is_another_question_of_the_same_frame(library):
    rng = seeded()
    for each in library.frames:
        for kind in sorted(each.kinds()):
            question = draw_question(each, rng)
            missed = near_miss(question, kind, rng)
            assert missed.frame is each
            assert missed.answer_class() != question.answer_class()
            changed = sum(one != other for one, other in zip(question.values, missed.values, strict=True))
            assert changed == (2 if kind is Kind.ROLES else 1)


def test_a_rewording_that_turns_has_the_same_answer_until_then():
    turning = next(it for it in held_out.FRAMES if Kind.TURNED in it.kinds())
    question = draw_question(turning, seeded())
    turned = near_miss(question, Kind.TURNED, seeded())
    assert turned.answer_class(turned=False) == question.answer_class(turned=False)
    assert turned.answer_class() != question.answer_class()


def test_a_text_has_one_answer_and_is_a_repeat_from_its_second_time_on(stream):
    answers = defaultdict(set)
    for request in stream:
        assert (request.kind == REPEAT) == (request.text in answers)
        answers[request.text].add(request.answer_class)
    assert all(len(each) == 1 for each in answers.values())


def test_paraphrases_were_asked_before_and_near_misses_were_not(stream):
    asked = set()
    for request in stream:
        if request.kind.startswith("paraphrase"):
            assert request.answer_class in asked
        elif request.kind != REPEAT:
            assert request.answer_class not in asked
        asked.add(request.answer_class)


def test_late_kinds_come_in_the_last_third_only_and_then_most_often(stream):
    thirds = defaultdict(list)
    for place, request in enumerate(stream):
        assert request.third == place * 3 // LENGTH
        thirds[request.third].append(request.kind)
    late = {*held_out.LIBRARY.late, Kind.TURNED}
    assert not late & set(thirds[0] + thirds[1])
    assert late <= set(thirds[2])
    assert thirds[2].count("unit") > 2 * thirds[2].count("negation")


def test_a_stream_is_the_same_for_the_same_seed():
    assert list(development_stream(3, 200)) == list(development_stream(3, 200))
    assert list(development_stream(3, 200)) != list(development_stream(4, 200))


def test_strewn_pairs_keep_their_order_and_their_truth():
    pairs = [
        QuestionPair("paraphrase", True, "Is it on?", "Is it really on?"),
        QuestionPair("negation", False, "Is it off?", "Is it not off?"),
        QuestionPair("paraphrase", True, "Did Ann and Bo meet?", "Was it so that Bo and Ann met?"),
        QuestionPair("role/order", False, "Did Bo and Ann meet?", "Did they part?"),
    ]
    requests = list(Stream(development.LIBRARY, 1, 60).requests(pairs))
    found = {request.text: (place, request.answer_class) for place, request in enumerate(requests)}
    for pair in pairs:
        assert found[pair.a][0] < found[pair.b][0]
        assert (found[pair.a][1] == found[pair.b][1]) == pair.duplicate
    assert found["Did Ann and Bo meet?"][1] == found["Did Bo and Ann meet?"][1]


def test_rows_of_the_checklist_are_parted_and_those_without_a_word_left_out(tmp_path):
    path = tmp_path / "pairs.tsv"
    rows = ["kind\tduplicate\ta\tb", "x\t1\tIs it?\tIs it so?", "y\t0\tA . cat?\tB?", "z\t0\tC?\tD?"]
    path.write_text("\n".join(rows) + "\n")
    assert checklist_rows(path, EVEN) == [
        QuestionPair("x", True, "Is it?", "Is it so?"),
        QuestionPair("z", False, "C?", "D?"),
    ]
    assert checklist_rows(path, ODD) == []


async def test_what_is_near_is_what_the_gateways_store_finds():
    vectors = np.random.default_rng(1).normal(size=(60, 3)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    requests = [Request(f"question {place}", str(place), "fresh", 0) for place in range(60)]
    found = []

    class Watching(Arm):
        def decide(self, question, near):
            found.append([(neighbour.answer.question, neighbour.similarity) for neighbour in near])
            return None, None

    play(made_ready(requests, lambda texts: vectors, 0.85), Watching("watching", 0.85))
    store = ProcessAnswers(keep_bytes=10**7)
    await store.start("space", 3)
    for request, vector, near in zip(requests, vectors, found, strict=True):
        there = [
            (neighbour.answer.question, pytest.approx(neighbour.similarity))
            for neighbour in await store.nearest("scope", vector.tobytes(), NEIGHBOURS)
            if neighbour.similarity >= 0.85
        ]
        assert near == there
        await store.put(make_answer(request.text, vector.tobytes()))


def test_what_was_served_is_not_stored_and_exact_repeats_are_counted_apart():
    outcomes = play(reported("a1 a2 a1 a2 b1", near={"a2": "a1", "b1": "a1"}), Arm("cosine", 0.9))
    assert [outcome.given for outcome in outcomes] == [
        Given.MODEL,
        Given.STORED,
        Given.EXACT,
        Given.STORED,
        Given.STORED,
    ]
    assert [outcome.right for outcome in outcomes] == [None, True, True, True, False]
    figures = summary(outcomes)
    assert (figures["exact_hits"], figures["served_by_meaning"], figures["wrong"]) == (1, 3, 1)
    assert figures["hit_rate"] == 1.0
    assert kind_shares(outcomes)[0].kind == "kind b"


def test_the_bound_serves_nothing_that_is_not_proven_and_learns_from_what_it_explores():
    arm = BoundArm(SemanticConfig(), seed=1)
    outcomes = play(reported("a1 a2 b1 a3", near={"a2": "a1", "b1": "a1", "a3": "a2"}), arm)
    assert [outcome.given for outcome in outcomes] == [
        Given.MODEL,
        Given.EXPLORED,
        Given.EXPLORED,
        Given.EXPLORED,
    ]
    assert sum(cell.right + cell.wrong for cell in arm.book.snapshot()) == 3
    assert sum(cell.wrong for cell in arm.book.snapshot()) == 1


def test_a_judge_who_always_errs_teaches_the_contrary():
    arm = BoundArm(SemanticConfig(), seed=1, judge_errs=1.0)
    play(reported("a1 a2 b1 a3", near={"a2": "a1", "b1": "a1", "a3": "a2"}), arm)
    assert sum(cell.wrong for cell in arm.book.snapshot()) == 2


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    [(0, 100, 0.0, 0.0362), (5, 100, 0.0164, 0.1128), (100, 100, 0.9638, 1.0)],
)
def test_the_interval_of_a_share_is_the_exact_one(hits, trials, low, high):
    assert exact_interval(hits, trials) == pytest.approx((low, high), abs=1e-4)


def test_the_worst_kind_has_the_largest_share_however_few_it_had():
    shares = kind_shares(
        [*outcomes_of("rare", 3, 3), *outcomes_of("turned", 200, 20), *outcomes_of("unit", 200, 2)]
    )
    assert [share.kind for share in shares] == ["rare", "turned", "unit"]
    assert worst_kind(shares).kind == "rare"
    assert worst_kind([]) is None


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in [it for it in sys.modules if it.partition(".")[0] in {"semantic_cache", "near_misses"}]:
        monkeypatch.delitem(sys.modules, name)
    import semantic_cache

    return semantic_cache


def test_an_overdrawn_budget_is_told(benchmark):
    worst = {"kind": "unit", "share": 0.03, "interval": [0.004, 0.08]}
    kept = {"budget": 0.01, "wrong_share": 0.01, "worst_kind": worst}
    assert benchmark.overdrawn(kept) == []
    assert len(benchmark.overdrawn(kept | {"wrong_share": 0.011})) == 1
    assert len(benchmark.overdrawn(kept | {"worst_kind": worst | {"interval": [0.011, 0.08]}})) == 1


def seeded():
    """Chance that is the same each time."""
    return random.Random(1)  # noqa: S311


WORDS = {"a1": "rugs", "a2": "carpets", "a3": "mats", "b1": "lamps"}


def reported(names, near):
    """A stream of texts whose first letter is their answer; `near` says which earlier one each is near."""
    texts = list(dict.fromkeys(names.split()))
    requests = [Request(f"how to clean {WORDS[it]}", it[0], f"kind {it[0]}", 0) for it in names.split()]
    vectors = np.eye(len(texts) * 2, dtype=np.float32)[: len(texts)]
    for text, other in near.items():
        place, there = texts.index(text), texts.index(other)
        vectors[place] = 0.97 * vectors[there]
        vectors[place, len(texts) + place] = np.sqrt(1 - 0.97**2)
    return made_ready(requests, lambda texts: vectors, 0.85)


def outcomes_of(kind, requests, wrong):
    """Requests of a kind, so many of them served wrongly."""
    return [
        Outcome(
            kind, 0, Given.STORED if place < wrong else Given.MODEL, False if place < wrong else None, False
        )
        for place in range(requests)
    ]


def make_answer(question, vector):
    """An answer of the one scope there is."""
    return StoredAnswer(
        key=question,
        scope="scope",
        tenant="tenant",
        namespace="default",
        model="model",
        question=question,
        text="",
        made_unix_s=0.0,
        expires_unix_s=float("inf"),
        vector=vector,
    )
