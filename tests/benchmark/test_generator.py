# ruff: noqa: S311 - seeds make tests repeat, they keep no secrets
from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import orjson
import pytest

from phasewise.benchmark.generator import LoadGenerator, RunLimits, RunProgress
from phasewise.benchmark.run import BenchRun
from phasewise.benchmark.target import Target, find_target, fit_prompts
from phasewise.benchmark.workload.arrivals import ClosedLoop, Load, OpenLoop, Spacing
from phasewise.benchmark.workload.drafts import Conversations
from phasewise.benchmark.workload.plan import Plan, PlanSpec, make_plan
from phasewise.benchmark.workload.presets import Lengths, Shape
from phasewise.clients.http_client import HttpClient
from phasewise.core.latency import e2e_s, tpot_s, ttft_breakdown, ttft_s
from phasewise.core.timeline import AttemptKind, Outcome, Part, Source
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.faults import Fault, FaultKind
from phasewise.fake_engine.fleet import running_engines
from tests.benchmark.scripted_server import CLOSE, HANG, Asked, content, event, scripted_server

DONE = b"data: [DONE]\n\n"


def make_run_plan(load: Load | None = None, requests: int = 4, output_tokens: int = 6, **more) -> Plan:
    shape = Shape("test.", Lengths.fixed(60), Lengths.fixed(output_tokens))
    return make_plan(PlanSpec(shape, load or ClosedLoop(2), requests, **more), Random(1))


async def measure(url: str, plan: Plan, model: str = "fake-model", **more) -> BenchRun:
    client = HttpClient(url)
    try:
        return await LoadGenerator(client, Target(url, model), plan, "run", **more).run()
    finally:
        client.close()


async def until(seen: Callable[[], bool]) -> None:
    """Wait for something, for as long as a busy machine may take."""
    async with asyncio.timeout(60):
        while not seen():  # noqa: ASYNC110 - what is waited for raises no event
            await asyncio.sleep(0.005)


async def measure_script(answer, plan: Plan | None = None, **more) -> BenchRun:
    async with scripted_server(answer) as url:
        return await measure(url, plan or make_run_plan(requests=1), **more)


@pytest.mark.parametrize("load", [ClosedLoop(2), OpenLoop(200.0)])
async def test_every_request_becomes_a_timeline_with_the_engines_own_account(load):
    async with running_engines(1) as (engine,):
        client = HttpClient(engine.base_url)
        target = await find_target(client)
        plan = await fit_prompts(client, target, make_run_plan(load), Random(0))
        run = await LoadGenerator(client, target, plan, "run").run()
        client.close()
    assert plan.exact_prompts
    assert (len(run.timelines), run.unsent, run.cut_short, run.fixed_lengths) == (4, 0, False, True)
    for timeline in run.timelines:
        (attempt,) = timeline.attempts
        assert timeline.outcome is attempt.outcome is Outcome.SUCCEEDED
        assert (timeline.prompt_tokens, timeline.output_tokens) == (60, 6)
        assert (attempt.kind, attempt.worker.name) == (AttemptKind.LOCAL, engine.base_url)
        assert attempt.engine_request_id == f"chatcmpl-{timeline.request_id}"
        assert {span.source for span in attempt.spans} == {Source.ENGINE_REPORT}
        assert len(timeline.content_times_s) == 6
        assert ttft_s(timeline) + 5 * tpot_s(timeline) == pytest.approx(e2e_s(timeline))
        assert ttft_breakdown(timeline).seconds(Part.CLIENT_LAG) >= 0
    seen = {span.part for timeline in run.timelines for span in timeline.attempts[0].spans}
    assert seen == {Part.ENGINE_QUEUE, Part.PREFILL, Part.DECODE}


async def test_an_open_loop_sends_on_time_and_does_not_wait_for_replies():
    asked_for: list[Asked] = []

    def answer(asked: Asked):
        asked_for.append(asked)
        return 200, [content(), HANG]

    plan = make_run_plan(OpenLoop(50.0, Spacing.CONSTANT), requests=5)
    async with scripted_server(answer) as url:
        client = HttpClient(url)
        generator = LoadGenerator(client, Target(url, "m"), plan, "run")
        running = asyncio.create_task(generator.run())
        # None is ever answered whole: a loop that waited for a reply would stay at its first request.
        await until(lambda: len(asked_for) == 5)
        assert generator.progress().in_flight == 5
        generator.stop()
        run = await running
        client.close()
    starts_s = [timeline.started_unix_s - run.timelines[0].started_unix_s for timeline in run.timelines]
    assert starts_s == pytest.approx([0.0, 0.02, 0.04, 0.06, 0.08], abs=1e-6)


async def test_a_late_generator_shows_as_lag_not_as_a_later_start():
    def answer(asked: Asked):
        return 200, [content(), *[b": wait\n\n"] * 50, content(finish_reason="stop"), DONE]

    plan = make_run_plan(OpenLoop(1000.0, Spacing.CONSTANT), requests=3)
    run = await measure_script(answer, plan, limits=RunLimits(in_flight=1))
    lags_s = [timeline.spans[0].duration_s for timeline in run.timelines]
    assert [timeline.spans[0].part for timeline in run.timelines] == [Part.CLIENT_LAG] * 3
    assert lags_s[1] > 0.08
    assert lags_s[2] > 0.16
    assert ttft_s(run.timelines[2]) > lags_s[2]


async def test_a_closed_loop_never_has_more_open_than_asked():
    seen: list[RunProgress] = []

    def answer(asked: Asked):
        seen.append(generator.progress())
        return 200, [content(finish_reason="stop"), DONE]

    async with scripted_server(answer) as url:
        client = HttpClient(url)
        generator = LoadGenerator(client, Target(url, "m"), make_run_plan(ClosedLoop(3), 9), "run")
        await generator.run()
        client.close()
    assert max(progress.in_flight for progress in seen) == 3
    assert [progress.planned for progress in seen] == [9] * 9
    last = generator.progress()
    assert (last.done, last.in_flight, last.failed) == (9, 0, 0)
    assert last.ttft_s > 0


async def test_a_later_turn_carries_the_real_reply_and_waits_for_it():
    asked: list[Asked] = []

    def answer(request: Asked):
        asked.append(request)
        word = f"reply{len(asked)}"
        return 200, [content(word), content(" end", finish_reason="stop"), DONE]

    shape = Shape("test.", Lengths.fixed(60), Lengths.fixed(6))
    spec = PlanSpec(shape, ClosedLoop(1), requests=3, conversations=Conversations(turns=3, think_s=0.05))
    run = await measure_script(answer, make_plan(spec, Random(1)))
    assert [len(request.body["messages"]) for request in asked] == [1, 3, 5]
    assert asked[2].body["messages"][:2] == asked[1].body["messages"][:2]
    assert asked[2].body["messages"][3] == {"role": "assistant", "content": "reply2 end"}
    ends_s = [timeline.started_unix_s + timeline.ended_s for timeline in run.timelines]
    assert run.timelines[1].started_unix_s > ends_s[0]
    assert ttft_s(run.timelines[1]) < 1.0, "thinking is no part of the wait"


async def test_a_conversation_ends_with_a_turn_that_fails():
    def answer(request: Asked):
        return (
            (200, [content(finish_reason="stop"), DONE]) if len(request.body["messages"]) < 3 else (500, [])
        )

    shape = Shape("test.", Lengths.fixed(60), Lengths.fixed(6))
    spec = PlanSpec(shape, OpenLoop(100.0), requests=3, conversations=Conversations(turns=3, think_s=0.0))
    run = await measure_script(answer, make_plan(spec, Random(1)))
    assert [timeline.reason for timeline in run.timelines] == [None, "http_500"]
    assert run.unsent == 1


async def test_the_gateways_own_rejections_are_counted_by_code_and_kept_in_words():
    words = "no worker of the model 'm' answers: a is down"
    body = orjson.dumps({"error": {"code": "no_healthy_worker", "message": words}})
    run = await measure_script(lambda _asked: (503, [body]), make_run_plan(ClosedLoop(1), 3))
    assert [timeline.reason for timeline in run.timelines] == ["no_healthy_worker"] * 3
    assert run.rejections == {"no_healthy_worker": words}


@pytest.mark.parametrize(
    "error", [{"code": 400, "message": "a prompt"}, {"code": "odd", "message": "a prompt"}, "x"]
)
async def test_the_words_of_other_servers_are_not_kept_because_they_may_quote_a_prompt(error):
    body = orjson.dumps({"error": error})
    run = await measure_script(lambda _asked: (400, [body]), make_run_plan(ClosedLoop(1), 1))
    assert [timeline.reason for timeline in run.timelines] == ["http_400"]
    assert not run.rejections


async def test_a_closed_loop_ends_with_its_time():
    def answer(asked: Asked):
        return 200, [content(finish_reason="stop"), *[b": wait\n\n"] * 20, DONE]

    run = await measure_script(answer, make_run_plan(ClosedLoop(1), 100, duration_s=0.5))
    *earlier_s, last_s = [
        timeline.started_unix_s + timeline.ended_s - run.started_unix_s for timeline in run.timelines
    ]
    # Another request is sent for as long as the one before it ended within the time, and none after.
    assert all(end_s < 0.5 + 1e-3 for end_s in earlier_s)
    assert last_s >= 0.5 - 1e-3
    assert run.unsent == 100 - len(run.timelines)
    assert not run.cut_short


async def test_outputs_are_fixed_in_length_and_the_request_is_named():
    asked: list[Asked] = []

    def answer(request: Asked):
        asked.append(request)
        return 200, [content(finish_reason="length"), DONE]

    await measure_script(answer)
    (request,) = asked
    assert request.path == "/v1/chat/completions"
    assert request.headers["x-request-id"] == "run-0"
    assert (request.body["max_tokens"], request.body["min_tokens"], request.body["ignore_eos"]) == (
        6,
        6,
        True,
    )
    assert (request.body["temperature"], request.body["stream"]) == (0, True)
    assert request.body["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("status", "pieces", "outcome", "reason"),
    [
        (500, [b"{}"], Outcome.FAILED, "http_500"),
        (400, [b"{}"], Outcome.FAILED, "http_400"),
        (429, [b"{}"], Outcome.FAILED, "http_429"),
        (200, [content(), event(error={"type": "InternalServerError"})], Outcome.FAILED, "engine_error"),
        (200, [content(), CLOSE], Outcome.FAILED, "closed"),
        (200, [content()], Outcome.FAILED, "cut_off"),
        (200, [content(), HANG], Outcome.TIMED_OUT, "timed_out"),
    ],
)
async def test_failures_are_timelines_too(status, pieces, outcome, reason):
    # Only what never ends may run into the limit: on a busy machine the others take their time.
    limits = RunLimits(request_s=2.0 if HANG in pieces else 60.0)
    run = await measure_script(lambda asked: (status, pieces), limits=limits)
    (timeline,) = run.timelines
    assert (timeline.outcome, timeline.reason) == (outcome, reason)
    assert e2e_s(timeline) is None
    assert (ttft_s(timeline) is not None) == (status == 200)
    assert all(attempt.outcome is not Outcome.SUCCEEDED for attempt in timeline.attempts)


async def test_an_engine_that_dies_leaves_timelines_of_what_it_did():
    config = FakeEngineConfig(faults=(Fault(FaultKind.DIE, after_tokens=10),))
    async with running_engines(1, config) as (engine,):
        run = await measure(engine.base_url, make_run_plan(ClosedLoop(2), 6, output_tokens=8))
    assert len(run.timelines) == 6
    assert {timeline.reason for timeline in run.timelines} <= {None, "closed", "connection_refused"}
    assert "connection_refused" in {timeline.reason for timeline in run.timelines}


@pytest.mark.parametrize(("load", "in_flight"), [(ClosedLoop(2), 2), (OpenLoop(1000.0), 3)])
async def test_a_stopped_run_keeps_what_it_measured(load, in_flight):
    hanging: list[str] = []

    def pieces(request_id: str):
        yield content()
        if request_id != "run-0":
            hanging.append(request_id)
            yield HANG
        yield content(finish_reason="stop")
        yield DONE

    async with scripted_server(lambda asked: (200, pieces(asked.headers["x-request-id"]))) as url:
        client = HttpClient(url)
        generator = LoadGenerator(client, Target(url, "m"), make_run_plan(load, 4), "run")
        running = asyncio.create_task(generator.run())
        await until(lambda: generator.progress().done == 1 and len(hanging) == in_flight)
        for _ in range(20):  # What the server has written is read within a few turns of the loop.
            await asyncio.sleep(0)
        generator.stop()
        async with asyncio.timeout(60):
            run = await running
        client.close()
    outcomes = [timeline.outcome for timeline in run.timelines]
    assert run.cut_short
    assert outcomes.count(Outcome.SUCCEEDED) == 1
    assert {timeline.reason for timeline in run.timelines} == {None, "cut_short"}
    assert all(timeline.content_times_s for timeline in run.timelines)


async def test_a_cancelled_run_leaves_nothing_in_flight():
    async with scripted_server(lambda asked: (200, [content(), HANG])) as url:
        client = HttpClient(url)
        generator = LoadGenerator(client, Target(url, "m"), make_run_plan(), "run")
        running = asyncio.create_task(generator.run())
        await asyncio.sleep(0.1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert len(asyncio.all_tasks()) <= 4, "only the server's own tasks are left"
        client.close()
