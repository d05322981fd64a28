"""The page of the cache names every result, reason, guard and field of the report, and the numbers in use."""

import re
from types import SimpleNamespace as FakeJudge

import pytest

from phasewise.core.caching import Bypass, CacheResult
from phasewise.gateway.answer_cache.headers import MOST_TAGS
from phasewise.gateway.answer_cache.report import CacheReport
from phasewise.semantic_match.evidence import Budget, EvidenceBook
from phasewise.semantic_match.guards import Guard, objection
from phasewise.semantic_match.identity import LONGEST_QUESTION, LONGEST_SEMANTIC, MOST_WORDS_SEMANTIC
from phasewise.semantic_match.lessons import Lesson, LessonKind
from phasewise.semantic_match.matching import Reason
from phasewise.semantic_match.reading import read
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "cache.md").read_text()


@pytest.mark.parametrize("vocabulary", [CacheResult, Bypass, Reason, Guard], ids=lambda it: it.__name__)
def test_every_word_of_a_vocabulary_is_documented(vocabulary):
    assert [word for word in vocabulary if f"`{word}`" not in PAGE] == []


def test_every_field_of_the_report_is_documented():
    judge = FakeJudge(calls=0, prompt_tokens=0, busy_s=0.0)
    reported = CacheReport(0.0).reported(make_book(), judge)
    assert reported["semantic"]["regions"]
    assert [
        field for field in fields_of(reported) if f"`{field}`" not in PAGE and f".{field}`" not in PAGE
    ] == []


def make_book():
    """A book with a region, so that the report has one."""
    book = EvidenceBook(Budget(0.01, 0.95))
    book.learn(Lesson("", 0, "", True, 0.0, kind=LessonKind.PLANTED_DIFFERENT))
    book.learn(Lesson("t/n/m", 1, "a", True, 0.0))
    return book


def fields_of(reported):
    """The names of all fields, within one another."""
    for name, held in reported.items():
        yield name
        for inner in held if isinstance(held, list) else [held]:
            if isinstance(inner, dict):
                yield from fields_of(inner)


def test_the_numbers_are_those_that_are_used():
    assert f"up to {MOST_WORDS_SEMANTIC} words and {LONGEST_SEMANTIC:,} characters" in PAGE
    assert f"more than {LONGEST_QUESTION:,} characters" in PAGE
    assert f"up to {MOST_TAGS} names" in PAGE


def test_each_guard_keeps_apart_what_the_page_says():
    examples = re.findall(r"^\| `(\w+)` \| [^|]+ \| \*([^*]+)\* \*([^*]+)\* \|$", PAGE, re.MULTILINE)
    assert {guard for guard, *_ in examples} == set(Guard)
    for guard, one, other in examples:
        assert objection(read(one), read(other)) == guard
        assert objection(read(other), read(one)) == guard
