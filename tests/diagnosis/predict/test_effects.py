"""Predicted effects hold what a replay with the true costs finds, and are rejected where nothing is known."""

from dataclasses import replace

import numpy as np
import pytest

from phasewise.core.prefixes import MARK_SIZES_BYTES
from phasewise.core.slo import Slo
from phasewise.costs.fit.observation import regime_of
from phasewise.costs.fit.step import StepCost, decoding, prefilling
from phasewise.diagnosis.advice.fix import Advice, Effect, Figure, Fix, LeverChange
from phasewise.diagnosis.predict.costs import KnownCosts
from phasewise.diagnosis.predict.effects import DRAWS, ReplayTrials, beyond_replay, predict_advice
from phasewise.diagnosis.predict.replay import by_engine, replay
from phasewise.diagnosis.predict.setup import DraftReading, Setup, Unpredictable, changed
from phasewise.diagnosis.predict.traffic import TOKENS_OF_STRETCH, RecordedTraffic, drawn_stretch
from tests.diagnosis.predict.traffic_builders import (
    COST,
    SETUP,
    SHAPE,
    every,
    make_fit,
    make_recorded,
    served,
)


def predict(traffic, change, setup=SETUP, fit=None, draws=12, others=(), drafts=()):
    costs = KnownCosts((fit or make_fit(), *others))
    return ReplayTrials(traffic, costs, setup, np.random.default_rng(1), draws).effect(change, drafts)


def ratio(traffic, change, figure, setup=SETUP, cost=COST):
    after = replay(traffic, changed(setup, change), cost)
    return after[figure] / replay(traffic, setup, cost)[figure]


AMID_STREAMS = served(
    tuple(
        make_recorded(index, 0.15 * index, prompt_tokens=1000 if index % 6 == 5 else 40, output_tokens=12)
        for index in range(24)
    )
)
CAPPED = Setup(replace(SHAPE, max_num_seqs=1))
SHORT_OF_MEMORY = Setup(replace(SHAPE, max_model_len=400, total_blocks=32))
MARKS = tuple(f"mark {size}" for size in MARK_SIZES_BYTES if size <= 2000)
SHARED = served(every(1.0, 12, prompt_tokens=600, prompt_bytes=2400, marks=MARKS))

CASES = {
    "smaller chunks": (AMID_STREAMS, SETUP, LeverChange("max_num_batched_tokens", 256), Figure.ITL_P99),
    "prefix cache": (SHARED, SETUP, LeverChange("prefix_cache", True), Figure.TTFT_P50),
    "higher cap": (served(every(0.1, 20), CAPPED), CAPPED, LeverChange("max_num_seqs", 8), Figure.TTFT_P50),
    "more KV memory": (
        served(every(0.05, 16, prompt_tokens=200, output_tokens=20), SHORT_OF_MEMORY),
        SHORT_OF_MEMORY,
        LeverChange("kv_cache_memory_bytes", None, times=4.0),
        Figure.TTFT_P50,
    ),
    "another engine": (served(every(0.1, 20), CAPPED), CAPPED, LeverChange("replicas", 2), Figure.TTFT_P50),
}


@pytest.mark.parametrize("name", CASES)
def test_an_interval_holds_what_the_true_costs_give_and_says_that_it_helps(name):
    traffic, setup, change, figure = CASES[name]
    found = predict(traffic, change, setup).of(figure)
    assert found.interval.low <= ratio(traffic, change, figure, setup) <= found.interval.high
    assert found.ratio < 0.8
    assert found.before == traffic.measured[figure]


def test_an_interval_holds_costs_that_are_off_as_held_out_errors_were():
    traffic, setup, change, figure = CASES["smaller chunks"]
    fit = make_fit(replace(COST, beyond_knee_s_per_token=0.93 * COST.beyond_knee_s_per_token))
    found = predict(traffic, change, setup, fit).of(figure)
    assert found.interval.low <= ratio(traffic, change, figure, setup) <= found.interval.high


def test_a_lever_that_changes_nothing_is_said_to_change_nothing():
    for change in predict(AMID_STREAMS, LeverChange("max_num_seqs", 200)).changes:
        assert change.interval.low < 1 < change.interval.high


def test_worse_costs_mean_wider_intervals():
    traffic, setup, change, figure = CASES["smaller chunks"]
    widths = []
    for errors in ((-0.02, 0.0, 0.02) * 10, (-0.15, 0.0, 0.15) * 10):
        interval = predict(traffic, change, setup, make_fit(errors=errors)).of(figure).interval
        widths.append(interval.high / interval.low)
    assert widths[1] > 1.3 * widths[0]


def test_an_interval_that_holds_everything_is_not_reported():
    traffic, setup, change, figure = CASES["smaller chunks"]
    poor = make_fit(errors=(-1.2, -0.8, 0.0, 0.8, 1.2) * 6)
    assert predict(traffic, change, setup, poor, draws=4).of(figure) is None
    fixes = (Fix("chunks", "", figure, change),)
    (fix,) = predict_advice(Advice(fixes), traffic, poor, setup, np.random.default_rng(1)).fixes
    assert fix.effect is None
    assert "the costs are too uncertain: the interval spans a factor of" in fix.unpredictable


def test_a_figure_that_the_replay_misses_is_not_aimed_at():
    traffic, setup, change, figure = CASES["smaller chunks"]
    odd = replace(traffic, measured={**traffic.measured, figure: 5 * traffic.measured[figure]})
    fixes = (Fix("chunks", "", figure, change),)
    (fix,) = predict_advice(Advice(fixes), odd, make_fit(), setup, np.random.default_rng(1)).fixes
    assert fix.unpredictable == f"the replay differs too much from the measured {figure}"


def test_a_replay_that_is_off_widens_its_intervals():
    traffic, setup, change, figure = CASES["smaller chunks"]
    slower = replace(traffic, measured={name: 1.5 * value for name, value in traffic.measured.items()})
    near, far = predict(traffic, change, setup), predict(slower, change, setup)
    assert far.replay_off_by == pytest.approx(0.5, abs=0.2)
    assert far.of(figure).interval.high > 1.2 * near.of(figure).interval.high
    assert far.of(figure).ratio == pytest.approx(near.of(figure).ratio)


def test_a_replay_of_something_else_reports_nothing():
    traffic, setup, change, _ = CASES["smaller chunks"]
    other = replace(traffic, measured={name: 5 * value for name, value in traffic.measured.items()})
    found = predict(other, change, setup)
    assert isinstance(found, Unpredictable)
    assert "differs from the measurement" in found.reason


def test_steps_that_nobody_has_seen_are_not_predicted_unless_another_fit_knows_them():
    long_prompts = served(every(3.0, 10, prompt_tokens=1500))
    works = [prefilling(1500), *(decoding([1500 + tokens]) for tokens in range(10))]
    fit = make_fit(seen=frozenset(map(regime_of, works)))
    change = LeverChange("max_num_batched_tokens", 64)
    found = predict(long_prompts, change, fit=fit)
    assert isinstance(found, Unpredictable)
    assert "after the change" in found.reason
    assert isinstance(predict(long_prompts, change, fit=fit, others=(make_fit(),)), Effect)


def test_of_too_few_requests_nothing_is_reported():
    assert isinstance(predict(served(every(1.0, 5)), LeverChange("max_num_seqs", 8)), Unpredictable)
    half = replace(served(every(1.0, 10)), unusable=10)
    assert isinstance(predict(half, LeverChange("max_num_seqs", 8)), Unpredictable)


def test_guesses_that_are_right_shorten_tokens_and_wrong_ones_lengthen_them():
    traffic, change = served(every(2.0, 8, output_tokens=60)), LeverChange("speculation", 5)
    dear = StepCost(0.01, 4096, 0.0, 0.0, 0.0, 0.0, per_token_s=2e-3)
    right = predict(traffic, change, drafts=[DraftReading(10, 50, 50)]).of(Figure.TPOT_P50)
    traffic = served(every(2.0, 8, output_tokens=60), cost=dear)
    wrong = predict(traffic, change, fit=make_fit(dear), drafts=[DraftReading(50, 50, 250)])
    assert right.interval.high < 0.4
    assert wrong.of(Figure.TPOT_P50).interval.low > 1.2


def test_a_closed_loop_sends_as_answers_come():
    traffic = served(every(0.0, 24), CAPPED, concurrency=6, warm_up=6)
    found = predict(traffic, LeverChange("max_num_seqs", 8), CAPPED).of(Figure.THROUGHPUT)
    assert found.interval.low > 2


def test_the_same_chance_gives_the_same_prediction():
    traffic, setup, change, _ = CASES["smaller chunks"]
    assert predict(traffic, change, setup) == predict(traffic, change, setup)


def test_every_fix_has_its_own_effect_or_says_why_not():
    fixes = (
        Fix("cap", "", Figure.TTFT_P50, LeverChange("max_num_seqs", 8)),
        Fix("fp8", "", Figure.TTFT_P50, LeverChange("kv_dtype", "fp8")),
        Fix("less context", "", Figure.TTFT_P50),
    )
    traffic = served(every(0.1, 20), CAPPED)
    advice = predict_advice(Advice(fixes), traffic, make_fit(), CAPPED, np.random.default_rng(1))
    cap, fp8, less = advice.fixes
    assert cap.effect.draws == DRAWS
    assert cap.effect.requests == 20
    assert not cap.unpredictable
    assert fp8.effect is None
    assert "kv_dtype" in fp8.unpredictable
    assert less.unpredictable
    beyond = [beyond_replay(fix, CAPPED) for fix in fixes]
    assert beyond == ["", fp8.unpredictable, less.unpredictable]


def test_long_windows_are_replayed_in_stretches_that_meet_a_busy_engine():
    requests = tuple(replace(each, went_s=each.came_s + 5) for each in every(1.0, 200, output_tokens=100))
    some = drawn_stretch(served(requests[:1]), np.random.default_rng(0))
    assert len(some.requests) == 1
    traffic = replace(some, requests=requests)
    for seed in range(20):
        some = drawn_stretch(traffic, np.random.default_rng(seed))
        counted = some.requests[some.warm_up :]
        assert sum(each.output_tokens for each in counted) >= TOKENS_OF_STRETCH
        assert all(each.went_s > counted[0].came_s for each in some.requests[: some.warm_up])
        assert len(some.requests) < 40


def test_a_stretch_of_a_closed_loop_has_work_for_all_of_its_clients():
    traffic = RecordedTraffic(every(1.0, 200, output_tokens=500), {}, concurrency=20, warm_up=20)
    for seed in range(20):
        assert len(drawn_stretch(traffic, np.random.default_rng(seed)).requests) == 80
    few = replace(traffic, requests=traffic.requests[:50])
    assert len(drawn_stretch(few, np.random.default_rng(0)).requests) == 50


@pytest.mark.parametrize(("clients", "like"), [(1, 1), (2, 1), (3, 2)])
def test_engines_share_clients_and_invent_none(clients, like):
    alike = every(0.0, 24)
    many = replay(RecordedTraffic(alike, {}, concurrency=clients), replace(SETUP, engines=2), COST)
    one = replay(RecordedTraffic(alike, {}, concurrency=like), SETUP, COST)
    # The busiest engine's clients wait as long as if they had it to themselves.
    assert many[Figure.TTFT_P90] == pytest.approx(one[Figure.TTFT_P90], rel=0.1)
    rate = (
        many[Figure.THROUGHPUT]
        / replay(RecordedTraffic(alike, {}, concurrency=1), SETUP, COST)[Figure.THROUGHPUT]
    )
    assert rate <= clients * 1.001


def test_engines_keep_what_they_served_and_the_busiest_has_the_odd_client():
    requests = tuple(
        replace(each, engine="e1" if index % 3 else "e0") for index, each in enumerate(every(0.0, 24))
    )
    dealt = by_engine(RecordedTraffic(requests, {}, concurrency=3), 2)
    assert [(len(share), clients) for share, clients in dealt] == [(16, 2), (8, 1)]
    assert [clients for _, clients in by_engine(RecordedTraffic(requests, {}, concurrency=1), 2)] == [1]


def test_in_a_closed_loop_any_request_may_come_first():
    requests = every(1.0, 12)
    traffic = replace(served(requests), concurrency=3)
    some = drawn_stretch(traffic, np.random.default_rng(0))
    assert some.requests != requests
    assert set(some.requests) == set(requests)
    assert drawn_stretch(replace(traffic, concurrency=None), np.random.default_rng(0)).requests == requests


def test_a_gain_is_a_share_of_what_is_lost_beyond_the_objective():
    fix = Fix("more", "none", Figure.TTFT_P50, LeverChange("max_num_seqs", 8))
    busy = served(every(0.1, 20), CAPPED)

    def gain(slo):
        advice = predict_advice(Advice((fix,)), busy, make_fit(), CAPPED, np.random.default_rng(1), slo=slo)
        return advice.fixes[0].effect.gain

    assert 0.5 < gain(Slo(ttft_s=0.1, tpot_s=1.0)) <= 1.0
    assert gain(Slo(ttft_s=1e6, tpot_s=1e6)) is None, "nothing is lost"
    assert gain(None) is None
