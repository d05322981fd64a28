"""The page of the cache names every result, reason, guard and field of the report, and the numbers in use."""

import re

import pytest

from phasewise.core.caching import Bypass, CacheResult
from phasewise.gateway.answer_cache.headers import MOST_TAGS
from phasewise.gateway.answer_cache.report import CacheReport
from phasewise.semantic_match.evidence import Bound, EvidenceBook
from phasewise.semantic_match.guards import Guard, veto
from phasewise.semantic_match.identity import LONGEST_QUESTION, LONGEST_SEMANTIC, MOST_WORDS_SEMANTIC
from phasewise.semantic_match.matching import Reason
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "cache.md").read_text()


@pytest.mark.parametrize("vocabulary", [CacheResult, Bypass, Reason, Guard], ids=lambda it: it.__name__)
def test_every_word_of_a_vocabulary_is_documented(vocabulary):
    assert [word for word in vocabulary if f"`{word}`" not in PAGE] == []


def test_every_field_of_the_report_is_documented():
    bound = Bound(0.01, 0.95)
    reported = CacheReport(0.0, bound).reported(EvidenceBook(bound))
    fields = [*reported, *reported["wrong"], *reported["judged"], *reported["saved"]]
    assert [field for field in fields if f"`{field}`" not in PAGE] == []


def test_the_numbers_are_those_that_are_used():
    assert f"up to {MOST_WORDS_SEMANTIC} words and {LONGEST_SEMANTIC:,} characters" in PAGE
    assert f"more than {LONGEST_QUESTION:,} characters" in PAGE
    assert f"up to {MOST_TAGS} names" in PAGE


def test_each_guard_keeps_apart_what_the_page_says():
    examples = re.findall(r"^\| `(\w+)` \| [^|]+ \| \*([^*]+)\* \*([^*]+)\* \|$", PAGE, re.MULTILINE)
    assert [guard for guard, *_ in examples] == list(Guard)
    for guard, one, other in examples:
        assert veto(one, other).guard == guard
        assert veto(other, one).guard == guard
