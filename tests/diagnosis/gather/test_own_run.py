"""A load of our own is judged by our own clock, with what the gateway and the engines saw joined to it."""

from dataclasses import replace

import pytest

from phasewise.benchmark.session import RunSpec, measure
from phasewise.benchmark.workload.arrivals import OpenLoop
from phasewise.benchmark.workload.plan import PlanSpec
from phasewise.benchmark.workload.presets import Lengths, Shape
from phasewise.core.latency import ttft_breakdown
from phasewise.core.slo import DEFAULT_SLO
from phasewise.core.timeline import Part, Source
from phasewise.diagnosis.diagnose import Known, diagnose
from phasewise.diagnosis.finding import Cause
from phasewise.diagnosis.gather.own_run import joined, observed
from phasewise.diagnosis.gather.target import identify
from phasewise.diagnosis.verdict import Ruling
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import WorkerConfig
from tests.builders import make_attempt, make_span, make_timeline
from tests.gateway.harness import ADMIN_KEY, running_gateway

SPEC = RunSpec(
    PlanSpec(Shape("small", Lengths.fixed(40), Lengths.fixed(6)), OpenLoop(40.0), requests=6), seed=1
)


async def observe(url, admin_key=None, steps_url=None):
    target = await identify(url, admin_key, steps_url)
    async with observed(target, admin_key) as watch:
        run = await measure(url, replace(SPEC, steps_url=steps_url))
        return run, await watch.evidence(run)


async def test_a_run_through_a_gateway_has_the_lag_of_its_client_and_the_steps_of_its_engines():
    async with running_engines(2) as engines, running_gateway(engines) as gateway:
        run, evidence = await observe(gateway.url, ADMIN_KEY)
    assert [it.request_id for it in evidence.timelines] == [it.request_id for it in run.timelines]
    served_by = {it.serving_attempt.worker.name for it in evidence.timelines}
    assert served_by <= set(evidence.logs)
    parts = {span.part for it in evidence.timelines for span in it.spans}
    assert {Part.CLIENT_LAG, Part.GATEWAY_WAIT} <= parts
    assert evidence.seen_by == "the load generator and the gateway"
    summary = diagnose(evidence, DEFAULT_SLO, Known()).summary
    assert summary.start.step_timed > 0
    assert not any("of other clients" in note for note in summary.not_observed)


async def test_a_run_on_an_engine_is_judged_by_the_clients_own_timelines():
    async with running_engines(1) as (engine,):
        run, evidence = await observe(engine.base_url, steps_url=engine.steps_url)
    assert evidence.timelines == run.timelines
    assert diagnose(evidence, DEFAULT_SLO, Known()).summary.start.step_timed > 0


def test_the_way_to_the_gateway_stays_in_the_unexplained():
    lag = make_span(Part.CLIENT_LAG, 0.1, Source.CLIENT_CLOCK)
    own = make_timeline((1.0, 1.1), request_id="bench-1", spans=(lag,))
    wait = make_span(Part.GATEWAY_WAIT, 0.2, Source.GATEWAY_CLOCK, start_s=0.0)
    prefill = make_span(Part.PREFILL, 0.5)
    passed = make_timeline(
        (0.75, 0.85),
        request_id="req-9",
        client_request_id="bench-1",
        started_unix_s=own.started_unix_s + 0.15,
        spans=(wait,),
        attempts=(make_attempt((prefill,), worker="main-0"),),
    )
    (whole,) = joined([own], [passed])
    assert whole.serving_attempt.worker.name == "main-0"
    assert whole.serving_attempt.started_s == pytest.approx(0.15)
    assert whole.spans[1].start_s == pytest.approx(0.15)
    found = ttft_breakdown(whole)
    assert found.ttft_s == 1.0
    assert found.unexplained_s == pytest.approx(1.0 - 0.1 - 0.2 - 0.5)


def test_a_request_that_the_gateway_never_saw_stays_as_it_is():
    own = make_timeline(request_id="bench-1")
    assert joined([own], [make_timeline(client_request_id="bench-2")]) == (own,)


async def test_requests_of_others_are_reported():
    async with running_engines(1) as (engine,), running_gateway([engine]) as gateway:
        target = await identify(gateway.url, ADMIN_KEY)
        async with observed(target, ADMIN_KEY) as watch:
            run = await measure(gateway.url, SPEC)
            await measure(gateway.url, SPEC)
            evidence = await watch.evidence(run)
    (note,) = [note for note in evidence.not_observed if "of other clients" in note]
    assert note.startswith("7 requests"), "and one that asked whether lengths may be fixed"
    assert len(evidence.timelines) == 6


async def test_requests_to_a_dead_engine_are_explained_by_the_gateway_and_the_engine_is_named():
    dead = WorkerConfig(name="a", url="http://127.0.0.1:9", model="fake-model")
    async with running_gateway([dead]) as gateway:
        run, evidence = await observe(gateway.url, ADMIN_KEY)
    assert {timeline.reason for timeline in run.timelines} == {"no_healthy_worker"}
    assert "a is down" in run.rejections["no_healthy_worker"]
    verdict = diagnose(evidence, DEFAULT_SLO, Known())
    assert verdict.ruling is Ruling.FAILING
    assert [found.cause for found in verdict.findings] == [Cause.ENGINE_DOWN]
    first, second = (fact.words for fact in verdict.top.facts)
    assert first.startswith("a is down for ")
    assert first.endswith("(http://127.0.0.1:9 cannot be reached (Connection refused))")
    assert second == "6 of 6 requests were not served: no_healthy_worker (6)"
    assert any(
        note.startswith("a, which the gateway does not use: it is down") for note in evidence.not_observed
    )
