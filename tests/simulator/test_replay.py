"""A record replays to the same decisions whatever happened, and not if a decision or an input was changed."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.replay import replay
from phasewise.core.errors import ConfigError
from phasewise.core.kv_transfer import SplitRule, pair_ref
from phasewise.core.worker import Role
from phasewise.scheduling import CacheMiss, Generate, Granted, Wait
from phasewise.scheduling.breakers import FAILURES_TO_OPEN
from phasewise.scheduling.policies import POLICIES
from phasewise.scheduling.recording import RECORDED_CALLS, DecisionRecorder
from phasewise.scheduling.rules import SchedulingRules, new_world
from tests.builders import make_request, make_worker
from tests.scheduling.many_flows import ManyFlows
from tests.scheduling.test_many_flows import BUSY_DAY_OF_KV_TRANSFERS
from tests.scheduling.worlds import RememberedLeases

READ_ONLY = {
    "cluster": "is_current is_up models serving snapshot state usable",
    "breakers": "allowance any_open export is_open",
    "pairs": "allowance any_open export is_open",
    # `pace` keeps what it works out: only flows may ask for it.
    "paces": "export is_due kin learn_calm_step pace pace_of_pool",
    "prefixes": "cached_on cached_tokens export held_blocks known_blocks",
    "queue": "grant hold is_waiting join leave models reject rejoin release waiting waiting_by_tenant",
}
"""The other methods: they change nothing, or only flows call them."""
FLEETS = {"mixed": [Role.MIXED] * 3, "disaggregated": [Role.PREFILL, Role.DECODE, Role.DECODE, Role.MIXED]}


class Neighbours:
    """Other replicas that now and then have load."""

    def __init__(self, seed):
        self.dice = Random(seed)  # noqa: S311 - no secret

    def booked(self):
        pass

    def served(self, *_prompt):
        pass

    def loads(self):
        return {"w0": [90, 40, 1, 1]} if self.dice.random() < 0.2 else {}


class RecordedFlows(ManyFlows):
    """Many flows, and what else happens to a gateway's world from outside."""

    def begin_answer(self, dice):
        super().begin_answer(dice)
        for it in self.running:
            if it.content_sent and getattr(it.step, "trial", None) is not None:
                it.step.trial.answered = lambda: True

    def try_a_pair(self, dice):
        pair = pair_ref(*(dice.choice(self.world.cluster.snapshot()).worker.ref for _ in range(2)))
        trial = self.world.pairs.begin(pair, self.now_s)
        dice.choice([self.world.pairs.succeeded, self.world.pairs.abandoned])(pair, trial)

    def learn(self, dice):
        ref = self.world.cluster.state(dice.choice(self.names)).worker.ref
        self.world.paces.learn_read(ref, dice.randint(1, 900), 0, dice.random())
        self.world.paces.learn_fetch(ref, 100, seconds=dice.random())
        self.world.prefixes.served(ref, (1, 2, 3), 300, 0)
        self.world.prefixes.is_shared = dice.random() < 0.5

    def reload(self, dice):
        rules = SchedulingRules(dice.choice(sorted(POLICIES)), max_waiting=dice.randint(0, 8))
        self.world.set_workers([it.worker for it in self.world.cluster.snapshot()])
        self.calls.apply_rules(self.world, rules)

    def check(self):
        self.world.cluster.check_invariants()
        self.world.ledger.check_invariants()


def recorded_run(happenings, roles, rules, neighbours=None):
    """What a world with these workers records of these happenings, as lines."""
    events = []
    calls = DecisionRecorder(lambda event: events.append(json.dumps(event))).calls
    workers = [make_worker(f"w{index}", role=role, slots=2) for index, role in enumerate(roles)]
    world = calls.new_world(rules, workers, RememberedLeases(), neighbours)
    for worker in workers:
        world.cluster.mark_up(worker.name, worker.incarnation)
    flows = RecordedFlows(world, calls)
    for name, number in happenings:
        getattr(flows, name)(Random(number))  # noqa: S311 - no secret
        flows.check()
    for it in list(flows.running):
        it.flow.close()
    return events


def test_a_call_about_a_trial_finds_its_number_without_a_search():
    class Unsearched(list):
        def __iter__(self):
            raise AssertionError("the trials were searched")

    events = []
    recorder = DecisionRecorder(events.append)
    rules = SchedulingRules("prefix_affinity", None, 50, 4)
    world = recorder.calls.new_world(rules, [make_worker("w0")], RememberedLeases())
    recorder._player.trials = Unsearched()
    for number in range(3):
        world.breakers.open(make_worker().ref, 1_000.0 * number)
        trial = world.breakers.begin(make_worker().ref, 1_000.0 * number + 900.0)
        world.breakers.failed(make_worker().ref, trial, 1_000.0 * number + 901.0)
        assert events[-1]["arguments"][:2] == ["breakers.failed", number]


HAPPENINGS = (*BUSY_DAY_OF_KV_TRANSFERS, *["try_a_pair", "learn", "learn", "reload"])


@given(
    happenings=st.lists(st.tuples(st.sampled_from(HAPPENINGS), st.integers(0, 10_000)), max_size=120),
    fleet=st.sampled_from(sorted(FLEETS)),
    policy=st.sampled_from(sorted(POLICIES)),
    split=st.sampled_from(SplitRule),
    seed=st.none() | st.integers(0, 99),
)
@settings(max_examples=150, deadline=None)
def test_whatever_happens_the_replay_decides_the_same(happenings, fleet, policy, split, seed):
    rules = SchedulingRules(policy, split if fleet == "disaggregated" else None, 50, 4)
    others = None if seed is None else Neighbours(seed)
    result = replay(recorded_run(happenings, FLEETS[fleet], rules, others))
    assert result.difference is None, result.difference
    assert result.identical == result.decisions


@pytest.fixture(scope="module")
def busy_day():
    dice = Random(7)  # noqa: S311 - no secret
    happenings = [(dice.choice(HAPPENINGS), dice.randint(0, 10_000)) for _ in range(600)]
    rules = SchedulingRules("prefix_affinity", SplitRule.ALWAYS, 50, 4)
    return recorded_run(happenings, FLEETS["disaggregated"], rules)


def changed(lines, applies, change):
    """The record with the first event to which it `applies` changed, and the number of its line."""
    events = [json.loads(line) for line in lines]
    at = next(at for at, event in enumerate(events) if "event" in event and applies(event))
    change(events[at])
    return [json.dumps(event) for event in events], at + 1


def test_a_busy_day_has_all_that_can_be_compared(busy_day):
    result = replay(busy_day)
    assert result.difference is None
    assert result.identical == result.decisions > 80
    assert min(result.requests, result.rejected, result.grants, result.failures) > 5
    assert {json.loads(line).get("event") for line in busy_day} == {
        *(None, "request", "outcome", "begun", "closed", "let_in", "rules", "shared", "call")
    }


def test_a_changed_decision_is_found_and_both_sides_are_named(busy_day):
    def decided(event):
        return event["event"] == "outcome" and "decision" in (event["result"][0] or {})

    def choose_another(event):
        event["result"][0]["decision"]["chosen"] = "another"

    lines, line = changed(busy_day, decided, choose_another)
    difference = replay(lines).difference
    assert difference.line == line
    assert "on another" in difference.recorded
    assert "on w" in difference.replayed
    assert difference.where.startswith("result.0.decision.chosen")


def test_a_changed_load_of_a_losing_candidate_is_found(busy_day):
    def has_two(event):
        step = event["event"] == "outcome" and event["result"][0]
        return step and "decision" in step and len(step["decision"]["candidates"]) > 1

    def load_more(event):
        event["result"][0]["decision"]["candidates"][-1][1] += 1

    lines, line = changed(busy_day, has_two, load_more)
    assert replay(lines).difference.line == line


CLOSED = {"is": "Failed", "kind": {"is": "FailureKind", "value": "closed"}, "content_sent": False}


@pytest.mark.parametrize(
    ("kind", "instead"),
    [("Failed", {"is": "Succeeded"}), ("Succeeded", CLOSED), ("Granted", {"is": "TimedOut"})],
    ids=["Failed", "Succeeded", "Granted"],
)
def test_a_changed_outcome_changes_a_step(busy_day, kind, instead):
    def is_one(event):
        outcome = event["arguments"][-1]
        return event["event"] == "outcome" and isinstance(outcome, dict) and outcome["is"] == kind

    def change(event):
        event["arguments"][-1] = {**instead, "at_s": event["arguments"][-1]["at_s"]}

    lines, line = changed(busy_day, is_one, change)
    result = replay(lines)
    assert result.difference.line == line
    assert result.identical < result.decisions


def test_the_answer_of_a_trial_is_recorded_because_it_lets_others_in():
    events = []
    calls = DecisionRecorder(lambda event: events.append(json.dumps(event))).calls
    world = calls.new_world(SchedulingRules("least_outstanding"), [make_worker()], RememberedLeases())
    world.cluster.mark_up("w0", "1")
    for _ in range(FAILURES_TO_OPEN):
        world.breakers.failed(make_worker().ref, None, 0.0)
    flows = [calls.request_flow(make_request(arrived_s=60.0), world) for _ in range(3)]
    trial, waits, placed = flows
    steps = [next(trial) and trial.send(CacheMiss(60.0)), next(waits) and waits.send(CacheMiss(60.0))]
    assert isinstance(steps[1], Wait)
    steps[0].trial.answered = lambda: True
    calls.let_waiting_in(world, 60.5)
    assert steps[1].ticket.granted
    assert isinstance(waits.send(Granted(60.5)), Generate)
    assert next(placed)
    assert isinstance(placed.send(CacheMiss(60.6)), Generate)
    assert replay(events).difference is None
    without = [it for it in events if '"answered"' not in it]
    assert len(without) == len(events) - 1
    difference = replay(without).difference
    assert difference.recorded.startswith("Generate on w0")
    assert '"Wait"' in difference.replayed


def test_what_a_gateway_takes_over_is_recorded():
    events = []
    calls = DecisionRecorder(lambda event: events.append(json.dumps(event))).calls
    rules = SchedulingRules("prefix_affinity", SplitRule.AUTO, 50, True)
    workers = [make_worker("is"), make_worker("w1"), make_worker("w2", role=Role.PREFILL)]
    known, world = (kind(rules, workers, RememberedLeases()) for kind in (new_world, calls.new_world))
    known.prefixes.served(workers[1].ref, (1, 2, 3), 300, 0)
    known.prefixes.served(workers[0].ref, (7,), 300, 0)
    known.paces.learn_read(workers[0].ref, 300, 0, 0.5)
    known.paces.learn_step(workers[0].ref, 1, 0.01)
    known.breakers.open(workers[2].ref, 0.0)
    for part in ("prefixes", "paces", "breakers"):
        getattr(world, part).adopt(getattr(known, part).export())
    for worker in workers:
        world.cluster.mark_up(worker.name, worker.incarnation)
    flow = calls.request_flow(make_request(prefix_hashes=(1, 2, 3)), world)
    next(flow)
    assert flow.send(CacheMiss(0.5)).decision.options
    assert replay(events).difference is None
    assert replay([it for it in events if "prefixes.adopt" not in it]).difference is not None


def test_a_lost_health_check_changes_a_decision(busy_day):
    lines = [line for line in busy_day if '"cluster.mark_up"' not in line]
    assert replay(lines).difference is not None


def test_another_policy_decides_otherwise(busy_day):
    head = json.loads(busy_day[0])
    head["rules"]["policy"] = "round_robin"
    difference = replay([json.dumps(head), *busy_day[1:]]).difference
    assert "its turn among" in difference.replayed


def test_a_line_that_was_cut_off_is_left_out(busy_day):
    result = replay([*busy_day, '{"event": "let_in", "argu'])
    assert result.difference is None
    assert not result.complete


HEAD = '{"version": 2, "rules": {"is": "SchedulingRules", "policy": "round_robin"}, "workers": []'
HEAD += ', "has_neighbours": false}'


@pytest.mark.parametrize(
    "lines",
    [[], ["{}"], ["hello}", "{}"], ['{"version": 99}'], [HEAD, '{"event": "_advance", "arguments": []}']],
)
def test_another_file_is_no_record(lines):
    with pytest.raises(ConfigError, match="not a record"):
        replay(lines)


def test_every_method_that_changes_a_world_from_outside_is_recorded():
    calls = DecisionRecorder(lambda _event: None).calls
    world = calls.new_world(SchedulingRules("round_robin"), [make_worker()], RememberedLeases())
    for part, recorded in RECORDED_CALLS.items():
        known = {*recorded, *READ_ONLY[part].split()}
        public = {name for name in vars(type(getattr(world, part))) if not name.startswith("_")}
        assert public - {"check_invariants"} == known, part
