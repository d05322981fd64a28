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
from phasewise.gateway.answer_cache.headers import USUAL
from phasewise.gateway.answer_cache.lookup import CacheEntrance
from phasewise.gateway.api.body_reader import BodyReader, Read
from phasewise.gateway.api.fields import parse_body, prompt_text
from phasewise.gateway.api.large_bodies import MOST_WAITING, LargeBodies
from phasewise.gateway.api.prompt_prefix import PrefixHashing
from tests.gateway.harness import chat_body

READER = BodyReader(PrefixHashing(b"k" * 32), CacheEntrance(1.0, "space", semantic=True))


@pytest.fixture
def large():
    bodies = LargeBodies(READER)
    yield bodies
    bodies.close()


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"metadata": {"a": "b"}}])
async def test_the_result_is_the_same_as_here_without_the_fields(large, fields):
    body = orjson.dumps(chat_body("word " * 80_000, **fields))
    here = parse_body(Endpoint.CHAT, body)
    read = await large.read(Endpoint.CHAT, body, USUAL, "a", b"salt")
    assert read.parsed == replace(here, fields={}, text=prompt_text(Endpoint.CHAT, here.fields))
    assert read.hashes == READER.hashing.hashes(Endpoint.CHAT, here.fields, b"salt")
    assert read.lookup.identity == READER.entrance.enter(Endpoint.CHAT, here.fields, USUAL, "a").identity


async def test_a_rejection_says_what_it_would_say_here(large):
    body = orjson.dumps({**chat_body("word " * 80_000), "kv_transfer_params": {}})
    with pytest.raises(RequestRejected) as here:
        parse_body(Endpoint.CHAT, body)
    with pytest.raises(RequestRejected) as there:
        await large.read(Endpoint.CHAT, body, USUAL, "a", None)
    assert (there.value.kind, str(there.value), there.value.param) == (
        here.value.kind,
        str(here.value),
        here.value.param,
    )


async def test_a_process_that_was_killed_is_started_again(large):
    body = orjson.dumps(chat_body("word " * 80_000))
    await large.read(Endpoint.CHAT, body, USUAL, "a", None)
    (pid,) = large._process._processes
    os.kill(pid, signal.SIGKILL)
    read = await large.read(Endpoint.CHAT, body, USUAL, "a", None)
    assert read.parsed.upstream_body == body


async def test_a_tenant_with_many_bodies_does_not_keep_another_waiting_for_all(monkeypatch):
    large, order = LargeBodies(BodyReader()), []

    async def read(_work, _reader, _endpoint, body, *_):
        order.append(body)
        await asyncio.sleep(0.01)
        return Read(parse_body(Endpoint.CHAT, orjson.dumps(chat_body())))

    monkeypatch.setattr(large, "_read", read)
    waiting = [large.read(Endpoint.CHAT, b"a%d" % number, USUAL, "a", None) for number in range(5)]
    await asyncio.gather(*waiting, large.read(Endpoint.CHAT, b"b", USUAL, "b", None))
    assert order.index(b"b") == 1


async def test_a_tenant_with_too_many_bodies_is_rejected_and_others_are_not(monkeypatch):
    large, go_on = LargeBodies(BodyReader()), asyncio.Event()

    async def read(*_):
        await go_on.wait()
        return Read(parse_body(Endpoint.CHAT, orjson.dumps(chat_body())))

    monkeypatch.setattr(large, "_read", read)
    waiting = [
        asyncio.create_task(large.read(Endpoint.CHAT, b"x", USUAL, "a", None)) for _ in range(MOST_WAITING)
    ]
    await asyncio.sleep(0)
    with pytest.raises(RequestRejected) as caught:
        await large.read(Endpoint.CHAT, b"x", USUAL, "a", None)
    assert caught.value.kind is RejectionKind.BODIES_FULL
    go_on.set()
    await asyncio.gather(*waiting, large.read(Endpoint.CHAT, b"x", USUAL, "b", None))
    await large.read(Endpoint.CHAT, b"x", USUAL, "a", None)
