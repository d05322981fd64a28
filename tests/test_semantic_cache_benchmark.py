"""The pieces of benchmarks/semantic_cache.py: that its truth is true, and that it can fail."""

from __future__ import annotations

import random
import sys
from collections import defaultdict

import numpy as np
import pytest

from benchmarks.near_misses.grammar import Kind, draw_question, near_miss
from benchmarks.near_misses.pairs import QuestionPair, make_pairs
from benchmarks.near_misses.play import CosineArm, Given, Outcome, VerifiedArm, made_ready, play
from benchmarks.near_misses.requests import REPEAT, Request
from benchmarks.near_misses.sets import EVEN, LIBRARIES, ODD, checklist_rows, stream_of
from benchmarks.near_misses.stream import Stream
from benchmarks.near_misses.tally import exact_interval, kind_shares, summary
from phasewise.clients.memory_answers import ProcessAnswers
from phasewise.core.caching import StoredAnswer
from phasewise.fleet.config import SemanticConfig
from phasewise.gateway.answer_cache.semantic import NEIGHBOURS
from tests.paths import ROOT

BENCHMARKS = ROOT / "benchmarks"
EVERY_LIBRARY = [pytest.param(library, id=name) for name, library in LIBRARIES.items()]
HELD_OUT, DEVELOPMENT = LIBRARIES["english"], LIBRARIES["development"]
LENGTH = 3_000


@pytest.fixture(scope="module")
def stream():
    return stream_of("english", 7, LENGTH, 0)


def test_no_question_that_is_held_out_was_there_to_tune_on():
    forms = [{form for each in it.frames for form in each.forms} for it in (HELD_OUT, DEVELOPMENT)]
    assert not forms[0] & forms[1]


@pytest.mark.parametrize("library", EVERY_LIBRARY)
def test_pairs_are_of_all_kinds_and_differ(library):
    pairs = make_pairs(library, 3, 800)
    assert len(pairs) == 800
    assert {pair.kind for pair in pairs if not pair.duplicate} == set(Kind) - {Kind.TURNED}
    assert all(pair.a != pair.b for pair in pairs)
    assert all(pair.duplicate == pair.kind.startswith("paraphrase") for pair in pairs)


def test_there_are_thousands_of_pairs_and_a_seed_makes_the_same_ones_again():
    assert len(make_pairs(HELD_OUT, 1, 3_000)) == 3_000
    assert make_pairs(HELD_OUT, 5, 50) == make_pairs(HELD_OUT, 5, 50)
    assert make_pairs(HELD_OUT, 5, 50) != make_pairs(HELD_OUT, 6, 50)


@pytest.mark.parametrize("library", EVERY_LIBRARY)
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
    turning = next(it for it in HELD_OUT.frames if Kind.TURNED in it.kinds())
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
    late = {*HELD_OUT.late, Kind.TURNED}
    assert not late & set(thirds[0] + thirds[1])
    assert late <= set(thirds[2])
    assert thirds[2].count("unit") > 2 * thirds[2].count("negation")


def test_a_stream_is_the_same_for_the_same_seed():
    assert stream_of("german", 3, 200, 50) == stream_of("german", 3, 200, 50)
    assert stream_of("german", 3, 200, 50) != stream_of("german", 4, 200, 50)


def test_most_questions_of_the_day_after_were_asked_before():
    requests = stream_of("spanish", 3, 2_000, 500)
    assert len(requests) == 2_500
    before = {request.text for request in requests[:2_000]}
    assert sum(request.text in before for request in requests[2_000:]) > 250


def test_strewn_pairs_keep_their_order_and_their_truth():
    pairs = [
        QuestionPair("paraphrase", True, "Is it on?", "Is it really on?"),
        QuestionPair("negation", False, "Is it off?", "Is it not off?"),
        QuestionPair("paraphrase", True, "Did Ann and Bo meet?", "Was it so that Bo and Ann met?"),
        QuestionPair("role/order", False, "Did Bo and Ann meet?", "Did they part?"),
    ]
    requests = list(Stream(DEVELOPMENT, 1, 60).requests(pairs))
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

    class Watching(CosineArm):
        def decide(self, question, near, draw):
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
    outcomes = play(reported("a1 a2 a1 a2 b1", near={"a2": "a1", "b1": "a1"}), CosineArm("cosine", 0.9))
    assert [outcome.given for outcome in outcomes] == [
        Given.MODEL,
        Given.STORED,
        Given.EXACT,
        Given.STORED,
        Given.STORED,
    ]
    assert [outcome.right for outcome in outcomes] == [None, True, True, True, False]
    figures = summary(outcomes)
    assert (figures["exact_hits"], figures["semantic_hits"], figures["wrong"]) == (1, 3, 1)
    assert (figures["hits_by_thousand"], figures["chances_by_thousand"]) == ([1], [1])
    assert kind_shares(outcomes)[0].kind == "kind b"


def test_nothing_is_served_that_is_not_proven_and_what_is_near_is_judged():
    arm = VerifiedArm(SemanticConfig(), seed=1)
    outcomes = play(reported("a1 a2 b1 a3", near={"a2": "a1", "b1": "a1", "a3": "a2"}), arm)
    assert [outcome.given for outcome in outcomes] == [Given.MODEL, Given.JUDGED, Given.JUDGED, Given.JUDGED]
    assert [outcome.right for outcome in outcomes] == [None, True, False, True]
    assert arm.book.aliases() == 2
    assert arm.judge_calls > 3  # the planted pairs


def test_all_answers_expire_before_the_day_after():
    played = reported("a1 a1 a1", near={})
    again = made_ready(played.requests, lambda texts: np.eye(1, 2, dtype=np.float32), 0.85, expires_at=2)
    outcomes = play(again, CosineArm("cosine", 0.9))
    assert [outcome.given for outcome in outcomes] == [Given.MODEL, Given.EXACT, Given.MODEL]


def test_a_judge_who_always_errs_is_never_trusted():
    arm = VerifiedArm(SemanticConfig(), seed=1, judge_errs=1.0)
    play(reported("a1 a2 b1 a3", near={"a2": "a1", "b1": "a1", "a3": "a2"}), arm)
    assert arm.book.aliases() == 1  # of the pair that differs
    assert not arm.book.judge.is_trusted


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    [(0, 100, 0.0, 0.0362), (5, 100, 0.0164, 0.1128), (100, 100, 0.9638, 1.0)],
)
def test_the_interval_of_a_share_is_the_exact_one(hits, trials, low, high):
    assert exact_interval(hits, trials) == pytest.approx((low, high), abs=1e-4)


def test_the_kind_with_the_largest_share_of_wrong_answers_comes_first_however_few_it_had():
    shares = kind_shares(
        [*outcomes_of("rare", 3, 3), *outcomes_of("turned", 200, 20), *outcomes_of("unit", 200, 2)]
    )
    assert [share.kind for share in shares] == ["rare", "turned", "unit"]
    assert shares[0].facts()["wrong"] == 3


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in [it for it in sys.modules if it.partition(".")[0] in {"semantic_cache", "near_misses"}]:
        monkeypatch.delitem(sys.modules, name)
    import semantic_cache

    return semantic_cache


def test_what_is_against_the_promise_is_told(benchmark):
    kept = {
        "stream": "english:1", "judge_errs": 0.0, "by_change": False, "budget": 0.01, "wrong_share": 0.01,
        "trusted": True, "alias_hits": 1, "semantic_hits": 9,
        "before": 0.4, "before_early": 0.1, "before_late": 0.4,
        "hit_share_early": 0.06, "hit_share_late": 0.41,
    }  # fmt: skip
    problems = lambda **other: len(benchmark.problems_of(kept | other))  # noqa: E731
    assert problems() == 0
    assert problems(wrong_share=0.011) == 1
    assert problems(hit_share_early=0.05) == 1
    assert problems(hit_share_late=0.4) == 1
    assert problems(trusted=False) == 1
    assert problems(trusted=False, alias_hits=0, semantic_hits=0, hit_share_late=0.0) == 0
    assert problems(before=None, before_early=None, before_late=None) == 0


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
    given = [Given.STORED] * wrong + [Given.MODEL] * (requests - wrong)
    return [Outcome(kind, it, False if it is Given.STORED else None, could_hit=False) for it in given]


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
