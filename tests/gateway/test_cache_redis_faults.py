"""A Redis that dies, hangs or comes back fails no request, and gateways on one Redis share what they know."""

import asyncio
import contextlib
import json
import secrets
import subprocess
import sys

import orjson
import pytest

from phasewise.core.errors import ConfigError
from phasewise.fleet.config import (
    CacheConfig,
    CacheRedis,
    GatewayConfig,
    GatewayFile,
    OnnxEmbedderConfig,
    SemanticConfig,
)
from phasewise.gateway.answer_cache import build as cache_building
from phasewise.gateway.answer_cache import deadline as cache_guard
from phasewise.gateway.answer_cache import learning as cache_learning
from phasewise.gateway.app import build_app
from tests.gateway.cache_parts import (
    QUESTION,
    REWORDED,
    SIMILARITY,
    AngleEmbedder,
    SetJudge,
    TaggingEngine,
    proving_lessons,
    status_of,
    teach_all,
    text_of,
)
from tests.gateway.gateway_process import start
from tests.gateway.harness import ADMIN, eventually, running_gateway
from tests.real_engine import free_port

HIT, NEAR_HIT = "hit; detail=exact", "hit; detail=semantic"
LONG_S = 30.0


@pytest.fixture(autouse=True)
def quick_parts(monkeypatch):
    monkeypatch.setattr(cache_building, "build_embedder", lambda config, home: AngleEmbedder())
    monkeypatch.setattr(cache_building, "FleetJudge", lambda config, world, clients: SetJudge())
    monkeypatch.setattr(cache_guard, "TRY_AGAIN_EVERY_S", 0.05)
    monkeypatch.setattr(cache_learning, "READ_EVERY_S", 0.02)
    monkeypatch.setattr(cache_learning, "COUNT_EVERY_S", 0.02)


@contextlib.asynccontextmanager
async def cached_gateway(redis, worker, *, key_prefix="t", deadline_s=1.0, semantic=True):
    cache = CacheConfig(
        mode="serve",
        redis=CacheRedis(url=redis.url, key_prefix=key_prefix),
        semantic=SemanticConfig(audit_share=1e-9) if semantic else None,
        deadline_s=deadline_s,
    )
    async with running_gateway([worker], cache=cache) as gateway:
        yield gateway


async def report_of(gateway):
    return orjson.loads((await gateway.fetch("GET", "/phasewise/v1/cache", headers=ADMIN)).body)


async def hits(gateway, headers=()):
    """Ask until the answer comes from the cache."""

    async def hit():
        reply = await gateway.chat(QUESTION, headers=headers)
        return reply if status_of(reply) == HIT else None

    return await eventually(hit, LONG_S)


async def is_degraded(gateway):
    return (await report_of(gateway))["degraded"] != []


async def is_well(gateway):
    return not await is_degraded(gateway)


async def has_learned(gateway):
    return (await report_of(gateway))["semantic"]["aliases"] == 1


async def has_proven(gateway, domain):
    regions = (await report_of(gateway))["semantic"]["regions"]
    return any(it["domain"] == domain and it["proven"] for it in regions)


class Load:
    """Clients that ask one after another until they are stopped; every answer is looked at."""

    def __init__(self, gateway, clients=4):
        self.answered = 0
        self.failed = []
        self._gateway = gateway
        self._stop = False
        self._clients = clients

    @contextlib.asynccontextmanager
    async def running(self):
        tasks = [asyncio.create_task(self._ask(number)) for number in range(self._clients)]
        try:
            yield
        finally:
            self._stop = True
            await asyncio.gather(*tasks)

    async def _ask(self, client):
        number = 0
        while not self._stop:
            number += 1
            # Some are asked by all and again, some by nobody else.
            question = QUESTION if number % 2 else f"question {number} of client {client}"
            reply = await self._gateway.chat(question)
            self.answered += 1
            if reply.status != 200:
                self.failed.append(reply.status)

    async def goes_on(self, answers=20):
        wanted = self.answered + answers
        await eventually(lambda: self.answered >= wanted, LONG_S)


async def test_a_redis_that_is_killed_under_load_fails_no_request_and_is_used_again(own_redis_search):
    async with TaggingEngine().running() as worker, cached_gateway(own_redis_search, worker) as gateway:
        load = Load(gateway)
        async with load.running():
            await hits(gateway)
            own_redis_search.kill()
            await eventually(lambda: is_degraded(gateway), LONG_S)
            await load.goes_on()
            waited = (await report_of(gateway))["reasons"]["miss"].get("late", 0)
            await load.goes_on()
            report = await report_of(gateway)
            assert report["reasons"]["miss"].get("late", 0) == waited
            assert report["reasons"]["miss"]["store_down"] > 0
            own_redis_search.start()
            await hits(gateway)
            await load.goes_on()
        assert load.failed == []
        await eventually(lambda: is_well(gateway), LONG_S)


async def test_a_redis_that_hangs_is_waited_for_by_few_and_then_by_nobody(own_redis_search):
    async with (
        TaggingEngine().running() as worker,
        cached_gateway(own_redis_search, worker, deadline_s=0.2) as gateway,
    ):
        load = Load(gateway)
        async with load.running():
            await hits(gateway)
            own_redis_search.hold_up()
            try:
                await eventually(lambda: is_degraded(gateway), LONG_S)
                await load.goes_on()
                waited = (await report_of(gateway))["reasons"]["miss"].get("late", 0)
                await load.goes_on()
                # One look-up may have tried whether Redis is back.
                assert (await report_of(gateway))["reasons"]["miss"].get("late", 0) <= waited + 1
            finally:
                own_redis_search.go_on()
            await hits(gateway)
        assert load.failed == []


async def test_a_gateway_starts_without_its_redis_and_uses_it_when_it_is_there(own_redis_search):
    own_redis_search.kill()
    async with TaggingEngine().running() as worker, cached_gateway(own_redis_search, worker) as gateway:
        assert status_of(await gateway.chat(QUESTION)) == "fwd=miss; detail=store_down"
        assert b"\nphasewise_cache_degraded 1" in (await gateway.fetch("GET", "/metrics")).body
        own_redis_search.start()
        await hits(gateway)


async def test_two_gateways_on_one_redis_share_answers_and_what_they_learned(redis_search):
    prefix = f"t{secrets.token_hex(8)}"
    async with (
        TaggingEngine().running() as worker,
        cached_gateway(redis_search, worker, key_prefix=prefix, deadline_s=10.0) as one,
        cached_gateway(redis_search, worker, key_prefix=prefix, deadline_s=10.0) as other,
    ):
        made = text_of(await one.chat(QUESTION))
        assert text_of(await hits(other)) == made
        assert status_of(await one.chat(REWORDED)) == "fwd=miss; detail=explored"
        await eventually(lambda: has_learned(other), LONG_S)
        lessons = proving_lessons(
            REWORDED, QUESTION, SIMILARITY, "default/proven/fake-model", judging_model="fake-model"
        )
        await teach_all(one.app.gateway.cache._store, lessons)
        proven = [(b"x-phasewise-cache-namespace", b"proven")]
        made = text_of(await one.chat(QUESTION, headers=proven))
        await eventually(lambda: has_proven(other, "default/proven/fake-model"), LONG_S)
        assert text_of(await hits(other, headers=proven)) == made
        reply = await other.chat(REWORDED, headers=proven)
        assert (status_of(reply), text_of(reply)) == (NEAR_HIT, made)
        # The judge is trusted now, so the alias that one gateway has learned is served by the other.
        purged = await one.fetch("POST", "/phasewise/v1/cache/purge", {"namespace": "default"}, ADMIN)
        assert orjson.loads(purged.body) == {"purged": 2}
        await one.chat(QUESTION)
        made = text_of(await hits(other))
        reply = await other.chat(REWORDED)
        assert (status_of(reply), text_of(reply)) == ("hit; detail=alias", made)


async def test_a_purge_by_one_gateway_holds_for_the_other(redis_search):
    prefix = f"t{secrets.token_hex(8)}"
    async with (
        TaggingEngine().running() as worker,
        cached_gateway(redis_search, worker, key_prefix=prefix, deadline_s=10.0, semantic=False) as one,
        cached_gateway(redis_search, worker, key_prefix=prefix, deadline_s=10.0, semantic=False) as other,
    ):
        await one.chat(QUESTION)
        await hits(other)
        purged = await one.fetch("POST", "/phasewise/v1/cache/purge", {"all": True}, ADMIN)
        assert orjson.loads(purged.body) == {"purged": 1}
        assert status_of(await other.chat(QUESTION)) == "fwd=miss"


def file_with(cache):
    worker = {"name": "w0", "url": "http://127.0.0.1:1", "model": "fake-model"}
    return GatewayFile(gateway=GatewayConfig(cache=cache), workers=(worker,))


async def test_a_redis_without_search_stops_a_start_that_needs_it(redis_server, fake_engine, tmp_path):
    embedder = {"kind": "http", "url": fake_engine.base_url, "model": fake_engine.model}
    cache = {"redis": {"url": redis_server.url, "key_prefix": "t"}, "semantic": {"embedder": embedder}}
    worker = {"name": "w0", "url": fake_engine.base_url, "model": fake_engine.model}
    file = tmp_path / "gateway.yaml"
    file.write_text(json.dumps({"gateway": {"port": free_port(), "cache": cache}, "workers": [worker]}))
    process = await start(file)
    _, reported = await asyncio.wait_for(process.communicate(), 60.0)
    assert process.returncode == 2
    assert b"use Redis 8" in reported
    assert b"Traceback" not in reported


def test_an_embedding_model_that_was_not_fetched_stops_the_start(monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setenv("PHASEWISE_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="phasewise model fetch minilm-l6"):
        build_app(file_with(CacheConfig(semantic=SemanticConfig(embedder=OnnxEmbedderConfig()))))


def test_a_judge_that_nobody_serves_stops_the_start():
    semantic = SemanticConfig(judge={"kind": "model", "model": "judge-7b"})
    with pytest.raises(ConfigError, match=r"which no worker serves.*file: fake-model"):
        build_app(file_with(CacheConfig(semantic=semantic)))


async def test_an_empty_cache_section_watches_in_this_process_and_serves_nothing():
    async with TaggingEngine().running() as worker, running_gateway([worker], cache=CacheConfig()) as gateway:
        first = text_of(await gateway.chat(QUESTION))

        async def seen():
            reply = await gateway.chat(QUESTION)
            assert text_of(reply) != first
            return status_of(reply) == "fwd=miss; detail=shadow_exact"

        await eventually(seen)
        report = await report_of(gateway)
        assert (report["mode"], report["store"], report["semantic"]) == ("shadow", "process", None)
        assert report["results"]["shadow_exact"] >= 1


def test_a_gateway_without_a_cache_loads_nothing_for_one():
    heavy = {"numpy", "redis", "onnxruntime", "tokenizers"}
    script = (
        f"import sys, phasewise.gateway.processes.child; print([it for it in {heavy} if it in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
