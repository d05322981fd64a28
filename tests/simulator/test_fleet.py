"""A simulated fleet: the gateway's flow before engines that count, in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phasewise.core.decision import RejectReason
from phasewise.core.kv_transfer import SplitRule
from phasewise.core.request import Limits
from phasewise.core.worker import Role
from phasewise.costs.fit.step import StepCost
from phasewise.simulator.fleet import EngineOutage, EnginePool, FleetScenario, SimulatedFleet
from phasewise.simulator.hosts import Links, LinkSpeed, VirtualClock
from phasewise.simulator.requests import EngineShape
from phasewise.simulator.traffic import (
    Content,
    Session,
    SessionTurn,
    SimulatedTraffic,
    block_keys,
    conversation,
    tokens_of,
)

COST = StepCost(0.02, 64, 1.0e-4, 1.0e-8, 1.0e-7, 1.0e-4)
SHAPE = EngineShape(max_model_len=8192, total_blocks=300, block_size=128)
MIXED = EnginePool(2, COST, SHAPE)
PAIR = (EnginePool(1, COST, SHAPE, Role.PREFILL), EnginePool(1, COST, SHAPE, Role.DECODE))


def single(at_s, tokens, outputs, text, **fields):
    return Session(at_s, (SessionTurn((Content(text, tokens),), outputs, **fields),))


def load(count, every_s=0.1, tokens=300, outputs=40):
    return SimulatedTraffic(
        [single(every_s * number, tokens + 7 * number, outputs, number) for number in range(count)]
    )


def checked(fleet):
    for host in fleet.hosts.values():
        host.engine.check_invariants()
    for gateway in fleet.gateways:
        gateway.world.ledger.check_invariants()
        assert gateway.world.ledger.total_requests == 0


def test_every_request_is_answered_and_all_is_released():
    fleet = SimulatedFleet(FleetScenario((MIXED,)))
    served = fleet.run(load(60))
    assert all(it.answered for it in served)
    assert {it.attempts[0].worker for it in served} == set(fleet.hosts)
    for it in served:
        assert it.arrived_s < it.first_s < it.last_s
        assert len(it.attempts[0].request.token_times_s) == it.output_tokens
    checked(fleet)


def test_the_same_seed_gives_the_same_times_to_the_bit():
    plan = FleetScenario((MIXED,), gateways=3)
    one, other = (
        [(it.gateway, it.first_s, it.last_s) for it in SimulatedFleet(plan, seed=5).run(load(80))]
        for _ in range(2)
    )
    assert one == other
    assert len({gateway for gateway, _, _ in one}) == 3


def test_a_turn_follows_the_answer_and_finds_its_prefix_cached():
    session = conversation(1.0, 7, [(500, 60, 0.0), (100, 40, 2.5), (100, 40, 0.5)])
    fleet = SimulatedFleet(FleetScenario((MIXED,)))
    first, second, third = fleet.run(SimulatedTraffic([session]))
    assert (second.prompt_tokens, third.prompt_tokens) == (660, 800)
    assert second.arrived_s == first.last_s + 2.5
    assert third.arrived_s == second.last_s + 0.5
    assert (first.cached_tokens, second.cached_tokens, third.cached_tokens) == (0, 512, 640)
    assert second.attempts[0].worker == first.attempts[0].worker


def test_a_session_without_an_answer_ends():
    plan = FleetScenario((replace(MIXED, engines=1, slots=1),), queue=0)
    busy = single(0.0, 4000, 500, 1)
    fleet = SimulatedFleet(plan)
    served = fleet.run(SimulatedTraffic([busy, conversation(0.1, 2, [(50, 5, 0.0), (50, 5, 0.1)])]))
    assert [it.rejected for it in served] == [None, RejectReason.QUEUE_FULL]


def test_requests_wait_for_a_slot_and_give_up_in_time():
    plan = FleetScenario((replace(MIXED, engines=1, slots=2),), max_wait_s=1.5)
    fleet = SimulatedFleet(plan)
    served = fleet.run(SimulatedTraffic([single(0.0, 100, 60, number) for number in range(8)]))
    rejected = [it for it in served if it.rejected is RejectReason.QUEUE_TIMEOUT]
    assert 0 < len(rejected) < 6
    assert {it.rejected_s for it in rejected} == {1.5}
    assert sum(it.answered for it in served) == 8 - len(rejected)
    checked(fleet)


def test_limits_hold_in_virtual_time():
    plan = FleetScenario((MIXED,), limits={"small": Limits(requests_per_minute=6)})
    sessions = [single(number, 50, 2, number, tenant="small") for number in range(60)]
    served = SimulatedFleet(plan).run(SimulatedTraffic(sessions))
    # A full bucket, and one more every ten seconds.
    assert sum(it.answered for it in served) == 6 + 5
    assert {it.rejected for it in served if not it.answered} == {RejectReason.REQUESTS_OVER_LIMIT}


@pytest.mark.parametrize("rule", [SplitRule.ALWAYS, SplitRule.AUTO])
def test_a_disaggregated_request_reads_on_one_engine_and_writes_on_another(rule):
    fleet = SimulatedFleet(FleetScenario(PAIR, split=rule, links=LinkSpeed(bytes_per_s=1e8)))
    served = fleet.run(load(20, every_s=0.6, tokens=2000))
    assert all(it.answered for it in served)
    split = [it for it in served if len(it.attempts) == 2]
    assert len(split) == 20 if rule is SplitRule.ALWAYS else split
    for it in split:
        reads, writes = it.attempts
        assert (reads.worker.partition("-")[0], writes.worker.partition("-")[0]) == ("prefill", "decode")
        moved_s = 0.003 + (it.prompt_tokens - 1) * 23_040 / 1e8
        assert it.first_s >= reads.ended_s + moved_s
    checked(fleet)


def test_transfers_share_a_link():
    clock = VirtualClock()
    links = Links(clock, LinkSpeed(bytes_per_s=1000.0, floor_s=0.0, kv_bytes_per_token=1))
    ended = {}
    for name, source, target, tokens in (("a", "p", "d", 1000), ("b", "p", "e", 1000), ("c", "q", "f", 1000)):
        links.move(source, target, tokens, lambda name=name: ended.setdefault(name, clock.now_s))
    clock.at(1.0, links.move, "r", "f", 250, lambda: ended.setdefault("late", clock.now_s))
    clock.run()
    # c is alone until second 1, where it ends; a and b share what p can send.
    assert ended == {"c": 1.0, "late": 1.25, "a": 2.0, "b": 2.0}


def test_an_engine_that_dies_loses_no_answer_and_comes_back_empty():
    plan = FleetScenario((MIXED,), failures=(EngineOutage(1.03, "mixed-0", 4.0),))
    fleet = SimulatedFleet(plan)
    served = fleet.run(load(80, outputs=100))
    assert all(it.answered for it in served)
    resumed = [it for it in served if any(attempt.resumes for attempt in it.attempts)]
    assert resumed
    for it in resumed:
        # The rest of its answer came from the other engine.
        written = [attempt.request.outputs for attempt in it.attempts]
        assert sum(written) == it.output_tokens
        assert it.attempts[-1].worker == "mixed-1"
    after = [it for it in served if it.arrived_s > 7.1]
    assert any(it.attempts[0].worker == "mixed-0" for it in after)
    assert fleet.hosts["mixed-0"].worker.incarnation == "2"
    checked(fleet)


def test_an_engine_that_dies_with_kv_for_another_costs_an_attempt():
    plan = FleetScenario(
        PAIR,
        split=SplitRule.ALWAYS,
        links=LinkSpeed(bytes_per_s=1e7),
        failures=(EngineOutage(2.0, "prefill-0"),),
    )
    served = SimulatedFleet(plan).run(load(6, every_s=0.2, tokens=2000))
    assert all(it.answered for it in served)
    assert any(it.failed for request in served for it in request.attempts)


def test_prompts_share_keys_as_far_as_they_begin_alike():
    system = Content(9, 300)
    one, other = (system, Content(1, 500)), (system, Content(2, 500))
    longer = (system, Content(1, 700))
    assert tokens_of(one) == 800
    shared = [a == b for a, b in zip(block_keys(one, 128), block_keys(other, 128), strict=True)]
    assert shared == [True, True, False, False, False, False]
    assert block_keys(longer, 128)[:6] == block_keys(one, 128)
    assert block_keys((Content(3, 300), Content(1, 500)), 128)[0] != block_keys(one, 128)[0]
    # To Python's hash -1 and -2 are the same.
    assert block_keys((Content(-1, 300),), 128) != block_keys((Content(-2, 300),), 128)


def talks(count, turns=3):
    """Conversations of few tenants, with system prompts in common."""
    made = [
        conversation(0.3 * number, 1 + number, [(300, 20, 0.5)] * turns, (Content(-1 - number % 5, 256),))
        for number in range(count)
    ]
    return SimulatedTraffic(
        [
            replace(it, turns=tuple(replace(turn, tenant=f"t{number % 3}") for turn in it.turns))
            for number, it in enumerate(made)
        ]
    )


@pytest.mark.parametrize(
    ("spread_by", "key_of"),
    [
        ("conversation", lambda turn: turn.conversation),
        ("tenant", lambda turn: turn.tenant),
        ("prefix", lambda turn: turn.prompt[0]),
    ],
)
def test_a_load_balancer_sends_what_it_hashes_to_one_gateway(spread_by, key_of):
    traffic = talks(40)
    fleet = SimulatedFleet(FleetScenario((MIXED,), gateways=4, spread_by=spread_by))
    served = fleet.run(traffic)
    turns = {(each.at_s, number): it for each in traffic.sessions for number, it in enumerate(each.turns)}
    by_key: dict[object, set[int]] = {}
    firsts = {it.arrived_s: it for it in served}
    for (at_s, number), turn in turns.items():
        if number == 0:
            by_key.setdefault(key_of(turn), set()).add(firsts[at_s].gateway)
    assert {len(it) for it in by_key.values()} == {1}
    assert len(set.union(*by_key.values())) > 1


def test_if_a_gateway_is_gone_only_what_it_had_goes_elsewhere():
    def gateways_of(fleet):
        return {it.arrived_s: it.gateway for it in fleet.run(load(80))}

    plan = FleetScenario((MIXED,), gateways=4, spread_by="prefix")
    before, fewer = gateways_of(SimulatedFleet(plan)), SimulatedFleet(plan)
    del fewer.gateways[1]
    after = gateways_of(fewer)
    assert (
        {it for it in before if before[it] != after[it]} == {it for it in before if before[it] == 1} != set()
    )


@pytest.mark.parametrize("homes", [True, False])
def test_gateways_agree_on_homes_only_with_a_secret_in_common(homes):
    fleet = SimulatedFleet(FleetScenario((replace(MIXED, engines=4),), gateways=3, homes=homes))
    fleet.run(talks(5))
    assert {bool(it.request.conversation) for it in fleet.requests} == {homes}
