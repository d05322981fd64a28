"""Calibrations from start to end, against fake engines whose true cost is known."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from phasewise.benchmark.calibrate.calibrate import CalibrateSpec, Course, calibrate
from phasewise.benchmark.calibrate.result import Seen
from phasewise.benchmark.calibrate.scenes import Heard, Prober, Scene
from phasewise.benchmark.target import Target, request_headers
from phasewise.clients.http_client import HttpClient
from phasewise.core.errors import EngineUnreachable, MeasurementError, UpstreamError
from phasewise.costs.fit import step_fit
from phasewise.costs.fit.step import StepCost, StepKind, decoding, prefilling
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.faults import FaultKind
from phasewise.fake_engine.fleet import running_engines
from phasewise.simulator.engine import EngineShape
from tests.real_engine import free_port

COST = StepCost(
    floor_s=12e-3,
    knee_tokens=128,
    beyond_knee_s_per_token=60e-6,
    attention_s_per_token_pair=8e-9,
    kv_read_s_per_token=0.4e-6,
    per_request_s=0.2e-3,
)
KNOWN_WORKS = (prefilling(64), prefilling(200), decoding([50]))


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    """How far coefficients would move is tried elsewhere, and takes most of a fit's time."""
    monkeypatch.setattr(step_fit, "DRAWS", 3)


@asynccontextmanager
async def engine(**options):
    async with running_engines(1, FakeEngineConfig(cost=COST, steps_port=0, **options)) as (one,):
        yield one


def spec_of(one, budget_s=3.0, **more):
    return CalibrateSpec(**{"budget_s": budget_s, "steps_url": one.steps_url, "seed": 5, **more})


def nowhere():
    return f"http://127.0.0.1:{free_port()}"


class Seeing(Course):
    """A course that keeps its progress reports and ends after this many."""

    def __init__(self, looks=10**9):
        super().__init__()
        self.reported, self._looks = [], looks

    def notify(self, progress):
        self.reported.append(progress)
        if len(self.reported) >= self._looks:
            self.stop()


async def test_the_cost_is_found_again_from_the_step_record():
    seeing = Seeing()
    async with engine() as one:
        found = await calibrate(one.base_url, spec_of(one), seeing)
    assert found.seen is Seen.STEPS
    assert (found.model, found.url, found.seed) == (one.model, one.base_url, 5)
    assert found.fit.cost.floor_s == pytest.approx(COST.floor_s, rel=0.15)
    for work in KNOWN_WORKS:
        assert found.fit.predict(work).seconds == pytest.approx(COST(work), rel=0.15)
    assert found.fit.predict(prefilling(8192)) is None
    # The record knows nothing of it: prompts that ran alone show it to their clients.
    assert 0 < found.fit.fitted.front_end_s < 0.1
    assert found.fit.held_out_error(StepKind.DECODE) < 0.15
    assert found.rounds >= 1
    # The step that was under way when the record was read last may lack its end.
    assert found.unreported <= 0.2 * found.fit.observations
    assert_reports_progress(seeing.reported)


def assert_reports_progress(reported):
    assert [each.elapsed_s for each in reported] == sorted(each.elapsed_s for each in reported)
    assert reported[0].done == "0 scenes played"
    assert reported[-1].elapsed_s >= reported[-1].budget_s == 3.0


async def test_without_a_recorder_the_client_s_own_times_are_fitted():
    async with engine() as one:
        found = await calibrate(one.base_url, spec_of(one, budget_s=5.0, steps_url=nowhere()))
    assert found.seen is Seen.CLIENT
    assert found.unreported == 0
    # Engine and client share a process here, on a machine that may be busy.
    for work in KNOWN_WORKS:
        assert found.fit.cost(work) == pytest.approx(COST(work), rel=0.5)
    assert found.fit.fitted.front_end_s >= 0


async def test_it_can_be_ended_early_and_fits_what_was_seen():
    seeing = Seeing(looks=12)
    async with engine() as one:
        found = await calibrate(one.base_url, spec_of(one, budget_s=600.0), seeing)
    assert found.took_s < 60
    assert len(seeing.reported) == 12
    assert found.fit.cost.floor_s == pytest.approx(COST.floor_s, rel=0.1)


async def test_one_that_ends_before_anything_was_seen_says_so():
    async with engine() as one:
        with pytest.raises(MeasurementError, match="too few for a fit") as caught:
            await calibrate(one.base_url, spec_of(one), Seeing(looks=1))
    assert "longer" in caught.value.hint


async def test_an_engine_with_a_tiny_context_is_calibrated_within_it():
    shape = EngineShape(max_model_len=256)
    async with engine(shape=shape) as one:
        found = await calibrate(one.base_url, spec_of(one, budget_s=2.0))
    assert found.fit.cost.floor_s == pytest.approx(COST.floor_s, rel=0.1)


async def test_other_traffic_does_not_spoil_the_fit():
    """Its steps are used if its requests finish within the record, and left out otherwise."""
    async with engine() as one:
        others = asyncio.create_task(foreign_traffic(one.base_url, one.model))
        found = await calibrate(one.base_url, spec_of(one))
        others.cancel()
        await asyncio.gather(others, return_exceptions=True)
    assert found.seen is Seen.STEPS
    assert found.fit.cost.floor_s == pytest.approx(COST.floor_s, rel=0.1)
    assert found.fit.cost(prefilling(200)) == pytest.approx(COST(prefilling(200)), rel=0.1)


async def foreign_traffic(url, model):
    client = HttpClient(url)
    try:
        while True:
            await prober(client, url, model).play(Scene(1, 80, (40,)))
    finally:
        client.close()


def prober(client, url, model):
    from random import Random

    return Prober(client, Target(url, model, headers=request_headers(None)), Random(99))  # noqa: S311 - no secret


async def test_steps_of_requests_that_were_cut_off_are_counted_as_unreported():
    async with engine() as one:
        client = HttpClient(one.base_url)
        cut = asyncio.create_task(prober(client, one.base_url, one.model)._ask(Heard(64, 4_000)))
        await asyncio.sleep(0.5)
        stopping = asyncio.get_running_loop().call_later(1.0, cut.cancel)
        found = await calibrate(one.base_url, spec_of(one))
        stopping.cancel()
        client.close()
        await asyncio.gather(cut, return_exceptions=True)
    assert found.unreported > 10
    assert found.fit.cost.floor_s == pytest.approx(COST.floor_s, rel=0.1)


@pytest.mark.parametrize("kind", [FaultKind.DIE, FaultKind.CUT])
async def test_an_engine_that_breaks_off_midway_is_an_error_in_words(kind):
    async with engine() as one:
        one.inject(kind, after_tokens=40 if kind is FaultKind.DIE else 3)
        with pytest.raises(UpstreamError, match=f"{one.base_url} cut off a prompt") as caught:
            await calibrate(one.base_url, spec_of(one))
    assert "log" in caught.value.hint


async def test_the_error_for_an_address_without_completions_says_what_is_needed():
    async with engine() as one:
        one.inject(FaultKind.ERROR)
        with pytest.raises(MeasurementError, match="answered 500") as caught:
            await calibrate(one.base_url, spec_of(one))
    assert "engine's own address" in caught.value.hint


async def test_listening_alone_sends_nothing_and_fits_the_traffic_of_others():
    async with engine() as one:
        client = HttpClient(one.base_url)
        others = prober(client, one.base_url, one.model)
        for scene in (
            *(Scene(arrivals=(tokens,)) for tokens in (16, 40, 100, 300, 600)),
            Scene(2, 40, (64, 400)),
        ):
            await others.play(scene)
        client.close()
        before = one.requests_finished
        found = await calibrate(one.base_url, spec_of(one, budget_s=0.5, listens=True))
        assert one.requests_finished == before
    assert found.rounds == 0
    # The engine's steps were made on this machine's clock: beside other work they take longer.
    assert 0.8 * COST.floor_s < found.fit.cost.floor_s < 2 * COST.floor_s


async def test_listening_needs_the_recorder():
    async with engine() as one:
        with pytest.raises(MeasurementError, match="step recorder") as caught:
            await calibrate(one.base_url, spec_of(one, listens=True, steps_url=nowhere()))
    assert "--listen" in caught.value.hint


async def test_nothing_at_the_address_is_said_at_once():
    with pytest.raises(EngineUnreachable, match="nothing answers"):
        await calibrate(nowhere(), CalibrateSpec(budget_s=60.0))


def test_a_key_never_shows_in_what_is_printed_of_a_spec():
    assert "secret" not in repr(CalibrateSpec(api_key="secret"))
