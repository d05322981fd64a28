"""The cache headers of requests and responses."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.core.caching import CacheNote, CacheResult
from phasewise.core.errors import RequestRejected
from phasewise.gateway.answer_cache.headers import (
    MOST_TAGS,
    CacheWishes,
    cache_headers,
    cache_wishes,
    with_all_lines,
    without_cache_headers,
)


def reported(note):
    return {name.decode(): value.decode() for name, value in cache_headers(note)}


def test_a_request_that_asks_for_nothing_may_read_and_keep():
    assert cache_wishes({}) == CacheWishes(reads=True, keeps=True, namespace="default", tags=())


@pytest.mark.parametrize(
    ("control", "reads", "keeps"),
    [
        (b"no-store", False, False),
        (b"No-Store , max-age=3", False, False),
        (b"no-cache", False, True),
        (b"max-age=0", False, True),
        (b"max-age=30, private", True, True),
        (b"", True, True),
    ],
)
def test_cache_control_says_whether_to_read_and_to_keep(control, reads, keeps):
    wishes = cache_wishes({b"cache-control": control})
    assert (wishes.reads, wishes.keeps, wishes.opted_out) == (reads, keeps, not keeps)


def wishes_of(*lines):
    return cache_wishes(with_all_lines(dict(reversed(lines)), lines))


def test_what_comes_in_several_lines_is_one_list():
    lines = (
        (b"cache-control", b"no-transform"),
        (b"x-phasewise-cache-tags", b"v2"),
        (b"accept", b"text/plain"),
        (b"cache-control", b"no-store"),
        (b"x-phasewise-cache-tags", b"faq,v3"),
        (b"accept", b"application/json"),
    )
    assert wishes_of(*lines).opted_out
    assert wishes_of(*lines).tags == ("faq", "v2", "v3")
    assert with_all_lines(dict(reversed(lines)), lines)[b"accept"] == b"text/plain"


def test_nobody_is_in_two_namespaces():
    with pytest.raises(RequestRejected):
        wishes_of((b"x-phasewise-cache-namespace", b"one"), (b"x-phasewise-cache-namespace", b"two"))


def test_namespaces_and_tags_are_names():
    headers = {b"x-phasewise-cache-namespace": b"help-desk", b"x-phasewise-cache-tags": b"v2, faq,, v2"}
    wishes = cache_wishes(headers)
    assert (wishes.namespace, wishes.tags) == ("help-desk", ("faq", "v2"))


@pytest.mark.parametrize(
    ("header", "value"),
    [
        (b"x-phasewise-cache-namespace", b""),
        (b"x-phasewise-cache-namespace", b"Help"),
        (b"x-phasewise-cache-namespace", b"a:b"),
        (b"x-phasewise-cache-namespace", "bücher".encode()),
        (b"x-phasewise-cache-namespace", b"a" * 42),
        (b"x-phasewise-cache-tags", b"a,{b}"),
        (b"x-phasewise-cache-tags", b",".join(b"t%d" % number for number in range(MOST_TAGS + 1))),
    ],
)
def test_what_is_no_name_is_rejected_without_being_repeated(header, value):
    with pytest.raises(RequestRejected) as caught:
        cache_wishes({header: value})
    assert caught.value.param == header.decode()
    assert not value or value.decode() not in str(caught.value)


@pytest.mark.parametrize(
    ("note", "status"),
    [
        (CacheNote(CacheResult.HIT_EXACT), "phasewise; hit; detail=exact"),
        (CacheNote(CacheResult.HIT_ALIAS), "phasewise; hit; detail=alias"),
        (CacheNote(CacheResult.HIT_SEMANTIC, similarity=0.9), "phasewise; hit; detail=semantic"),
        (CacheNote(CacheResult.JOINED), "phasewise; fwd=miss; collapsed; detail=joined"),
        (CacheNote(CacheResult.EXPLORED, "unproven"), "phasewise; fwd=miss; detail=explored"),
        (CacheNote(CacheResult.SHADOW_EXACT), "phasewise; fwd=miss; detail=shadow_exact"),
        (CacheNote(CacheResult.MISS), "phasewise; fwd=miss"),
        (CacheNote(CacheResult.MISS, "late"), "phasewise; fwd=miss; detail=late"),
        (CacheNote(CacheResult.BYPASS, "tools"), "phasewise; fwd=bypass; detail=tools"),
    ],
)
def test_the_status_says_what_the_request_had_of_the_cache(note, status):
    assert reported(note) == {"cache-status": status}


def test_only_what_was_served_has_an_age():
    assert reported(CacheNote(CacheResult.HIT_EXACT, age_s=12.9))["age"] == "12"
    assert "age" not in reported(CacheNote(CacheResult.SHADOW_EXACT, age_s=12.9))


@given(result=st.sampled_from(CacheResult), reason=st.none() | st.text(max_size=8))
def test_no_reason_breaks_the_header(result, reason):
    (_, value), *_ = cache_headers(CacheNote(result, reason))
    name, *parameters = value.decode("ascii").split("; ")
    assert name == "phasewise"
    assert all(re.fullmatch(r"[a-z]+(=[\x21-\x7e]+)?", it) and ";" not in it for it in parameters)


def test_cache_headers_can_be_removed():
    other = [(b"x-request-id", b"r")]
    assert without_cache_headers([*other, *cache_headers(CacheNote(CacheResult.HIT_EXACT, age_s=1))]) == other
