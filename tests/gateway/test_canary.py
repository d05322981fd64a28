"""Pairs are tried before requests meet them, and prompts that were computed twice are told of."""

import contextlib
import logging
from dataclasses import replace
from random import Random

from phasewise.adapters.http_client import HttpClient
from phasewise.adapters.kv_trial import PLEASE_KEEP, ask, trial_prompt
from phasewise.fake_engine.engine import FakeEngine, FakeEngineConfig
from phasewise.fake_engine.faults import Fault, FaultKind
from phasewise.fake_engine.kv_connector import Connector
from phasewise.model.worker import Role
from tests.gateway.harness import eventually, running_gateway, worker_for

SOUND = FakeEngineConfig(hand_over=Connector(handshake_timeout_s=0.3))
HAND_OVER = {"when": "always", "canary_s": 1.0}


@contextlib.asynccontextmanager
async def parted(prefill=SOUND, decode=SOUND, hand_over=HAND_OVER):
    """A gateway before one prefill and one decode engine."""
    async with contextlib.AsyncExitStack() as stack:
        engines = [FakeEngine(prefill), FakeEngine(decode)]
        for engine in engines:
            stack.push_async_callback(engine.stop)
            await engine.start()
        workers = [
            worker_for(engines[0], "p", role=Role.PREFILL),
            worker_for(engines[1], "d", role=Role.DECODE),
        ]
        gateway = await stack.enter_async_context(running_gateway(workers, hand_over=hand_over))
        yield gateway, *engines


async def metric(gateway, name):
    """The first value of a metric, None while it is not there."""
    rows = (await gateway.fetch("GET", "/metrics")).body.decode().splitlines()
    return next((float(row.rpartition(" ")[2]) for row in rows if row.startswith(name + "{")), None)


async def test_a_pair_is_proven_before_any_request_and_costs_no_request_metric():
    async with parted() as (gateway, _, decode):
        age_s = await eventually(lambda: metric(gateway, "phasewise_hand_over_proof_age_seconds"))
        assert age_s < 60
        assert decode.requests_finished > 0
        assert await metric(gateway, "phasewise_requests_total") is None
        assert await metric(gateway, "phasewise_hand_over_failing_pairs") == 0
        assert gateway.under_way == 0


async def test_the_canary_tells_how_fast_both_engines_read():
    async with parted() as (gateway, *_):
        world = gateway.app.gateway.pipeline._world
        await eventually(lambda: metric(gateway, "phasewise_hand_over_proof_age_seconds"))
        for name in ("p", "d"):
            pace = world.paces.pace(world.cluster.state(name).worker.ref)
            assert pace is not None
            assert pace.read_s(500) > 0


async def test_a_pair_that_does_not_hand_over_is_told_of_once(caplog):
    with caplog.at_level(logging.WARNING, "phasewise.gateway"):
        async with parted(prefill=replace(SOUND, hand_over=None)) as (gateway, *_):

            async def failing():
                return await metric(gateway, "phasewise_hand_over_failing_pairs") == 1

            await eventually(failing)
    told = [it.getMessage() for it in caplog.records if "does not hand KV over" in it.getMessage()]
    assert len(told) == 1
    assert "it has no connector" in told[0]


async def test_a_decode_engine_that_computes_again_without_a_word_is_found_out(caplog):
    hiding = replace(SOUND, hand_over=None)
    with caplog.at_level(logging.WARNING, "phasewise.gateway"):
        async with parted(decode=hiding) as (gateway, *_):

            async def failing():
                return await metric(gateway, "phasewise_hand_over_failing_pairs") == 1

            await eventually(failing)
    assert any("computed the prompt itself" in it.getMessage() for it in caplog.records)


async def test_a_silent_fall_back_of_requests_is_counted_and_told(caplog):
    hand_over = {"when": "always", "canary_s": None}
    with caplog.at_level(logging.WARNING, "phasewise.gateway"):
        async with parted(decode=replace(SOUND, hand_over=None), hand_over=hand_over) as (gateway, *_):
            reply = await gateway.chat("tell me " * 200)
            assert reply.status == 200
            again = await eventually(
                lambda: counted(gateway, "phasewise_hand_over_recomputed_tokens_total"), 15.0
            )
    assert again > 300
    assert any("prompt tokens again" in it.getMessage() for it in caplog.records)


async def test_hand_overs_that_come_are_never_counted_as_computed_again():
    hand_over = {"when": "always", "canary_s": None}
    async with parted(hand_over=hand_over) as (gateway, *_):
        for number in range(5):
            assert (await gateway.chat(f"{number} tell me " * 100)).status == 200
        assert await eventually(lambda: counted(gateway, "phasewise_hand_over_bytes_total"), 15.0) > 0
        assert await metric(gateway, "phasewise_hand_over_recomputed_tokens_total") == 0


async def counted(gateway, name):
    return await metric(gateway, name) or None


async def test_a_fleet_without_roles_is_asked_nothing():
    async with contextlib.AsyncExitStack() as stack:
        engine = FakeEngine(SOUND)
        stack.push_async_callback(engine.stop)
        await engine.start()
        gateway = await stack.enter_async_context(running_gateway([engine]))
        assert await metric(gateway, "phasewise_hand_over_proof_age_seconds") is None
        assert engine.requests_finished == 0


async def test_a_transfer_that_hangs_is_told_of_and_frees_both_engines(caplog):
    hand_over = {"when": "always", "canary_s": 60.0, "timeout_s": 0.5}
    hanging = replace(SOUND, faults=(Fault(FaultKind.KV_HANG),))
    with caplog.at_level(logging.WARNING, "phasewise.gateway"):
        async with parted(decode=hanging, hand_over=hand_over) as (gateway, _, decode):

            async def failing():
                return await metric(gateway, "phasewise_hand_over_failing_pairs") == 1

            await eventually(failing)
            await eventually(lambda: decode.engine.kv_usage == 0)
    assert any("had not got it after 0.5 s" in it.getMessage() for it in caplog.records)


async def test_requests_alone_prove_a_pair_by_counters():
    hand_over = {"when": "always", "canary_s": None}
    async with parted(hand_over=hand_over) as (gateway, *_):
        assert (await gateway.chat("tell me " * 100)).status == 200
        await eventually(lambda: metric(gateway, "phasewise_hand_over_proof_age_seconds"), 15.0)


async def test_a_pair_whose_kv_does_not_come_hands_over_no_more_for_a_while():
    hand_over = {"when": "always", "canary_s": None}
    async with parted(decode=replace(SOUND, hand_over=None), hand_over=hand_over) as (gateway, *_):
        assert (await gateway.chat("tell me " * 200)).status == 200
        world = gateway.app.gateway.pipeline._world
        await eventually(lambda: world.pairs.any_open, 15.0)
        assert (await gateway.chat("and again " * 200)).status == 200


async def test_a_prefill_worker_that_is_slow_is_not_held_against_the_pair(caplog):
    hand_over = {"when": "always", "canary_s": 60.0, "timeout_s": 0.3}
    slow = replace(SOUND, faults=(Fault(FaultKind.SLOW, factor=5_000.0),))
    with caplog.at_level(logging.WARNING, "phasewise.gateway"):
        async with parted(prefill=slow, hand_over=hand_over) as (gateway, *_):
            watch = gateway.app._hand_over_watch
            proofs = watch._canary._proofs
            world = gateway.app.gateway.pipeline._world
            pair = [world.cluster.state(name).worker.ref for name in ("p", "d")]
            await eventually(lambda: proofs.last_tried_s(*pair))
            assert await metric(gateway, "phasewise_hand_over_failing_pairs") == 0
    assert not any("does not hand KV over" in it.getMessage() for it in caplog.records)


async def test_kv_that_was_fetched_too_late_stops_hand_overs_from_its_engine(caplog):
    soon_over = replace(SOUND, hand_over=Connector(handshake_timeout_s=0.3, lease_s=0.2))
    hand_over = {"when": "always", "canary_s": None}
    with caplog.at_level(logging.ERROR, "phasewise.gateway"):
        async with parted(prefill=soon_over, hand_over=hand_over) as (gateway, prefill, decode):
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
        kept = await ask(to_prefill, prefill.model, prompt, 1, PLEASE_KEEP)
        await eventually(lambda: prefill.engine.kept_requests == 0)
        await ask(to_decode, decode.model, prompt, 2, kept.params)
    finally:
        to_prefill.close()
        to_decode.close()
