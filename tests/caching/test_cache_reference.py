"""The page of the cache names every result, reason, guard and field of the report, and the numbers in use."""

import re
from pathlib import Path

import pytest

from phasewise.caching.bound import Bound
from phasewise.caching.bypass import LONGEST_BY_MEANING, LONGEST_QUESTION, MOST_WORDS_BY_MEANING
from phasewise.caching.evidence_book import EvidenceBook
from phasewise.caching.guards import Guard, veto
from phasewise.caching.matching import Reason
from phasewise.gateway.cache_headers import MOST_TAGS
from phasewise.gateway.cache_report import CacheReport
from phasewise.model.caching import Bypass, CacheResult

PAGE = (Path(__file__).parent.parent.parent / "docs" / "reference" / "cache.md").read_text()


@pytest.mark.parametrize("vocabulary", [CacheResult, Bypass, Reason, Guard], ids=lambda it: it.__name__)
def test_every_word_of_a_vocabulary_is_documented(vocabulary):
    assert [word for word in vocabulary if f"`{word}`" not in PAGE] == []


def test_every_field_of_the_report_is_documented():
    bound = Bound(0.01, 0.95)
    told = CacheReport(0.0, bound).told(EvidenceBook(bound))
    fields = [*told, *told["wrong"], *told["judged"], *told["saved"]]
    assert [field for field in fields if f"`{field}`" not in PAGE] == []


def test_the_numbers_are_those_that_are_used():
    assert f"up to {MOST_WORDS_BY_MEANING} words and {LONGEST_BY_MEANING:,} characters" in PAGE
    assert f"more than {LONGEST_QUESTION:,} characters" in PAGE
    assert f"up to {MOST_TAGS} names" in PAGE


def test_each_guard_keeps_apart_what_the_page_says():
    examples = re.findall(r"^\| `(\w+)` \| [^|]+ \| \*([^*]+)\* \*([^*]+)\* \|$", PAGE, re.MULTILINE)
    assert [guard for guard, *_ in examples] == list(Guard)
    for guard, one, other in examples:
        assert veto(one, other).guard == guard
        assert veto(other, one).guard == guard
