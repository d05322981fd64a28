"""Large bodies are parsed in another process, with the same result."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

import orjson
import pytest

from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.core.request import Endpoint
from phasewise.gateway.api.fields import parse_body
from phasewise.gateway.api.large_bodies import MOST_WAITING, LargeBodies
from phasewise.gateway.api.prompt_prefix import PrefixHashing
from tests.gateway.harness import chat_body


@pytest.fixture
def large():
    bodies = LargeBodies(PrefixHashing(b"k" * 32))
    yield bodies
    bodies.close()


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"metadata": {"a": "b"}}])
async def test_the_result_is_the_same_as_here_without_the_fields(large, fields):
    body = orjson.dumps(chat_body("word " * 80_000, **fields))
    here = parse_body(Endpoint.CHAT, body)
    parsed, hashes = await large.parse(Endpoint.CHAT, body, "a", b"salt")
    assert parsed == replace(here, fields={})
    assert hashes == PrefixHashing(b"k" * 32).hashes(Endpoint.CHAT, here.fields, b"salt")


async def test_a_rejection_says_what_it_would_say_here(large):
    body = orjson.dumps({**chat_body("word " * 80_000), "kv_transfer_params": {}})
    with pytest.raises(RequestRejected) as here:
        parse_body(Endpoint.CHAT, body)
    with pytest.raises(RequestRejected) as there:
        await large.parse(Endpoint.CHAT, body, "a", None)
    assert (there.value.kind, str(there.value), there.value.param) == (
        here.value.kind,
        str(here.value),
        here.value.param,
    )


async def test_a_process_that_was_killed_is_started_again(large):
    body = orjson.dumps(chat_body("word " * 80_000))
    await large.parse(Endpoint.CHAT, body, "a", None)
    (pid,) = large._process._processes
    os.kill(pid, signal.SIGKILL)
    parsed, _ = await large.parse(Endpoint.CHAT, body, "a", None)
    assert parsed.upstream_body == body


async def test_a_tenant_with_many_bodies_does_not_keep_another_waiting_for_all(monkeypatch):
    large, order = LargeBodies(None), []

    async def parsed(_endpoint, body, _salt):
        order.append(body)
        await asyncio.sleep(0.01)
        return parse_body(Endpoint.CHAT, orjson.dumps(chat_body())), ()

    monkeypatch.setattr(large, "_parsed", parsed)
    waiting = [large.parse(Endpoint.CHAT, b"a%d" % number, "a", None) for number in range(5)]
    await asyncio.gather(*waiting, large.parse(Endpoint.CHAT, b"b", "b", None))
    assert order.index(b"b") == 1


async def test_a_tenant_with_too_many_bodies_is_rejected_and_others_are_not(monkeypatch):
    large, go_on = LargeBodies(None), asyncio.Event()

    async def parsed(_endpoint, _body, _salt):
        await go_on.wait()
        return parse_body(Endpoint.CHAT, orjson.dumps(chat_body())), ()

    monkeypatch.setattr(large, "_parsed", parsed)
    waiting = [asyncio.create_task(large.parse(Endpoint.CHAT, b"x", "a", None)) for _ in range(MOST_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(RequestRejected) as caught:
        await large.parse(Endpoint.CHAT, b"x", "a", None)
    assert caught.value.kind is RejectionKind.BODIES_FULL
    go_on.set()
    await asyncio.gather(*waiting, large.parse(Endpoint.CHAT, b"x", "b", None))
    await large.parse(Endpoint.CHAT, b"x", "a", None)
