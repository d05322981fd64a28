"""A bounded memory of timelines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.core.timeline_record import decode, encode
from phasewise.gateway.records.timeline_store import ENTRY_BYTES, TimelineStore, gateway_id_in
from tests.builders import EPOCH_S, make_timeline


def ids(lines):
    return [decode(line.text).request_id for line in lines]


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


def test_the_newest_come_oldest_first():
    page = filled(5).newest(3)
    assert (ids(page.lines), page.ends[0], page.more) == (["r2", "r3", "r4"], 5, False)
    assert ids(filled(5).newest(100).lines) == ["r0", "r1", "r2", "r3", "r4"]


def test_since_counts_from_a_requests_end_so_that_long_ones_are_not_missed():
    store = TimelineStore(10)
    store.record(make_timeline(request_id="short", started_unix_s=EPOCH_S, ended_s=1.0))
    store.record(make_timeline(request_id="long", started_unix_s=EPOCH_S - 100, ended_s=105.0))
    assert ids(store.page(10, ended_since_unix_s=EPOCH_S + 3).lines) == ["long"]


def test_since_is_a_filter_on_top_of_after():
    store = filled(5)
    assert ids(store.page(10, after=2, ended_since_unix_s=EPOCH_S).lines) == ["r2", "r3", "r4"]
    assert ids(store.page(10, after=2, ended_since_unix_s=EPOCH_S + 3.5).lines) == ["r3", "r4"]
    page = store.page(10, ended_since_unix_s=EPOCH_S + 99)
    assert (page.lines, page.ends[0], page.more) == ([], 5, False)


def test_a_clock_that_was_set_back_hides_nothing():
    store = TimelineStore(10)
    for number, ended in enumerate([50.0, 60.0, 10.0, 20.0, 70.0]):
        store.record(make_timeline(request_id=f"r{number}", started_unix_s=EPOCH_S, ended_s=ended))
    assert ids(store.page(10, ended_since_unix_s=EPOCH_S + 15).lines) == ["r0", "r1", "r3", "r4"]
    assert ids(store.page(10, ended_since_unix_s=EPOCH_S + 65).lines) == ["r4"]


def test_a_page_that_ends_between_equal_ends_neither_loses_nor_repeats():
    store = TimelineStore(10)
    for number in range(5):
        store.record(make_timeline(request_id=f"r{number}", started_unix_s=EPOCH_S, ended_s=1.0))
    first = store.page(2, ended_since_unix_s=EPOCH_S + 1)
    second = store.page(2, first.ends[0], EPOCH_S + 1)
    third = store.page(2, second.ends[0], EPOCH_S + 1)
    assert [(ids(page.lines), page.more) for page in (first, second, third)] == [
        (["r0", "r1"], True),
        (["r2", "r3"], True),
        (["r4"], False),
    ]
    assert store.page(2, third.ends[0]).lines == []


def test_a_number_from_another_life_gives_everything_once():
    store = TimelineStore(10, first_number=1000)
    store.record(make_timeline(request_id="new"))
    assert ids(store.page(10, after=7).lines) == ["new"], "a number of the life before"
    assert ids(store.page(10, after=5000).lines) == ["new"], "a number that was never given out here"
    assert store.page(10, after=1000).lines == []


def test_an_id_that_comes_again_leads_to_the_newer_timeline():
    store = filled(3, capacity=3)
    store.record(make_timeline(request_id="r1", model="other"))
    store.record(make_timeline(request_id="r4"))
    assert decode(store.get("r1")).model == "other"
    store.check_invariants()


OWN = "0d36c57b020338a7ff6e3a7ca6f4ac9c"


@pytest.mark.parametrize(
    "form",
    [
        "{}",
        "chatcmpl-{}",
        "cmpl-{}",
        "embd-{}",
        "cmpl-{}-0",
        "{}-2",
        "chatcmpl-{}-2",
        "cmpl-{}-2-0",
        "chatcmpl-{}-1f2e3d4c",
        "cmpl-{}-0-1f2e3d4c",
        "1_chatcmpl-{}-1f2e3d4c",
        "chatcmpl-{}-beam-3",
    ],
)
def test_an_engines_id_holds_the_one_that_it_was_sent(form):
    assert gateway_id_in(form.format(OWN)) == OWN


@pytest.mark.parametrize(
    "text",
    ["", "chatcmpl-", OWN[:-1], f"{OWN}0", OWN.upper(), f"mine-{OWN}", f"chatcmpl-{OWN}x", f"{OWN}\n"],
)
def test_other_ids_hold_none_of_ours(text):
    assert gateway_id_in(text) is None


def test_a_clients_id_goes_with_the_newest_request_that_had_it():
    store = TimelineStore(2)
    for number, client_id in enumerate(["a", "a", None, "b"]):
        store.record(make_timeline(request_id=f"r{number}", client_request_id=client_id))
        store.check_invariants()
    assert store.get("a") is None
    assert decode(store.get("b")).request_id == "r3"


def test_a_gateways_id_comes_before_a_clients():
    store = TimelineStore(5)
    store.record(make_timeline(request_id=OWN))
    store.record(make_timeline(request_id="r1", client_request_id=OWN))
    store.record(make_timeline(request_id="r2", client_request_id=f"chatcmpl-{OWN}"))
    assert {decode(store.get(it)).request_id for it in (OWN, f"chatcmpl-{OWN}")} == {OWN}
    store.check_invariants()


def test_long_timelines_leave_room_for_fewer():
    long = make_timeline(tuple(0.1 * index for index in range(1, 1000)), request_id="long")
    size = len(encode(long)) + ENTRY_BYTES
    store = TimelineStore(100, capacity_bytes=size)
    for number in range(20):
        store.record(make_timeline(request_id=f"r{number}"))
    assert 1 < len(store) < 20
    store.record(long)
    assert (len(store), store.get("r19")) == (1, None)
    store.record(make_timeline(request_id="next"))
    assert ids(store.newest(10).lines) == ["next"]
    store.check_invariants()


def test_a_timeline_beyond_the_capacity_is_not_kept():
    store = TimelineStore(100, capacity_bytes=10)
    store.record(make_timeline(request_id="r0"))
    assert (len(store), store.get("r0"), store.newest(5).lines) == (0, None, [])
    store.check_invariants()


def test_a_page_says_how_many_were_dropped_before_they_were_read():
    store = TimelineStore(3, first_number=100)
    for number in range(10):
        store.record(make_timeline(request_id=f"r{number}"))
    kept = ids(store.page(5, after=101).lines)
    assert (kept, store.page(5, after=101).dropped) == (["r7", "r8", "r9"], 5)
    assert (store.page(1, after=101).more, store.page(1, after=101).dropped) == (True, 5)
    assert store.page(5, after=106).dropped == 0
    # Another process numbered from elsewhere: only what this one dropped is known.
    assert store.page(5, after=7).dropped == 7
    assert store.page(5, after=10_000).dropped == 0
    # Who begins with the oldest asks for nothing before it.
    assert store.page(5, after=0).dropped == 0


@given(
    ends=st.lists(st.integers(0, 6), max_size=40),
    capacity=st.integers(1, 50),
    capacity_bytes=st.integers(1000, 40_000),
    limit=st.integers(1, 9),
    since=st.integers(0, 7),
)
def test_pages_together_are_what_is_kept(ends, capacity, capacity_bytes, limit, since):
    store = TimelineStore(capacity, capacity_bytes)
    for number, end in enumerate(ends):
        store.record(
            make_timeline(
                request_id=str(number),
                started_unix_s=EPOCH_S,
                ended_s=float(end),
                client_request_id=f"c{end}" if end else None,
            )
        )
        store.check_invariants()
    seen, after, more = [], 0, True
    while more:
        page = store.page(limit, after, EPOCH_S + since)
        seen += ids(page.lines)
        after, more = page.ends[0], page.more
    kept = list(enumerate(ends))[len(ends) - len(store) :]
    assert seen == [str(number) for number, end in kept if end >= since]
    assert ids(store.newest(limit).lines) == [str(number) for number, _ in kept][-limit:]


HEX = ("ab12" + "0" * 28, "ab34" + "1" * 28, "cd56" + "2" * 28)


def named(*client_ids):
    store = TimelineStore(10)
    for request_id, client_id in zip(HEX, client_ids, strict=False):
        store.record(make_timeline(request_id=request_id, client_request_id=client_id))
    return store


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (HEX[0], [HEX[0]]),
        (f"chatcmpl-{HEX[0]}-0-1f2e", [HEX[0]]),
        ("ab1", [HEX[0]]),
        ("chatcmpl-cd", [HEX[2]]),
        ("cmpl-ab", [HEX[0], HEX[1]]),
        ("order", [HEX[0], HEX[1], HEX[2]]),
        ("order-7", [HEX[0], HEX[1]]),
        ("order-77", [HEX[2]]),
        ("chatcmpl-", []),
        ("", []),
        ("nobody", []),
    ],
)
async def test_an_id_or_its_beginning_finds_every_request_that_it_can_mean(text, found):
    page = await named("order-7", "order-7", "order-77").matching(text, 10)
    assert ids(page.lines) == found


async def test_the_newest_matches_are_given_and_that_there_are_more():
    page = await named("mine", "mine", "mine").matching("mine", 2)
    assert (ids(page.lines), page.more) == ([HEX[1], HEX[2]], True)


async def test_a_clients_id_that_is_anothers_own_does_not_hide_it():
    assert ids((await named(None, HEX[0]).matching(HEX[0], 10)).lines) == [HEX[0]]


def test_one_tenants_are_found_among_the_newest():
    store = TimelineStore(10)
    for number in range(6):
        store.record(make_timeline(request_id=f"r{number}", tenant="shop" if number % 2 else "lab"))
    assert ids(store.newest(2, "shop").lines) == ["r3", "r5"]
    assert ids(store.newest(9, "lab").lines) == ["r0", "r2", "r4"]
    assert store.newest(0, "lab").lines == []
    assert store.newest(2, "nobody").lines == []
