"""Admins may read the cache's report, purge it and have a question explained; nobody else may."""

import contextlib
from dataclasses import replace

import orjson
import pytest

from phasewise.errors import EmbedderUnreachable, StoreUnreachable
from phasewise.fake_engine.fleet import running_engines
from phasewise.gateway import cache_routes
from phasewise.gateway.routes import Router
from phasewise.model.caching import Purge
from tests.gateway.harness import ADMIN, running_gateway

REPORT, PURGE, EXPLAIN = "/phasewise/v1/cache", "/phasewise/v1/cache/purge", "/phasewise/v1/cache/explain"


class Desk:
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
async def gateway_with(desk):
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        gateway.app._router = Router(replace(gateway.app.gateway, cache=desk))
        yield gateway


async def test_the_report_is_the_caches_own():
    async with gateway_with(Desk()) as gateway:
        reply = await gateway.fetch("GET", REPORT, headers=ADMIN)
    assert (reply.status, orjson.loads(reply.body)) == (200, {"mode": "shadow"})


async def test_nobody_without_the_admin_key_asks_anything():
    desk = Desk()
    async with gateway_with(desk) as gateway:
        for method, path in (("GET", REPORT), ("POST", PURGE), ("POST", EXPLAIN)):
            reply = await gateway.fetch(method, path, {"all": True} if method == "POST" else None)
            assert reply.status == 401, path
    assert desk.asked == []


async def test_a_gateway_without_a_cache_says_how_to_have_one():
    async with gateway_with(None) as gateway:
        for method, path in (("GET", REPORT), ("POST", PURGE), ("POST", EXPLAIN)):
            reply = await gateway.fetch(method, path, {"all": True} if method == "POST" else None, ADMIN)
            assert reply.status == 404, path
            assert "gateway.cache" in orjson.loads(reply.body)["error"]["message"]


async def test_a_body_larger_than_any_question_is_not_read():
    async with gateway_with(Desk()) as gateway:
        body = b'{"model": "m", "text": "' + b"a" * cache_routes.BODY_LIMIT_BYTES + b'"}'
        reply = await gateway.fetch("POST", EXPLAIN, body, headers=ADMIN)
    assert reply.status == 413


async def test_a_store_that_is_away_is_told_with_503():
    async with gateway_with(Desk(StoreUnreachable("no"))) as gateway:
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
    desk = Desk()
    assert await cache_routes.purge(desk, orjson.dumps(order)) == {"purged": 7}
    assert desk.asked == [purge]


@pytest.mark.parametrize(
    ("order", "says"),
    [
        ({}, "name what to forget"),
        ({"all": False}, "name what to forget"),
        ({"all": True, "tenant": "a"}, "not both"),
        ({"all": 1}, "all: "),
        ({"tenant": "Not A Name"}, "tenant: "),
        ({"tenants": "a"}, "taken here: tenant, namespace, tag, all"),
        ([], "the body"),
        ("{", "not JSON"),
    ],
)
async def test_an_order_that_is_not_clear_purges_nothing(order, says):
    desk = Desk()
    body = order.encode() if isinstance(order, str) else orjson.dumps(order)
    with pytest.raises(cache_routes.RequestRefused, match=says):
        await cache_routes.purge(desk, body)
    assert desk.asked == []


async def test_a_question_is_explained_as_the_request_it_would_be():
    desk = Desk()
    question = {
        "model": "m",
        "text": "why?",
        "system": "be brief",
        "fields": {"max_tokens": 8},
        "tenant": "a",
    }
    await cache_routes.explain(desk, orjson.dumps(question))
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "why?"}]
    fields = {"max_tokens": 8, "model": "m", "messages": messages}
    assert desk.asked == [(fields, "a", "default", False)]


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
async def test_an_odd_question_is_refused_without_a_word_of_it(change, says):
    question = {"model": "m", "text": "the secret question", **change}
    with pytest.raises(cache_routes.RequestRefused, match=says) as refused:
        await cache_routes.explain(Desk(), orjson.dumps(question))
    assert "secret" not in str(refused.value)


async def test_an_embedder_that_is_away_is_named():
    desk = Desk(EmbedderUnreachable("no"))
    with pytest.raises(cache_routes.RequestRefused, match="the cache's embedder does not answer"):
        await cache_routes.explain(desk, b'{"model": "m", "text": "why?"}')


@pytest.mark.parametrize("depth", [100, 300, 900, 2_000])
async def test_fields_that_are_nested_too_deep_are_refused(depth):
    body = b'{"model": "m", "text": "why?", "fields": {"stop": %s}}' % (b"[" * depth + b"]" * depth)
    with pytest.raises(cache_routes.RequestRefused):
        await cache_routes.explain(Desk(), body)
