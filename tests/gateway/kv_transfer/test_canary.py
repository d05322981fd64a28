"""Pairs are tried before requests meet them, and prompts that were computed twice are reported."""

import asyncio
import contextlib
import itertools
import logging
import time
from dataclasses import replace
from random import Random

import pytest

from phasewise.clients import kv_trial
from phasewise.clients.http_client import HttpClient
from phasewise.clients.kv_trial import TrialAnswer, ask, trial_prompt
from phasewise.core.engine_metrics import KvCounters
from phasewise.core.kv_transfer import ASKS_TO_KEEP_KV, pair_ref
from phasewise.core.worker import Role
from phasewise.fake_engine.engine import FakeEngine, FakeEngineConfig
from phasewise.fake_engine.faults import Fault, FaultKind
from phasewise.fleet.config import KvTransferConfig
from phasewise.gateway.kv_transfer import audit as kv_transfer_audit
from phasewise.gateway.kv_transfer import watch as canary_module
from phasewise.gateway.kv_transfer.audit import KvTransferAudit
from phasewise.gateway.kv_transfer.watch import Canary
from phasewise.scheduling.kv_proofs import KvTransferProofs
from phasewise.simulator.kv import Connector
from tests.gateway.harness import eventually, running_gateway, worker_for
from tests.scheduling.worlds import make_split_world

SOUND = FakeEngineConfig(kv_transfer=Connector(handshake_timeout_s=0.3))
KV_TRANSFER = {"when": "always", "canary_s": 1.0}


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


async def test_a_pair_is_proven_before_any_request_and_costs_no_request_metric():
    async with disaggregated() as (gateway, _, decode):
        age_s = await eventually(lambda: metric(gateway, "phasewise_kv_transfer_proof_age_seconds"))
        assert age_s < 60
        assert decode.requests_finished > 0
        assert await metric(gateway, "phasewise_requests_total") is None
        assert await metric(gateway, "phasewise_kv_transfer_failing_pairs") == 0
        assert gateway.under_way == 0


async def test_the_canary_shows_how_fast_both_engines_read():
    async with disaggregated() as (gateway, *_):
        world = gateway.app.gateway.pipeline._world
        await eventually(lambda: metric(gateway, "phasewise_kv_transfer_proof_age_seconds"))
        for name in ("p", "d"):
            pace = world.paces.pace(world.cluster.state(name).worker.ref)
            assert pace is not None
            assert pace.read_s(500) > 0


async def test_a_pair_that_does_not_transfer_kv_is_reported_once(caplog):
    with caplog.at_level(logging.WARNING, "phasewise.gateway"):
        async with disaggregated(prefill=replace(SOUND, kv_transfer=None)) as (gateway, *_):

            async def failing():
                return await metric(gateway, "phasewise_kv_transfer_failing_pairs") == 1

            await eventually(failing)
    reported = [it.getMessage() for it in caplog.records if "does not transfer KV" in it.getMessage()]
    assert len(reported) == 1
    assert "it has no connector" in reported[0]


async def test_a_decode_engine_that_computes_again_without_a_word_is_found_out(caplog):
    hiding = replace(SOUND, kv_transfer=None)
    with caplog.at_level(logging.WARNING, "phasewise.gateway"):
        async with disaggregated(decode=hiding) as (gateway, *_):

            async def failing():
                return await metric(gateway, "phasewise_kv_transfer_failing_pairs") == 1

            await eventually(failing)
    assert any("computed the prompt itself" in it.getMessage() for it in caplog.records)


async def test_a_silent_fall_back_of_requests_is_counted_and_reported(caplog):
    kv_transfer = {"when": "always", "canary_s": None}
    with caplog.at_level(logging.WARNING, "phasewise.gateway"):
        async with disaggregated(decode=replace(SOUND, kv_transfer=None), kv_transfer=kv_transfer) as (
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
    kv_transfer = {"when": "always", "canary_s": None}
    async with disaggregated(kv_transfer=kv_transfer) as (gateway, *_):
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


async def test_a_transfer_that_hangs_is_reported_and_frees_both_engines(caplog):
    kv_transfer = {"when": "always", "canary_s": 60.0, "timeout_s": 0.5}
    hanging = replace(SOUND, faults=(Fault(FaultKind.KV_HANG),))
    with caplog.at_level(logging.WARNING, "phasewise.gateway"):
        async with disaggregated(decode=hanging, kv_transfer=kv_transfer) as (gateway, _, decode):

            async def failing():
                return await metric(gateway, "phasewise_kv_transfer_failing_pairs") == 1

            await eventually(failing)
            await eventually(lambda: decode.engine.kv_usage == 0)
    assert any("had no KV after 0.5 s" in it.getMessage() for it in caplog.records)


async def test_requests_alone_prove_a_pair_by_counters():
    kv_transfer = {"when": "always", "canary_s": None}
    async with disaggregated(kv_transfer=kv_transfer) as (gateway, *_):
        assert (await gateway.chat("tell me " * 100)).status == 200
        await eventually(lambda: metric(gateway, "phasewise_kv_transfer_proof_age_seconds"), 15.0)


async def test_a_pair_whose_kv_does_not_come_transfers_nothing_for_a_while():
    kv_transfer = {"when": "always", "canary_s": None}
    async with disaggregated(decode=replace(SOUND, kv_transfer=None), kv_transfer=kv_transfer) as (
        gateway,
        *_,
    ):
        assert (await gateway.chat("tell me " * 200)).status == 200
        world = gateway.app.gateway.pipeline._world
        await eventually(lambda: world.pairs.any_open, 15.0)
        assert (await gateway.chat("and again " * 200)).status == 200


async def test_a_silent_fall_back_under_traffic_is_split_no_more_until_it_is_fixed():
    kv_transfer = {"when": "always", "canary_s": 1.0}
    async with disaggregated(decode=replace(SOUND, kv_transfer=None), kv_transfer=kv_transfer) as (
        gateway,
        *_,
    ):
        world = gateway.app.gateway.pipeline._world
        pair = pair_ref(*(world.cluster.state(name).worker.ref for name in ("p", "d")))
        for _ in range(20):
            world.pairs.succeeded(pair, None)
        await eventually(lambda: world.pairs.is_open(pair))
        ways = set()
        for number in range(40):
            assert (await gateway.chat(f"{number} tell me " * 50)).status == 200
            ways.add(await metric(gateway, "phasewise_kv_transfers_total"))
            await asyncio.sleep(0.05)
        assert len(ways) == 1
        assert world.pairs.allowance(pair, time.monotonic() + 30) == 0


async def test_what_counters_say_lets_a_pair_rest_whatever_its_requests_said():
    world = make_split_world()
    audit = KvTransferAudit(world, {}, KvTransferProofs(), clock=lambda: 100.0)
    prefill, decode = (world.cluster.state(name).worker.ref for name in ("p0", "d0"))
    pair = pair_ref(prefill, decode)
    world.pairs.failed(pair, None, 99.0)
    for _ in range(20):
        world.pairs.succeeded(pair, None)
    audit._open_circuit(prefill, decode)
    assert world.pairs.is_open(pair)


async def test_an_old_count_of_late_reads_is_nobodys_fault(monkeypatch):
    world = make_split_world()
    counts = iter([7.0, 7.0, 8.0])

    async def counters(_client):
        return KvCounters(read_after_release=next(counts))

    monkeypatch.setattr(kv_transfer_audit, "fetch_kv_counters", counters)
    worker = world.cluster.state("p0").worker
    audit = KvTransferAudit(world, {"p0": None}, KvTransferProofs())
    await audit._look_at_prefill(worker)
    await audit._look_at_prefill(worker)
    assert not world.pairs.any_open
    await audit._look_at_prefill(worker)
    assert world.pairs.any_open


async def test_whoever_switches_kv_transfers_off_has_no_canaries():
    async with disaggregated(kv_transfer={"when": "never", "canary_s": 1.0}) as (_, prefill, decode):
        await asyncio.sleep(1.5)
        assert prefill.requests_finished == decode.requests_finished == 0


async def test_canaries_count_into_the_bytes_that_moved():
    async with disaggregated() as (gateway, *_):
        assert await eventually(lambda: counted(gateway, "phasewise_kv_transfer_bytes_total"), 15.0) > 0


async def test_others_kv_transfers_to_a_busy_engine_prove_nothing_of_a_pair():
    async with trial_pair() as (canary, prefill, decode):
        grown = KvCounters(moved_tokens=5_000.0, computed_tokens=900.0)
        canary.counters = [KvCounters(moved_tokens=0.0, computed_tokens=0.0), grown]
        await canary._try(prefill, decode)
        assert not canary._proofs.is_proven(prefill.ref, decode.ref)
        assert not canary._proofs.is_failing(prefill.ref, decode.ref)
        assert canary._proofs.last_tried_s(prefill.ref, decode.ref) is not None


async def test_a_worker_that_takes_no_more_or_no_prompt_so_long_is_no_failure_of_the_pair():
    for status in (429, 503, 400):
        async with trial_pair(answers=[TrialAnswer(status)]) as (canary, prefill, decode):
            await canary._try(prefill, decode)
            assert not canary._proofs.is_failing(prefill.ref, decode.ref)


async def test_a_model_that_takes_only_the_smaller_prompt_is_proven_by_it():
    kept = TrialAnswer(200, prompt_tokens=96, params={"do_remote_prefill": True})
    answers = [kept, TrialAnswer(200, prompt_tokens=96), *[TrialAnswer(400)] * 3]
    async with trial_pair(answers) as (canary, prefill, decode):
        canary.counters = [
            KvCounters(moved_tokens=0.0, computed_tokens=0.0),
            KvCounters(moved_tokens=96.0, computed_tokens=0.0, moved_bytes=9.0),
        ]
        await canary._try(prefill, decode)
        assert canary._proofs.is_proven(prefill.ref, decode.ref)


async def test_a_fetch_beside_streams_is_timed_or_nothing_would_ever_be_transferred_under_load():
    answers = [
        TrialAnswer(200, prompt_tokens=640, params={"do_remote_prefill": True}, prefill_s=1.0),
        TrialAnswer(200, prompt_tokens=640, queue_s=0.2, gap_s=9.0),
        *[TrialAnswer(503)] * 3,
    ]
    async with trial_pair(answers) as (canary, prefill, decode):
        canary._world.ledger.book(decode.ref, 100, 0)
        canary.counters = [
            KvCounters(moved_tokens=0.0, computed_tokens=0.0),
            KvCounters(moved_tokens=640.0, computed_tokens=0.0, moved_bytes=9.0),
        ]
        await canary._try(prefill, decode)
        reported = canary._world.paces.reported
        assert ("learn_fetch", decode.ref, 640, 0.2) in reported
        assert not [it for it in reported if it[0] == "learn_step"]


async def test_pairs_that_are_known_to_fail_are_tried_last():
    async with trial_pair(prefills=3) as (canary, prefill, decode):
        canary._proofs.fail(prefill.ref, decode.ref, -1_000.0)
        most_due = canary._most_due()
        assert most_due is not None
        assert most_due[0].ref != prefill.ref


async def test_a_canary_does_not_end_a_rest_for_what_it_cannot_see():
    async with trial_pair() as (canary, prefill, decode):
        pair, pairs = pair_ref(prefill.ref, decode.ref), canary._world.pairs
        pairs.open(pair, time.monotonic())
        pairs.succeeded(pair, canary._trial(prefill, decode))
        assert pairs.is_open(pair)
        canary._proofs.fail(prefill.ref, decode.ref, time.monotonic())
        pairs.succeeded(pair, canary._trial(prefill, decode))
        assert not pairs.is_open(pair)


@contextlib.asynccontextmanager
async def trial_pair(answers=None, prefills=1):
    """A canary whose engines answer as set; by default they do as they should."""
    world = make_split_world(prefill=prefills)
    kept = TrialAnswer(200, prompt_tokens=640, params={"do_remote_prefill": True})
    given = iter(answers or itertools.repeat(kept))
    reported = Canary(
        world, dict.fromkeys(("p0", "d0")), KvTransferProofs(), KvTransferConfig(), answered=nobody
    )
    reported.counters = [KvCounters()]

    async def answer(*_):
        return next(given)

    async def counters(_client):
        return reported.counters.pop(0) if len(reported.counters) > 1 else reported.counters[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canary_module, "ask", answer)
        patch.setattr(canary_module, "fetch_kv_counters", counters)
        patch.setattr(kv_trial, "fetch_kv_counters", counters)
        yield reported, *(world.cluster.state(name).worker for name in ("p0", "d0"))


def nobody(*_):
    """Who is not interested."""


async def test_a_prefill_worker_that_is_slow_is_not_held_against_the_pair(caplog):
    kv_transfer = {"when": "always", "canary_s": 60.0, "timeout_s": 0.3}
    slow = replace(SOUND, faults=(Fault(FaultKind.SLOW, factor=5_000.0),))
    with caplog.at_level(logging.WARNING, "phasewise.gateway"):
        async with disaggregated(prefill=slow, kv_transfer=kv_transfer) as (gateway, *_):
            proofs = gateway.app._parts.kv_transfer_watch._audit._proofs
            world = gateway.app.gateway.pipeline._world
            pair = [world.cluster.state(name).worker.ref for name in ("p", "d")]
            await eventually(lambda: proofs.last_tried_s(*pair))
            assert await metric(gateway, "phasewise_kv_transfer_failing_pairs") == 0
    assert not any("does not transfer KV" in it.getMessage() for it in caplog.records)


async def test_kv_that_was_fetched_too_late_stops_kv_transfers_from_its_engine(caplog):
    soon_over = replace(SOUND, kv_transfer=Connector(handshake_timeout_s=0.3, lease_s=0.2))
    kv_transfer = {"when": "always", "canary_s": None}
    with caplog.at_level(logging.ERROR, "phasewise.gateway"):
        async with disaggregated(prefill=soon_over, kv_transfer=kv_transfer) as (gateway, prefill, decode):
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
