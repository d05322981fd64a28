"""What only the store of answers in the process has to stand: its bounds, and its tables' agreement."""

from __future__ import annotations

import asyncio
import math
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.clients import memory_answers as process_answers
from phasewise.clients.memory_answers import ProcessAnswers, VectorRows
from phasewise.core.caching import Purge
from tests.contract.answer_store import ASKED_DEG, DIMENSIONS, SPACE, answer, lesson, vector

ASKED = vector(ASKED_DEG)
NOW_S = 1_800_000_000.0


class Clock:
    def __init__(self):
        self.now_s = NOW_S

    def __call__(self):
        return self.now_s


def kept_until(key, expires_s, scope="s1", **fields):
    return answer(key, scope, made_unix_s=NOW_S, expires_unix_s=NOW_S + expires_s, **fields)


async def started(keep_bytes=10 * 2**20):
    clock = Clock()
    store = ProcessAnswers(keep_bytes, clock)
    await store.start(SPACE, DIMENSIONS)
    return store, clock


async def keys(store, count=100):
    return [f"k{number}" for number in range(count) if await store.exact(f"k{number}", "s1")]


async def test_an_answer_lives_to_the_second_it_expires_and_being_asked_for_does_not_prolong_it():
    store, clock = await started()
    await store.put(kept_until("k1", 10.0, angle_deg=0.0))
    for clock.now_s in (NOW_S + 5, NOW_S + 9.9):
        assert await store.exact("k1", "s1") is not None
        assert len(await store.nearest("s1", ASKED, 1)) == 1
    clock.now_s = NOW_S + 10
    assert await store.exact("k1", "s1") is None
    assert await store.nearest("s1", ASKED, 1) == []
    assert await store.size() == 0
    store.check_invariants()


async def test_the_least_recently_used_is_evicted_first_when_space_runs_out():
    store, _ = await started(keep_bytes=10 * 12_000)
    for number in range(10):
        await store.put(kept_until(f"k{number}", 100.0, text="x" * 10_000, angle_deg=float(number)))
    assert await store.size() == 10
    await store.exact("k0", "s1")
    await store.nearest("s1", vector(1.0), 1)
    for number in range(10, 13):
        await store.put(kept_until(f"k{number}", 100.0, text="x" * 10_000))
        store.check_invariants()
    assert await keys(store) == ["k0", "k1", *(f"k{number}" for number in range(5, 13))]


async def test_space_is_counted_in_bytes_not_in_letters():
    store, _ = await started(keep_bytes=170_000)
    await store.put(kept_until("k0", 100.0, text="\U0001f600" * 20_000))
    assert await keys(store) == ["k0"]
    await store.put(kept_until("k1", 100.0, text="x" * 20_000))
    assert await keys(store) == ["k1"]


async def test_an_answer_too_large_for_the_whole_store_evicts_no_other():
    store, _ = await started(keep_bytes=50_000)
    await store.put(kept_until("k0", 100.0))
    await store.put(kept_until("k1", 100.0))
    await store.put(kept_until("k1", 100.0, text="x" * 60_000))
    assert await keys(store) == ["k0"]
    store.check_invariants()


async def test_a_scope_holds_so_many_vectors_that_comparing_them_stays_quick(monkeypatch):
    monkeypatch.setattr(process_answers, "MOST_NUMBERS_PER_SCOPE", 5 * DIMENSIONS)
    store, _ = await started()
    await store.put(kept_until("other", 100.0, "s2", angle_deg=0.0))
    await store.put(kept_until("plain", 100.0))
    for number in range(5):
        await store.put(kept_until(f"k{number}", 100.0, angle_deg=float(number)))
    await store.exact("k0", "s1")
    await store.put(kept_until("k5", 100.0, angle_deg=0.0))
    assert await keys(store) == ["k0", "k2", "k3", "k4", "k5"]
    assert await store.exact("plain", "s1") is not None
    assert await store.exact("other", "s2") is not None


@pytest.mark.parametrize(
    ("dimensions", "tags", "own_scopes"), [(384, 0, True), (384, 16, True), (1536, 0, True), (384, 0, False)]
)
async def test_no_more_memory_is_taken_than_may_be_kept(dimensions, tags, own_scopes):
    """Short answers, each in a scope of its own, take the most beside their text."""
    keep_bytes = 4 * 2**20
    store = ProcessAnswers(keep_bytes, Clock())
    await store.start(SPACE, dimensions)
    tracemalloc.start()
    try:
        for number in range(1500):
            name = f"{number:064x}"
            await store.put(
                kept_until(
                    f"k{name}",
                    100.0,
                    f"s{name if own_scopes else ''}",
                    namespace=f"n{name}",
                    vector=vector(number, dimensions),
                    tags=tuple(f"t{tag}{name}" for tag in range(tags)),
                )
            )
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    store.check_invariants()
    assert await store.size() < 1500
    assert keep_bytes / 2 < taken_bytes <= keep_bytes


async def test_others_have_their_turns_during_a_purge_of_many(monkeypatch):
    monkeypatch.setattr(process_answers, "FORGOTTEN_IN_A_TURN", 10)
    store, _ = await started()
    for number in range(100):
        await store.put(kept_until(f"k{number}", 100.0, angle_deg=float(number), tags=("x",)))
    purging = asyncio.create_task(store.purge(Purge(tag="x")))
    await asyncio.sleep(0)
    assert await store.size() == 90
    await store.put(kept_until("k0", 100.0, angle_deg=0.0))
    await store.put(kept_until("k99", 100.0, angle_deg=0.0))
    assert await purging == 99
    assert await keys(store) == ["k0", "k99"]
    store.check_invariants()


async def test_vectors_of_another_length_are_forgotten_when_the_embedder_has_changed():
    store, _ = await started()
    await store.put(kept_until("k1", 100.0, angle_deg=0.0))
    await store.put(kept_until("k2", 100.0))
    await store.start(SPACE, DIMENSIONS)
    assert await store.size() == 2
    await store.start(SPACE, 8)
    await store.put(kept_until("k3", 100.0, vector=vector(0.0, 8)))
    assert [near.answer.key for near in await store.nearest("s1", vector(0.0, 8), 3)] == ["k3"]
    assert await keys(store) == ["k2", "k3"]
    store.check_invariants()


async def test_an_answer_replaced_again_and_again_leaves_nothing_behind():
    store, clock = await started()
    for number in range(5000):
        clock.now_s += 0.001
        await store.put(kept_until("k1", 1000.0 + number, angle_deg=0.0))
    assert await store.size() == 1
    assert len(store._expiries) < 2000
    store.check_invariants()


async def test_the_oldest_of_very_many_lessons_are_forgotten_and_places_stay_right():
    store, _ = await started()
    store._lessons = type(store._lessons)(maxlen=3)
    for number in range(5):
        await store.teach(lesson(number))
    place, reported = await store.lessons("")
    assert reported == [lesson(2), lesson(3), lesson(4)]
    assert (await store.lessons("1"))[1] == reported
    await store.teach(lesson(5))
    assert (await store.lessons(place))[1] == [lesson(5)]


_numbers = st.integers(0, 9)
_actions = st.one_of(
    st.tuples(st.just("put"), _numbers, st.integers(1, 20), st.booleans()),
    st.tuples(st.just("wait"), st.integers(1, 8)),
    st.tuples(st.just("ask"), _numbers),
    st.tuples(st.just("purge"), st.sampled_from(["even", "odd"])),
)


@given(st.lists(_actions, max_size=40))
@settings(max_examples=60)
async def test_it_holds_what_a_plain_table_would(actions):
    store, clock = await started()
    table = {}
    for action, *details in actions:
        table = {key: ends for key, ends in table.items() if ends[0] > clock.now_s}
        if action == "put":
            number, lives_s, has_vector = details
            angle_deg = 10.0 * number if has_vector else None
            tags = ("even" if number % 2 == 0 else "odd",)
            ends_s = clock.now_s + lives_s
            await store.put(
                answer(f"k{number}", f"s{number % 3}", expires_unix_s=ends_s, angle_deg=angle_deg, tags=tags)
            )
            table[number] = (ends_s, has_vector)
        elif action == "wait":
            clock.now_s += details[0]
            table = {key: ends for key, ends in table.items() if ends[0] > clock.now_s}
        elif action == "ask":
            (number,) = details
            assert (await store.exact(f"k{number}", f"s{number % 3}") is not None) == (number in table)
        else:
            meant = [number for number in table if (number % 2 == 0) == (details[0] == "even")]
            assert await store.purge(Purge(tag=details[0])) == len(meant)
            for number in meant:
                del table[number]
        store.check_invariants()
    assert await store.size() == len(table)
    for scope in range(3):
        near = await store.nearest(f"s{scope}", ASKED, 10)
        assert [each.answer.key for each in near] == [
            f"k{number}" for number in sorted(table) if number % 3 == scope and table[number][1]
        ]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=120))
@settings(max_examples=60)
def test_rows_stay_with_their_keys_however_they_come_and_go(steps):
    rows = VectorRows(2)
    present = {}
    for comes, number in steps:
        if number in present:
            rows.remove(f"k{number}")
            del present[number]
        elif comes:
            angle = math.radians(5.0 * number)
            rows.add(f"k{number}", struct.pack("<2f", math.cos(angle), math.sin(angle)))
            present[number] = math.cos(angle)
        rows.check_invariants()
    near = rows.nearest(struct.pack("<2f", 1.0, 0.0), 7)
    assert [key for key, _ in near] == [f"k{number}" for number in sorted(present)][:7]
    assert [cosine for _, cosine in near] == pytest.approx(
        [present[n] for n in sorted(present)][:7], abs=1e-6
    )


async def test_a_tenant_that_stores_much_pushes_out_its_own_answers_alone():
    store, _ = await started(keep_bytes=10 * 12_000)
    for number in range(3):
        await store.put(kept_until(f"k{number}", 100.0, text="x" * 10_000, tenant="small"))
    for number in range(3, 43):
        await store.put(kept_until(f"k{number}", 100.0, text="x" * 10_000, tenant="large"))
        store.check_invariants()
    assert (await keys(store))[:3] == ["k0", "k1", "k2"]
    assert await store.size() == 10
