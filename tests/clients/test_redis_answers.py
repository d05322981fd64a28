"""What only the store of answers in Redis has to stand: its death, its clock, its neighbours, its address."""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import asynccontextmanager

import pytest
import redis.asyncio

from phasewise.clients import redis_answers
from phasewise.clients.redis_answers import RedisAnswers
from phasewise.core.caching import Purge
from phasewise.core.errors import ConfigError, StoreRejected, StoreUnreachable
from tests.contract.answer_store import ASKED_DEG, DIMENSIONS, SPACE, all_lessons, answer, lesson, vector
from tests.gateway.harness import eventually
from tests.redis_search import running_redis_search

ASKED = vector(ASKED_DEG)
GENEROUS_S = 60.0


@pytest.fixture
def prefix():
    return f"t{secrets.token_hex(8)}"


@asynccontextmanager
async def store_at(url, prefix="t", *, space=SPACE, dimensions=DIMENSIONS, **options):
    store = RedisAnswers(url, prefix, **options)
    try:
        await store.start(space, dimensions)
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(redis_search, prefix):
    async with store_at(redis_search.url, prefix) as store:
        yield store


@pytest.fixture
async def plain(redis_search):
    async with redis.asyncio.Redis.from_url(redis_search.url) as client:
        yield client


async def found(store, scope="s1"):
    return [near.answer.key for near in await store.nearest(scope, ASKED, 5)]


async def test_two_gateways_on_one_redis_share_answers_and_lessons(store, redis_search, prefix):
    async with store_at(redis_search.url, prefix) as other:
        await store.put(answer(angle_deg=0.0))
        assert (await other.exact("k1", "s1")).text == "text of k1"
        assert await found(other) == ["k1"]
        await other.teach(lesson(1))
        place, reported = await store.lessons("")
        await store.teach(lesson(2))
        assert list(reported) == [lesson(1)]
        assert list((await other.lessons(place))[1]) == [lesson(2)]
        assert await other.purge(Purge(tenant="t1")) == 1
        assert await store.exact("k1", "s1") is None


async def test_gateways_with_other_prefixes_or_embedders_see_nothing_of_each_other(
    store, redis_search, prefix
):
    await store.put(answer(angle_deg=0.0))
    await store.teach(lesson())
    async with (
        store_at(redis_search.url, f"{prefix}x") as elsewhere,
        store_at(redis_search.url, prefix, space=f"{SPACE}-x") as embedded_otherwise,
    ):
        for other in (elsewhere, embedded_otherwise):
            assert await other.exact("k1", "s1") is None
            assert await found(other) == []
            assert await other.size() == 0
            assert (await other.lessons(""))[1] == []
        assert await elsewhere.purge(Purge()) == 0
        assert await found(store) == ["k1"]
        # Whoever wants a tenant's answers gone means those of yesterday's embedder too.
        assert await embedded_otherwise.purge(Purge(tenant="t1")) == 1
    assert await store.size() == 0


async def test_a_purge_of_all_leaves_the_gateways_of_another_embedder_what_they_need(
    store, redis_search, prefix
):
    async with store_at(redis_search.url, prefix, space=f"{SPACE}-x") as embedded_otherwise:
        await store.put(answer(angle_deg=0.0))
        await embedded_otherwise.put(answer(angle_deg=0.0))
        assert await store.purge(Purge()) == 2
        for each in (store, embedded_otherwise):
            assert await found(each) == []
            await each.put(answer(angle_deg=0.0))
            assert await found(each) == ["k1"]


async def test_what_redis_keeps_expires_by_itself_and_leaves_the_index(store, plain, prefix):
    await store.put(answer("k1", angle_deg=0.0, lives_s=100.0))
    (name,) = [name async for name in plain.scan_iter(f"{prefix}:*")]
    assert 90_000 < await plain.pttl(name) <= 100_000
    await store.put(answer("k1", angle_deg=0.0, lives_s=0.05))

    async def nothing_left():
        return await plain.exists(name) == 0 and await store.size() == 0

    await eventually(nothing_left)
    assert await found(store) == []


async def test_this_gateways_clock_ends_an_answer_that_redis_still_has(redis_search, prefix):
    shift_s = 0.0
    async with store_at(redis_search.url, prefix, now=lambda: time.time() + shift_s) as store:
        await store.put(answer(angle_deg=0.0, lives_s=1000.0))
        assert await found(store) == ["k1"]
        shift_s = 1001.0
        assert await store.exact("k1", "s1") is None
        assert await found(store) == []


async def test_an_answer_that_says_another_scope_than_the_index_is_not_given(store, plain, prefix):
    await store.put(answer("k1", "s1", angle_deg=0.0))
    (name,) = [name async for name in plain.scan_iter(f"{prefix}:*")]
    await plain.hset(name, "scope", "s2")
    assert await found(store, "s2") == []
    assert await store.exact("k1", "s2") is None


@pytest.mark.parametrize("kept", ["", "no json", "[]", "{}", '{"key": "k1", "tags": []}'])
async def test_what_another_version_has_kept_is_not_given(store, plain, prefix, kept):
    await store.put(answer("k1", "s1", angle_deg=0.0))
    (name,) = [name async for name in plain.scan_iter(f"{prefix}:answer:*")]
    await plain.hset(name, "answer", kept)
    assert await store.exact("k1", "s1") is None
    assert await found(store) == []


async def test_lessons_of_another_version_are_given_as_they_are_page_by_page(store, plain, prefix):
    pipe = plain.pipeline()
    for _ in range(300):
        pipe.xadd(f"{prefix}:lessons:{SPACE}", {"lesson": b"of another version"})
    await pipe.execute()
    await store.teach(lesson(1))
    assert 0 < len((await store.lessons(""))[1]) < 300
    assert await all_lessons(store) == [*[b"of another version"] * 300, lesson(1)]


async def test_the_oldest_of_very_many_lessons_are_forgotten(store, monkeypatch):
    monkeypatch.setattr(redis_answers, "LESSONS_KEPT", 100)
    await asyncio.gather(*(store.teach(lesson(number)) for number in range(1000)))
    reported = await all_lessons(store)
    assert 100 <= len(reported) <= 300
    assert reported[-1] == lesson(999)


async def test_a_killed_redis_fails_at_once_and_serves_again_without_its_index_when_it_is_back(
    own_redis_search,
):
    async with store_at(own_redis_search.url) as store:
        await store.put(answer(angle_deg=0.0))
        await store.teach(lesson())
        own_redis_search.kill()
        asks = [
            lambda: store.exact("k1", "s1"),
            lambda: store.nearest("s1", ASKED, 1),
            lambda: store.put(answer()),
            lambda: store.purge(Purge()),
            store.size,
            lambda: store.teach(lesson()),
            lambda: store.lessons(""),
        ]
        async with asyncio.timeout(GENEROUS_S):
            for ask in asks:
                with pytest.raises(StoreUnreachable):
                    await ask()
        own_redis_search.start()
        # All is gone, the index too; nobody calls `start` again.
        assert await store.exact("k1", "s1") is None
        await store.put(answer("k2", angle_deg=0.0))

        async def hits_resume():
            return await found(store) == ["k2"]

        await eventually(hits_resume)
        assert await store.size() == 1
        assert await store.lessons("") == ("", [])


async def test_a_held_up_redis_costs_the_callers_deadline_and_answers_rightly_afterwards(own_redis_search):
    async with store_at(own_redis_search.url) as store:
        for number in range(5):
            await store.put(answer(f"k{number}", f"s{number}", angle_deg=0.0))
        own_redis_search.hold_up()
        for number in range(5):
            for ask in (store.exact(f"k{number}", f"s{number}"), store.nearest(f"s{number}", ASKED, 1)):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.005):
                        await ask
        own_redis_search.go_on()
        for number in range(5):
            assert (await store.exact(f"k{number}", f"s{number}")).key == f"k{number}"
            assert await found(store, f"s{number}") == [f"k{number}"]


async def test_a_redis_that_was_not_there_at_the_start_serves_when_it_comes(own_redis_search):
    own_redis_search.kill()
    store = RedisAnswers(own_redis_search.url, "t")
    try:
        with pytest.raises(StoreUnreachable):
            await store.start(SPACE, DIMENSIONS)
        own_redis_search.start()
        assert await found(store) == []
        await store.put(answer(angle_deg=0.0))
        assert await found(store) == ["k1"]
    finally:
        await store.close()


async def test_a_full_redis_rejects_to_keep_and_still_gives(own_redis_search):
    async with (
        store_at(own_redis_search.url) as store,
        redis.asyncio.Redis.from_url(own_redis_search.url) as plain,
    ):
        await store.put(answer("k1", angle_deg=0.0))
        await plain.config_set("maxmemory", "1mb")
        with pytest.raises(StoreRejected, match="rejects") as caught:
            await store.put(answer("k2", text="secret" * 1000, angle_deg=0.0))
        assert "secret" not in str(caught.value)
        assert (await store.exact("k1", "s1")).key == "k1"


async def test_vectors_of_other_dimensions_under_the_same_name_are_a_mistake_in_the_configuration(
    store, redis_search, prefix
):
    with pytest.raises(ConfigError, match=r"4 dimensions .* gives 8\. hint: .*key_prefix"):
        async with store_at(redis_search.url, prefix, dimensions=8):
            pass


async def test_a_redis_without_vector_search_is_named_if_semantic_matches_are_wanted(redis_server, prefix):
    with pytest.raises(ConfigError, match=r"no vector search\. hint: use Redis 8"):
        async with store_at(redis_server.url, prefix):
            pass


async def test_any_redis_serves_exact_answers(redis_server, prefix):
    async with store_at(redis_server.url, prefix, space="", dimensions=None) as store:
        await store.put(answer("k1", tags=("x",)))
        await store.put(answer("k2"))
        assert (await store.exact("k1", "s1")).text == "text of k1"
        assert await store.nearest("s1", ASKED, 3) == []
        assert await store.size() == 2
        assert await store.purge(Purge(tag="x")) == 1
        await store.teach(lesson())
        assert len((await store.lessons(""))[1]) == 1


async def test_a_database_that_redis_cannot_search_is_named(redis_search, prefix):
    with pytest.raises(ConfigError, match="end the url with /0"):
        async with store_at(f"{redis_search.url.removesuffix('/0')}/1", prefix):
            pass


async def test_the_password_is_used_and_never_shown(tmp_path):
    with running_redis_search(tmp_path, password="hunter2") as server:
        async with store_at(server.url) as store:
            await store.put(answer(angle_deg=0.0))
            assert await found(store) == ["k1"]
        with pytest.raises(StoreUnreachable, match="AuthenticationError") as caught:
            async with store_at(server.url.replace("hunter2", "hunter3")):
                pass
    assert "hunter" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"gateway\.cache\.redis\.url") as wrong:
        RedisAnswers("http://:hunter2@host", "t")
    assert "hunter" not in str(wrong.value)


async def test_few_answers_among_many_of_others_are_all_found(store):
    """The index is a graph of all scopes' vectors: a small scope must not drown in it."""
    await asyncio.gather(
        *(store.put(answer(f"o{number}", f"other{number % 40}", angle_deg=0.0)) for number in range(1000))
    )
    for number, angle_deg in enumerate((5.0, 60.0, 120.0)):
        await store.put(answer(f"k{number}", angle_deg=angle_deg))
    assert await found(store) == ["k0", "k1", "k2"]
