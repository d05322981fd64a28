"""A plan and what it says about itself."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from phasewise.benchmark.workload.presets import PresetName
from phasewise.core.errors import ConfigError
from phasewise.core.slo import Slo
from phasewise.costs.fit.solve import FittedCost
from phasewise.planning.candidates import FleetCandidate
from phasewise.planning.disaggregation import Pays, PoolComparison, pays_from
from phasewise.planning.plan import Binds, PhaseMeter, binds, engines_interval, make_plan, token_prices
from tests.planning.builders import make_engine, make_traffic, make_trials

TWO = FleetCandidate(2, 0, 512, 256)


def test_a_plan_meets_its_goal_and_one_engine_fewer_does_not():
    trials = make_trials(make_traffic(rate=2.5))
    plan = make_plan(trials, 2.0, scans=False)
    own = plan.chosen.candidate
    assert plan.chosen.simulated.figures.attained >= 0.95
    assert not trials(own.resized(own.engines - 1)).met
    assert plan.one_more.candidate.engines == own.engines + 1
    assert plan.prices.per_hour == plan.chosen.price_per_hour == 2.0 * own.engines
    assert plan.here.engines == own.engines
    json.dumps(plan.to_dict())


def test_no_efficient_fleet_is_beaten():
    plan = make_plan(make_trials(), 1.0, scans=False)
    efficient = [it.place for it in plan.fleets if it.efficient]
    assert efficient
    for own in efficient:
        for other in (it.place for it in plan.fleets if it.place not in (None, own)):
            assert any(x > y for x, y in zip(other, own, strict=True))


def test_an_objective_that_nothing_meets_says_why():
    with pytest.raises(ConfigError, match="a stream alone on an engine is slower"):
        make_plan(make_trials(slo=Slo(3.0, 0.05)), 1.0, most=4)


def test_both_phases_pay_for_all_of_the_fleet():
    trials = make_trials()
    for candidate in (TWO, FleetCandidate(3, 1, 2048, 256)):
        prices = token_prices(trials, candidate, 3.6)
        turns = trials.traffic.turns
        inputs = sum(content.tokens for it in turns for content in it.prompt)
        paid = prices.per_million_input * inputs + prices.per_million_output * sum(
            it.output_tokens for it in turns
        )
        seconds = trials.traffic.sessions[-1].at_s - trials.traffic.sessions[0].at_s
        assert paid / 1e6 == pytest.approx(3.6 * candidate.engines * seconds / 3600)
        assert 0 < prices.prefill_share < 1


def test_a_meter_changes_no_step():
    trials = make_trials()
    plan = trials.plan(TWO)
    meter = PhaseMeter(trials.engine.cost)
    metered = trials.run(replace(plan, pools=(replace(plan.pools[0], cost=meter),)))
    assert [it.last_s for it in metered.requests] == [it.last_s for it in trials.run(plan).requests]
    assert 0 < meter.prefill_s < sum(it.busy_s for it in metered.hosts.values())


def test_what_binds_is_what_there_is_too_little_of():
    chat = make_traffic(rate=3.0)
    assert binds(make_trials(chat, slo=Slo(30.0, 0.07)), TWO) is Binds.DECODE
    few_blocks = make_trials(make_traffic(rate=3.0), slo=Slo(2.0, 9.0), engine=make_engine(kv_tokens=8192))
    assert binds(few_blocks, TWO) is Binds.KV_MEMORY
    few_slots = replace(TWO, max_num_seqs=2)
    assert binds(make_trials(chat, slo=Slo(2.0, 9.0)), few_slots) is Binds.QUEUE
    many_blocks = make_engine(kv_tokens=1_000_000)
    rag = make_trials(make_traffic(rate=0.8, kind=PresetName.RAG), slo=Slo(3.0, 9.0), engine=many_blocks)
    assert binds(rag, TWO) is Binds.PREFILL
    assert binds(make_trials(make_traffic(rate=0.1), slo=Slo(30.0, 9.0)), TWO) is None


def test_slower_draws_need_more_engines():
    trials = make_trials(make_traffic(rate=2.5))
    chosen = make_plan(trials, 1.0, scans=False).chosen.candidate
    cost = trials.engine.cost
    slower = FittedCost(replace(cost, floor_s=cost.floor_s * 1.2, beyond_knee_s_per_token=1e-3), 0.0)
    interval = engines_interval(trials, chosen, (slower,) * 4)
    assert interval.high > chosen.engines
    assert engines_interval(trials, chosen, ()) is None


def test_disaggregation_pays_from_where_it_does_not_stop_to():
    points = [
        PoolComparison(engines, 100, 1.0, load)
        for engines, load in ((4, 1.2), (8, 0.9), (16, 1.1), (32, 1.3))
    ]
    assert pays_from(points, "engines") == 16
    assert pays_from(points[:2], "engines") is None
    assert PoolComparison(4, 100, 1.0, 1.01).pays is Pays.UNDECIDED
    assert PoolComparison(4, 100, 0.0, 0.0).pays is Pays.UNDECIDED
    assert PoolComparison(4, 100, 0.0, 1.0).pays is Pays.YES
    assert PoolComparison(4, 100, 1.0, 0.0).pays is Pays.NO
