"""Admins may read the cache's report, purge it and have a question explained; nobody else may."""

import contextlib
from dataclasses import replace

import orjson
import pytest

from phasewise.core.caching import Purge
from phasewise.core.errors import EmbedderUnreachable, StoreUnreachable
from phasewise.fake_engine.fleet import running_engines
from phasewise.gateway.api import cache_routes
from phasewise.gateway.api.routes import Router
from tests.gateway.harness import ADMIN, running_gateway

REPORT, PURGE, EXPLAIN = "/phasewise/v1/cache", "/phasewise/v1/cache/purge", "/phasewise/v1/cache/explain"


class FakeCacheAdmin:
    """A cache that writes down what it was asked."""

    def __init__(self, error=None):
        self.error = error
        self.asked = []

    def report(self):
        return {"mode": "shadow"}

    async def purge(self, what):
        self.asked.append(what)
        if self.error:
            raise self.error
        return 7

    async def explain(self, fields, tenant, namespace, show_text):
        self.asked.append((fields, tenant, namespace, show_text))
        if self.error:
            raise self.error
        return {"result": "miss"}


@contextlib.asynccontextmanager
async def gateway_with(cache):
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        gateway.app.serve = Router(replace(gateway.app.gateway, cache=cache)).serve
        yield gateway


async def test_the_report_is_the_caches_own():
    async with gateway_with(FakeCacheAdmin()) as gateway:
        reply = await gateway.fetch("GET", REPORT, headers=ADMIN)
    assert (reply.status, orjson.loads(reply.body)) == (200, {"mode": "shadow"})


async def test_nobody_without_the_admin_key_asks_anything():
    cache = FakeCacheAdmin()
    async with gateway_with(cache) as gateway:
        for method, path in (("GET", REPORT), ("POST", PURGE), ("POST", EXPLAIN)):
            reply = await gateway.fetch(method, path, {"all": True} if method == "POST" else None)
            assert reply.status == 401, path
    assert cache.asked == []


async def test_a_gateway_without_a_cache_says_how_to_have_one():
    async with gateway_with(None) as gateway:
        for method, path in (("GET", REPORT), ("POST", PURGE), ("POST", EXPLAIN)):
            reply = await gateway.fetch(method, path, {"all": True} if method == "POST" else None, ADMIN)
            assert reply.status == 404, path
            assert "gateway.cache" in orjson.loads(reply.body)["error"]["message"]


async def test_a_body_larger_than_any_question_is_not_read():
    async with gateway_with(FakeCacheAdmin()) as gateway:
        body = b'{"model": "m", "text": "' + b"a" * cache_routes.BODY_LIMIT_BYTES + b'"}'
        reply = await gateway.fetch("POST", EXPLAIN, body, headers=ADMIN)
    assert reply.status == 413


async def test_a_store_that_does_not_answer_is_reported_with_503():
    async with gateway_with(FakeCacheAdmin(StoreUnreachable("no"))) as gateway:
        reply = await gateway.fetch("POST", PURGE, {"tenant": "a"}, ADMIN)
    error = orjson.loads(reply.body)["error"]
    assert (reply.status, error["code"]) == (503, "cache_unavailable")
    assert "the cache's store does not answer" in error["message"]


@pytest.mark.parametrize(
    ("order", "purge"),
    [
        ({"tenant": "a"}, Purge(tenant="a")),
        ({"namespace": "b", "tag": "c"}, Purge(namespace="b", tag="c")),
        ({"all": True}, Purge()),
    ],
)
async def test_what_is_named_is_purged(order, purge):
    cache = FakeCacheAdmin()
    assert await cache_routes.purge(cache, orjson.dumps(order)) == {"purged": 7}
    assert cache.asked == [purge]


@pytest.mark.parametrize(
    ("order", "says"),
    [
        ({}, "name what to delete"),
        ({"all": False}, "name what to delete"),
        ({"all": True, "tenant": "a"}, "not both"),
        ({"all": 1}, "all: "),
        ({"tenant": "Not A Name"}, "tenant: "),
        ({"tenants": "a"}, "accepted: tenant, namespace, tag, all"),
        ([], "the body"),
        ("{", "not JSON"),
    ],
)
async def test_an_order_that_is_not_clear_purges_nothing(order, says):
    cache = FakeCacheAdmin()
    body = order.encode() if isinstance(order, str) else orjson.dumps(order)
    with pytest.raises(cache_routes.RequestRejected, match=says):
        await cache_routes.purge(cache, body)
    assert cache.asked == []


async def test_a_question_is_explained_as_the_request_it_would_be():
    cache = FakeCacheAdmin()
    question = {
        "model": "m",
        "text": "why?",
        "system": "be brief",
        "fields": {"max_tokens": 8},
        "tenant": "a",
    }
    await cache_routes.explain(cache, orjson.dumps(question))
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "why?"}]
    fields = {"max_tokens": 8, "model": "m", "messages": messages}
    assert cache.asked == [(fields, "a", "default", False)]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"text": ""}, "text: "),
        ({"text": 3}, "text: "),
        ({"fields": {"messages": []}}, "fields may not hold messages"),
        ({"fields": {"cache_salt": "x"}}, "cache_salt"),
        ({"namespace": "A B"}, "namespace: "),
    ],
)
async def test_an_odd_question_is_rejected_without_a_word_of_it(change, says):
    question = {"model": "m", "text": "the secret question", **change}
    with pytest.raises(cache_routes.RequestRejected, match=says) as rejected:
        await cache_routes.explain(FakeCacheAdmin(), orjson.dumps(question))
    assert "secret" not in str(rejected.value)


async def test_an_embedder_that_is_away_is_named():
    cache = FakeCacheAdmin(EmbedderUnreachable("no"))
    with pytest.raises(cache_routes.RequestRejected, match="the cache's embedder does not answer"):
        await cache_routes.explain(cache, b'{"model": "m", "text": "why?"}')


@pytest.mark.parametrize("depth", [100, 300, 900, 2_000])
async def test_fields_that_are_nested_too_deep_are_rejected(depth):
    body = b'{"model": "m", "text": "why?", "fields": {"stop": %s}}' % (b"[" * depth + b"]" * depth)
    with pytest.raises(cache_routes.RequestRejected):
        await cache_routes.explain(FakeCacheAdmin(), body)
