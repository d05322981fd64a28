"""Engines needed: from work, open requests and objectives; figures of gateways and phases add up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.core.slo import Slo
from phasewise.core.worker import Role
from phasewise.scheduling.engine_speed import ArrivingWork, EnginePace, EngineSpeeds
from phasewise.scheduling.engines_needed import CAUGHT_UP_S, PoolWork, engines_needed, pools_need
from phasewise.scheduling.rules import SchedulingRules, new_world
from tests.builders import make_worker
from tests.scheduling.worlds import RememberedLeases, start_flow

PACE = EnginePace(0.01, 0.0005, 0.0, 0.02, 0.001)
SLO = Slo(2.0, 0.1)
POOL = ("m", "main")
QUIET = PoolWork(0.0, 0.0, 0.0, 0)
MEMBERS = st.floats(0, 1e4)
WORKS = st.builds(PoolWork, MEMBERS, MEMBERS, st.just(0.0), st.just(0.0))


def needed(work, role=Role.MIXED, slo=SLO):
    return engines_needed(work, PACE, slo, role, utilization=1.0)


def test_an_engine_that_prefills_half_of_the_time_and_decodes_up_to_its_tpot_is_needed_once():
    # In a step of TPOT's bound, 0.1 s, 0.02 s are fixed: 0.8 s of each second are left for work.
    found = needed(PoolWork(prefill=0.4, output_tokens=400.0, open_prefill_s=0.0, open_streams=0))
    assert (found.prefill, found.decode) == pytest.approx((0.5, 0.5))
    assert found.total == pytest.approx(1.0)


def test_a_prefill_worker_has_no_decode_steps():
    assert needed(replace(QUIET, prefill=0.4), Role.PREFILL).prefill == pytest.approx(0.4)


def test_prompts_that_would_be_late_need_more_engines():
    arriving = replace(QUIET, prefill=0.4)
    assert needed(replace(arriving, open_prefill_s=0.8)) == needed(arriving)
    late = needed(replace(arriving, open_prefill_s=0.8 + 0.4 * CAUGHT_UP_S))
    assert late.prefill == pytest.approx(2 * needed(arriving).prefill)


def test_open_streams_need_a_token_within_each_tpot():
    # 80 streams, 10 tokens each per second, 1 ms each.
    assert needed(replace(QUIET, open_streams=80)).decode == pytest.approx(1.0)


def test_a_stricter_objective_needs_more_engines():
    work = PoolWork(0.4, 400.0, 0.0, 0)
    assert needed(work, slo=Slo(2.0, 0.05)).total > needed(work).total
    assert needed(work, slo=Slo(2.0, 0.001)).total < 20


def test_full_kv_caches_need_engines_that_compute_does_not():
    assert needed(replace(QUIET, kv_used=1.8)).total == pytest.approx(2.0)
    assert needed(PoolWork(1.6, 0.0, 0.0, 0, kv_used=1.8)).decode == 0.0


@given(WORKS, WORKS)
def test_the_needs_of_two_gateways_add_up(one, other):
    both = PoolWork(one.prefill + other.prefill, one.output_tokens + other.output_tokens, 0.0, 0)
    assert needed(one).total + needed(other).total == pytest.approx(needed(both).total)


# --- work that arrives ------------------------------------------------------------------------------------


def steady(arriving, from_s, until_s, prefill_s=0.5):
    for number in range(int(from_s), int(until_s)):
        arriving.placed(POOL, prefill_s, 100.0, float(number))


def test_a_steady_load_is_known_within_minutes():
    arriving = ArrivingWork()
    steady(arriving, 0, 600)
    assert arriving.lately(POOL, 600.0) == pytest.approx((0.5, 100.0), rel=0.05)


def test_a_load_rises_fast_and_falls_slowly():
    arriving = ArrivingWork()
    steady(arriving, 0, 3600, 0.2)
    steady(arriving, 3600, 3720, 1.0)
    risen, _ = arriving.lately(POOL, 3720.0)
    assert risen > 0.65
    steady(arriving, 3720, 4320, 1.0)
    assert 0.6 < arriving.lately(POOL, 4320.0 + 600)[0] < 0.8
    assert arriving.lately(POOL, 4320.0 + 7200)[0] < 0.05


# --- of a world -------------------------------------------------------------------------------------------


def make_world(*workers, neighbours=None):
    rules = SchedulingRules("least_outstanding", times_engines=True)
    world = new_world(rules, workers, RememberedLeases(), neighbours)
    for worker in workers:
        world.cluster.mark_up(worker.name, worker.incarnation)
    return world


def teach(world, worker):
    for tokens in (100, 1000, 2000):
        world.paces.learn_read(worker.ref, tokens, 0, 0.0005 * tokens)
    for streams in (1, 10, 40):
        world.paces.learn_step(worker.ref, streams, 0.02 + 0.001 * streams)


def test_a_pool_of_unknown_speed_has_no_figure():
    world = make_world(make_worker())
    assert pools_need(world, SLO, 1.0) == {}


def test_requests_that_were_placed_are_needs_of_their_pool():
    one, other = make_worker("a", pool="one"), make_worker("b", pool="other")
    world = make_world(one, other)
    teach(world, one)
    teach(world, other)
    held = start_flow(world, max_output_tokens=100)
    assert held
    found = pools_need(world, SLO, 1.0)
    busy, idle = (found["m", pool] for pool in ("one", "other"))
    assert busy.prefill > 0
    assert busy.decode > 0
    assert idle.total == 0


def test_kv_caches_are_shared_out_by_tokens():
    class Others:
        def booked(self):
            pass

        def loads(self):
            return {"a": (3, 0, 0, 0)}

    worker = make_worker("a")
    world = make_world(worker, neighbours=Others())
    teach(world, worker)
    world.ledger.book(worker.ref, 1)
    (found,) = pools_need(world, SLO, 1.0, kv_used=lambda _name: 0.9).values()
    assert found.total == pytest.approx(0.25)


def test_the_pace_of_a_pool_is_that_of_its_untimed_workers():
    worker, new = make_worker("a"), make_worker("b")
    speeds = EngineSpeeds([worker, new])
    assert speeds.pace_of_pool(worker.model, worker.pool) is None
    for tokens in (100, 1000, 2000):
        speeds.learn_read(worker.ref, tokens, 0, 0.0005 * tokens)
    speeds.learn_step(worker.ref, 1, 0.02)
    assert speeds.pace_of_pool(worker.model, worker.pool) == speeds.pace(new.ref)


def test_steps_with_prefill_in_them_do_not_slow_the_pace_of_a_pool():
    worker = make_worker("a")
    world = make_world(worker)
    teach(world, worker)
    for streams in (1, 10, 40):
        world.paces.learn_calm_step(worker.ref, streams, 0.02 + 0.001 * streams)
    for _ in range(100):
        world.paces.learn_step(worker.ref, 20, 0.8)
    pace = world.paces.pace_of_pool(worker.model, worker.pool)
    assert (pace.step_s, pace.step_s_per_stream) == pytest.approx((0.02, 0.001), rel=0.05)
