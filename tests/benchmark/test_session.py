from __future__ import annotations

import asyncio
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from phasewise.benchmark.generator import LoadGenerator
from phasewise.benchmark.results import build_report
from phasewise.benchmark.session import CacheState, RunSpec, measure
from phasewise.benchmark.target import find_target
from phasewise.benchmark.workload.arrivals import ClosedLoop, OpenLoop
from phasewise.benchmark.workload.drafts import Conversations, Written
from phasewise.benchmark.workload.plan import PlanSpec
from phasewise.benchmark.workload.presets import Lengths, Shape
from phasewise.benchmark.workload.traces import Trace, TracedRequest
from phasewise.clients.http_client import HttpClient
from phasewise.core.errors import MeasurementError
from phasewise.core.slo import DEFAULT_SLO
from phasewise.core.timeline import Outcome, Part
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.report.bench.table import render
from phasewise.simulator.engine import EngineShape
from phasewise.simulator.requests import PRESETS
from tests.benchmark.scripted_server import Asked, content, scripted_server
from tests.gateway.harness import ADMIN_KEY, eventually, running_gateway

DONE = b"data: [DONE]\n\n"

SMALL_BLOCKS = FakeEngineConfig(shape=EngineShape(block_size=16, total_blocks=4000))


def make_spec(
    seed: int = 1, requests: int = 4, prompt_tokens: int = 120, cache=CacheState.COLD, **more
) -> RunSpec:
    shape = Shape("test.", Lengths.fixed(prompt_tokens), Lengths.fixed(4), **more.pop("shape", {}))
    load = more.pop("load", ClosedLoop(2))
    return RunSpec(PlanSpec(shape, load, requests=requests, **more), seed=seed, cache=cache)


def cached(run) -> list[int]:
    return [timeline.cached_tokens for timeline in run.timelines]


async def test_a_seed_measured_again_finds_the_cache_cold():
    async with running_engines(1, SMALL_BLOCKS) as (engine,):
        first = await measure(engine.base_url, make_spec())
        again = await measure(engine.base_url, make_spec())
    assert cached(first) == [0] * 4
    # The template stands before the opening words: a block of it, at most.
    assert max(cached(again)) <= 16
    lengths = [[timeline.prompt_tokens for timeline in run.timelines] for run in (first, again)]
    assert lengths == [[120] * 4] * 2
    words = [
        [planned.messages[-1].content.split()[6:60] for planned in run.plan.requests]
        for run in (first, again)
    ]
    assert words[0] == words[1]


async def test_a_warm_run_finds_every_prompt_cached_and_says_so():
    async with running_engines(1, SMALL_BLOCKS) as (engine,):
        run = await measure(engine.base_url, make_spec(cache=CacheState.WARM))
    assert run.primed
    assert min(cached(run)) >= 120 - 16
    assert len(run.timelines) == 4


def traced(*lengths: int) -> Trace:
    """Requests as in Mooncake's trace: the first block is shared, and every full block has an id."""
    ids = [
        (0, *(100 * number + block for block in range(tokens // 512)))
        for number, tokens in enumerate(lengths)
    ]
    requests = [TracedRequest(0.0, tokens, 3, ids[at]) for at, tokens in enumerate(lengths)]
    return Trace("mooncake", tuple(requests))


TWO_TURNS = Conversations(2, 0.0)
LONG = Shape("test.", Lengths.fixed(2000), Lengths.fixed(40))


@pytest.mark.parametrize(
    ("source", "more"),
    [
        (traced(6758, 7322, 2290, 512 * 3), {}),
        (replace(LONG, shared_prefix_tokens=1500, shared_share=1.0), {}),
        (
            replace(LONG, prompt=Lengths.fixed(500), follow_up=Lengths.fixed(300)),
            {"conversations": TWO_TURNS},
        ),
        (Written("a story", ("Tell me a story of a lighthouse and the ships that pass it. " * 40,), 4), {}),
    ],
    ids=["trace", "shared prefix", "turns", "written"],
)
async def test_prompts_are_as_long_as_planned_from_every_source(source, more):
    """The fake engine counts 1.37 tokens for one of our words."""
    config = FakeEngineConfig(shape=EngineShape(max_model_len=16_384))
    spec = RunSpec(PlanSpec(source, ClosedLoop(2), requests=4, **more), seed=1)
    async with running_engines(1, config) as (engine,):
        run = await measure(engine.base_url, spec)
    assert {timeline.outcome for timeline in run.timelines} == {Outcome.SUCCEEDED}
    sent = {timeline.request_id.rpartition("-")[2]: timeline.prompt_tokens for timeline in run.timelines}
    for planned in run.plan.requests:
        assert sent[str(planned.index)] == pytest.approx(planned.prompt_tokens, rel=0.02)
    if isinstance(source, Trace):
        asked = sorted(request.prompt_tokens for request in source.requests)
        assert sorted(sent.values()) == pytest.approx(asked, rel=0.02)
    if source.__class__ is Shape and not more:
        assert list(sent.values()) == pytest.approx([2000] * 4, rel=0.02)


async def test_prompts_of_a_cold_run_still_share_what_they_are_meant_to_share():
    shared = {"shared_prefix_tokens": 80, "shared_share": 1.0}
    async with running_engines(1, SMALL_BLOCKS) as (engine,):
        run = await measure(engine.base_url, make_spec(load=ClosedLoop(1), shape=shared))
    assert cached(run)[0] == 0
    assert min(cached(run)[1:]) >= 64


async def test_later_turns_reuse_the_cache_of_earlier_ones():
    async with running_engines(1, SMALL_BLOCKS) as (engine,):
        spec = make_spec(requests=3, load=ClosedLoop(1), conversations=Conversations(3, think_s=0.0))
        run = await measure(engine.base_url, spec)
    first, second, third = run.timelines
    assert {timeline.outcome for timeline in run.timelines} == {Outcome.SUCCEEDED}
    assert first.prompt_tokens < second.prompt_tokens < third.prompt_tokens
    assert second.cached_tokens >= 120 - 16
    assert third.cached_tokens > second.cached_tokens


@pytest.mark.parametrize("rejection", [400, 422])
async def test_a_server_that_rejects_fixed_lengths_is_asked_without_from_the_first_request_on(rejection):
    asked: list[Asked] = []

    def answer(request: Asked):
        asked.append(request)
        if "ignore_eos" in request.body:
            return rejection, [b'{"error":{"message":"unknown field"}}']
        if request.path != "/v1/chat/completions":
            return 404, [b"{}"]
        return 200, [content(finish_reason="stop"), DONE]

    async with scripted_server(answer) as url:
        run = await measure(url, replace(make_spec(requests=2), model="m"))
    assert not run.fixed_lengths
    assert [timeline.outcome for timeline in run.timelines] == [Outcome.SUCCEEDED] * 2
    chats = [request for request in asked if request.path == "/v1/chat/completions"]
    assert ["ignore_eos" in request.body for request in chats] == [True, False, False, False]


async def test_one_rejection_during_the_run_is_a_failure_and_no_reason_to_let_lengths_go():
    chats = 0

    def answer(request: Asked):
        nonlocal chats
        if request.path != "/v1/chat/completions":
            return 404, [b"{}"]
        chats += 1
        return (400, [b"{}"]) if chats == 2 else (200, [content(finish_reason="length"), DONE])

    async with scripted_server(answer) as url:
        run = await measure(url, replace(make_spec(requests=3, load=ClosedLoop(1)), model="m"))
    assert run.fixed_lengths
    assert [timeline.reason for timeline in run.timelines] == ["http_400", None, None]


async def test_a_cache_that_could_not_be_warmed_is_an_error():
    def answer(request: Asked):
        if request.path != "/v1/chat/completions":
            return 404, [b"{}"]
        one_token = request.body["max_tokens"] == 1 and "ignore_eos" not in request.body
        return (500, [b"{}"]) if one_token else (200, [content(finish_reason="length"), DONE])

    async with scripted_server(answer) as url:
        with pytest.raises(MeasurementError, match=r"4 of 4 requests to warm the cache failed"):
            await measure(url, replace(make_spec(cache=CacheState.WARM), model="m"))


async def test_nothing_is_sent_after_the_time_is_over_not_even_a_later_turn():
    async with running_engines(1, SMALL_BLOCKS) as (engine,):
        plan = {"conversations": Conversations(20, think_s=0.2), "duration_s": 1.0}
        run = await measure(engine.base_url, make_spec(requests=40, load=ClosedLoop(2), **plan))
    starts_s = [timeline.started_unix_s - run.started_unix_s for timeline in run.timelines]
    assert max(starts_s) < 1.0
    assert 2 < len(run.timelines) < 40


async def test_the_engine_is_watched_during_the_run():
    async with running_engines(1, FakeEngineConfig()) as (engine,):
        run = await measure(engine.base_url, make_spec(requests=30, load=OpenLoop(20.0)))
    assert run.engine is not None
    before, *_, after = run.engine.snapshots
    done = [snapshot.counter("request_success_total") or 0 for snapshot in (before, after)]
    assert done[1] - done[0] == 30
    assert len(run.cpu_samples) >= 2


async def test_recorded_steps_explain_what_the_engine_does_not_report():
    config = FakeEngineConfig(cost=PRESETS["cpu-demo"], steps_port=0)
    async with running_engines(1, config) as (engine,):
        spec = make_spec(requests=8, prompt_tokens=300, load=OpenLoop(6.0))
        run = await measure(engine.base_url, replace(spec, steps_url=engine.steps_url))
    parts = {span.part for timeline in run.timelines for span in timeline.serving_attempt.spans}
    assert Part.PREFILL_OTHERS in parts
    assert run.engine.steps


async def test_who_started_a_run_can_stop_it():
    def stop_soon(generator: LoadGenerator) -> None:
        asyncio.get_running_loop().call_later(5.0, generator.stop)

    async with running_engines(1, FakeEngineConfig()) as (engine,):
        run = await measure(engine.base_url, make_spec(requests=500, load=OpenLoop(20.0)), stop_soon)
    assert run.cut_short
    assert 0 < len(run.timelines) < 500


@pytest.mark.parametrize("load", [ClosedLoop(2), OpenLoop(50.0)])
async def test_the_generator_reports_how_it_fared(load):
    async with running_engines(1, FakeEngineConfig()) as (engine,):
        run = await measure(engine.base_url, make_spec(requests=20, load=load))
    assert run.health.held_back == 0
    assert run.health.cpu_s > 0
    assert len(run.health.loop_lags_s) >= 1


async def test_a_gateway_shows_its_engines_counters_and_tokenizer_for_its_admin_key():
    async with running_engines(2) as engines, running_gateway(engines) as gateway:
        alone = await measure(gateway.url, make_spec())
        run = await measure(gateway.url, replace(make_spec(), admin_key=ADMIN_KEY))
    assert alone.engine is None
    assert alone.plan.fit is not None, "without keys the gateway passes /tokenize on"
    assert run.target.workers == ("w0", "w1")
    assert run.plan.fit is not None
    first, *_, last = run.engine.snapshots
    ended = last.counter("request_success_total") - first.counter("request_success_total")
    assert ended == len(run.timelines)
    assert ADMIN_KEY not in repr(run.target)


async def test_a_run_with_an_engine_out_of_service_says_so_first():
    async with running_engines(2) as engines, running_gateway(engines) as gateway:
        engines[0].die()
        await eventually(lambda: not gateway.app.gateway.cluster.is_up(worker_ref(gateway, "w0")))
        run = await measure(gateway.url, replace(make_spec(), admin_key=ADMIN_KEY))
        engines[1].die()
        await eventually(lambda: not gateway.app.gateway.cluster.is_up(worker_ref(gateway, "w1")))
        none = await measure(gateway.url, replace(make_spec(requests=2), admin_key=ADMIN_KEY))
    report, nothing = (build_report(it, DEFAULT_SLO, np.random.default_rng(1)) for it in (run, none))
    said = "At the run's end the gateway used 1 of 2 engines: not w0 (down)."
    assert report.warnings == (said,)
    assert report.notes[0] == said
    assert shown(report).index(said) < shown(report).index("Latency")
    assert shown(report).count(said) == 1
    assert nothing.warnings == (
        "At the run's end the gateway used 0 of 2 engines: not w0 (down), w1 (down).",
    )
    assert not any("--admin-key" in note for note in nothing.notes)
    assert "p90" not in shown(nothing)
    assert "2 of 2 requests were not answered: 2 no_healthy_worker" in shown(nothing)


def worker_ref(gateway, name):
    return gateway.app.gateway.cluster.state(name).worker.ref


def shown(report):
    text = StringIO()
    Console(file=text, width=200).print(render(report))
    return text.getvalue()


async def test_the_admin_key_is_not_sent_to_a_server_that_does_not_ask_for_it():
    heard = []

    def answer(asked):
        heard.append(asked)
        if asked.path == "/v1/models":
            return 200, [b'{"data": [{"id": "m"}]}']
        return 404, [b"{}"]

    async with scripted_server(answer) as url:
        client = HttpClient(url)
        target = await find_target(client, admin_key="the-admins")
        client.close()
    assert target.workers == ()
    assert not any("the-admins" in str(asked.headers) for asked in heard)
