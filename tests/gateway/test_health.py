"""Which incarnation a worker is, and when silence means that it is down."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phasewise.errors import FailureKind
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.gateway.health import SILENCES_TO_DOWN, HealthWatcher, _Probe
from phasewise.state.cluster_view import ClusterView, Health
from tests.builders import make_worker
from tests.gateway.harness import eventually, listening


async def watched(url, steps_url=None):
    worker = replace(make_worker(steps_url=steps_url), url=url)
    cluster = ClusterView([worker])
    watcher = HealthWatcher(cluster, [worker], interval_s=0.02)
    await watcher.start()
    return cluster, watcher


async def test_the_recorders_boot_id_is_the_incarnation():
    async with running_engines(1, FakeEngineConfig(steps_port=0)) as (engine,):
        cluster, watcher = await watched(engine.base_url, engine.steps_url)
        assert cluster.snapshot()[0].worker.incarnation == f"boot-{engine.boot}"
        await watcher.stop()


async def test_without_a_recorder_the_process_start_is():
    page = b"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1.76e+09\n"
    async with listening(pages={"/metrics": page}) as config:
        cluster, watcher = await watched(config.url, "http://127.0.0.1:9/steps")
        assert cluster.snapshot()[0].worker.incarnation == "start-1.76e+09"
        await watcher.stop()


async def test_a_server_that_tells_nothing_is_counted():
    async with listening() as config:
        cluster, watcher = await watched(config.url)
        assert cluster.snapshot()[0].worker.incarnation == "seen-1"
        cluster.mark_down("w0", "as a request found")
        await eventually(lambda: cluster.snapshot()[0].health is Health.UP)
        assert cluster.snapshot()[0].worker.incarnation == "seen-2"
        await watcher.stop()


async def test_a_restart_is_another_incarnation():
    async with running_engines(1) as (engine,):
        cluster, watcher = await watched(engine.base_url, engine.steps_url)
        before = cluster.snapshot()[0].worker
        engine.die()
        await eventually(lambda: cluster.snapshot()[0].health is Health.DOWN)
        assert "reached" in cluster.snapshot()[0].note
        await engine.start()
        await eventually(lambda: cluster.snapshot()[0].health is Health.UP)
        assert cluster.snapshot()[0].worker.ref != before.ref
        await watcher.stop()


async def test_a_worker_that_says_it_is_ill_is_down():
    async with running_engines(1) as (engine,):
        cluster, watcher = await watched(engine.base_url + "/nowhere")
        assert cluster.snapshot()[0].health is Health.DOWN
        assert "404" in cluster.snapshot()[0].note
        await watcher.stop()


@pytest.mark.parametrize("kind", [kind for kind in FailureKind if kind is not FailureKind.TIMED_OUT])
def test_a_broken_conversation_is_believed_at_once(kind):
    assert _Probe(make_worker()).believes_down(kind)


def test_silence_is_believed_when_it_lasts():
    probe = _Probe(make_worker())
    verdicts = [probe.believes_down(FailureKind.TIMED_OUT) for _ in range(SILENCES_TO_DOWN)]
    assert verdicts == [False] * (SILENCES_TO_DOWN - 1) + [True]
