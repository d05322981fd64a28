"""Bodies that take long are read in another process, with the same result."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import orjson
import pytest

from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.core.request import Endpoint
from phasewise.gateway.answer_cache.headers import USUAL
from phasewise.gateway.answer_cache.lookup import CacheEntrance
from phasewise.gateway.api import reading_process
from phasewise.gateway.api.body_reader import Bodies, BodyReader, Read, ReadAside, Unread, read_aside
from phasewise.gateway.api.fields import parse_body
from phasewise.gateway.api.prompt_prefix import PrefixHashing, prompt_text
from phasewise.gateway.api.reading_process import (
    MOST_HERE_S,
    START_NS,
    ReadingProcess,
    ReadingTimes,
    TakesLong,
    Weight,
)
from tests.gateway.harness import chat_body, eventually

READER = BodyReader(PrefixHashing(b"k" * 32), CacheEntrance(1.0, "space", semantic=True))


LONG = orjson.dumps(chat_body("word " * 700_000))
"""Over three megabytes: never read here."""
CODE = "    return {key: [value, (1, 2)] for key, value in rows.items()}\n"


def later(seconds=60.0):
    return time.monotonic() + seconds


@pytest.fixture(scope="module")
def process():
    """It takes a second to start, so tests share it."""
    process = ReadingProcess(read_aside)
    yield process
    process.close()


@pytest.fixture
def large(process):
    bodies = Bodies(READER)
    bodies.helper = process
    return bodies


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"metadata": {"a": "b"}}])
async def test_the_result_is_the_same_as_here_without_the_fields(large, fields):
    body = orjson.dumps({**orjson.loads(LONG), **fields})
    here = parse_body(Endpoint.CHAT, body)
    read = await large.read(Unread(Endpoint.CHAT, body, USUAL, "a", b"salt"), later())
    assert read.parsed == replace(here, fields={}, text=prompt_text(Endpoint.CHAT, here.fields))
    assert read.hashes == READER.hashing.hashes(Endpoint.CHAT, here.fields, b"salt")
    assert read.lookup.identity == READER.entrance.enter(Endpoint.CHAT, here.fields, USUAL, "a").identity


@pytest.mark.parametrize("read_where", ["here", "aside"])
async def test_a_rejected_body_is_not_kept_until_garbage_is_collected(process, read_where):
    body = bytes(bytearray(orjson.dumps({**orjson.loads(LONG), "kv_transfer_params": {}})))
    bodies, asked = Bodies(READER), Unread(Endpoint.CHAT, body, USUAL, "a", None)
    bodies.helper = process
    gc.collect()
    gc.disable()
    try:
        known = sys.getrefcount(body)
        if read_where == "here":
            assert isinstance(read_aside(READER, asked).found, RequestRejected)
        else:
            assert await is_rejected(bodies, asked)
        assert sys.getrefcount(body) == known
    finally:
        gc.enable()


async def is_rejected(bodies, asked):
    try:
        await bodies.read(asked, later())
    except RequestRejected:
        return True


async def test_a_rejection_says_what_it_would_say_here(large):
    body = orjson.dumps({**orjson.loads(LONG), "kv_transfer_params": {}})
    with pytest.raises(RequestRejected) as here:
        parse_body(Endpoint.CHAT, body)
    with pytest.raises(RequestRejected) as there:
        await large.read(Unread(Endpoint.CHAT, body, USUAL, "a", None), later())
    assert (there.value.kind, str(there.value), there.value.param) == (
        here.value.kind,
        str(here.value),
        here.value.param,
    )


# --- the process ------------------------------------------------------------------------------------------


async def test_a_process_that_was_killed_is_started_again_at_once_for_a_body_and_soon_without(
    large, monkeypatch
):
    monkeypatch.setattr(reading_process, "AGAIN_AFTER_S", 0.05)
    await large.read(Unread(Endpoint.CHAT, LONG, USUAL, "a", None), later())
    first = large.helper.pid
    os.kill(first, signal.SIGKILL)
    read = await large.read(Unread(Endpoint.CHAT, LONG, USUAL, "a", None), later())
    assert read.parsed.upstream_body == LONG
    second = large.helper.pid
    os.kill(second, signal.SIGKILL)
    third = await eventually(lambda: large.helper.pid not in {None, second} and large.helper.pid)
    assert third != first


async def test_signals_that_stop_the_gateway_do_not_stop_the_process(large):
    await large.read(Unread(Endpoint.CHAT, LONG, USUAL, "a", None), later())
    before = large.helper.pid
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(before, number)
    await large.read(Unread(Endpoint.CHAT, LONG, USUAL, "a", None), later())
    assert large.helper.pid == before


# --- turns ------------------------------------------------------------------------------------------------


async def test_a_tenant_with_many_bodies_does_not_keep_another_waiting_for_all(large):
    order = []

    async def read(_reader, unread):
        order.append(unread.body[-2:])
        await asyncio.sleep(0.01)
        return ReadAside(Read(parse_body(Endpoint.CHAT, orjson.dumps(chat_body()))))

    large.helper = SimpleNamespace(read=read)
    waiting = [
        large.read(Unread(Endpoint.CHAT, LONG + b"a%d" % number, USUAL, "a", None), later())
        for number in range(50)
    ]
    await asyncio.gather(*waiting, large.read(Unread(Endpoint.CHAT, LONG + b"b0", USUAL, "b", None), later()))
    assert order.index(b"b0") == 1


async def test_a_body_waits_for_its_turn_until_its_deadline(large):
    go_on = asyncio.Event()

    async def read(*_):
        await go_on.wait()
        return ReadAside(Read(parse_body(Endpoint.CHAT, orjson.dumps(chat_body()))))

    large.helper = SimpleNamespace(read=read)
    first = asyncio.create_task(large.read(Unread(Endpoint.CHAT, LONG, USUAL, "a", None), later(0)))
    await asyncio.sleep(0)
    with pytest.raises(RequestRejected) as caught:
        await large.read(Unread(Endpoint.CHAT, LONG, USUAL, "a", None), later(0.01))
    assert caught.value.kind is RejectionKind.BODIES_FULL
    assert "gateway.processes" in caught.value.hint
    go_on.set()
    await first
    await large.read(Unread(Endpoint.CHAT, LONG, USUAL, "a", None), later(0))


# --- which bodies -----------------------------------------------------------------------------------------


def weight_of(body, endpoint=Endpoint.CHAT):
    weights = []
    parse_body(endpoint, body, judge=weights.append)
    return weights[0]


def is_read_here(body, times=None):
    times = times or ReadingTimes()
    try:
        times.check_bytes(body)
        times.check(weight_of(body))
    except TakesLong:
        return False
    return True


def a_chat(text="x", **fields):
    return orjson.dumps(chat_body(text, **fields))


ORDINARY = {
    "code": a_chat(CODE * 500),
    "much code": a_chat(CODE * 9_000),
    "escaped prose": b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % (b"\\u043f" * 2_000),
    "a regex": a_chat(structured_outputs={"regex": "[0-9a-f]{8}-[0-9a-f]{4}"}),
    "tools": a_chat(tools=[{"type": "function", "function": {"name": "f" * 200}} for _ in range(50)]),
}
HOSTILE = {
    "lists": b"[" * 2**20,
    "objects": b"[" + b"{}," * 2**18 + b"{}]",
    "brackets in text": a_chat("[[" * 2**19),
    "messages": orjson.dumps({"model": "m", "messages": [{}] * 19_000}),
    "numbers": orjson.dumps({"model": "m", "messages": [1] * 32_000}),
    "groups": a_chat(structured_outputs={"regex": "(" * 65_000 + "{1}"}),
    "repeats": a_chat(structured_outputs={"regex": "a{1}" * 16_000}),
    "letters": a_chat(structured_outputs={"regex": "\\d" * 30_000 + "{1}"}),
    "JSON in a string": a_chat(structured_outputs={"json": orjson.dumps([[]] * 19_000).decode()}),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_what_costs_little_is_read_here_whatever_marks_are_in_its_text(name):
    assert is_read_here(ORDINARY[name])


@pytest.mark.parametrize("name", HOSTILE)
def test_what_would_stall_the_event_loop_is_read_elsewhere(name):
    assert not is_read_here(HOSTILE[name])


def test_what_was_costly_counts_at_once_and_is_forgotten_slowly():
    times, mebibyte = ReadingTimes(), Weight(Endpoint.CHAT, False, 900_000)
    times.check(mebibyte)
    times.note(mebibyte, 0.02)
    with pytest.raises(TakesLong):
        times.check(mebibyte)
    # Other kinds of bodies are not concerned, nor small ones.
    times.check(replace(mebibyte, endpoint=Endpoint.COMPLETIONS))
    times.check(replace(mebibyte, size_bytes=100_000))
    for _ in range(100):
        times.note(mebibyte, 0.0001)
    times.check(mebibyte)
    # Whatever was learnt, so much is never read here.
    with pytest.raises(TakesLong):
        times.check(replace(mebibyte, size_bytes=3_400_000))
    assert mebibyte.size_bytes * START_NS < MOST_HERE_S * 1e9


async def test_a_rejected_body_is_learnt_from_too(large):
    body = a_chat(CODE * 1_000)[:-1] + b',"priority":1}'
    before = dict(large.times._ns)
    with pytest.raises(RequestRejected):
        await large.read(Unread(Endpoint.CHAT, body, USUAL, "a", None), later())
    assert large.times._ns != before
