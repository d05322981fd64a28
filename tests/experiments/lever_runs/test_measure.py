"""Cases measured on fake engines: what is kept, what is left out the next time, what an error costs."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from phasewise.core.errors import EngineStartFailed, MeasurementError
from phasewise.core.timeline import Outcome
from phasewise.experiments.lever_runs import measure as procedure
from phasewise.experiments.lever_runs.engine_facts import read_facts
from phasewise.experiments.lever_runs.engines import RunningEngine, running_engines
from phasewise.experiments.lever_runs.measure import LeverRun, LeverTools, StoppedEarly
from phasewise.experiments.levers.agenda import QUICK
from phasewise.experiments.levers.cases import BASE, PAGED_KV, RESTARTED
from phasewise.experiments.levers.catalogue import EngineSpec, StaticBatches
from phasewise.experiments.levers.results import Outputs, open_results
from phasewise.fake_engine.engine import FakeEngine, FakeEngineConfig
from phasewise.fleet.config import Levers
from phasewise.loadgen import session
from phasewise.loadgen.statistics import window as validity
from tests.experiments.levers.builders import (
    EQUAL_ANSWERS,
    PAGING,
    make_case,
    make_circumstances,
    make_row,
    make_workload,
)

EFFORT = replace(QUICK, block_s=0.01)
CASE = make_case(off=BASE, on=EngineSpec("cache", "cache on", Levers(prefix_cache=True)))


@pytest.fixture(autouse=True)
def never_void(monkeypatch):
    """A busy machine may make the generator late; what is tried here are the steps of a run."""
    monkeypatch.setattr(validity, "_shown", lambda *lags: "")


async def measure(url, spec):
    """A block; a stranger may listen where the steps of an engine at a random port are looked for."""
    return await session.measure(url, replace(spec, steps_url=url))


@asynccontextmanager
async def launch_fake(spec):
    if spec.name == "broken":
        raise EngineStartFailed("the model does not fit", hint="take a smaller one")
    engine = FakeEngine(FakeEngineConfig())
    await engine.start()
    try:
        yield RunningEngine(spec, engine.base_url)
    finally:
        await engine.stop()


@asynccontextmanager
async def without_handicap(spec, url):
    yield url


class Bench:
    """Runs the procedure on fake engines and counts the blocks."""

    def __init__(self, home, effort=EFFORT, **tools):
        self.effort = effort
        self.home, self.blocks, self.said, self.tools = home, [], [], tools

    async def _measure(self, url, spec, label):
        self.blocks.append(label)
        return await measure(url, spec)

    async def _outputs(self, case, off_url, on_url, effort):
        return EQUAL_ANSWERS

    async def run(self, *cases):
        file = open_results(self.home, make_circumstances(), again=False)
        given = {
            "measure": self._measure,
            "handicapped": without_handicap,
            "outputs": self._outputs,
            "facts": read_facts,
            "say": self.said.append,
        }
        async with running_engines(launch_fake, 2, self.said.append) as engines:
            await LeverRun(cases, self.effort, file, engines, LeverTools(**(given | self.tools))).run()
        return file.results


async def test_a_row_has_a_verdict_per_figure_and_the_engines_their_kv_capacity(tmp_path):
    bench = Bench(tmp_path)
    results = await bench.run(CASE)
    (measured,) = results.rows.values()
    assert [effect.metric for effect in measured.effects] == ["ttft_p50", "tpot_p50", "throughput"]
    assert measured.pairs == EFFORT.pairs
    facts = results.cases[CASE.engines_key]
    assert facts.outputs == EQUAL_ANSWERS
    assert facts.kv_tokens_off == facts.kv_tokens_on > 0
    assert {*results.floors} == {CASE.rows[0].workload.key}
    trials, warm_ups, rows, floors = 2 + 1, 2, 2 * EFFORT.pairs, 2 * EFFORT.pairs
    assert len(bench.blocks) == trials + warm_ups + rows + floors
    assert sum("warm-up" in label for label in bench.blocks) == warm_ups, "the base engine is warm by then"
    assert any(words.startswith("[1/2] the lever, few tokens (about") for words in bench.said)


async def test_a_second_run_measures_only_what_is_new(tmp_path):
    await Bench(tmp_path).run(CASE)
    again = Bench(tmp_path)
    await again.run(CASE)
    assert again.blocks == []
    grown = replace(CASE, rows=(*CASE.rows, make_row(make_workload("more tokens", output=5))))
    results = await again.run(grown)
    assert len(results.rows) == 2
    assert all("more tokens" in label for label in again.blocks)


async def test_a_block_that_was_cut_short_ends_the_run_and_leaves_its_row_out(tmp_path):
    second = make_row(make_workload("more tokens", output=5))

    async def measure_until_stopped(url, spec, label):
        run = await measure(url, spec)
        return replace(run, cut_short="more tokens, pair 2" in label)

    case = replace(CASE, rows=(*CASE.rows, second))
    with pytest.raises(StoppedEarly):
        await Bench(tmp_path, measure=measure_until_stopped).run(case)
    kept = open_results(tmp_path, make_circumstances(), again=False).results
    assert {*kept.rows} == {case.key(case.rows[0])}


async def test_a_noise_floor_that_was_broken_off_is_measured_the_next_time(tmp_path):
    async def measure_until_stopped(url, spec, label):
        return replace(await measure(url, spec), cut_short="noise floor, few tokens, pair" in label)

    with pytest.raises(StoppedEarly):
        await Bench(tmp_path, measure=measure_until_stopped).run(CASE)
    again = Bench(tmp_path)
    assert {*(await again.run(CASE)).floors} == {CASE.rows[0].workload.key}
    assert all("noise floor" in label for label in again.blocks)


async def test_an_engine_that_does_not_start_costs_its_own_case_alone(tmp_path):
    broken = replace(CASE, name="broken", on=EngineSpec("broken", "too large"))
    results = await Bench(tmp_path).run(broken, CASE)
    assert results.not_measured == {"broken": "the model does not fit"}
    assert {*results.rows} == {CASE.key(CASE.rows[0])}


async def test_without_the_base_engine_nothing_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(procedure, "BASE", EngineSpec("broken", "too large"))
    with pytest.raises(EngineStartFailed, match="does not fit"):
        await Bench(tmp_path).run(CASE)


async def test_a_lever_of_other_engines_is_said_not_to_be_there(tmp_path):
    bench = Bench(tmp_path)
    results = await bench.run(replace(CASE, device="cuda"))
    assert results.not_measured == {"lever": "an engine for cpu has no such choice"}
    assert bench.blocks == []


async def test_answers_that_cannot_be_read_leave_the_speed_measured(tmp_path):
    async def unread(case, off_url, on_url, effort):
        return Outputs(reason="no token ids")

    results = await Bench(tmp_path, outputs=unread).run(CASE)
    assert results.cases[CASE.engines_key].outputs.reason == "no token ids"
    assert len(results.rows) == 1


async def test_answers_that_could_not_be_read_are_asked_for_again_the_next_time(tmp_path):
    async def unread(case, off_url, on_url, effort):
        return Outputs(reason="no token ids")

    await Bench(tmp_path, outputs=unread).run(CASE)
    again = Bench(tmp_path)
    results = await again.run(CASE)
    assert results.cases[CASE.engines_key].outputs == EQUAL_ANSWERS
    assert again.blocks == []


async def test_a_block_in_which_every_request_failed_makes_no_row(tmp_path):
    async def rejected(url, spec, label):
        run = await measure(url, spec)
        failed = (replace(each, outcome=Outcome.FAILED, reason="http_400") for each in run.timelines)
        return replace(run, timelines=tuple(failed))

    results = await Bench(tmp_path, measure=rejected).run(CASE)
    assert results.rows == results.floors == {}
    row, floor = results.not_measured[CASE.key(CASE.rows[0])], f"floor/{CASE.rows[0].workload.key}"
    assert (
        row == results.not_measured[floor] == "every request of a block failed, the first one with: http_400"
    )


async def test_beside_a_stand_in_the_other_side_has_a_proxy_too_and_answers_are_read_without_it(tmp_path):
    passed, read = [], []

    @asynccontextmanager
    async def passing(url):
        passed.append(url)
        yield url.replace("127.0.0.1", "localhost")

    async def outputs(case, off_url, on_url, effort):
        read.append((off_url, on_url))
        return EQUAL_ANSWERS

    case = replace(CASE, off=replace(BASE, handicap=StaticBatches(2)), on=BASE)
    await Bench(tmp_path, passing=passing, outputs=outputs).run(case)
    assert len(passed) == 1
    assert read == [(passed[0], passed[0])]
    await Bench(tmp_path, passing=passing).run(CASE)
    assert len(passed) == 1, "without a stand-in both sides are reached directly"


async def test_a_whole_run_measures_another_start_of_the_base_engine(tmp_path):
    results = await Bench(tmp_path, effort=replace(EFFORT, restarts=True)).run(CASE)
    assert {*results.floors} == {CASE.rows[0].workload.key, RESTARTED}


async def test_an_error_while_measuring_is_kept_as_the_reason(tmp_path):
    async def fail(url, spec, label):
        if "more tokens" in label:
            raise MeasurementError("nothing came back")
        return await measure(url, spec)

    other = make_row(make_workload("more tokens", output=5))
    case = replace(CASE, rows=(*CASE.rows, other))
    results = await Bench(tmp_path, measure=fail).run(case)
    assert results.not_measured == {case.key(other): "nothing came back"}
    assert [*results.rows] == [CASE.key(CASE.rows[0])]


async def test_pairs_that_were_all_void_make_no_row(tmp_path, monkeypatch):
    monkeypatch.setattr(validity, "_shown", lambda *lags: "chunks were stamped late")
    results = await Bench(tmp_path).run(CASE)
    assert "pairs were void: chunks were stamped late" in results.not_measured[CASE.key(CASE.rows[0])]
    assert results.rows == {}


async def test_paging_is_read_off_the_base_engine_once(tmp_path, monkeypatch):
    monkeypatch.setattr(procedure, "count_waste", lambda run, facts, now_unix_s: PAGING)
    bench = Bench(tmp_path)
    assert (await bench.run(PAGED_KV)).paging == PAGING
    assert (await bench.run(PAGED_KV)).paging == PAGING
    assert len(bench.blocks) == 1
