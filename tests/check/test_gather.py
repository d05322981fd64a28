"""What engines show of themselves and of each other when they are asked, on fake ones."""

import contextlib
from dataclasses import replace

import pytest

from phasewise.check.gather import gather_facts
from phasewise.check.judgement import Mistake, judge
from phasewise.config import WorkerConfig
from phasewise.fake_engine.engine import FakeEngine, FakeEngineConfig
from phasewise.fake_engine.kv_connector import Connector, OnLoadFailure
from phasewise.model.worker import Role

CONNECTOR = Connector(handshake_timeout_s=0.3)
SOUND = FakeEngineConfig(hand_over=CONNECTOR)


@contextlib.asynccontextmanager
async def running_pair(prefill=SOUND, decode=SOUND):
    async with contextlib.AsyncExitStack() as stack:
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


async def mistakes_of(prefill=SOUND, decode=SOUND):
    async with running_pair(prefill, decode) as engines:
        return [it.mistake for it in judge(await gather_facts(workers_of(engines)))]


async def test_a_sound_pair_is_proven_by_its_decode_engines_counters():
    async with running_pair() as engines:
        facts = await gather_facts(workers_of(engines))
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
    without = replace(SOUND, hand_over=None)
    found = await mistakes_of(**{side.value: without})
    expected = {Role.PREFILL: Mistake.NO_CONNECTOR_PREFILL, Role.DECODE: Mistake.NO_CONNECTOR_DECODE}
    assert found == [expected[side]]


async def test_an_engine_that_would_hide_failures_is_found_though_all_is_well():
    hiding = replace(SOUND, hand_over=replace(CONNECTOR, on_failure=OnLoadFailure.RECOMPUTE))
    assert await mistakes_of(decode=hiding) == [Mistake.FALL_BACK_ALLOWED]


async def test_without_provoking_a_failure_its_policy_stays_unknown():
    async with running_pair() as engines:
        facts = await gather_facts(workers_of(engines), provoke_failure=False)
    assert facts.engines[1].recomputes_on_failure is None


async def test_an_engine_that_is_down_is_not_ready_and_nothing_else_is_tried():
    async with running_pair() as (prefill, decode):
        await prefill.stop()
        facts = await gather_facts(workers_of((prefill, decode)))
    assert facts.trials == ()
    assert [it.mistake for it in judge(facts)] == [Mistake.ENGINE_NOT_READY, Mistake.NO_PREFILL_ENGINE]


async def test_a_worker_of_another_model_than_the_file_says_is_named():
    found = await mistakes_of(prefill=replace(SOUND, model="another"))
    assert Mistake.WRONG_MODEL in found
