"""One suite for both stores of answers: in the process, and in a real Redis with vector search."""

from __future__ import annotations

import asyncio
import itertools
import math
import secrets
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phasewise.clients.memory_answers import ProcessAnswers
from phasewise.clients.redis_answers import RedisAnswers
from phasewise.core.caching import Purge
from tests.contract.answer_store import (
    ASKED_DEG,
    BITING_NAMES,
    DIMENSIONS,
    SPACE,
    all_lessons,
    answer,
    lesson,
    vector,
)
from tests.gateway.harness import eventually

ASKED = vector(ASKED_DEG)


def made_store(kind, request):
    if kind == "process":
        return ProcessAnswers(keep_bytes=100 * 2**20)
    return RedisAnswers(request.getfixturevalue("redis_search").url, f"t{secrets.token_hex(8)}")


@pytest.fixture(params=["process", "redis"])
async def store(request):
    store = made_store(request.param, request)
    try:
        await store.start(SPACE, DIMENSIONS)
        yield store
        if request.param == "process":
            store.check_invariants()
    finally:
        await store.close()


@pytest.fixture(params=["process", "redis"])
async def exact_store(request):
    """One that was started without an embedder."""
    store = made_store(request.param, request)
    try:
        await store.start("", None)
        yield store
    finally:
        await store.close()


async def put_all(store, *answers):
    for each in answers:
        await store.put(each)


async def near_keys(store, scope="s1", count=10):
    return [near.answer.key for near in await store.nearest(scope, ASKED, count)]


@pytest.mark.parametrize("stop_reason", [None, "END", 128_009])
async def test_an_answer_is_given_as_it_was_kept_but_for_its_vector(store, stop_reason):
    made = {"prompt_tokens": 7, "output_tokens": 0, "start_s": 0.25, "stream_s": 1.5}
    whole = answer(angle_deg=0.0, tags=("news", "prices"), stop_reason=stop_reason, **made)
    await store.put(whole)
    assert await store.exact("k1", "s1") == replace(whole, vector=None)
    (near,) = await store.nearest("s1", ASKED, 3)
    assert near.answer == replace(whole, vector=None)


async def test_what_was_never_kept_is_not_there(store):
    assert await store.exact("k1", "s1") is None
    assert await store.nearest("s1", ASKED, 3) == []
    assert await store.size() == 0
    assert await store.purge(Purge()) == 0


@pytest.mark.parametrize(
    "text",
    ["", "ünï名\U0001f600\0\r\n\u2028", 'data: {"a": "\\u0000"}\n\n', "x" * 2**20],
    # The name of a test is in the environment of what it starts, which must not be longer than 128 KiB.
    ids=["empty", "every_kind", "quoted", "long"],
)
async def test_any_text_comes_back_unchanged(store, text):
    await store.put(answer(text=text, question=text[:1000], angle_deg=0.0))
    found = await store.exact("k1", "s1")
    assert (found.text, found.question) == (text, text[:1000])
    (near,) = await store.nearest("s1", ASKED, 1)
    assert near.answer.text == text


async def test_the_nearest_come_first_with_their_cosines(store):
    angles_deg = {"far": 80.0, "same": 0.0, "near": 10.0, "against": 170.0, "mid": 40.0}
    await put_all(store, *(answer(key, angle_deg=angle) for key, angle in angles_deg.items()))
    found = await store.nearest("s1", ASKED, 3)
    assert [near.answer.key for near in found] == ["same", "near", "mid"]
    for near in found:
        assert near.similarity == pytest.approx(math.cos(math.radians(angles_deg[near.answer.key])), abs=1e-5)
        assert near.similarity <= 1.0


async def test_answers_without_a_vector_are_found_by_key_alone(store):
    await put_all(store, answer("k1"), answer("k2", angle_deg=5.0))
    assert await store.exact("k1", "s1") is not None
    assert await near_keys(store) == ["k2"]
    assert await store.size() == 2


async def test_a_vector_of_another_length_is_no_neighbour(store):
    await put_all(store, answer("k1", vector=vector(0.0, DIMENSIONS + 1)), answer("k2", angle_deg=5.0))
    assert await store.exact("k1", "s1") is not None
    assert await near_keys(store) == ["k2"]
    assert await store.nearest("s1", vector(0.0, DIMENSIONS + 1), 3) == []


async def test_an_answer_takes_the_place_of_one_with_the_same_key(store):
    await store.put(answer(text="old", angle_deg=0.0, tags=("old",)))
    await store.put(answer(text="new", angle_deg=60.0, tags=("new",)))
    assert (await store.exact("k1", "s1")).text == "new"
    (near,) = await store.nearest("s1", ASKED, 3)
    assert (near.answer.text, near.similarity) == ("new", pytest.approx(0.5, abs=1e-5))
    assert await store.size() == 1
    assert await store.purge(Purge(tag="old")) == 0
    await store.put(answer(text="newest"))
    assert await near_keys(store) == []


async def test_an_answer_is_forgotten_when_its_time_is_over_even_if_it_is_asked_for(store):
    await put_all(store, answer("k1", angle_deg=0.0), answer("k2", angle_deg=0.0))
    await store.put(answer("k1", angle_deg=0.0, lives_s=0.05))

    async def is_over():
        return await store.exact("k1", "s1") is None

    await eventually(is_over)
    assert await near_keys(store) == ["k2"]

    async def is_forgotten():
        return await store.size() == 1

    await eventually(is_forgotten)


async def test_an_answer_whose_time_is_over_already_is_not_kept(store):
    await store.put(answer(angle_deg=0.0))
    await store.put(answer(angle_deg=0.0, lives_s=-1.0))
    assert await store.exact("k1", "s1") is None
    assert await near_keys(store) == []


PURGES = [
    Purge(),
    *(Purge(tenant=name) for name in ("t1", "t2", "t")),
    *(Purge(namespace=name) for name in ("n1", "n2", "")),
    *(Purge(tag=name) for name in ("x", "y", "x,y", "*", "")),
    Purge(tenant="t1", namespace="n2"),
    Purge(tenant="t2", tag="x"),
    Purge(namespace="n1", tag="y"),
    Purge(tenant="t1", namespace="n1", tag="x"),
]


@pytest.mark.parametrize("what", PURGES, ids=str)
async def test_a_purge_forgets_those_that_are_all_it_names_and_no_other(store, what):
    combinations = itertools.product(("t1", "t2"), ("n1", "n2"), ((), ("x",), ("x", "y")))
    kept = [
        answer(f"k{number}", tenant=tenant, namespace=namespace, tags=tags, angle_deg=float(number))
        for number, (tenant, namespace, tags) in enumerate(combinations)
    ]
    await put_all(store, *kept)
    stay = {
        each.key
        for each in kept
        if what.tenant not in {None, each.tenant}
        or what.namespace not in {None, each.namespace}
        or (what.tag is not None and what.tag not in each.tags)
    }
    assert await store.purge(what) == len(kept) - len(stay)
    assert {each.key for each in kept if await store.exact(each.key, "s1")} == stay
    assert set(await near_keys(store, count=20)) == stay
    assert await store.size() == len(stay)


async def test_a_purge_of_many_forgets_them_all(store):
    await asyncio.gather(*(store.put(answer(f"k{number}", angle_deg=number / 10)) for number in range(600)))
    assert await store.size() == 600
    assert await store.purge(Purge(tenant="t1")) == 600
    assert await store.size() == 0
    assert await near_keys(store) == []


async def test_a_name_means_itself_and_nothing_else(store):
    """Each of these as a scope, a tenant, a namespace and a tag, beside all the others."""
    named = {
        name: answer(f"k{number}", name, tenant=name, namespace=name, tags=(name, "all"), angle_deg=1.0)
        for number, name in enumerate(BITING_NAMES)
    }
    await put_all(store, *named.values())
    for name, own in named.items():
        assert await near_keys(store, name, count=99) == [own.key]
        assert await store.exact(own.key, name) is not None
        for what in (Purge(tenant=name), Purge(namespace=name), Purge(tag=name)):
            assert await store.purge(what) == 1
            assert await store.exact(own.key, name) is None
            assert await store.size() == len(named) - 1
            await store.put(own)


async def test_a_key_is_answered_in_its_own_scope_alone(store):
    await store.put(answer("k1", "s1", angle_deg=0.0))
    assert await store.exact("k1", "s2") is None
    assert await store.exact("k1", "") is None
    assert await near_keys(store, "s2") == []


_puts = st.lists(
    st.tuples(st.integers(0, 7), st.sampled_from(BITING_NAMES[:6]), st.sampled_from([0, 1, 20, 90, 179])),
    max_size=25,
)


@given(puts=_puts, count=st.integers(1, 6))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_nothing_crosses_scopes_whatever_was_kept(store, puts, count):
    """Against a plain table: what a scope's nearest are, and who may be answered by which key."""
    await store.purge(Purge())
    table = {}
    for number, scope, angle_deg in puts:
        # As identities are made: the scope is in the key.
        kept = answer(f"{scope}/{number}", scope, angle_deg=float(angle_deg))
        await store.put(kept)
        table[kept.key] = (scope, math.cos(math.radians(angle_deg)))
    assert await store.size() == len(table)
    for scope in BITING_NAMES[:6]:
        own = sorted((cosine for owner, cosine in table.values() if owner == scope), reverse=True)
        near = await store.nearest(scope, ASKED, count)
        assert {each.answer.scope for each in near} <= {scope}
        assert [each.similarity for each in near] == pytest.approx(own[:count], abs=1e-5)
        for key, (owner, _) in table.items():
            assert (await store.exact(key, scope) is not None) == (owner == scope)


async def test_those_who_ask_at_the_same_time_get_each_their_own(store):
    await asyncio.gather(*(store.put(answer(f"k{n}", f"s{n % 7}", angle_deg=float(n))) for n in range(50)))

    async def by_key(number):
        assert (await store.exact(f"k{number}", f"s{number % 7}")).text == f"text of k{number}"

    async def semantic(number):
        (near,) = await store.nearest(f"s{number % 7}", vector(number), 1)
        assert near.answer.key == f"k{number}"

    await asyncio.gather(*(ask(number) for number in range(50) for ask in (by_key, semantic)))


async def test_whoever_stops_waiting_does_not_shift_others_answers(store):
    await put_all(store, *(answer(f"k{number}", angle_deg=float(number)) for number in range(20)))

    async def ask(number):
        try:
            async with asyncio.timeout([0, 0.0005, 10.0][number % 3]):
                return (await store.exact(f"k{number % 20}", "s1")).key == f"k{number % 20}"
        except TimeoutError:
            return None

    seen = await asyncio.gather(*(ask(number) for number in range(150)))
    assert set(seen) <= {True, None}
    assert seen.count(True) >= 50


async def test_lessons_are_read_in_order_and_once(store):
    assert (await store.lessons(""))[1] == []
    first = [lesson(1), lesson(2)]
    for each in first:
        await store.teach(each)
    place, reported = await store.lessons("")
    assert list(reported) == first
    assert (await store.lessons(place))[1] == []
    await store.teach(lesson(3))
    later, reported = await store.lessons(place)
    assert list(reported) == [lesson(3)]
    assert later != place
    assert len((await store.lessons(""))[1]) == 3


@pytest.mark.parametrize(
    "written", [b"", b"{}", b"\xff\0\r\n", "ünï".encode(), b"x" * 10_000], ids=lambda it: str(it[:9])
)
async def test_a_lesson_is_given_as_it_was_taught(store, written):
    await store.teach(written)
    assert list((await store.lessons(""))[1]) == [written]


async def test_many_lessons_are_read_completely(store):
    await asyncio.gather(*(store.teach(lesson(number)) for number in range(600)))
    reported = await all_lessons(store)
    assert sorted(reported) == sorted(map(lesson, range(600)))


async def test_a_purge_leaves_what_was_learned(store):
    await put_all(store, answer())
    await store.teach(lesson())
    await store.purge(Purge())
    assert len((await store.lessons(""))[1]) == 1


async def test_without_an_embedder_answers_are_found_by_key_alone(exact_store):
    await put_all(exact_store, answer("k1", angle_deg=0.0), answer("k2", "s2", tags=("x",)))
    assert (await exact_store.exact("k1", "s1")).text == "text of k1"
    assert await exact_store.nearest("s1", ASKED, 3) == []
    assert await exact_store.size() == 2
    assert await exact_store.purge(Purge(tag="x")) == 1
    assert await exact_store.size() == 1
