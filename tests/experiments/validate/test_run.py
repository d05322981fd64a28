"""A whole validation on fake engines: figures, verdicts, time limits, Ctrl-C, engines that do not start."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from phasewise.core.errors import FleetError, MeasurementError
from phasewise.costs.fit import step_fit
from phasewise.costs.fit.step import StepCost
from phasewise.experiments.calibrate.calibrate import calibrate
from phasewise.experiments.lever_runs.engines import RunningEngine, running_engines
from phasewise.experiments.validate import run as validation
from phasewise.experiments.validate import sizes
from phasewise.experiments.validate.claims import judge_claims
from phasewise.experiments.validate.crosscheck import own_run
from phasewise.experiments.validate.plan import Step, chosen_steps
from phasewise.experiments.validate.private import PrivateNames
from phasewise.experiments.validate.record import Outcome
from phasewise.experiments.validate.run import ValidationRun, ValidationTools
from phasewise.fake_engine.engine import FakeEngine, FakeEngineConfig
from phasewise.loadgen.session import RunSpec, measure
from phasewise.loadgen.statistics import window as validity
from phasewise.simulator.engine import EngineShape
from tests.real_engine import free_port

COST = StepCost(
    floor_s=4e-3,
    knee_tokens=96,
    beyond_knee_s_per_token=54e-6,
    attention_s_per_token_pair=8e-9,
    kv_read_s_per_token=0.1e-6,
    per_request_s=0.05e-3,
)


@pytest.fixture(autouse=True)
def short_form(monkeypatch):
    monkeypatch.setattr(step_fit, "DRAWS", 3)
    monkeypatch.setattr(sizes, "WINDOW_S", 1.0)
    monkeypatch.setattr(validation, "BENCH_RUN_S", 0.5)
    monkeypatch.setattr(validation, "CALIBRATION_S", 3.0)
    monkeypatch.setattr(validation, "EFFORT", replace(validation.EFFORT, pairs=4, block_s=0.2))
    monkeypatch.setattr(validity, "_shown", lambda *lags: "")


def steps_port_of(port):
    return port + 10_000


def shape_of(levers):
    given = EngineShape(max_model_len=8192)
    changed = {
        "max_num_seqs": levers.max_num_seqs,
        "max_num_batched_tokens": levers.max_num_batched_tokens,
        "prefix_cache": levers.prefix_cache,
    }
    return replace(given, **{name: value for name, value in changed.items() if value is not None})


class Fakes:
    """Fake engines in the place of fleets; those named in `broken` do not start."""

    def __init__(self, *broken):
        self.broken, self.started, self.stopped = broken, [], []

    @asynccontextmanager
    async def launch(self, spec):
        self.started.append(spec.name)
        if spec.name in self.broken:
            raise FleetError(
                "`phasewise up /tmp/secret/x.yaml` failed: CUDA out of memory", hint="run it alone"
            )
        while (port := free_port()) > 50_000:
            pass
        config = FakeEngineConfig(
            port=port, steps_port=steps_port_of(port), cost=COST, shape=shape_of(spec.levers)
        )
        engine = FakeEngine(config)
        await engine.start()
        try:
            yield RunningEngine(spec, engine.base_url)
        finally:
            await engine.stop()
            self.stopped.append(spec.name)


async def fake_vllm_bench(url, load, seed):
    return own_run(await measure(url, RunSpec(load.plan, seed)))


async def measured(url, spec, label):
    return await measure(url, spec)


async def run_on(fakes, only=(), minutes=10.0, said=None, **tools):
    async with running_engines(fakes.launch, 2, lambda words: None) as engines:
        given = {
            "engines": engines,
            "check": lambda: ("a note about /home/alice",),
            "measure": measured,
            "vllm_bench": fake_vllm_bench,
            "calibrate": calibrate,
            "say": (lambda words: None) if said is None else said.append,
            "private": PrivateNames(("gpu-box", "alice")),
            "stopped": lambda: False,
            "forgives": lambda: False,
        }
        run = ValidationRun(chosen_steps(only), 60 * minutes, 8192, 1)
        await run.run(ValidationTools(**(given | tools)))
    return run


def why(run, step):
    (found,) = [it for it in run.results if it.step == step]
    return "" if found.done else found.why


async def test_a_whole_run_has_figures_for_every_claim_and_stops_what_it_started():
    """Which verdicts come out on this machine's wall clock is tried on the real engine."""
    fakes, said = Fakes(), []
    run = await run_on(fakes, said=said)
    assert [(it.step, it.why) for it in run.results if not it.done] == []
    assert [
        it.claim for it in judge_claims(run.measured, run.results) if it.outcome is Outcome.NOT_TRIED
    ] == []
    assert [it.fault for it in run.measured.faults] == [
        "healthy",
        "long_prompts",
        "prefix_cache_off",
        "batch_cap_too_low",
    ]
    long = run.measured.fault("long_prompts")
    assert long.ttft_p50_ms > long.objective_ms["ttft"]
    assert [it.lever for it in run.measured.levers] == ["prefix_cache", "chunk_size"]
    assert sorted(fakes.started) == ["base", "chunk-512", "one-at-a-time", "prefix-cache"]
    assert sorted(fakes.stopped) == sorted(fakes.started)
    assert any("[2/9] bench (at most" in words for words in said)


async def test_an_engine_that_does_not_start_is_reported_with_what_to_do_and_others_go_on():
    fakes = Fakes("chunk-512")
    run = await run_on(fakes, only=["levers"])
    assert why(run, Step.PREFIX_CACHE) == ""
    assert "CUDA out of memory" in why(run, Step.CHUNK_SIZE)
    assert "--kv-cache-memory-bytes" in why(run, Step.CHUNK_SIZE)
    assert "secret" not in why(run, Step.CHUNK_SIZE)


async def test_the_base_engine_is_started_once_even_if_it_fails():
    fakes = Fakes("base")
    run = await run_on(fakes, only=["bench", "calibration"])
    assert fakes.started == ["base"]
    assert {it.outcome for it in judge_claims(run.measured, run.results)} == {Outcome.NOT_TRIED}


async def test_faults_without_a_calibration_are_not_tried_and_say_why():
    async def failing(url, spec):
        raise MeasurementError("12 steps are too few for a fit of gpu-box", hint="measure for longer")

    run = await run_on(Fakes(), only=["faults"], calibrate=failing)
    assert why(run, Step.CALIBRATION) == "12 steps are too few for a fit of (private); measure for longer"
    assert "calibration" in why(run, Step.LONG_PROMPTS)


async def test_a_step_that_takes_too_long_is_cut_and_its_figures_so_far_are_kept(monkeypatch):
    monkeypatch.setattr(validation, "LEAST_S", 0.0)

    async def endless(url, load, seed):
        await asyncio.sleep(60)

    fakes = Fakes()
    run = await run_on(fakes, only=["bench"], minutes=0.03, vllm_bench=endless)
    assert "longer than" in why(run, Step.BENCH)
    assert fakes.stopped == ["base"]


async def test_a_step_without_time_is_not_begun():
    fakes = Fakes()
    run = await run_on(fakes, only=["bench", "levers"], minutes=0.1)
    assert "more --minutes" in why(run, Step.CHUNK_SIZE)
    assert fakes.started == []


async def test_ctrl_c_keeps_what_was_measured_and_stops_the_engines():
    stopped = []

    async def interrupted(url, load, seed):
        stopped.append(True)
        raise asyncio.CancelledError

    fakes = Fakes()
    run = await run_on(
        fakes, vllm_bench=interrupted, stopped=lambda: bool(stopped), forgives=lambda: bool(stopped)
    )
    assert run.interrupted
    assert {why(run, step) for step in Step} == {"", "the run was interrupted"}
    assert fakes.stopped == ["base"]


async def test_a_measurement_that_ctrl_c_cut_short_is_not_used():
    async def cut(url, spec, label):
        return replace(await measure(url, spec), cut_short=True)

    run = await run_on(Fakes(), only=["bench"], measure=cut)
    assert run.interrupted
    assert run.measured.bench is None


async def test_notes_are_cleaned():
    run = await run_on(Fakes(), only=["environment"])
    assert run.results[0].notes == ("a note about (path)",)


@pytest.mark.parametrize(("left_s", "block_s", "pairs"), [(200.0, 2.0, 6), (200.0, 15.0, 4), (60.0, 30.0, 4)])
def test_a_slow_machine_measures_fewer_pairs_of_a_lever(monkeypatch, left_s, block_s, pairs):
    monkeypatch.setattr(validation, "EFFORT", replace(validation.EFFORT, pairs=6))
    assert validation.pairs_in(left_s, block_s) == pairs
