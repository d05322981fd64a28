"""Which incarnation a worker is, and when silence means that it is down."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import orjson
import pytest

from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.core.errors import FailureKind, UpstreamError
from phasewise.core.worker import UNKNOWN_MODEL
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import WorkerConfig
from phasewise.gateway import health
from phasewise.gateway.health import SILENCES_TO_DOWN, HealthWatcher, _Probe
from phasewise.scheduling.world import ClusterView, Health
from tests.builders import make_worker
from tests.few_files import no_more_files
from tests.gateway.harness import chat_body, events_of, eventually, listening, request_id_of, running_gateway
from tests.raw_server import raw_server

PATIENT = Timeouts(connect_s=60.0, head_s=60.0, idle_s=60.0)
IMPATIENT = Timeouts(connect_s=0.5, head_s=0.5, idle_s=0.5)


async def watched(url, steps_url=None):
    worker = replace(make_worker(steps_url=steps_url), url=url)
    cluster = ClusterView([worker])
    watcher = HealthWatcher(cluster, client_of, interval_s=0.02)
    await watcher.start()
    return cluster, watcher


def client_of(worker, timeouts=None):
    return HttpClient(worker.url, timeouts)


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


async def test_a_server_that_reports_nothing_is_counted():
    async with listening() as config:
        cluster, watcher = await watched(config.url)
        assert cluster.snapshot()[0].worker.incarnation == "seen-1"
        cluster.mark_down("w0", "as a request found")
        await eventually(lambda: cluster.snapshot()[0].health is Health.UP)
        assert cluster.snapshot()[0].worker.incarnation == "seen-2"
        await watcher.stop()


async def come_back(cluster):
    """The worker goes, as a request found, and is seen again."""
    cluster.mark_down("w0", "as a request found")
    await eventually(lambda: cluster.snapshot()[0].health is Health.UP)
    return cluster.snapshot()[0].worker.incarnation


async def test_a_worker_that_just_then_does_not_say_who_it_is_is_taken_for_the_same():
    page = b"process_start_time_seconds 1.76e+09\n"
    pages = {"/metrics": page}
    async with listening(pages=pages) as config:
        cluster, watcher = await watched(config.url)
        before = cluster.snapshot()[0].worker.incarnation
        pages.clear()
        assert await come_back(cluster) == before
        pages["/metrics"] = page
        assert await come_back(cluster) == before
        await watcher.stop()


async def test_a_worker_that_says_later_that_it_is_another_is_believed_then():
    pages = {"/metrics": b"process_start_time_seconds 1.76e+09\n"}
    async with listening(pages=pages) as config:
        cluster, watcher = await watched(config.url)
        pages.clear()
        assert await come_back(cluster) == "start-1.76e+09"
        pages["/metrics"] = b"process_start_time_seconds 1.77e+09\n"
        await eventually(lambda: cluster.snapshot()[0].worker.incarnation == "start-1.77e+09")
        assert cluster.snapshot()[0].health is Health.UP
        await watcher.stop()


async def test_a_recorder_that_falls_silent_does_not_make_a_new_life_of_an_old_one(monkeypatch):
    def silent(_body):
        raise UpstreamError(FailureKind.TIMED_OUT, "silent")

    async with running_engines(1, FakeEngineConfig(steps_port=0)) as (engine,):
        cluster, watcher = await watched(engine.base_url, engine.steps_url)
        before = cluster.snapshot()[0].worker.incarnation
        monkeypatch.setattr(health, "parse_steps", silent)
        assert await come_back(cluster) == before == f"boot-{engine.boot}"
        await watcher.stop()


async def test_a_worker_whose_metrics_are_no_text_is_watched_all_the_same():
    async with listening(pages={"/metrics": b"process_start_time_seconds \xff\n"}) as config:
        cluster, watcher = await watched(config.url)
        assert cluster.snapshot()[0].health is Health.UP
        await watcher.stop()


async def test_an_error_that_nobody_foresaw_does_not_end_the_watching(monkeypatch, caplog):
    async def fail(_probe):
        raise RuntimeError("not foreseen")

    async with listening() as config:
        with monkeypatch.context() as patched:
            patched.setattr(_Probe, "incarnation", fail)
            cluster, watcher = await watched(config.url)
            await asyncio.sleep(0.1)
            assert cluster.snapshot()[0].health is not Health.UP
        await eventually(lambda: cluster.snapshot()[0].health is Health.UP)
        await watcher.stop()
    assert [record.exc_info[0] for record in caplog.records] == [RuntimeError]


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


async def test_a_worker_that_reports_unhealthy_is_down():
    async with running_engines(1) as (engine,):
        cluster, watcher = await watched(engine.base_url + "/nowhere")
        assert cluster.snapshot()[0].health is Health.DOWN
        assert "404" in cluster.snapshot()[0].note
        await watcher.stop()


@pytest.mark.parametrize("kind", sorted(set(FailureKind) - {FailureKind.TIMED_OUT, FailureKind.NO_SOCKET}))
def test_a_broken_conversation_is_believed_at_once(kind):
    assert _Probe(make_worker(), client_of).believes_down(kind)


async def test_without_sockets_workers_keep_the_health_they_had_and_the_log_says_so_once(caplog):
    async with running_engines(1) as (engine,):
        cluster, watcher = await watched(engine.base_url)
        probe = _Probe(cluster.snapshot()[0].worker, client_of)
        with no_more_files():
            for _ in range(3):
                probe._engine.close()
                await watcher._look(probe)
        assert cluster.snapshot()[0].health is Health.UP
        assert caplog.text.count("ulimit -n") == 1
        await watcher.stop()


def test_silence_is_believed_when_it_lasts():
    probe = _Probe(make_worker(), client_of)
    verdicts = [probe.believes_down(FailureKind.TIMED_OUT) for _ in range(SILENCES_TO_DOWN)]
    assert verdicts == [False] * (SILENCES_TO_DOWN - 1) + [True]


# --- a worker that falls silent -----------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def streaming_worker():
    """A worker that streams until `enough` is set; once `silent` is set it answers nothing else."""
    silent, enough = asyncio.Event(), asyncio.Event()

    async def serve(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"POST"):
                    await stream(writer)
                elif not silent.is_set():
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    async def stream(writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        while not enough.is_set():
            chunk = {"id": "x", "choices": [{"index": 0, "delta": {"content": "y"}}]}
            writer.write(b"data: " + orjson.dumps(chunk) + b"\n\n")
            await asyncio.sleep(0.1)
        writer.write(b"data: [DONE]\n\n")
        writer.write_eof()

    async with raw_server(serve) as port:
        yield WorkerConfig(name="w0", url=f"http://127.0.0.1:{port}", model="fake-model"), silent, enough


async def test_a_request_whose_worker_hangs_goes_on_elsewhere_long_before_its_own_deadline():
    async with (
        running_engines(2) as pair,
        running_gateway(pair, timeouts=PATIENT, probe_timeouts=IMPATIENT) as gateway,
    ):
        pair[0].inject("hang", after_tokens=5)
        body = chat_body(stream=True, max_tokens=20, ignore_eos=True)
        reply = await gateway.fetch("POST", "/v1/chat/completions", body)
        timeline = await gateway.timeline(request_id_of(reply))
        assert events_of(reply.body)[-1] == "[DONE]"
        assert [it["outcome"] for it in timeline["attempts"]] == ["timed_out", "succeeded"]
        assert gateway.app.gateway.cluster.state("w0").health is Health.DOWN
        assert gateway.under_way == 0


async def test_a_stream_that_flows_is_left_alone_though_its_worker_answers_nothing_else():
    async with (
        streaming_worker() as (worker, silent, enough),
        running_gateway([worker], timeouts=PATIENT, probe_timeouts=IMPATIENT) as gateway,
    ):
        answering = asyncio.create_task(gateway.chat(stream=True))
        await eventually(lambda: gateway.under_way == 1)
        silent.set()
        await eventually(lambda: gateway.app.gateway.cluster.state("w0").health is Health.DOWN)
        enough.set()
        reply = await answering
        assert events_of(reply.body)[-1] == "[DONE]"
        assert len((await gateway.timeline(request_id_of(reply)))["attempts"]) == 1


async def test_silence_is_reported_again_and_again_and_other_failures_are_not():
    silences = []
    async with streaming_worker() as (config, silent, _):
        workers = [
            replace(make_worker("w0"), url=config.url),
            replace(make_worker("w1"), url="http://127.0.0.1:9"),
        ]
        watcher = HealthWatcher(
            ClusterView(workers),
            client_of,
            interval_s=0.01,
            timeouts=IMPATIENT,
            on_silence=lambda *reported: silences.append(reported),
        )
        await watcher.start()
        silent.set()
        await eventually(lambda: len(silences) >= 2)
        await watcher.stop()
    assert set(silences) == {("w0", SILENCES_TO_DOWN * IMPATIENT.head_s)}


async def test_an_engine_that_misses_its_first_deadline_is_up_when_the_gateway_starts():
    async with streaming_worker() as (config, silent, _):
        silent.set()
        cluster = ClusterView([replace(make_worker("w0"), url=config.url)])
        watcher = HealthWatcher(
            cluster, client_of, interval_s=60.0, timeouts=IMPATIENT, on_look=lambda _name: silent.clear()
        )
        await watcher.start()
        await watcher.stop()
    assert cluster.state("w0").health is Health.UP


async def test_an_engine_that_stays_silent_is_waited_for_as_long_as_silence_means_down():
    async with streaming_worker() as (config, silent, _):
        silent.set()
        cluster = ClusterView([replace(make_worker("w0"), url=config.url)])
        watcher = HealthWatcher(cluster, client_of, interval_s=60.0, timeouts=IMPATIENT)
        await watcher.start()
        await watcher.stop()
    assert cluster.state("w0").health is Health.DOWN


# --- looking ------------------------------------------------------------------------------------------------


async def test_looks_at_many_workers_are_spread_over_the_interval(monkeypatch):
    first_looks_s = []

    async def watch(self, probe, first_after_s):
        first_looks_s.append(first_after_s)

    monkeypatch.setattr(HealthWatcher, "_watch", watch)
    workers = [replace(make_worker(f"w{index}"), url="http://127.0.0.1:9") for index in range(4)]
    watcher = HealthWatcher(ClusterView(workers), client_of, interval_s=2.0)
    await watcher.start()
    await asyncio.sleep(0)
    await watcher.stop()
    assert first_looks_s == [0.5, 1.0, 1.5, 2.0]


async def test_every_check_is_reported_whatever_its_result():
    looks = []

    async with running_engines(1) as (engine,):
        workers = [
            replace(make_worker("w0"), url=engine.base_url),
            replace(make_worker("w1"), url="http://127.0.0.1:9"),
        ]
        watcher = HealthWatcher(ClusterView(workers), client_of, interval_s=60.0, on_look=looks.append)
        await watcher.start()
        await watcher.stop()
    assert sorted(looks) == ["w0", "w1"]


async def test_an_engine_that_was_down_at_the_start_says_its_model_when_it_answers():
    async with running_engines(1) as (engine,):
        unknown = replace(make_worker("w0"), url=engine.base_url, model=UNKNOWN_MODEL)
        cluster = ClusterView([unknown])
        assert cluster.models == ()
        watcher = HealthWatcher(cluster, client_of, interval_s=60.0)
        await watcher.start()
        await watcher.stop()
        assert cluster.models == (engine.model,)
        assert [worker.name for worker in cluster.usable(engine.model)] == ["w0"]
        cluster.check_invariants()
        # The configuration does not know the model when it is read again.
        change = cluster.set_workers([unknown])
        assert (change.gone, change.new) == ((), ())
        assert cluster.models == (engine.model,)


async def test_an_engine_that_was_down_at_the_start_is_asked_for_its_recorder_when_it_answers(monkeypatch):
    async with running_engines(1) as (engine,):
        # Not 10,000 ports above the engine's own: somebody else may listen there.
        monkeypatch.setattr(health, "default_steps_url", lambda _url: engine.steps_url)
        unknown = replace(make_worker("w0"), url=engine.base_url, model=UNKNOWN_MODEL, steps_url=None)
        cluster = ClusterView([unknown])
        engine.die()
        watcher = HealthWatcher(cluster, client_of, interval_s=0.05)
        await watcher.start()
        assert cluster.state("w0").worker.steps_url is None
        await engine.restart()
        await eventually(lambda: cluster.state("w0").health is Health.UP)
        await watcher.stop()
        worker = cluster.state("w0").worker
        assert (worker.steps_url, worker.incarnation) == (engine.steps_url, f"boot-{engine.boot}")
        # The configuration does not know it when it is read again.
        change = cluster.set_workers([unknown])
        assert (change.gone, change.new) == ((), ())
        assert cluster.state("w0").worker.steps_url == engine.steps_url


async def test_an_engine_that_does_not_say_its_model_is_down():
    async with listening() as config:
        cluster = ClusterView([replace(make_worker("w0"), url=config.url, model=UNKNOWN_MODEL)])
        watcher = HealthWatcher(cluster, client_of, interval_s=60.0)
        await watcher.start()
        await watcher.stop()
    assert cluster.state("w0").health is Health.DOWN
    assert "list of models" in cluster.state("w0").note


async def test_a_gateway_whose_engine_was_down_at_the_start_serves_it_when_it_answers():
    async with running_engines(1) as (engine,):
        worker = WorkerConfig(name="w0", url=engine.base_url, model=UNKNOWN_MODEL)
        async with running_gateway([worker]) as gateway:
            models = orjson.loads((await gateway.fetch("GET", "/v1/models")).body)["data"]
            reply = await gateway.chat()
    assert [it["id"] for it in models] == [engine.model]
    assert reply.status == 200


async def test_while_no_engine_has_said_its_model_clients_may_try_again_and_see_why():
    worker = WorkerConfig(name="w0", url="http://127.0.0.1:9", model=UNKNOWN_MODEL)
    async with running_gateway([worker]) as gateway:
        reply = await gateway.chat()
    error = orjson.loads(reply.body)["error"]
    assert (reply.status, error["code"]) == (503, "no_healthy_worker")
    assert "'fake-model' now: w0 is down" in error["message"]
    assert dict(reply.headers)[b"retry-after"] == b"1"
