"""Trials: what counts, when they are cut short, and what traffic is like that is scaled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phasewise.benchmark.workload.presets import PresetName
from phasewise.core.slo import Slo
from phasewise.planning.candidates import FleetCandidate
from phasewise.planning.disaggregation import with_longer_prompts
from phasewise.planning.figures import figures_of
from phasewise.planning.trials import faster
from phasewise.simulator.traffic import Content, Session, SessionTurn, SimulatedTraffic, block_keys, tokens_of
from tests.planning.builders import SLO, make_space, make_traffic, make_trials

TWO = FleetCandidate(2, 0, 512, 256)


def test_a_trial_counts_what_a_whole_run_does_after_the_warm_up():
    trials = make_trials(attainment=0.5)
    trial = trials(TWO)
    figures = figures_of(trials.run(trials.plan(TWO)), SLO, since_s=trials.counts_from_s)
    assert trial.attained == pytest.approx(figures.attained)
    assert figures.requests == 96


def test_a_trial_is_cut_short_only_if_its_goal_is_missed_anyway():
    trials = make_trials(make_traffic(rate=4.0))
    trial = trials(TWO)
    assert trial.cut
    assert not trial.met
    whole = figures_of(trials.run(trials.plan(TWO)), SLO, since_s=trials.counts_from_s)
    assert whole.attained < trials.goal.attainment


def test_a_miss_names_the_phase_that_is_short():
    decode = make_trials(make_traffic(rate=3.0), slo=Slo(30.0, 0.07))(TWO)
    assert not decode.lacks_prefill
    prefill = make_trials(make_traffic(rate=0.8, kind=PresetName.RAG), slo=Slo(3.0, 9.0))(TWO)
    assert prefill.lacks_prefill


def test_caution_asks_for_more_load_than_there_is():
    bare = make_trials(make_traffic(rate=0.5))
    assert bare(TWO).met
    cautious = replace(bare, goal=replace(bare.goal, caution=40.0), done={})(TWO)
    assert not cautious.met
    assert cautious.attained < bare(TWO).attained


def test_a_queue_that_grows_is_a_miss_however_patient_the_objective_is():
    trial = make_trials(make_traffic(rate=1.0, requests=150, kind=PresetName.RAG), slo=Slo(500.0, 9.0))(TWO)
    assert trial.attained == 1.0
    assert not trial.met
    assert trial.lacks_prefill


def with_sessions(outputs):
    """Trials with a prompt per session, as long as the others, and these outputs."""
    sessions = [Session(at, (SessionTurn((Content(at + 1, 100),), it),)) for at, it in enumerate(outputs)]
    return make_trials(SimulatedTraffic(sessions))


def test_the_load_of_equal_sessions_has_no_error():
    space = make_space(with_sessions([20] * 100))
    assert space.load_error(disaggregated=False) == pytest.approx(0.0)
    assert space.load_error(disaggregated=True) == pytest.approx(0.0)


def test_sessions_that_vary_in_stretches_say_less_than_if_they_alternate():
    alternating = make_space(with_sessions([10, 30] * 50))
    in_stretches = make_space(with_sessions([10] * 50 + [30] * 50))
    assert alternating.load_error(disaggregated=True) == pytest.approx(0.0)
    # Five stretches of half the mean and five of one and a half times.
    assert in_stretches.load_error(disaggregated=True) == pytest.approx(0.5 / 3)
    assert 0.0 < in_stretches.load_error(disaggregated=False) < 0.5 / 3, "prefill does not vary"


def test_a_few_sessions_have_no_error_that_is_known():
    assert make_space(with_sessions([10, 30])).load_error(disaggregated=True) == 0.0


def test_faster_traffic_keeps_its_requests():
    traffic = make_traffic()
    twice = faster(traffic, 2.0)
    assert [it.turns for it in twice.sessions] == [it.turns for it in traffic.sessions]
    assert twice.sessions[-1].at_s == pytest.approx(traffic.sessions[-1].at_s / 2)


def test_longer_prompts_still_begin_alike_and_fit_the_context():
    shared = SimulatedTraffic(
        [Session(0.0, (SessionTurn((Content(-1, 128), Content(at, 200 * at)), 50),)) for at in (1, 2, 30)]
    )
    longer = with_longer_prompts(shared, 2.0, 8192, 64)
    assert [tokens_of(it.prompt) for it in longer.turns] == [656, 1056, 8140]
    first, second = (block_keys(it.prompt, 64) for it in longer.turns[:2])
    assert first[:4] == second[:4]
    assert first[4] != second[4]


def test_longer_prompts_of_a_trace_keep_the_blocks_that_they_share():
    prompts = [
        SessionTurn((Content(at, 1024),), 64, keys=(1, 2, 10 * at, 10 * at + 1, 99 + at)) for at in (1, 2)
    ]
    longer = with_longer_prompts(SimulatedTraffic([Session(0.0, (it,)) for it in prompts]), 2.0, 8192, 256)
    first, second = (it.keys for it in longer.turns)
    assert len(first) == (2048 + 64) // 256
    assert first[:4] == second[:4]
    assert set(first[4:]).isdisjoint(second[4:])


def test_objectives_below_what_an_idle_engine_takes_are_hopeless():
    assert not make_space(make_trials()).hopeless(0.95)
    assert "TPOT" in make_space(make_trials(slo=Slo(3.0, 0.05))).hopeless(0.95)
    assert "TTFT" in make_space(make_trials(slo=Slo(0.1, 1.0))).hopeless(0.95)
