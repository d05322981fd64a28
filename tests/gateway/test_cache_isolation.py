"""Nothing crosses: what one tenant asked, got or taught is never another's, whatever others send."""

import asyncio
import random
import secrets

import orjson
import pytest

from phasewise.fleet.config import ApiKey, CacheConfig, CacheRedis, SemanticConfig
from phasewise.gateway.answer_cache import build as cache_building
from phasewise.gateway.answer_cache import learning as cache_learning
from phasewise.gateway.api.auth import key_sha256
from tests.gateway.cache_parts import (
    NEGATED,
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
from tests.gateway.harness import ADMIN, chat_body, eventually, running_gateway

KEYS = {"a": "key-of-a", "b": "key-of-b"}
HIT, NEAR_HIT, ALIAS_HIT = "hit; detail=exact", "hit; detail=semantic", "hit; detail=alias"


def as_tenant(tenant, **headers):
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return [(b"authorization", b"Bearer " + KEYS[tenant].encode()), *named]


class Scene:
    """A gateway with two tenants in front of an engine that names whom it answered."""

    def __init__(self, gateway, engine):
        self.gateway = gateway
        self.engine = engine

    async def ask(self, tenant, question=QUESTION, headers=(), **fields):
        return await self.gateway.chat(question, headers=[*as_tenant(tenant), *headers], **fields)

    async def asked(self, tenant, question=QUESTION, headers=(), **fields):
        """Ask, and wait until the answer is kept."""
        reply = await self.ask(tenant, question, headers, **fields)
        assert status_of(reply).startswith("fwd")

        async def kept():
            return status_of(await self.ask(tenant, question, headers, **fields)) == HIT

        await eventually(kept)
        return reply

    async def report(self):
        return orjson.loads((await self.gateway.fetch("GET", "/phasewise/v1/cache", headers=ADMIN)).body)

    async def admin(self, what, **body):
        reply = await self.gateway.fetch("POST", f"/phasewise/v1/cache/{what}", body, ADMIN)
        assert reply.status == 200, reply.body
        return orjson.loads(reply.body)

    @property
    def judge(self):
        return self.gateway.app.gateway.cache._judge

    async def prove(self, tenant):
        """Let this tenant's rewordings be proven, by a judge that is trusted."""
        domain = f"{tenant}/default/fake-model"
        store = self.gateway.app.gateway.cache._store
        await teach_all(store, proving_lessons(REWORDED, QUESTION, SIMILARITY, domain, "fake-model"))

        async def proven():
            regions = (await self.report())["semantic"]["regions"]
            return any(it["proven"] for it in regions if it["domain"] == domain)

        await eventually(proven)


@pytest.fixture(params=["process", "redis"])
def store_config(request):
    if request.param == "process":
        return None
    return CacheRedis(url=request.getfixturevalue("redis_search").url, key_prefix=f"t{secrets.token_hex(8)}")


@pytest.fixture
async def scene(store_config, monkeypatch):
    monkeypatch.setattr(cache_building, "build_embedder", lambda config, home: AngleEmbedder())
    monkeypatch.setattr(cache_building, "FleetJudge", lambda config, world, clients: SetJudge())
    monkeypatch.setattr(cache_learning, "READ_EVERY_S", 0.01)
    engine = TaggingEngine()
    keys = tuple(ApiKey(sha256=key_sha256(key), tenant=tenant) for tenant, key in KEYS.items())
    cache = CacheConfig(
        mode="serve", redis=store_config, semantic=SemanticConfig(audit_share=1e-9), deadline_s=10.0
    )
    async with (
        engine.running() as worker,
        running_gateway([worker], api_keys=keys, cache=cache) as gateway,
    ):
        yield Scene(gateway, engine)


async def test_two_tenants_with_one_request_never_share_an_answer(scene):
    mine, others = [text_of(await scene.asked(tenant)) for tenant in ("a", "b")]
    assert mine.split()[0] != others.split()[0]
    for tenant, text in (("a", mine), ("b", others), ("a", mine)):
        reply = await scene.ask(tenant)
        assert (status_of(reply), text_of(reply)) == (HIT, text)


async def test_a_proven_match_of_one_tenant_is_nothing_to_another(scene):
    await scene.prove("a")
    mine = text_of(await scene.asked("a"))
    reply = await scene.ask("a", REWORDED)
    assert (status_of(reply), text_of(reply)) == (NEAR_HIT, mine)
    reply = await scene.ask("b", REWORDED)
    assert status_of(reply) == "fwd=miss; detail=nothing_near"
    assert text_of(reply).split()[0] != mine.split()[0]


async def test_requests_under_way_are_joined_within_a_tenant_only(scene):
    scene.engine.gate.clear()
    asking = [asyncio.create_task(scene.ask(tenant)) for tenant in ("a", "a", "b", "b", "a")]
    await eventually(lambda: scene.engine.answers == 2)
    await asyncio.sleep(0.05)
    scene.engine.gate.set()
    texts = [text_of(reply) for reply in await asyncio.gather(*asking)]
    assert scene.engine.answers == 2
    assert texts[0] == texts[1] == texts[4] != texts[2] == texts[3]


async def test_nothing_that_a_client_sends_reaches_another_tenants_answers(scene):
    tried = [
        {name: "a"} for name in ("x-phasewise-tenant", "x-tenant", "tenant", "x-request-id", "forwarded")
    ]
    tried += [{"x-phasewise-cache-key": "k", "x-phasewise-cache-scope": "s", "x-phasewise-cache-tags": "a"}]
    names = ["default", "a/default", "a", "*", "default}|{a", "default\\", "a default", ""]
    tried += [{"x-phasewise-cache-namespace": name} for name in names]
    for limit, headers in enumerate(tried, start=10):
        theirs = text_of(await scene.asked("a", max_tokens=limit))
        named = [(name.encode(), value.encode()) for name, value in headers.items()]
        reply = await scene.ask("b", headers=named, max_tokens=limit)
        assert reply.status == 400 or text_of(reply).split()[0] != theirs.split()[0]


async def test_no_field_of_a_body_names_a_tenant_or_a_scope(scene):
    theirs = text_of(await scene.asked("a"))
    for name in ("cache_salt", "tenant", "namespace", "cache_key", "scope"):
        body = {**chat_body(QUESTION), name: "a"}
        reply = await scene.gateway.fetch("POST", "/v1/chat/completions", body, as_tenant("b"))
        assert reply.status == 400 or text_of(reply) != theirs


async def test_namespaces_of_one_tenant_are_apart(scene):
    there = [(b"x-phasewise-cache-namespace", b"docs")]
    here = text_of(await scene.asked("a"))
    elsewhere = text_of(await scene.asked("a", headers=there))
    assert here != elsewhere
    assert text_of(await scene.ask("a", headers=there)) == elsewhere


async def test_a_purge_of_one_tenant_leaves_the_others(scene):
    await scene.asked("a")
    mine = text_of(await scene.asked("b"))
    assert await scene.admin("purge", tenant="a") == {"purged": 1}
    assert status_of(await scene.ask("a")).startswith("fwd=miss")
    reply = await scene.ask("b")
    assert (status_of(reply), text_of(reply)) == (HIT, mine)


async def test_whatever_a_tenant_teaches_nobody_else_learns(scene):
    await scene.prove("b")
    await scene.asked("a")
    reported = await scene.admin(
        "explain", model="fake-model", text=REWORDED, tenant="a", fields={"max_tokens": 8}
    )
    assert reported["result"] == "explored"
    assert (reported["neighbours"][0]["change"], reported["neighbours"][0]["verified"]) == ("new", 0)
    assert status_of(await scene.ask("a", REWORDED)) == "fwd=miss; detail=explored"


async def test_an_alias_of_one_tenant_is_nothing_to_another(scene):
    await scene.prove("b")
    for tenant in KEYS:
        # What is proven is served, so that only what is not becomes an alias.
        docs = [(b"x-phasewise-cache-namespace", b"docs")]
        await scene.asked(tenant, headers=docs)
    known = (await scene.report())["semantic"]["aliases"]
    reply = await scene.ask("a", REWORDED, headers=docs)
    assert status_of(reply) == "fwd=miss; detail=explored"

    async def learned():
        return (await scene.report())["semantic"]["aliases"] == known + 1

    await eventually(learned)
    await scene.admin("purge", namespace="docs")
    mine = text_of(await scene.asked("a", headers=docs))
    reply = await scene.ask("a", REWORDED, headers=docs)
    assert (status_of(reply), text_of(reply)) == (ALIAS_HIT, mine)
    await scene.asked("b", headers=docs)
    reply = await scene.ask("b", REWORDED, headers=docs)
    assert status_of(reply) == "fwd=miss; detail=explored"
    assert text_of(reply).split()[0] != mine.split()[0]


async def test_a_tenant_who_poisons_its_own_cache_poisons_nobody_elses(scene):
    """One wrong outcome after the other, by requests alone: another tenant's match is served all the same."""
    await scene.prove("a")
    mine = text_of(await scene.asked("a"))
    scene.judge.verdict = False
    for limit in range(100, 110):
        await scene.asked("b", max_tokens=limit)
        assert status_of(await scene.ask("b", REWORDED, max_tokens=limit)) == "fwd=miss; detail=explored"

    async def judged():
        return (await scene.report())["semantic"]["judged"]["no"] == 10

    await eventually(judged)
    reply = await scene.ask("a", REWORDED)
    assert (status_of(reply), text_of(reply)) == (NEAR_HIT, mine)


async def test_whoever_asks_whatever_is_answered_with_what_was_made_for_the_same(scene):
    """Many requests by lot: what comes from the cache was made for that tenant, namespace and prompt."""
    lot = random.Random(7)  # noqa: S311 - no secret
    for tenant in KEYS:
        await scene.prove(tenant)
    made_for, hits = {}, 0
    for _ in range(80):
        tenant, namespace = lot.choice("ab"), lot.choice(["default", "docs"])
        system, limit = lot.choice(["be brief", "be kind"]), lot.choice([8, 9])
        question = lot.choice([QUESTION, REWORDED, NEGATED])
        body = chat_body(question, max_tokens=limit)
        body["messages"].insert(0, {"role": "system", "content": system})
        reply = await scene.gateway.fetch(
            "POST",
            "/v1/chat/completions",
            body,
            as_tenant(tenant, x_phasewise_cache_namespace=namespace),
        )
        asked, status = (tenant, namespace, system, limit), status_of(reply)
        if status.startswith("hit"):
            hits += 1
            scope, words = made_for[text_of(reply)]
            assert scope == asked
            assert words == question or {words, question} == {QUESTION, REWORDED}
        else:
            made_for[text_of(reply)] = asked, question
    assert hits > 10
