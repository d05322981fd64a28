"""The pieces of benchmarks/diagnosis_suite.py: what its cases promise, how it counts, its virtual stage."""

from __future__ import annotations

import importlib
import json
import sys
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.planted.cases import CASES, HEALTHY, RunSet, draw
from benchmarks.planted.fake_grid import grid
from benchmarks.planted.progress import Progress
from benchmarks.planted.scenes import MACHINES, PLANTERS, Sizes, play
from benchmarks.planted.tally import FAKE, REAL, Residual, Run, said_by, summary, table, within_bounds
from benchmarks.planted.virtual_evidence import Way, taken_at, watched
from phasewise.core.latency import ttft_breakdown
from phasewise.core.timeline import Outcome, Part
from phasewise.costs.fit.step import StepWork
from phasewise.diagnosis.finding import Cause
from phasewise.experiments.validate.run import prefill_s
from phasewise.simulator.engine import EngineShape
from phasewise.simulator.stage import Ask, SlowMachine, Stage, VirtualHost
from tests.paths import ROOT

CAUSES = {HEALTHY, *Cause}


def make_run(case="long_prompts", expected=("long_prompts",), said="long_prompts", kind=REAL, **fields):
    defaults = {"run_set": "tune", "seed": 1, "when": "", "commit": "", "right": said in expected}
    return Run(kind=kind, case=case, expected=expected, said=said, **{**defaults, **fields})


def test_every_case_expects_a_cause_that_a_verdict_can_name():
    for case in CASES:
        assert case.expected
        assert case.expected <= CAUSES, case.name


def test_every_planted_scene_is_called_by_a_cause_that_a_verdict_can_name():
    assert set(PLANTERS) <= CAUSES


def test_the_judged_set_has_other_sizes_and_other_seeds_than_the_one_rules_are_tuned_on():
    for case in CASES:
        assert case.tune.keys() == case.judge.keys()
        assert [knob for knob in case.tune if case.tune[knob] == case.judge[knob]] == [], case.name
        (tune_low, tune_high), (judge_low, judge_high) = case.tune[case.made_by], case.judge[case.made_by]
        assert tune_high < judge_low or judge_high < tune_low, case.name
    tuned = {draw(case, RunSet.TUNE, number).seed for case in CASES for number in range(1, 100)}
    judged = {draw(case, RunSet.JUDGE, number).seed for case in CASES for number in range(1, 100)}
    assert not tuned & judged
    cells = {cell.seed for cell in grid(RunSet.TUNE, 50)}, {cell.seed for cell in grid(RunSet.JUDGE, 50)}
    assert not cells[0] & cells[1]


@given(number=st.integers(1, 10_000), run_set=st.sampled_from(list(RunSet)), case=st.sampled_from(CASES))
def test_a_draw_stays_within_its_bounds_fills_every_hole_and_repeats(number, run_set, case):
    drawn = draw(case, run_set, number)
    bounds = case.tune if run_set is RunSet.TUNE else case.judge
    assert all(bounds[name][0] <= value <= bounds[name][1] for name, value in drawn.values.items())
    assert not any("{" in line for line in drawn.traffic)
    assert drawn == draw(case, run_set, number)


def test_the_grid_is_large_enough_to_tell_ninety_five_percent_from_ninety():
    assert len(grid(RunSet.JUDGE, 2)) >= 100


def test_the_summary_counts_who_was_right_and_false_alarms():
    runs = [
        make_run(),
        make_run(said="overload"),
        make_run(case=HEALTHY, expected=(HEALTHY,), said=HEALTHY, ttft=Residual(0.04, 8.0)),
        make_run(case=HEALTHY, expected=(HEALTHY,), said="overload", ttft=Residual(0.06, 10.0)),
        make_run(case=HEALTHY, expected=(HEALTHY,), said=HEALTHY, stock=True),
        make_run(kind=FAKE, ttft=Residual(0.9, 900.0)),
    ]
    found = summary(runs)
    assert (found["real_runs"], found["real_right"], found["fake_runs"], found["fake_right"]) == (5, 3, 1, 1)
    assert found["false_alarms"] == 1
    assert found["unexplained_ttft"] == {
        "share_p50": 0.05,
        "ms_p50": 9.0,
        "share_worst": 0.06,
        "ms_worst": 10.0,
    }
    assert found["within_bounds"] == "0 of 2"
    assert [it["run"] for it in found["residuals"]] == ["healthy #1", "healthy #1"]
    assert found["unexplained_itl"] is None
    assert found["confusion"][REAL]["long_prompts"] == {"long_prompts": 1, "overload": 1}


@pytest.mark.parametrize(
    ("ttft", "itl", "within"),
    [
        (Residual(0.05, 300.0), Residual(0.05, 2.0), True),
        (Residual(0.12, 10.0), Residual(0.01, 1.0), True),
        (Residual(0.06, 10.1), Residual(0.01, 1.0), False),
        (Residual(0.01, 1.0), Residual(0.06, 1.0), False),
        (Residual(0.01, 1.0), None, False),
        (None, Residual(0.01, 1.0), False),
    ],
)
def test_a_run_is_within_bounds_if_neither_figure_leaves_more_than_is_promised(ttft, itl, within):
    assert within_bounds(make_run(ttft=ttft, itl=itl)) is within


def test_the_time_left_follows_the_pace_so_far():
    progress = Progress(planned_s=100.0)
    assert progress.left_s(5.0) == 100.0
    progress.done_s = 25.0
    assert progress.left_s(50.0) == 150.0
    progress.done_s = 130.0
    assert progress.left_s(400.0) == 0.0


def test_the_table_names_what_a_case_was_mistaken_for():
    text = table([make_run(), make_run(said="overload")])
    assert "1 of 2" in text
    assert "1x overload" in text


def test_a_run_without_a_verdict_is_no_right_one():
    assert said_by(None) not in CAUSES


@pytest.fixture
def suite(monkeypatch):
    """The suite as a script sees it: with its own folder on the path."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("diagnosis_suite")


@pytest.mark.parametrize("runs_before", [0, 1])
def test_a_start_that_fails_owes_its_runs_and_ends_nothing_else(suite, monkeypatch, capsys, runs_before):
    """One engine does not come up, or dies after a run: every run that was asked for still has its row."""

    @contextmanager
    def failing_fleet(levers, replicas, **_):
        if not levers and not runs_before:
            raise OSError("no such engine")
        yield None
        if not levers:
            raise suite.CommandFailed("it would not stop")

    judged = []

    def judge_live(drawn, *_):
        judged.append(drawn.case.name)
        if runs_before and len(judged) > runs_before:
            raise ConnectionResetError
        return {"cause": drawn.case.name, "verdict": "", "findings": [], "start": None, "stream": None}

    monkeypatch.setattr(suite, "running_fleet", failing_fleet)
    monkeypatch.setattr(suite, "judge_live", judge_live)
    monkeypatch.setattr(suite, "commit", str)
    wanted = ["long_prompts", "overload", "prefix_cache_off"]
    arguments = ["--quick", "--real-only", "--json", "--cases", *wanted]
    monkeypatch.setattr(sys, "argv", ["diagnosis_suite.py", *arguments])
    with pytest.raises(SystemExit, match="2 of 3 runs came to no verdict"):
        suite.main()
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    right = "long_prompts" if runs_before else "prefix_cache_off"
    assert [(it["case"], it["right"]) for it in record["rows"]] == [(name, name == right) for name in wanted]
    assert record["no_verdict"] == 2


def test_a_pause_lengthens_the_step_it_falls_into_and_no_other():
    machine = SlowMachine(lambda work: 1.0, pauses=[(10.5, 14.0)])
    durations = []
    for begins_s in (9.0, 10.0, 14.5):
        machine.begins_s = begins_s
        durations.append(machine(StepWork(0, 1, 1, 0, 1)))
    assert durations == pytest.approx([1.0, 4.5, 1.0])


@given(
    gaps=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=40),
    taken_s=st.floats(0.0, 1.0),
    buffered=st.integers(1, 12),
)
def test_a_slow_client_holds_pieces_back_but_never_reorders_them(gaps, taken_s, buffered):
    times_s = [sum(gaps[: index + 1]) for index in range(len(gaps))]
    came_s, blocked_s = taken_at(times_s, Way(back_s=0.0, taken_s=taken_s, buffered=buffered))
    assert came_s == sorted(came_s)
    assert all(came >= sent for came, sent in zip(came_s, times_s, strict=True))
    assert 0.0 <= blocked_s <= came_s[-1] - times_s[0] + 1e-9


def test_what_is_played_adds_up_as_a_live_window_does():
    stage = Stage([VirtualHost(EngineShape(), SlowMachine(MACHINES["core"]))])
    stage.closed_loop(iter([(Ask("a question of some words " * 8, 6),)] * 99), 0.0, 0.01)
    evidence = watched(stage, Way(), 2.0, 12.0)
    done = [it for it in evidence.timelines if it.outcome is Outcome.SUCCEEDED]
    assert len(done) > 5
    for timeline in done:
        found = ttft_breakdown(timeline)
        assert found.unexplained_s == pytest.approx(0.0018, abs=1e-6)
        assert found.seconds(Part.PREFILL) == pytest.approx(found.ttft_s - 0.002, abs=1e-6)
    (surroundings,) = evidence.surroundings
    assert surroundings.steps.busy_share == pytest.approx(1.0, abs=0.05)


def test_the_same_seed_plays_the_same_scene():
    first, again = (play("long_prompts", "core", 3)[0] for _ in range(2))
    assert first.timelines == again.timelines


@pytest.mark.parametrize("machine", MACHINES)
def test_a_machine_meets_its_objective_with_margin_when_nothing_is_wrong(machine):
    evidence, slo = play(HEALTHY, machine, 1)
    starts = [it.content_times_s[0] for it in evidence.timelines if it.content_times_s]
    assert max(starts) < 0.7 * slo.ttft_s


def test_a_prompt_is_as_long_as_it_is_to_take():
    sizes = Sizes(MACHINES["core"], None)
    assert prefill_s(sizes.cost, sizes.tokens_taking(2.0)) == pytest.approx(2.0, rel=0.03)
