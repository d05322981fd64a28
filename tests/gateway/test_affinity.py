"""Conversations through a gateway with two engines: where their turns go, and what is found in cache."""

from __future__ import annotations

from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import ApiKey
from phasewise.gateway.api.auth import key_sha256
from tests.gateway.harness import request_id_of, running_gateway


def opening(name):
    return f"This is what {name} asks about the river. " * 60


async def take_turns(gateway, name, turns, **options):
    """Where each turn of a conversation went, and what of it was cached."""
    messages, places = [], []
    for turn in range(turns):
        text = opening(name) if turn == 0 else f"and then? {turn} " * 40
        messages.append({"role": "user", "content": text})
        reply = await gateway.chat(messages=messages, stream=True, **options)
        assert reply.status == 200
        messages.append({"role": "assistant", "content": f"It flows on, {name}. " * 20})
        record = await gateway.timeline(request_id_of(reply))
        places.append((record["attempts"][0]["worker"][0], record.get("cached", 0)))
    return places


async def test_a_conversation_stays_and_others_go_where_there_is_less():
    async with (
        running_engines(2) as engines,
        running_gateway(engines, policy="prefix_affinity") as gateway,
    ):
        taken = [await take_turns(gateway, name, turns=4) for name in ("ann", "ben", "cleo", "dan")]
    homes = [{place for place, _ in places} for places in taken]
    assert all(len(home) == 1 for home in homes)
    assert sorted(home.pop() for home in homes) == ["w0", "w0", "w1", "w1"]
    assert all(cached > 0 for places in taken for _, cached in places[1:])


async def test_by_turns_half_of_a_conversation_is_read_twice():
    async with (
        running_engines(2) as engines,
        running_gateway(engines, policy="round_robin") as gateway,
    ):
        places = await take_turns(gateway, "ann", turns=4)
    assert [place for place, _ in places] == ["w0", "w1", "w0", "w1"]
    assert places[1][1] == 0


async def test_one_tenants_conversation_gives_no_credit_to_anothers_equal_words():
    keys = tuple(ApiKey(sha256=key_sha256(name), tenant=name) for name in ("ann", "ben"))
    async with (
        running_engines(2) as engines,
        running_gateway(engines, policy="prefix_affinity", api_keys=keys) as gateway,
    ):
        taken = [
            await take_turns(
                gateway, "both", turns=1, headers=[(b"authorization", b"Bearer " + name.encode())]
            )
            for name in ("ann", "ben")
        ]
    assert [places[0] for places in taken] == [("w0", 0), ("w1", 0)]
