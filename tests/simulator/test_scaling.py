"""Scaling rules on simulated fleets, and Kubernetes' autoscaler between a rule and the engines."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import inf

import pytest

from phasewise.core.errors import ConfigError
from phasewise.core.slo import Slo
from phasewise.core.worker import Role
from phasewise.experiments.simulate.scaling import ScalingTrial, parse_rule, try_rule
from phasewise.scheduling.engines_needed import pools_need
from phasewise.simulator.fleet import EnginePool, FleetPlan, SimulatedFleet
from phasewise.simulator.scaling import Autoscaler, PodAutoscaler, reversals
from phasewise.simulator.traffic import Content, Session, Traffic, Turn
from tests.simulator.test_fleet import COST, SHAPE

SLO = Slo(1.0, 0.06)
ONE = FleetPlan((EnginePool(1, COST, SHAPE, name="main"),), max_wait_s=60.0)


def wave(quiet_s=120, busy_s=480, busy_per_s=8, then_s=2400):
    """Quiet, busy, quiet."""
    sessions = []
    for second in range(quiet_s + busy_s + then_s):
        per_s = busy_per_s if quiet_s <= second < quiet_s + busy_s else 1
        for number in range(per_s):
            text = len(sessions)
            at_s = second + number / per_s
            sessions.append(Session(at_s, (Turn((Content(text, 900 + text % 200),), 40),)))
    return Traffic(sessions)


WAVE = wave()


def run(rule, setting, plan=ONE, traffic=WAVE, start_up_s=60.0):
    return try_rule(ScalingTrial(rule, setting, start_up_s, 1, 10), plan, traffic, SLO, 0.0)


@cache
def tried(rule, setting, start_up_s=60.0):
    """On the wave; each once."""
    return run(rule, setting, start_up_s=start_up_s)


# --- Kubernetes' autoscaler ---------------------------------------------------------------------------------


def replicas_over(wanted, first, every_s=15.0, **bounds):
    scaler, found = PodAutoscaler(**{"least": 1, "most": 20, **bounds}), [first]
    for look, it in enumerate(wanted, 1):
        found.append(scaler.replicas(it, found[-1], look * every_s))
    return found[1:]


def test_within_the_tolerance_nothing_changes():
    assert replicas_over([10.9, 9.1, 11.2], 10) == [10, 10, 12]


def test_it_rises_by_four_or_to_the_double_at_once():
    assert replicas_over([20.0] * 3, 1) == [5, 10, 20]


def test_it_falls_to_the_most_that_was_wanted_in_five_minutes():
    assert replicas_over([4.0] * 5 + [2.0] * 30, 4) == [4] * 24 + [2] * 11


def test_it_keeps_the_first_number_for_five_minutes_too():
    assert replicas_over([0.0] * 25, 6) == [6] * 20 + [1] * 5


def test_what_cannot_be_met_gets_the_most():
    assert replicas_over([inf] * 6, 4, most=7)[-1] == 7


def test_a_reversal_is_a_change_of_direction_within_ten_minutes():
    assert reversals([(0.0, 1), (60.0, 2), (120.0, 3)]) == 0
    assert reversals([(0.0, 1), (60.0, 2), (400.0, 1), (900.0, 2)]) == 2
    assert reversals([(0.0, 1), (60.0, 2), (700.0, 1)]) == 0


# --- rules --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rule", "setting"), [("concurrency", 12.0), ("slo", 0.9), ("phasewise", 0.7)])
def test_every_rule_follows_the_load_up_and_down(rule, setting):
    fixed, found = tried("fixed", 1.0), tried(rule, setting)
    history = found.history["main"]
    most = max(engines for _, engines in history)
    assert found.attained > fixed.attained
    assert most > 1
    assert history[-1][1] < most
    assert found.engine_hours < tried("fixed", float(most)).engine_hours


def test_engines_cost_from_their_beginning_until_their_last_answer():
    found = run("fixed", 3.0, replace(ONE, pools=(replace(ONE.pools[0], engines=3),)))
    assert found.engine_hours == pytest.approx(3 * found.figures.virtual_s / 3600, rel=0.02)
    assert found.history == {"main": [(0.0, 3)]}


def test_engines_that_start_slowly_serve_later():
    quick, slow = tried("phasewise", 0.7, start_up_s=0.0), tried("phasewise", 0.7, start_up_s=240.0)
    assert slow.attained < quick.attained


def test_an_engine_that_is_given_up_while_it_starts_never_serves():
    fleet = SimulatedFleet(ONE)
    name = fleet.add_engine(replace(ONE.pools[0], starts_s=5.0))
    fleet.remove_engine(name)
    fleet.run(Traffic([Session(10.0, (Turn((Content(1, 100),), 5),))]))
    assert name not in fleet.hosts


def test_the_same_run_gives_the_same_history():
    assert run("phasewise", 0.7) == tried("phasewise", 0.7)


def test_no_rule_costs_less_than_hindsight():
    for found in (tried("fixed", 1.0), tried("phasewise", 0.7), tried("concurrency", 12.0)):
        assert 0 < tried("hindsight", found.attained).engine_hours <= found.engine_hours


def test_what_gateways_publish_adds_up_to_what_one_would():
    """Several gateways that know nothing of each other, each with a part of the requests."""
    needs = []
    for gateways in (1, 3):
        fleet = SimulatedFleet(
            replace(ONE, pools=(replace(ONE.pools[0], engines=4),), gateways=gateways, times_engines=True)
        )
        fleet.run(wave(0, 300, 8, 0), until_s=290.0)
        found = [pools_need(it.world, SLO, 290.0)["simulated", "main"] for it in fleet.gateways]
        needs.append((sum(it.prefill for it in found), sum(it.total for it in found)))
    assert needs[1] == pytest.approx(needs[0], rel=0.35)


def test_prefill_and_decode_pools_are_scaled_apart():
    pools = (
        EnginePool(1, COST, SHAPE, Role.PREFILL, name="read"),
        EnginePool(1, COST, SHAPE, Role.DECODE, name="write"),
    )
    found = run("phasewise", 0.5, replace(ONE, pools=pools), wave(60, 300, 14, 0))
    assert set(found.history) == {"read", "write"}
    assert max(engines for _, engines in found.history["read"]) > 1
    with pytest.raises(ConfigError, match="slo"):
        run("slo", 1.0, replace(ONE, pools=pools))


@pytest.mark.parametrize(("text", "rule"), [("slo=0.5", ("slo", 0.5)), ("fixed", ("fixed", None))])
def test_a_rule_may_have_a_setting(text, rule):
    assert parse_rule(text) == rule


@pytest.mark.parametrize("text", ["best", "slo=", "slo=0", "concurrency=many"])
def test_a_rule_that_is_unknown_or_has_no_number_is_rejected(text):
    with pytest.raises(ConfigError) as rejected:
        parse_rule(text)
    assert rejected.value.hint


def test_an_autoscaler_does_not_keep_a_fleet_running():
    fleet = SimulatedFleet(ONE)
    Autoscaler(fleet, lambda _fleet, _pool: 1.0, 0.0, 1, 2)
    fleet.run(Traffic([Session(1.0, (Turn((Content(1, 100),), 5),))]))
    assert fleet.clock.now_s < 10
