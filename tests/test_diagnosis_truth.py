"""The pieces of benchmarks/diagnosis_truth.py: the loss, its sharing out, what is true, and what is right."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.truth.advice import Advised, judge_advice
from benchmarks.truth.draw import HELD_OUT, PLANTERS, TUNE, draw_scene, pairs
from benchmarks.truth.evidence import observe
from benchmarks.truth.factors import (
    FACTORS,
    FAILING,
    HEALTHY,
    INSEPARABLE,
    INTRINSIC,
    LOAD,
    RESIDUAL_SAYS,
    START,
    STREAM,
    setting_of,
)
from benchmarks.truth.held_out import HELD_OUT_ONLY, TUNE_ONLY
from benchmarks.truth.judging import (
    Judged,
    Said,
    confusion,
    is_right,
    summary,
    truth_from_record,
    truth_record,
)
from benchmarks.truth.play import Exchange, play
from benchmarks.truth.removal import (
    PENALTY_OBJECTIVES,
    SLOW,
    UNSCORED,
    Truth,
    find_truth,
    loss_of,
    request_loss,
    seed_text,
    shapley,
)
from benchmarks.truth.scene import FactorDraw, Scene, Settings, scene_from_record, scene_record
from benchmarks.truth.traffic import (
    HELD_OUT_ARRIVALS,
    TUNE_ARRIVALS,
    Piece,
    Planned,
    Traffic,
    ids_of,
    plan,
    text_of,
)
from benchmarks.truth.worlds import (
    HELD_OUT_FAMILIES,
    HELD_OUT_NOISES,
    TUNE_FAMILIES,
    TUNE_NOISES,
    World,
)
from phasewise.core.slo import Slo
from phasewise.core.steps import FinishedRequest
from phasewise.core.timeline import Outcome
from phasewise.costs.fit.step import StepWork
from phasewise.diagnosis.finding import Cause
from phasewise.simulator.tokens import encode

SLO = Slo(ttft_s=1.0, tpot_s=0.1)
WORLD = World("power", 0.03, 8.0, 0.5, 1.0, 0.5, 0.9, "lognormal", 0.05)
FINISHED = FinishedRequest("r", "length", 10, 0, 0, 0.0, 0.0, 0.0, 0.0)


def make_exchange(came=(), output=None, sent_s=0.0, **fields):
    planned = Planned(0, (Piece("p", 10),), output if output is not None else len(came) or 1)
    done = len(came) == planned.output_tokens and "left_s" not in fields
    return Exchange(planned, 0, sent_s, came_s=list(came), finished=FINISHED if done else None, **fields)


def make_scene(*factors, level="gateway", engines=1, **traffic):
    usual = {"arrivals": "even", "rate_per_s": 2.0, "prompt_tokens": 60.0, "output_tokens": 20.0}
    return Scene(
        id="made-up",
        seed=1,
        level=level,
        world=WORLD,
        traffic=usual | traffic,
        settings=Settings(),
        slo=Slo(0.6, 0.065),
        settle_s=3.0,
        window_s=20.0,
        factors=tuple(FactorDraw(name, sizes) for name, sizes in factors),
        engines=engines,
    )


def make_truth(state=SLOW, causes=("pauses",), says=None, **fields):
    return Truth(state, 0.5, says=says or {START: frozenset({"engine_pauses"})}, causes=causes, **fields)


def make_row(truth, said, level="gateway"):
    return Judged("it", level, (), truth, said, is_right(truth, said, level))


# --- the loss


def test_a_request_within_the_objective_loses_nothing():
    lost = request_loss(make_exchange((0.5, 0.55, 0.6, 0.65)), SLO, 0.0, 10.0)
    assert lost is not None
    assert (lost.total_s, lost.requests, lost.late) == (0.0, 1, 0)


def test_a_late_start_loses_what_lies_beyond_the_objective():
    lost = request_loss(make_exchange((3.5, 3.55, 3.6, 3.65)), SLO, 0.0, 10.0)
    assert lost is not None
    assert lost.start_s == pytest.approx(2.5)
    assert lost.stream_s == 0.0


def test_a_slow_stream_loses_what_its_tokens_take_beyond_the_objective():
    lost = request_loss(make_exchange((0.5, 0.8, 1.1, 1.4, 1.7)), SLO, 0.0, 10.0)
    assert lost is not None
    assert lost.stream_s == pytest.approx(4 * 0.2)
    assert lost.start_s == 0.0


def test_a_stall_counts_in_full_however_fast_the_rest_of_the_stream_is():
    times = [0.5 + 0.01 * number for number in range(40)]
    lost = request_loss(make_exchange([*times, times[-1] + 2.0]), SLO, 0.0, 10.0)
    assert lost is not None
    assert lost.stream_s == pytest.approx(1.9)


def test_a_stream_that_is_silent_until_the_windows_end_has_stalled():
    lost = request_loss(make_exchange((0.5, 0.55, 0.6), output=30), SLO, 0.0, 10.0)
    assert lost is not None
    assert lost.stream_s == pytest.approx(9.3)


def test_a_request_without_an_answer_is_late_once_it_is_older_than_the_objective():
    assert request_loss(make_exchange(output=5, sent_s=9.5), SLO, 0.0, 10.0) is None
    lost = request_loss(make_exchange(output=5, sent_s=6.0), SLO, 0.0, 10.0)
    assert lost is not None
    assert lost.start_s == pytest.approx(3.0)


def test_a_client_that_left_counts_as_long_as_it_waited():
    assert request_loss(make_exchange(output=5, left_s=0.8), SLO, 0.0, 10.0) is None
    lost = request_loss(make_exchange(output=5, left_s=2.5), SLO, 0.0, 10.0)
    assert lost is not None
    assert lost.start_s == pytest.approx(1.5)


def test_a_rejected_request_costs_a_fixed_penalty():
    lost = request_loss(make_exchange(output=5, left_s=0.1, rejected=True), SLO, 0.0, 10.0)
    assert lost is not None
    assert (lost.failed_s, lost.late) == (PENALTY_OBJECTIVES * SLO.ttft_s, 1)


def test_what_was_over_before_the_window_does_not_count():
    assert request_loss(make_exchange((4.0, 4.1, 4.2, 4.3)), SLO, 5.0, 10.0) is None


# --- sharing it out


def test_two_factors_that_only_hurt_together_share_the_loss():
    shares = shapley(("a", "b"), lambda active: 8.0 if len(active) == 2 else 0.0)
    assert shares == {"a": 4.0, "b": 4.0}


def test_a_factor_that_changes_nothing_has_no_share():
    assert shapley(("a", "b"), lambda active: 5.0 if "a" in active else 1.0) == {"a": 4.0, "b": 0.0}


@given(st.lists(st.floats(0, 100), min_size=8, max_size=8))
def test_shares_add_up_to_what_all_factors_cost_together(values):
    names = ("a", "b", "c")
    by_subset = {
        frozenset(name for bit, name in enumerate(names) if number >> bit & 1): value
        for number, value in enumerate(values)
    }
    shares = shapley(names, by_subset.__getitem__)
    whole = by_subset[frozenset(names)] - by_subset[frozenset()]
    assert sum(shares.values()) == pytest.approx(whole, abs=1e-6)


# --- the truth of scenes


def test_a_scene_without_faults_and_with_little_traffic_is_healthy():
    assert find_truth(make_scene()).state == HEALTHY


def test_a_fault_too_small_to_matter_leaves_a_scene_healthy():
    small = ("pauses", {"first_s": 5.0, "length_s": 0.1, "every_s": 0.0})
    assert find_truth(make_scene(small)).state == HEALTHY


def test_pauses_are_true_because_their_removal_takes_the_loss_away():
    truth = find_truth(make_scene(("pauses", {"first_s": 0.5, "length_s": 1.5, "every_s": 2.0})))
    assert truth.causes == ("pauses",)
    assert truth.shares["pauses"] > 0.9
    assert all(Cause.ENGINE_PAUSES in names for names in truth.says.values())


def test_of_two_planted_faults_only_the_one_that_costs_is_true():
    pauses = ("pauses", {"first_s": 0.5, "length_s": 1.5, "every_s": 2.0})
    truth = find_truth(make_scene(pauses, ("cap_low", {"cap": 64})))
    assert truth.causes == ("pauses",)
    assert truth.shares["cap_low"] == pytest.approx(0.0, abs=0.05)


def test_too_many_prompts_are_load_where_nothing_else_is_wrong():
    truth = find_truth(make_scene(prompt_tokens=600.0, rate_per_s=9.0, output_tokens=8.0))
    assert truth.causes == (LOAD,)
    assert truth.says[START] == RESIDUAL_SAYS[LOAD][START]


def test_what_is_slow_with_one_request_at_a_time_is_intrinsic():
    scene = make_scene()
    truth = find_truth(replace(scene, world=replace(WORLD, slower=4.0)))
    assert truth.causes == (INTRINSIC,)
    assert set(truth.says) == {STREAM}


def test_a_fault_that_no_rule_knows_leaves_nothing_to_name():
    truth = find_truth(make_scene(("creep", {"per_step": 0.02})))
    assert truth.causes == ("creep",)
    assert all(not names for names in truth.says.values())


def test_steps_that_another_job_slows_for_a_while_heal_without_it():
    job = ("neighbour", {"times": 4.0, "first_s": 2.0, "length_s": 5.0, "every_s": 3.0})
    truth = find_truth(make_scene(job))
    assert truth.causes == ("neighbour",)
    assert truth.shares["neighbour"] > 0.9
    assert all(not names for names in truth.says.values())


def test_requests_that_wait_until_a_batch_has_drained_count_as_waiting_and_heal_without_it():
    scene = make_scene(("drains_first", {}), output_tokens=40.0)
    truth = find_truth(scene)
    assert truth.causes == ("drains_first",)
    assert truth.says == {START: frozenset()}
    played = play(setting_of(scene, frozenset(scene.planted)), seed_text(scene, 0))
    steps = [report.step for report in played.reports[0]]
    before = [earlier for earlier, later in pairwise(steps) if later.prompt_requests]
    assert not any(step.running for step in before)
    assert max(step.waiting for step in steps) >= 1


def test_steps_with_a_mask_are_slow_however_many_streams_they_have_and_heal_without_it():
    scene = make_scene(("grammar_masks", {"every": 3, "extra_s": 0.1}), rate_per_s=1.0)
    truth = find_truth(scene)
    assert truth.causes == ("grammar_masks",)
    assert truth.says == {STREAM: frozenset()}
    played = play(setting_of(scene, frozenset(scene.planted)), seed_text(scene, 0))
    alone_s = [it.duration_s for it in played.reports[0] if it.work.tokens == it.work.decode_tokens == 1]
    assert min(alone_s) < 0.05
    assert max(alone_s) == pytest.approx(min(alone_s) + 0.1, abs=0.02)


def test_a_busy_engine_that_seldom_looks_at_its_queue_lets_requests_wait_beside_free_slots():
    scene = make_scene(("seldom_admits", {"steps": 50}), rate_per_s=2.5, output_tokens=60.0)
    truth = find_truth(scene)
    assert truth.causes == ("seldom_admits",)
    assert truth.says == {START: frozenset()}
    played = play(setting_of(scene, frozenset(scene.planted)), seed_text(scene, 0))
    steps = [report.step for report in played.reports[0]]
    begun = [later.seq for earlier, later in pairwise(steps) if later.prompt_requests and earlier.running]
    assert begun
    assert all(seq % 50 <= 1 for seq in begun)
    assert max(step.waiting for step in steps) >= 1


def test_a_truth_survives_being_written_down():
    truth = find_truth(make_scene(("rejected", {"share": 0.5})))
    assert truth.says == {FAILING: frozenset({Cause.REQUESTS_REJECTED})}
    assert truth_from_record(json.loads(json.dumps(truth_record(truth)))) == truth


# --- what is right


def test_phase_and_first_cause_must_be_true():
    truth = make_truth()
    assert is_right(truth, Said(START, ("engine_pauses",), "high"), "gateway")
    assert not is_right(truth, Said(STREAM, ("engine_pauses",), "high"), "gateway")
    assert not is_right(truth, Said(START, ("overload",), "high"), "gateway")


@pytest.mark.parametrize("ruling", ["healthy", "not_enough_traffic", START])
def test_silence_about_a_slow_scene_is_not_right(ruling):
    assert not is_right(make_truth(), Said(ruling), "gateway")


def test_naming_two_is_right_only_if_both_are_true_or_inseparable_at_that_level():
    truth = make_truth(says={START: frozenset({Cause.PREFIX_SALTED})})
    two = Said(START, (Cause.LONG_PROMPTS, Cause.PREFIX_SALTED), "medium")
    assert not is_right(truth, two, "gateway")
    assert is_right(truth, two, "recorder")
    assert not is_right(make_truth(), two, "recorder")
    both = make_truth(says={START: frozenset({Cause.PREFIX_SALTED, Cause.LONG_PROMPTS})})
    assert is_right(both, two, "gateway")


def test_an_unknown_fault_is_met_by_the_phase_and_no_cause():
    truth = make_truth(causes=("creep",), says={STREAM: frozenset()})
    assert is_right(truth, Said(STREAM), "gateway")
    assert not is_right(truth, Said(START), "gateway")
    assert not is_right(truth, Said(STREAM, ("engine_pauses",), "low"), "gateway")


def test_the_record_counts_by_confidence_and_leaves_unscored_scenes_out():
    right = Said(START, ("engine_pauses",), "high")
    wrong = Said(START, ("overload",), "high")
    rows = [
        make_row(make_truth(), right),
        make_row(make_truth(), wrong),
        make_row(make_truth(causes=("creep",), says={START: frozenset()}), Said(START)),
        make_row(make_truth(state=HEALTHY, causes=()), wrong),
        make_row(make_truth(state=HEALTHY, causes=()), Said("healthy")),
        make_row(make_truth(state=UNSCORED, causes=()), wrong),
    ]
    found = summary(rows, 1.0)
    assert (found["virtual_scenes"], found["virtual_right"]) == (5, 3)
    assert (found["virtual_high"], found["virtual_high_right"]) == (2, 1)
    assert (found["healthy"], found["false_alarms"]) == (2, 1)
    assert (found["unknown"], found["unknown_right_share"]) == (1, 1.0)
    assert found["unscored"] == 1
    assert found["confusion"]["pauses"] == {"engine_pauses": 1, "overload": 1}
    assert confusion([]) == {}


# --- scenes and what is seen of them


def test_tuning_and_held_out_scenes_share_no_family_noise_arrivals_pair_or_unknown_fault():
    assert not set(pairs(held_out=False)) & set(pairs(held_out=True))
    seen = {}
    for name in (TUNE, HELD_OUT):
        scenes = [draw_scene(number, name, 1) for number in range(240)]
        seen[name] = {
            "families": {scene.world.family for scene in scenes},
            "noises": {scene.world.noise for scene in scenes},
            "arrivals": {scene.traffic["arrivals"] for scene in scenes},
            "unknown": {it for scene in scenes for it in scene.planted if FACTORS[it].unknown},
        }
    assert seen[TUNE] == {
        "families": set(TUNE_FAMILIES),
        "noises": set(TUNE_NOISES),
        "arrivals": set(TUNE_ARRIVALS),
        "unknown": set(TUNE_ONLY),
    }
    assert seen[HELD_OUT] == {
        "families": set(HELD_OUT_FAMILIES),
        "noises": set(HELD_OUT_NOISES),
        "arrivals": set(HELD_OUT_ARRIVALS),
        "unknown": set(HELD_OUT_ONLY),
    }
    assert all(not seen[TUNE][kind] & seen[HELD_OUT][kind] for kind in seen[TUNE])


def test_every_factor_can_be_drawn_and_says_causes_that_a_verdict_can_name():
    assert set(FACTORS) <= set(PLANTERS)
    named = {name for factor in FACTORS.values() for names in factor.says.values() for name in names}
    assert named <= {*Cause}
    assert {name for pair in INSEPARABLE["stock"] for name in pair} <= set(Cause)


@given(number=st.integers(0, 5000), run_set=st.sampled_from((TUNE, HELD_OUT)))
def test_a_scene_survives_being_written_down_and_is_seen_where_its_faults_are(number, run_set):
    scene = draw_scene(number, run_set, 7)
    assert scene_from_record(json.loads(json.dumps(scene_record(scene)))) == scene
    assert all(scene.level in FACTORS[name].levels for name in scene.planted)


def test_a_factor_leaves_the_traffic_of_all_others_as_it_is():
    light = Traffic(rate_per_s=3.0, shared_tokens=40)
    salted = replace(light, salted=True)
    before, after = plan(light, "s", 20.0), plan(salted, "s", 20.0)
    assert [it.at_s for it in before] == [it.at_s for it in after]
    assert [it.output_tokens for it in before] == [it.output_tokens for it in after]
    assert [it.pieces[-1] for it in before] == [it.pieces[-1] for it in after]


def test_a_piece_has_exactly_as_many_tokens_as_it_says():
    piece = Piece("any", 300)
    assert len(ids_of(piece)) == 300
    assert list(ids_of(piece)) == encode(text_of(piece).decode())


def test_a_turn_of_a_conversation_follows_the_answer_to_the_one_before():
    scene = make_scene(turns=3, think_s=0.5)
    played = play(setting_of(scene, frozenset()), seed_text(scene, 0))
    ended_s = {
        it.planned.number: it.came_s[-1] for it in played.exchanges if it.finished is not None and it.came_s
    }
    following = [it for it in played.exchanges if it.planned.after is not None]
    assert following
    assert all(it.sent_s >= ended_s[it.planned.after] for it in following)


def test_the_same_seed_gives_the_same_run_and_other_noise_another():
    scene = make_scene()
    runs = [
        play(setting_of(scene, frozenset()), seed_text(scene, 0), noise).exchanges[3].came_s
        for noise in ("noise", "noise", "again")
    ]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("noise", [*TUNE_NOISES, *HELD_OUT_NOISES])
def test_every_noise_has_a_mean_of_about_one(noise):
    cost = replace(WORLD, noise=noise, spread=0.1).noisy_cost(Random(3))  # noqa: S311 - noise, no secret
    work = StepWork(0, 1, 1, 0, 100)
    mean = fmean(cost(work) for _ in range(20_000))
    assert mean == pytest.approx(WORLD.cost()(work), rel=0.03)


@pytest.mark.parametrize("arrivals", [*TUNE_ARRIVALS, *HELD_OUT_ARRIVALS])
def test_all_arrivals_come_at_about_the_rate_that_was_asked_for(arrivals):
    planned = plan(Traffic(arrivals=arrivals, rate_per_s=2.0), "s", 1000.0)
    assert len(planned) == pytest.approx(2000, rel=0.15)


def test_agents_send_up_to_three_requests_at_once_and_a_timer_asks_at_fixed_times():
    at_once = plan(Traffic(arrivals="fan_out", rate_per_s=0.5), "s", 1000.0)
    near = [later.at_s - earlier.at_s < 0.01 for earlier, later in pairwise(at_once)]
    assert fmean(near) == pytest.approx(0.5, abs=0.1)
    timed = plan(Traffic(arrivals="timer", rate_per_s=0.5), "s", 1000.0)
    phases = sorted(it.at_s % 4.0 for it in timed)
    assert max(sum(abs(it - phase) < 1e-6 for it in phases) for phase in phases) == pytest.approx(250, abs=1)


@pytest.mark.parametrize("family", [*TUNE_FAMILIES, *HELD_OUT_FAMILIES])
def test_every_family_costs_more_for_more_work(family):
    cost = replace(WORLD, family=family, bend=2.0 if family == "smooth" else 0.9).cost()
    lone = cost(StepWork(0, 1, 1, 0, 100))
    assert lone == pytest.approx(WORLD.floor_s, rel=0.05)
    assert cost(StepWork(0, 64, 64, 0, 6400)) > lone
    assert cost(StepWork(1000, 0, 1, 500_500, 0)) > 3 * lone


def test_a_stock_engine_shows_counters_and_gauges_and_nothing_else():
    scene = make_scene(level="stock")
    played = play(setting_of(scene, frozenset()), seed_text(scene, 0))
    seen = observe(played, "stock")
    assert (seen.timelines, seen.logs) == ((), {})
    started = seen.metrics[0].histogram("time_to_first_token_seconds")
    assert started is not None
    firsts = [it.engine_times_s[0] for it in played.exchanges if it.engine_times_s]
    assert started.count == sum(played.begins_s < first <= played.ends_s for first in firsts)
    load = seen.surroundings[0].engine_load
    assert load is not None
    assert load.running_max >= 1


def test_the_gateway_sees_clients_that_left_and_requests_that_were_rejected():
    left = ("disconnects", {"share": 0.5, "after_s": 0.3})
    scene = make_scene(left, ("rejected", {"share": 0.3}))
    played = play(setting_of(scene, frozenset(scene.planted)), seed_text(scene, 0))
    seen = observe(played, "gateway")
    outcomes = {it.outcome for it in seen.timelines}
    assert outcomes >= {Outcome.SUCCEEDED, Outcome.CANCELLED, Outcome.REJECTED}
    assert loss_of(played).failed_s > 0


def advised(**fields):
    row = Advised("s", "overload", "do this", gain=0.8, best="chunk 256", best_gain=0.9, noise=0.02)
    return replace(row, **fields)


def test_regret_is_what_the_best_of_the_grid_gains_more():
    assert advised().regret == pytest.approx(0.1)
    assert advised(gain=0.95).regret == 0.0
    assert advised(advice=None, gain=0.0).regret == 1.0
    assert advised(advice=None, gain=0.0, best_gain=0.01).regret == 0.0, "nothing pays"
    assert advised(gain=-0.2).harmful
    assert not advised(gain=-0.2, noise=0.3).harmful


def test_advice_is_played_on_the_scene_itself():
    factor = FactorDraw("prefix_cache_off", {})
    scene = next(
        it
        for number in range(400)
        if (it := draw_scene(number, TUNE, 1, ("gateway",))).planted == ("prefix_cache_off",)
    )
    assert scene.factors == (factor,)
    row = judge_advice(scene)
    assert row.best_gain > 0.1
    assert row.regret < 0.1, row
