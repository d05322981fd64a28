"""What engines show of themselves and of each other when they are asked, on fake ones."""

import contextlib
from dataclasses import replace

import pytest

from phasewise.clients.http_client import Timeouts
from phasewise.clients.kv_trial import growth_since
from phasewise.core.engine_metrics import KvCounters
from phasewise.core.worker import Role
from phasewise.fake_engine.engine import SIDE_CHANNELS, FakeEngine, FakeEngineConfig
from phasewise.fleet.check import gather
from phasewise.fleet.check.facts import SideChannel
from phasewise.fleet.check.gather import gather_facts
from phasewise.fleet.check.judgement import Mistake, judge
from phasewise.fleet.config import WorkerConfig
from phasewise.simulator.kv import Connector, OnLoadFailure
from tests.side_channel import greeting_port

CONNECTOR = Connector(handshake_timeout_s=0.3)
SOUND = FakeEngineConfig(kv_transfer=CONNECTOR)
PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """What engines show is tried here, not how soon a busy machine lets them show it."""
    for name in ("QUICK", "ANSWER_WITHIN"):
        monkeypatch.setattr(
            gather, name, Timeouts(connect_s=PATIENCE_S, head_s=PATIENCE_S, idle_s=PATIENCE_S)
        )
    monkeypatch.setattr(gather, "SIDE_CHANNEL_S", PATIENCE_S)


@contextlib.asynccontextmanager
async def running_pair(prefill=SOUND, decode=SOUND, *, listening=True):
    async with contextlib.AsyncExitStack() as stack:
        if listening and prefill.kv_transfer is not None:
            side_port = await stack.enter_async_context(greeting_port())
            prefill = replace(prefill, kv_transfer=replace(prefill.kv_transfer, side_port=side_port))
        engines = [FakeEngine(prefill), FakeEngine(decode)]
        for engine in engines:
            stack.push_async_callback(engine.stop)
            await engine.start()
        yield engines


def workers_of(engines):
    return tuple(
        WorkerConfig(name=role, url=engine.base_url, model=SOUND.model, role=role)
        for role, engine in zip((Role.PREFILL, Role.DECODE), engines, strict=True)
    )


async def started(config):
    engine = FakeEngine(config)
    await engine.start()
    return engine


@contextlib.asynccontextmanager
async def unreachable_prefill(handshake_timeout_s, decodes):
    """A prefill engine whose side channel no decode engine finds."""
    config = replace(SOUND, kv_transfer=replace(CONNECTOR, handshake_timeout_s=handshake_timeout_s))
    async with contextlib.AsyncExitStack() as stack:
        engines = [await started(config) for _ in range(1 + decodes)]
        for engine in engines:
            stack.push_async_callback(engine.stop)
        SIDE_CHANNELS.close((config.host, engines[0].side_port))
        roles = [Role.PREFILL] + [Role.DECODE] * decodes
        yield [
            WorkerConfig(name=f"{role}-{number}", url=engine.base_url, model=SOUND.model, role=role)
            for number, (role, engine) in enumerate(zip(roles, engines, strict=True))
        ]


async def mistakes_of(prefill=SOUND, decode=SOUND):
    async with running_pair(prefill, decode) as engines:
        return [it.mistake for it in judge(await gather_facts(workers_of(engines), within_s=PATIENCE_S))]


async def test_a_sound_pair_is_proven_by_its_decode_engines_counters():
    async with running_pair() as engines:
        facts = await gather_facts(workers_of(engines), within_s=PATIENCE_S)
    (trial,) = facts.trials
    assert trial.proven
    assert trial.moved_tokens == trial.prompt_tokens
    assert trial.computed_tokens == 0
    assert trial.same_text
    assert trial.bytes_per_s > 0
    assert facts.engines[1].recomputes_on_failure is False
    assert judge(facts) == ()


@pytest.mark.parametrize("side", [Role.PREFILL, Role.DECODE])
async def test_a_missing_connector_is_found_on_the_side_that_lacks_it(side):
    without = replace(SOUND, kv_transfer=None)
    found = await mistakes_of(**{side.value: without})
    expected = {Role.PREFILL: Mistake.NO_CONNECTOR_PREFILL, Role.DECODE: Mistake.NO_CONNECTOR_DECODE}
    assert found == [expected[side]]


async def test_an_engine_that_would_hide_failures_is_found_though_all_is_well():
    hiding = replace(SOUND, kv_transfer=replace(CONNECTOR, on_failure=OnLoadFailure.RECOMPUTE))
    assert await mistakes_of(decode=hiding) == [Mistake.FALL_BACK_ALLOWED]


async def test_without_provoking_a_failure_its_policy_stays_unknown():
    async with running_pair() as engines:
        facts = await gather_facts(workers_of(engines), test_failure=False, within_s=PATIENCE_S)
    assert facts.engines[1].recomputes_on_failure is None


async def test_an_engine_that_is_down_is_not_ready_and_nothing_else_is_tried():
    async with running_pair() as (prefill, decode):
        await prefill.stop()
        facts = await gather_facts(workers_of((prefill, decode)), within_s=PATIENCE_S)
    assert facts.trials == ()
    assert [it.mistake for it in judge(facts)] == [Mistake.ENGINE_NOT_READY, Mistake.NO_PREFILL_ENGINE]


async def test_a_worker_of_another_model_than_the_file_says_is_named():
    found = await mistakes_of(prefill=replace(SOUND, model="another"))
    assert Mistake.WRONG_MODEL in found


async def test_an_unreachable_side_channel_is_reported_for_a_pair_that_transfers_kv():
    async with running_pair(listening=False) as engines:
        facts = await gather_facts(workers_of(engines), within_s=PATIENCE_S)
    assert facts.trials[0].proven
    assert facts.trials[0].side_channel is SideChannel.NOBODY
    assert [it.mistake for it in judge(facts)] == [Mistake.SIDE_CHANNEL_OUT_OF_REACH]


async def test_pairs_of_one_prefill_engine_do_not_wait_for_each_other():
    async with unreachable_prefill(handshake_timeout_s=6.0, decodes=4) as workers:
        # One after the other they would take 24 seconds.
        facts = await gather_facts(workers, within_s=22.0)
    assert [it.ended for it in facts.trials] == [True] * 4
    assert [it.mistake for it in judge(facts)] == [Mistake.SIDE_CHANNEL_WRONG] * 4


async def test_a_pair_that_takes_too_long_is_reported_as_not_tried():
    async with unreachable_prefill(handshake_timeout_s=30.0, decodes=1) as workers:
        facts = await gather_facts(workers, within_s=1.0)
    assert [it.ended for it in facts.trials] == [False]
    assert [it.mistake for it in judge(facts)] == [Mistake.NOT_TRIED]


@pytest.mark.parametrize(("hidden", "found"), [(2, []), (3, [Mistake.NOT_PROVEN])])
async def test_a_proof_that_other_requests_hide_is_looked_for_three_times(monkeypatch, hidden, found):
    looks = []

    async def beside_others(client, before, prompt_tokens):
        looks.append(prompt_tokens)
        grown = await growth_since(client, before, prompt_tokens)
        return (
            KvCounters(grown.moved_tokens + 1_500, computed_tokens=400.0) if len(looks) <= hidden else grown
        )

    monkeypatch.setattr(gather, "growth_since", beside_others)
    assert await mistakes_of() == found
    assert len(looks) == 3


@pytest.mark.parametrize(("texts", "same"), [((False, True), True), ((False, False, False), False)])
async def test_a_text_that_differs_once_is_looked_at_again(monkeypatch, texts, same):
    seen = iter(texts)

    async def differing(facts, *_):
        return replace(facts, same_text=next(seen))

    monkeypatch.setattr(gather, "_with_text", differing)
    async with running_pair() as engines:
        (trial,) = (await gather_facts(workers_of(engines), test_failure=False, within_s=PATIENCE_S)).trials
    assert trial.proven
    assert trial.same_text is same
