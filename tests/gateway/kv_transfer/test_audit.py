"""Prompts that were computed twice show in the engines' counters; their pair rests until it is proved."""

import asyncio
import contextlib
import logging
from dataclasses import replace
from random import Random

from phasewise.clients.http_client import HttpClient
from phasewise.clients.kv_trial import ask, trial_prompt
from phasewise.core.engine_metrics import KvCounters, MetricsPage
from phasewise.core.kv_transfer import ASKS_TO_KEEP_KV, pair_ref
from phasewise.core.worker import Role
from phasewise.fake_engine.engine import FakeEngine, FakeEngineConfig
from phasewise.fleet.config import KvTransferConfig
from phasewise.gateway.kv_transfer import audit as kv_transfer_audit
from phasewise.gateway.kv_transfer.audit import KvTransferWatch
from phasewise.scheduling.breakers import UNBOUNDED
from phasewise.simulator.kv import Connector
from tests.gateway.harness import eventually, running_gateway, worker_for
from tests.scheduling.worlds import make_split_world

SOUND = FakeEngineConfig(kv_transfer=Connector(handshake_timeout_s=0.3))
KV_TRANSFER = {"when": "always"}


@contextlib.asynccontextmanager
async def disaggregated(prefill=SOUND, decode=SOUND, kv_transfer=KV_TRANSFER):
    """A gateway in front of one prefill and one decode engine."""
    async with contextlib.AsyncExitStack() as stack:
        engines = [FakeEngine(prefill), FakeEngine(decode)]
        for engine in engines:
            stack.push_async_callback(engine.stop)
            await engine.start()
        workers = [
            worker_for(engines[0], "p", role=Role.PREFILL),
            worker_for(engines[1], "d", role=Role.DECODE),
        ]
        gateway = await stack.enter_async_context(running_gateway(workers, kv_transfer=kv_transfer))
        yield gateway, *engines


async def metric(gateway, name):
    """The first value of a metric, None while it is not there."""
    rows = (await gateway.fetch("GET", "/metrics")).body.decode().splitlines()
    return next((float(row.rpartition(" ")[2]) for row in rows if row.startswith(name + "{")), None)


async def test_a_silent_fall_back_of_requests_is_counted_and_reported(caplog):
    with caplog.at_level(logging.WARNING, "phasewise.gateway"):
        async with disaggregated(decode=replace(SOUND, kv_transfer=None)) as (
            gateway,
            *_,
        ):
            reply = await gateway.chat("tell me " * 200)
            assert reply.status == 200
            again = await eventually(
                lambda: counted(gateway, "phasewise_kv_transfer_recomputed_tokens_total"), 15.0
            )
    assert again > 300
    assert any("prompt tokens again" in it.getMessage() for it in caplog.records)


async def test_kv_transfers_that_come_are_never_counted_as_computed_again():
    async with disaggregated() as (gateway, *_):
        for number in range(5):
            assert (await gateway.chat(f"{number} tell me " * 100)).status == 200
        assert await eventually(lambda: counted(gateway, "phasewise_kv_transfer_bytes_total"), 15.0) > 0
        assert await metric(gateway, "phasewise_kv_transfer_recomputed_tokens_total") == 0


async def counted(gateway, name):
    return await metric(gateway, name) or None


async def test_a_fleet_without_roles_is_asked_nothing():
    async with contextlib.AsyncExitStack() as stack:
        engine = FakeEngine(SOUND)
        stack.push_async_callback(engine.stop)
        await engine.start()
        gateway = await stack.enter_async_context(running_gateway([engine]))
        assert await metric(gateway, "phasewise_kv_transfer_proof_age_seconds") is None
        assert engine.requests_finished == 0


async def test_requests_alone_prove_a_pair_by_counters():
    async with disaggregated() as (gateway, *_):
        assert (await gateway.chat("tell me " * 100)).status == 200
        await eventually(lambda: metric(gateway, "phasewise_kv_transfer_proof_age_seconds"), 15.0)


async def test_two_engines_that_silently_compute_again_stay_open_and_a_repaired_one_closes(monkeypatch):
    """One request per back-off tries a pair: its answer says nothing, only the counters do."""
    now = 1_000.0
    world, seen = make_split_world(decode=2), {}
    world.cluster.now_s = now
    audit = KvTransferWatch(world, None, KvTransferConfig(), clock=lambda: now)
    prefill = world.cluster.state("p0").worker
    decodes = [world.cluster.state(name).worker for name in ("d0", "d1")]
    pairs = [pair_ref(prefill.ref, decode.ref) for decode in decodes]

    def look(decode, moved):
        """The requests are judged at the second reading after they ended."""
        seen[decode.name] = seen.get(decode.name, 0.0) + moved
        for _ in range(2):
            audit._hold_against(decode, KvCounters(moved_tokens=seen[decode.name], computed_tokens=1.0))

    for decode in decodes:
        audit._balance.begin(decode.ref, 0.0, 0.0)
    for attempt in range(4):
        for decode, pair in zip(decodes, pairs, strict=True):
            trial = world.pairs.begin(pair, now)
            assert (trial is None) == (attempt == 0)
            world.pairs.succeeded(pair, trial)
            assert world.pairs.allowance(pair, now) == (0 if attempt else UNBOUNDED)
            audit.transferred(prefill.ref, decode.ref, 500)
            look(decode, 0)
            assert world.pairs.is_open(pair)
        assert [audit._proofs.failing(decode.name) for decode in decodes] == [1, 1]
        now += 100.0
    assert world.pairs.allowance(pairs[1], now) == 1
    world.pairs.succeeded(pairs[1], world.pairs.begin(pairs[1], now))
    audit.transferred(prefill.ref, decodes[1].ref, 500)
    look(decodes[1], 500)
    assert [world.pairs.is_open(pair) for pair in pairs] == [True, False]
    assert [audit._proofs.failing(decode.name) for decode in decodes] == [1, 0]


async def test_auto_splits_within_twenty_requests_of_a_cold_start():
    async with disaggregated(kv_transfer={"when": "auto"}) as (gateway, *_):

        async def asks(client, times=6):
            for number in range(times):
                text = f"{client} and {number} tell me " * 100
                assert (await gateway.chat(text, stream=True, max_tokens=40)).status == 200

        # The first are alone, as at any start: they show how fast the engines are.
        await asks("first", 2)
        await asyncio.gather(*map(asks, range(3)))
        assert await metric(gateway, "phasewise_kv_transfers_total")


async def test_what_is_proved_stays_when_other_workers_come_and_go():
    async with disaggregated() as (gateway, *_):
        assert (await gateway.chat("tell me " * 100)).status == 200
        await eventually(lambda: metric(gateway, "phasewise_kv_transfer_proof_age_seconds"), 15.0)
        watch = gateway.app._parts.kv_transfer_watch
        await watch.stop()
        await watch.start()
        assert await metric(gateway, "phasewise_kv_transfer_proof_age_seconds")


async def test_what_counters_say_lets_a_pair_rest_whatever_its_requests_said():
    world = make_split_world()
    audit = KvTransferWatch(world, None, KvTransferConfig(), clock=lambda: 100.0)
    prefill, decode = (world.cluster.state(name).worker.ref for name in ("p0", "d0"))
    pair = pair_ref(prefill, decode)
    world.pairs.failed(pair, None, 99.0)
    for _ in range(20):
        world.pairs.succeeded(pair, None)
    audit._open_circuit(prefill, decode, 1.0)
    assert world.pairs.is_open(pair)


async def test_an_old_count_of_late_reads_is_nobodys_fault(monkeypatch):
    world = make_split_world()
    counts = iter([7.0, 7.0, 8.0])

    async def page(_client):
        return MetricsPage(None, KvCounters(read_after_release=next(counts)), {})

    monkeypatch.setattr(kv_transfer_audit, "fetch_page", page)
    worker = world.cluster.state("p0").worker
    audit = KvTransferWatch(world, None, KvTransferConfig())
    audit._clients = {"p0": None}
    await audit._look_at_prefill(worker)
    await audit._look_at_prefill(worker)
    assert not world.pairs.any_open
    await audit._look_at_prefill(worker)
    assert world.pairs.any_open


async def test_kv_that_was_fetched_too_late_stops_kv_transfers_from_its_engine(caplog):
    soon_over = replace(SOUND, kv_transfer=Connector(handshake_timeout_s=0.3, lease_s=0.2))
    with caplog.at_level(logging.ERROR, "phasewise.gateway"):
        async with disaggregated(prefill=soon_over) as (gateway, prefill, decode):
            await fetch_late(prefill, decode)
            assert (await gateway.chat("tell me " * 50)).status == 200
            world = gateway.app.gateway.pipeline._world
            await eventually(lambda: world.pairs.any_open, 15.0)
    assert any("answers may be wrong" in it.getMessage() for it in caplog.records)


async def fetch_late(prefill, decode):
    """Use a ticket after its lease, as nobody should."""
    to_prefill, to_decode = HttpClient(prefill.base_url), HttpClient(decode.base_url)
    try:
        prompt = trial_prompt(300, Random(1))  # noqa: S311 - no secret
        kept = await ask(to_prefill, prefill.model, prompt, 1, ASKS_TO_KEEP_KV)
        await eventually(lambda: prefill.engine.kept_requests == 0)
        await ask(to_decode, decode.model, prompt, 2, kept.params)
    finally:
        to_prefill.close()
        to_decode.close()
