"""A bounded memory of timelines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phasewise.gateway.timeline_store import TimelineStore
from phasewise.model.timeline_record import decode
from tests.builders import EPOCH_S, make_timeline


def ids(lines):
    return [decode(line).request_id for line in lines]


def filled(count, capacity=10):
    store = TimelineStore(capacity)
    for number in range(count):
        store.record(make_timeline(request_id=f"r{number}", started_unix_s=EPOCH_S + number, ended_s=0.5))
    return store


def test_the_oldest_gives_way():
    store = filled(12)
    assert len(store) == 10
    assert store.get("r1") is None
    assert decode(store.get("r2")).request_id == "r2"


def test_recent_ones_come_oldest_first_and_the_newest_are_kept():
    assert ids(filled(5).recent(3)) == ["r2", "r3", "r4"]


def test_since_counts_from_a_requests_end_so_that_long_ones_are_not_missed():
    store = TimelineStore(10)
    store.record(make_timeline(request_id="short", started_unix_s=EPOCH_S, ended_s=1.0))
    store.record(make_timeline(request_id="long", started_unix_s=EPOCH_S - 100, ended_s=105.0))
    assert ids(store.recent(10, EPOCH_S + 3)) == ["long"]


def test_an_id_that_comes_again_replaces_the_older_timeline():
    store = filled(3)
    store.record(make_timeline(request_id="r0", model="other"))
    assert len(store) == 3
    assert decode(store.get("r0")).model == "other"


@given(numbers=st.lists(st.integers(0, 6), max_size=40), capacity=st.integers(1, 5))
def test_it_never_holds_more_than_its_capacity_and_always_the_newest(numbers, capacity):
    store = TimelineStore(capacity)
    for number in numbers:
        store.record(make_timeline(request_id=str(number)))
    newest = list(dict.fromkeys(map(str, reversed(numbers))))[:capacity]
    assert ids(store.recent(100)) == newest[::-1]
