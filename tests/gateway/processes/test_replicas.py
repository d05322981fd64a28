"""What replicas learn of each other through Redis, and what they ignore."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from hashlib import blake2b

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.clients.redis_connection import SharedConnection, redis_connections
from phasewise.core.errors import UpstreamError
from phasewise.core.timeline_record import decode
from phasewise.core.worker import Worker
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config.gateway import RedisConfig
from phasewise.gateway.api.auth import key_sha256
from phasewise.gateway.processes.replicas import (
    DIGEST_BYTES,
    EVERY_S,
    FORGOTTEN_AFTER_S,
    LONGEST_MESSAGE,
    MOST_OTHERS,
    MOST_TOKENS,
    PER_OTHER_S,
    PROMPTS_AT_ONCE,
    SENDER_BYTES,
    OtherReplicas,
    ReplicaExchange,
    engine_id,
)
from phasewise.scheduling.ledger import IDLE
from phasewise.simulator.requests import PRESETS
from tests.gateway.gateway_process import running_process
from tests.gateway.harness import chat_body, eventually
from tests.scheduling.worlds import make_world

ADMIN_SHA256 = key_sha256("admin")
KEY = b"shared"
URLS = ("http://10.0.0.1:8000", "http://10.0.0.2:8000")


class Gateway:
    """One of several; its engines have names of its own."""

    def __init__(self, number, key=KEY, prefix="w", urls=URLS):
        self.others = OtherReplicas(bytes([number]) * SENDER_BYTES, key)
        self.world = make_world(0)
        self.world.set_workers([Worker(f"{prefix}{n}", url, "m", "1") for n, url in enumerate(urls)])
        self.world.neighbours = self.world.ledger._neighbours = self.others
        self.refs = [it.worker.ref for it in self.world.cluster.snapshot()]
        self.others.message(self.world, 0.0)

    def say(self, now_s=0.0):
        return self.others.message(self.world, now_s)

    def hear(self, message, now_s=0.0):
        self.others.hear(message, self.world, now_s)

    def load_on(self, number):
        return self.world.ledger.whole_loads()(self.refs[number], IDLE)


def test_booked_load_counts_at_another_gateway_by_the_engines_address_and_takes_no_slot_there():
    here, there = Gateway(1), Gateway(2, prefix="other-name-")
    booking = here.world.ledger.book(here.refs[1], 120, 100)
    there.hear(here.say())
    load = there.load_on(1)
    assert (load.requests, load.tokens, load.unread_tokens, load.unread_requests) == (0, 120, 100, 1)
    assert there.load_on(0) == IDLE
    here.world.ledger.release(booking)
    there.hear(here.say())
    assert there.load_on(1) == IDLE


def test_loads_of_others_are_added_up_and_its_own_is_not_among_them():
    there = Gateway(3)
    there.world.ledger.book(there.refs[0], 5)
    there.hear(there.say())
    for number in (1, 2):
        other = Gateway(number)
        other.world.ledger.book(other.refs[0], 10)
        other.world.ledger.book(other.refs[1], 7)
        there.hear(other.say())
    assert there.others.loads() == {"w0": [20, 0, 0, 0], "w1": [14, 0, 0, 0]}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 1), st.integers(1, 50), st.sampled_from((0.0, 1.0, 4.0))),
        max_size=30,
    )
)
def test_sums_kept_message_by_message_are_those_of_all_others_that_are_not_forgotten(steps):
    first, others = Gateway(0), {number: Gateway(number) for number in (1, 2, 3)}
    now_s, heard = 0.0, {}
    for number, engine, tokens, passed_s in steps:
        now_s += passed_s
        other = others[number]
        if tokens % 3 or not other.world.ledger._open:
            other.world.ledger.book(other.refs[engine], tokens, tokens // 2)
        else:
            other.world.ledger.release(next(iter(other.world.ledger._open.values())))
        first.hear(other.say(now_s), now_s)
        loads = other.world.ledger.loads.items()
        heard[number] = now_s, {ref.name: (it.tokens, it.unread_tokens) for ref, it in loads}
        first.say(now_s)
        heard = {it: of for it, of in heard.items() if now_s - of[0] < FORGOTTEN_AFTER_S}
        for name in ("w0", "w1"):
            expected = [sum(of.get(name, (0, 0))[place] for _, of in heard.values()) for place in (0, 1)]
            assert list(first.others.loads().get(name, [0] * 4)[:2]) == expected


def test_engines_at_another_address_are_not_counted_even_under_the_same_name():
    here, there = Gateway(1), Gateway(2, urls=("http://10.0.0.9:8000", "http://10.0.0.8:8000"))
    here.world.ledger.book(here.refs[0], 10)
    there.hear(here.say())
    assert there.others.loads() == {}


def test_a_loopback_address_is_another_engine_on_another_machine(monkeypatch):
    here = engine_id("http://127.0.0.1:8000", KEY)
    assert engine_id("http://127.0.0.1:8000/", KEY) == here
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    engine_id.cache_clear()
    assert engine_id("http://127.0.0.1:8000", KEY) != here
    engine_id.cache_clear()


def test_whoever_is_silent_is_forgotten():
    here, there = Gateway(1), Gateway(2)
    here.world.ledger.book(here.refs[0], 10)
    there.hear(here.say(), now_s=10.0)
    there.say(10.0 + FORGOTTEN_AFTER_S / 2)
    assert there.load_on(0).tokens == 10
    there.say(10.0 + FORGOTTEN_AFTER_S)
    assert there.load_on(0) == IDLE


def test_without_redis_each_goes_on_with_its_own_and_conversations_have_homes_again():
    here, there = Gateway(1), Gateway(2)
    here.world.ledger.book(here.refs[0], 10)
    there.hear(here.say())
    assert there.world.prefixes.is_shared
    there.others.cut_off(there.world)
    assert (there.others.loads(), there.world.prefixes.is_shared) == ({}, False)


def test_prefixes_are_learned_of_the_same_incarnation_with_the_same_secret():
    for key, learned in ((KEY, 3), (b"another", 0), (None, 0)):
        here, there = Gateway(1), Gateway(2, key=key)
        here.hear(Gateway(3).say())
        here.world.learn_prefix(here.refs[0], (1, 2, 3), 300, 0, 0)
        here.world.learn_prefix(here.refs[0]._replace(incarnation="0"), (4, 5), 300, 0, 0)
        there.hear(here.say())
        assert there.world.prefixes.known_blocks(there.refs[0]) == learned


def test_gateways_without_a_secret_share_load_and_no_prefixes():
    here, there = Gateway(1, key=None), Gateway(2, key=None)
    here.hear(there.say())
    here.world.ledger.book(here.refs[0], 10)
    here.world.learn_prefix(here.refs[0], (1, 2, 3), 300, 0, 0)
    message = here.say()
    there.hear(message)
    assert orjson.loads(message[32:])[1] == []
    assert (there.load_on(0).tokens, there.world.prefixes.is_shared) == (10, False)


def test_a_message_shows_no_address_and_its_size_is_bounded():
    here = Gateway(1)
    here.hear(Gateway(2).say())
    for number in range(2 * PROMPTS_AT_ONCE):
        first = 2**63 + 512 * number
        here.world.learn_prefix(here.refs[0], tuple(range(first, first + 512)), 2**20, 2**20, 512)
    first, second, third = (here.say() for _ in range(3))
    assert b"10.0.0.1" not in first
    assert max(len(first), len(second)) < LONGEST_MESSAGE
    assert [len(orjson.loads(it[32:])[1]) for it in (first, second, third)] == [PROMPTS_AT_ONCE] * 2 + [0]


def signed(body, key=b"", sender=b"x" * 16):
    whole = sender + (body if isinstance(body, bytes) else orjson.dumps(body))
    return blake2b(whole, key=key, digest_size=DIGEST_BYTES).digest() + whole


ENGINE = engine_id(URLS[0], b"")


@pytest.mark.parametrize(
    "message",
    [
        *(b"", b"short", b"\xff" * 100, signed(b""), signed(b"{}"), signed([]), signed([{}]), signed([1, 2])),
        signed([{ENGINE: [1, 2, 3]}, []]),
        signed([{ENGINE: [1, 2, 3, -1]}, []]),
        signed([{ENGINE: [1, 2, 3, 0.5]}, []]),
        signed([{ENGINE: [1, 2, 3, True]}, []]),
        signed([{ENGINE: [1, 2, 3, MOST_TOKENS + 1]}, []]),
        signed([{ENGINE: {"a": 1}}, []]),
        signed([{ENGINE: [1, 2, 3, 4]}, [[ENGINE, "1", [[]], 1, 1, 1]]]),
        signed([{ENGINE: [1, 2, 3, 4]}, [[ENGINE, ["1"], [1], 1, 1, 1]]]),
        signed([{ENGINE: [1, 2, 3, 4]}, [[ENGINE, "1", [1], 1]]]),
        signed([{ENGINE: [1, 2, 3, 4]}, [[ENGINE, "1", [1], 1, 1, -1]]]),
        signed([{ENGINE: [1, 2, 3, 4]}, [3]]),
        signed([{"unknown": [1, 2, 3, 4]}, []]),
        signed([{ENGINE: [1, 2, 3, 4]}, []])[:-1],
        signed(b"[" * LONGEST_MESSAGE),
    ],
)
def test_what_is_malformed_or_of_unknown_engines_changes_nothing(message):
    there = Gateway(2, key=None)
    there.hear(message)
    assert there.others.loads() == {}
    assert there.world.prefixes.known_blocks(there.refs[0]) == 0


def test_with_a_secret_a_foreign_publisher_is_not_believed():
    message = signed([{engine_id(URLS[0], KEY): [10, 0, 0, 0]}, []])
    there = Gateway(2)
    there.hear(message)
    assert there.others.loads() == {}


def test_no_flood_of_senders_is_remembered_and_many_others_are_sent_less_often():
    there = Gateway(2, key=None)
    assert there.others.every_s == EVERY_S
    for number in range(MOST_OTHERS + 10):
        there.hear(signed([{ENGINE: [1, 0, 0, 0]}, []], sender=number.to_bytes(16)))
    there.say()
    assert there.load_on(0).tokens == MOST_OTHERS
    assert there.others.every_s == MOST_OTHERS * PER_OTHER_S


def test_a_gateway_without_others_reports_no_change():
    alone, calls = Gateway(1), []
    alone.others.on_change = lambda: calls.append(1)
    alone.world.ledger.book(alone.refs[0], 10)
    assert not calls
    alone.hear(Gateway(2).say())
    alone.world.ledger.book(alone.refs[0], 10)
    assert calls


# --- with a real Redis ------------------------------------------------------------------------------------


@pytest.fixture
async def exchanging(own_redis):
    """Starts the exchange of a gateway; it ends with the test."""
    tasks = []

    def start(gateway):
        exchange = ReplicaExchange(RedisConfig(url=own_redis.url), gateway.others)
        tasks.append(asyncio.create_task(exchange.run(gateway.world)))
        return gateway

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_load_and_prefixes_arrive_and_are_gone_while_redis_is(own_redis, exchanging):
    here, there = exchanging(Gateway(1)), exchanging(Gateway(2))
    await eventually(lambda: here.world.prefixes.is_shared and here.others._others and there.others._others)
    booking = here.world.ledger.book(here.refs[0], 120, 100)
    here.world.learn_prefix(here.refs[0], (1, 2, 3), 300, 0, 0)
    await eventually(lambda: there.load_on(0).tokens == 120)
    await eventually(lambda: there.world.prefixes.known_blocks(there.refs[0]) == 3)
    own_redis.kill()
    await eventually(lambda: there.load_on(0) == IDLE and not there.world.prefixes.is_shared)
    own_redis.start()
    await eventually(lambda: there.load_on(0).tokens == 120 and there.world.prefixes.is_shared)
    own_redis.hold_up()
    await eventually(lambda: there.load_on(0) == IDLE)
    own_redis.go_on()
    await eventually(lambda: there.load_on(0).tokens == 120)
    here.world.ledger.release(booking)
    await eventually(lambda: there.load_on(0) == IDLE)


async def test_what_anyone_publishes_harms_nobody(own_redis, exchanging):
    here, there = exchanging(Gateway(1, key=None)), exchanging(Gateway(2, key=None))
    await eventually(lambda: there.others._others)
    publisher = SharedConnection(redis_connections(own_redis.url, "test"))
    for message in (b"", b"\xff" * 99, signed([{ENGINE: "1234"}, []]), signed([{ENGINE: [1, 2, 3, []]}, []])):
        await publisher.ask("PUBLISH", "phasewise:gateways", message)
    await publisher.close()
    here.world.ledger.book(here.refs[0], 10)
    await eventually(lambda: there.load_on(0).tokens == 10)


async def test_a_gateway_places_by_the_load_of_another_until_that_is_killed(tmp_path, redis_server):
    shared = {"redis": {"url": redis_server.url, "key_prefix": "placed"}, "admin_key_sha256": ADMIN_SHA256}
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    config = FakeEngineConfig(cost=replace(PRESETS["fast"], floor_s=0.05))
    async with (
        running_engines(2, config) as engines,
        running_process(folders[0], *engines, **shared) as one,
        running_process(folders[1], *engines, **shared) as two,
    ):

        async def placed_by_two():
            body = orjson.dumps(chat_body(max_tokens=1))
            assert (await two.client.fetch("POST", "/v1/chat/completions", body=body)).status == 200
            path, head = "/phasewise/v1/requests?limit=1", [(b"authorization", b"Bearer admin")]
            listed = (await two.client.fetch("GET", path, headers=head)).body.splitlines()
            return decode(listed[-1]).attempts[-1].worker.name

        # Without load elsewhere an idle engine is chosen in the order of the file.
        assert await placed_by_two() == "w0"
        body = orjson.dumps(chat_body(max_tokens=5_000, ignore_eos=True))
        asking = asyncio.create_task(one.client.fetch("POST", "/v1/chat/completions", body=body))

        async def placed_on(name):
            return await placed_by_two() == name

        await eventually(lambda: placed_on("w1"))
        one.process.kill()
        with pytest.raises(UpstreamError):
            await asking
        await eventually(lambda: placed_on("w0"), timeout_s=FORGOTTEN_AFTER_S + 10.0)
