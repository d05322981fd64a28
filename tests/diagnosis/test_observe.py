"""What stands at an address is found out, watched and probed; what cannot be known is said."""

import asyncio
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import orjson
import pytest

from phasewise.clients.http_client import HttpClient
from phasewise.clients.processes import CpuSource
from phasewise.core.engine_metrics import ScrapedHistogram
from phasewise.core.errors import ConfigError, EngineUnreachable
from phasewise.core.slo import DEFAULT_SLO, Slo
from phasewise.diagnosis.analysis.engine_counters import share_over
from phasewise.diagnosis.diagnose import Known, diagnose
from phasewise.diagnosis.evidence import evidence_of
from phasewise.diagnosis.finding import Cause
from phasewise.diagnosis.gather.probe import PROBE_REQUESTS, probe
from phasewise.diagnosis.gather.target import identify
from phasewise.diagnosis.gather.watch import Watch
from phasewise.diagnosis.observed.observation import TargetKind
from phasewise.diagnosis.verdict import Ruling, judge
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.scheduling.world import Health
from phasewise.simulator.requests import PRESETS
from tests.gateway.harness import ADMIN_KEY, eventually, running_gateway

ON_A_BUSY_MACHINE = Slo(ttft_s=30.0, tpot_s=5.0)
"""Engine, client and other tests share two cores: what is tried is what is observed, not how fast it is."""

NO_RECORDER = "http://127.0.0.1:9"
JSON = [(b"content-type", b"application/json")]


@contextmanager
def hog_on(core):
    # In a session of its own: the kernel shares a core out by session, and other tests would hold this one's.
    busy = [sys.executable, "-S", "-c", "while True: pass"]
    with subprocess.Popen(busy, start_new_session=True) as hog:
        try:
            os.sched_setaffinity(hog.pid, {core})
            yield
        finally:
            hog.kill()


async def evidence_of_probe(target, admin_key=None):
    watch = Watch(target, admin_key)
    try:
        await watch.begin()
        probed = await probe(target.url, None, None, seed=1, on_scene=lambda title: None)
        return evidence_of(await watch.end(probed)), probed
    finally:
        watch.close()


async def test_an_engine_is_separated_from_a_gateway():
    async with running_engines(1) as (engine,), running_gateway([engine]) as gateway:
        assert (await identify(engine.base_url, None)).kind is TargetKind.ENGINE
        found = await identify(gateway.url, ADMIN_KEY)
        assert found.kind is TargetKind.GATEWAY
        assert [watched.url for watched in found.engines] == [engine.base_url]


async def test_a_gateway_without_its_key_is_shown_what_is_missing():
    async with running_engines(1) as (engine,), running_gateway([engine]) as gateway:
        with pytest.raises(ConfigError, match="requires its admin key"):
            await identify(gateway.url, "wrong")


async def test_nothing_at_the_address_is_said_with_a_hint():
    with pytest.raises(EngineUnreachable) as caught:
        await identify("http://127.0.0.1:9", None)
    assert caught.value.hint


async def test_a_probe_is_bounded_and_its_requests_are_matched_to_steps():
    async with running_engines(1) as (engine,):
        target = await identify(engine.base_url, None, engine.steps_url)
        evidence, probed = await evidence_of_probe(target)
    assert len(probed) == PROBE_REQUESTS
    assert len(evidence.logs) == 1
    summary = diagnose(evidence, DEFAULT_SLO, Known()).summary
    assert summary.stream.chunk_excess_s is not None
    assert dict(summary.outcomes) == {"succeeded": PROBE_REQUESTS}
    assert not any("no step recorder" in note for note in summary.not_observed)


async def test_without_a_recorder_the_verdict_says_what_it_cannot_know():
    async with running_engines(1) as (engine,):
        evidence, _ = await evidence_of_probe(await identify(engine.base_url, None, NO_RECORDER))
    summary = diagnose(evidence, DEFAULT_SLO, Known()).summary
    assert any("no step recorder" in note for note in summary.not_observed)
    assert judge(summary, ON_A_BUSY_MACHINE).ruling is Ruling.HEALTHY


async def test_stalls_of_a_slow_engine_are_laid_to_the_probes_own_long_prompt():
    async with running_engines(1, FakeEngineConfig(cost=PRESETS["cpu-demo"])) as (engine,):
        target = await identify(engine.base_url, None, engine.steps_url)
        evidence, _ = await evidence_of_probe(target)
    slo = Slo(ttft_s=20.0, tpot_s=0.1)
    # Surroundings are left out, yet a busy machine shows in the steps as well.
    verdict = diagnose(replace(evidence, surroundings=()), slo, Known())
    assert verdict.ruling is Ruling.SLOW_TO_STREAM
    assert verdict.top.cause in {Cause.CHUNKS_STALL, Cause.ENGINE_STARVED}


async def test_an_idle_engine_is_not_called_healthy():
    async with running_engines(1) as (engine,):
        watch = Watch(await identify(engine.base_url, None, NO_RECORDER))
        await watch.begin()
        await asyncio.sleep(0.05)
        evidence = evidence_of(await watch.end())
        watch.close()
    assert diagnose(evidence, DEFAULT_SLO, Known()).ruling is Ruling.NOT_ENOUGH_TRAFFIC


async def test_traffic_of_others_is_seen_from_steps_alone_and_from_counters_alone():
    async with running_engines(1) as (engine,):
        for steps_url, seen_by in (
            (engine.steps_url, "the engine's step record"),
            (NO_RECORDER, "engine counters"),
        ):
            watch = Watch(await identify(engine.base_url, None, steps_url))
            await watch.begin()
            await probe(engine.base_url, None, None, seed=2, on_scene=lambda title: None)
            evidence = evidence_of(await watch.end())
            watch.close()
            summary = diagnose(evidence, DEFAULT_SLO, Known()).summary
            assert summary.seen_by == seen_by
            assert summary.workload.requests == PROBE_REQUESTS
            assert summary.start.ttft_p50_s > 0
            assert judge(summary, ON_A_BUSY_MACHINE).ruling is Ruling.HEALTHY


async def test_a_gateways_timelines_are_the_evidence_when_it_is_watched():
    async with running_engines(1) as (engine,), running_gateway([engine]) as gateway:
        evidence, _ = await evidence_of_probe(await identify(gateway.url, ADMIN_KEY), ADMIN_KEY)
    assert evidence.seen_by == "the gateway"
    assert len(evidence.timelines) == PROBE_REQUESTS
    assert diagnose(evidence, DEFAULT_SLO, Known()).summary.workload.shared_share > 0


@pytest.mark.parametrize(
    ("poll_interval_s", "notices", "words"),
    [
        (3600.0, False, "counters of 1 of 2 engines"),
        (0.05, True, "which the gateway does not use: it is down"),
    ],
    ids=["before_the_gateway_notices", "after_it"],
)
async def test_an_engine_that_dies_while_it_is_watched_is_reported_not_tripped_over(
    poll_interval_s, notices, words
):
    async with (
        running_engines(2) as (kept, lost),
        running_gateway([kept, lost], poll_interval_s=poll_interval_s) as gateway,
    ):
        watch = Watch(await identify(gateway.url, ADMIN_KEY), ADMIN_KEY)
        await watch.begin()
        lost.die()
        if notices:
            await eventually(lambda: gateway.app.gateway.cluster.state("w1").health is Health.DOWN)
        evidence = evidence_of(await watch.end())
        watch.close()
    assert any(words in note for note in evidence.not_observed)


def test_the_share_over_a_bound_is_read_from_buckets():
    seen = ScrapedHistogram(buckets=((1.0, 5.0), (2.0, 10.0), (float("inf"), 10.0)), count=10.0, total=10.0)
    assert share_over(seen, 1.0) == pytest.approx(0.5)
    assert share_over(seen, 1.5) == pytest.approx(0.25)
    assert share_over(seen, 3.0) == 0.0


def test_observations_lie_around_the_mean_of_their_bucket():
    """All in the bucket from 50 to 75 ms, 58 ms on average: they hardly reach 65 ms."""
    near = ScrapedHistogram(((0.05, 0.0), (0.075, 20.0), (float("inf"), 20.0)), 20.0, 20 * 0.058)
    assert share_over(near, 0.065) == pytest.approx(1 / 16)
    beyond = ScrapedHistogram(((0.05, 0.0), (0.075, 20.0), (float("inf"), 21.0)), 21.0, 20 * 0.058 + 9.0)
    assert share_over(beyond, 0.0625) == pytest.approx(11 / 21), "the sum is that of another bucket too"


@pytest.mark.real
async def test_a_probed_real_engine_names_the_step_that_stalled_its_streams(real_engine):
    target = await identify(real_engine.base_url, None, real_engine.steps_url)
    evidence, _ = await evidence_of_probe(target)
    slo = Slo(ttft_s=60.0, tpot_s=0.02)
    summary = diagnose(evidence, slo, Known()).summary
    assert dict(summary.outcomes) == {"succeeded": PROBE_REQUESTS}
    guilty = [
        timed.step for found in summary.stream.stalls for timed in found.steps if timed.step.prompt_tokens
    ]
    assert any(step.prompt_tokens > 1000 and step.decode_tokens for step in guilty)
    assert judge(summary, slo).ruling is Ruling.SLOW_TO_STREAM


@pytest.mark.real
async def test_parts_of_a_real_engines_ttft_come_from_the_clocks_that_saw_them(real_engine):
    target = await identify(real_engine.base_url, None, real_engine.steps_url)
    evidence, _ = await evidence_of_probe(target)
    summary = diagnose(evidence, DEFAULT_SLO, Known()).summary
    sources = {(entry.part.value, entry.source.value) for entry in summary.start.parts}
    assert ("client_lag", "client_clock") in sources
    assert ("engine_queue", "engine_report") in sources
    # A request whose prompt is not found whole in the steps keeps the engine's own word: not all match.
    assert ("prefill", "step_record") in sources
    assert summary.start.step_timed >= PROBE_REQUESTS / 2
    total = sum(entry.seconds for entry in summary.start.parts) + summary.start.unexplained_s
    assert total == pytest.approx(summary.start.parts_mean_s)
    # The long prompt was sent twice: its beginning was seen before, and most of it came from the cache.
    assert summary.workload.shared_share > 0.2
    assert summary.workload.cached_share > 0.2
    (engine,) = summary.engines
    assert (engine.requests, engine.prefix_cache_on, engine.block_tokens) == (PROBE_REQUESTS, True, 128)
    assert engine.kv_tokens % engine.block_tokens == 0
    assert engine.engine_load.running_max == 5
    assert engine.steps.decode_step_p50_s > 0.01
    assert engine.drafts is None
    # It computes in a process of its own, so that the front end has little to do.
    assert 0 < engine.front_end_cores < 0.8
    assert engine.cpu_source == CpuSource.RUN_QUEUE
    assert 0 < engine.age_s < 3600
    assert 0 < engine.round_trip_s < 0.5


@pytest.mark.real
async def test_a_real_engine_without_recorder_is_judged_from_counters(real_engine):
    watch = Watch(await identify(real_engine.base_url, None, NO_RECORDER))
    await watch.begin()
    await probe(real_engine.base_url, None, None, seed=3, on_scene=lambda title: None)
    evidence = evidence_of(await watch.end())
    watch.close()
    summary = diagnose(evidence, DEFAULT_SLO, Known()).summary
    assert summary.seen_by == "engine counters"
    assert summary.workload.requests == PROBE_REQUESTS
    parts = {entry.part.value for entry in summary.start.parts}
    assert {"prefill"} <= parts <= {"engine_queue", "prefill", "prefill_others"}
    (engine,) = summary.engines
    assert engine.steps is None
    assert engine.engine_load.running_max >= 4
    assert engine.prefix_queries_tokens > engine.prefix_hits_tokens > 0


@pytest.mark.real
async def test_a_hog_on_a_real_engines_core_is_seen(real_engine):
    (core,) = os.sched_getaffinity(real_engine.pid)
    body = {"model": real_engine.model, "prompt": "Once", "max_tokens": 24, "ignore_eos": True}
    client = HttpClient(real_engine.base_url)
    watch = Watch(await identify(real_engine.base_url, None, real_engine.steps_url))
    with hog_on(core):
        await watch.begin()
        await client.fetch("POST", "/v1/completions", headers=JSON, body=orjson.dumps(body))
        (engine,) = (evidence_of(await watch.end())).surroundings
    watch.close()
    client.close()
    assert engine.cpu_wait_share > 0.25
    # Half of a machine with two cores, less what its own host takes from it (steal), which may be most.
    assert engine.host_busy_share > 0.1
