"""Many flows that share one world, under any order of arrivals, outcomes, deaths and returns of workers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.errors import FailureKind
from phasewise.model.decision import RejectReason
from phasewise.model.limits import LimitKind, Limits, NotCounted, OverLimit
from phasewise.request_flow import (
    MAX_ATTEMPTS,
    CacheMiss,
    Cancelled,
    Failed,
    Generate,
    Granted,
    LookUpCache,
    QuotaAnswered,
    Reject,
    Succeeded,
    TimedOut,
    Together,
    Wait,
    let_waiting_in,
    request_flow,
)
from phasewise.state.breakers import FAILURES_TO_OPEN, TRIAL_S
from phasewise.state.waiting_line import LATEST_RETURN_S, SOONEST_RETURN_S
from tests.builders import make_request
from tests.request_flow.worlds import make_world

WORKERS = ("w0", "w1")
AGING_S = 5.0
BROKE = {"content_sent": True, "resumable": True}


@dataclass(eq=False)
class Running:
    """One flow, and what became of it so far."""

    flow: object
    request: object
    step: object
    admitted_s: float | None = None
    met_engines: int = 0
    was_given: bool = False
    tries_a_resting_worker: bool = False
    given_s: float = 0.0

    @property
    def order_s(self):
        return self.admitted_s - self.request.priority * AGING_S


class ManyFlows:
    """A world and its flows. Each event is made from a number, and leaves behind what has to hold."""

    def __init__(self, slots, capacity, budget):
        self.world = make_world(len(WORKERS), slots=slots, capacity=capacity, aging_s=AGING_S, budget=budget)
        self.now_s = 0.0
        self.running = []
        self.started = self.ended = 0
        self.incarnations = 1

    # --- what may happen --------------------------------------------------------------------------------

    def start(self, dice):
        self.started += 1
        request = make_request(
            f"r{self.started}",
            model=dice.choice(["m"] * 9 + ["unheard-of"]),
            priority=dice.randint(-1, 2),
            max_wait_s=dice.choice([0.5, 5.0, 30.0]),
            arrived_s=self.now_s,
            limits=Limits(max_concurrent=100) if dice.random() < 0.3 else Limits(),
        )
        flow = request_flow(request, self.world)
        it = Running(flow, request, next(flow))
        self.running.append(it)
        if dice.random() < 0.9:
            self.admit(dice, it)

    def admit(self, dice, it=None):
        it = it or self.one(dice, LookUpCache, Together)
        if it is None:
            return
        it.admitted_s = self.now_s
        miss = CacheMiss(self.now_s)
        if isinstance(it.step, LookUpCache):
            self.send(it, miss)
            return
        lease = self.world.quotas.lease
        answer = dice.choice(
            [lambda: lease(it.request.request_id, it.step.steps[0].tokens)] * 4
            + [lambda: OverLimit(LimitKind.TOKENS, 7.0), lambda: NotCounted(7.0)]
        )
        self.send(it, (QuotaAnswered(self.now_s, answer()), miss))

    def use_a_grant(self, dice):
        granted = [it for it in self.running if isinstance(it.step, Wait) and it.step.ticket.granted]
        if granted:
            self.send(dice.choice(granted), Granted(self.now_s))

    def run_out_of_time(self, dice):
        if it := self.one(dice, Wait):
            self.now_s = max(self.now_s, it.step.until_s)
            self.look()
            self.send(it, (Granted if it.step.ticket.granted else TimedOut)(self.now_s))

    def succeed(self, dice):
        if it := self.one(dice, Generate):
            self.send(it, Succeeded(self.now_s, dice.choice([None, 100])))

    def fail(self, dice):
        if it := self.one(dice, Generate):
            sent, resumable = dice.choice([(False, False), (True, True), (True, True), (True, False)])
            self.send(it, Failed(self.now_s, dice.choice(list(FailureKind)), sent, resumable))

    def fail_a_worker(self, dice):
        name = dice.choice(WORKERS)
        if dice.random() < 0.5:
            self.world.cluster.mark_down(name, "gone")
        for it in list(self.running):
            if isinstance(it.step, Generate) and it.step.worker.name == name:
                self.send(it, Failed(self.now_s, FailureKind.CLOSED, **BROKE))

    def leave(self, dice):
        if it := self.one(dice, object):
            self.send(it, Cancelled(self.now_s))

    def interrupt(self, dice):
        if it := self.one(dice, object):
            before = self.waiting()
            it.flow.close()
            self.over(it)
            self.check_order(before)

    def worker_up(self, dice):
        name = dice.choice(WORKERS)
        if dice.random() < 0.5:
            self.incarnations += 1
            self.world.cluster.mark_up(name, str(self.incarnations))
        else:
            self.world.cluster.mark_up(name, self.world.cluster.state(name).worker.incarnation)
        self.look()

    def worker_down(self, dice):
        self.world.cluster.mark_down(dice.choice(WORKERS), "gone")

    def worker_ill(self, dice):
        """As if others' requests had failed there, all at once."""
        ref = self.world.cluster.state(dice.choice(WORKERS)).worker.ref
        for _ in range(FAILURES_TO_OPEN):
            self.world.breakers.failed(ref, None, self.now_s)

    def pass_time(self, dice):
        self.now_s += dice.choice([0.0, 0.1, 1.0, 1.0, 4.0, 20.0])
        self.look()

    # --- helpers ----------------------------------------------------------------------------------------

    def one(self, dice, *kinds):
        those = [it for it in self.running if isinstance(it.step, kinds)]
        return dice.choice(those) if those else None

    def look(self):
        """What the gateway's health watcher does all the time."""
        before = self.waiting()
        let_waiting_in(self.world, self.now_s)
        self.check_order(before)

    def waiting(self):
        return [it for it in self.running if isinstance(it.step, Wait) and not it.step.ticket.granted]

    def over(self, it):
        self.running.remove(it)
        self.ended += 1
        assert next(it.flow, "over") == "over"
        quotas, request_id = self.world.quotas, it.request.request_id
        assert request_id not in quotas.open
        if request_id in quotas.settled and not it.was_given:
            assert quotas.settled[request_id] == 0

    # --- what has to hold when something happened -------------------------------------------------------

    def send(self, it, outcome):
        model, last, before = it.request.model, it.step, self.waiting()
        line_was_empty = not self.world.line.is_waiting(model)
        nobody_was_there = not self.world.cluster.usable(model)
        if isinstance(outcome, Failed):
            it.met_engines -= outcome.kind in {FailureKind.REFUSED, FailureKind.NO_SOCKET}
        try:
            it.step = it.flow.send(outcome)
        except StopIteration:
            assert isinstance(outcome, Succeeded | Cancelled)
            self.over(it)
        else:
            assert not isinstance(outcome, Succeeded | Cancelled)
            if isinstance(last, LookUpCache | Together):
                assert line_was_empty or not isinstance(it.step, Generate), "a newcomer overtook"
                assert not (nobody_was_there and isinstance(it.step, Wait)), "a new request waits for nobody"
            self.check_step(it, last)
        self.check_order(before)

    def check_step(self, it, last):
        if isinstance(it.step, Generate):
            it.was_given = True
            it.met_engines += 1
            assert it.met_engines <= MAX_ATTEMPTS
            it.tries_a_resting_worker = it.step.trial is not None
            it.given_s = self.now_s
        elif isinstance(it.step, Wait):
            if isinstance(last, Wait):
                assert it.step.until_s == last.until_s, "a place that was lost was paid for with time"
            elif isinstance(last, LookUpCache | Together):
                assert it.step.until_s == it.admitted_s + it.request.max_wait_s
        elif isinstance(it.step, Reject):
            self.check_reject(it)
            it.flow.close()
            self.over(it)

    def check_reject(self, it):
        reason = it.step.reason
        assert it.step.attempts == it.met_engines
        if reason in {RejectReason.ALL_ATTEMPTS_FAILED, RejectReason.ATTEMPTS_TIMED_OUT}:
            assert it.met_engines == MAX_ATTEMPTS
        if reason in {RejectReason.QUEUE_FULL, RejectReason.QUEUE_TIMEOUT}:
            assert SOONEST_RETURN_S <= it.step.retry_after_s <= LATEST_RETURN_S
        if reason is RejectReason.QUEUE_FULL:
            assert not it.was_given, "an answer that broke off was turned away"

    def check_order(self, before):
        """Of those who waited, nobody was granted before one who comes first."""
        still = [it for it in before if it in self.running and isinstance(it.step, Wait)]
        granted = [it.order_s for it in still if it.step.ticket.granted]
        passed_over = [it.order_s for it in still if not it.step.ticket.granted]
        assert not granted or not passed_over or max(granted) <= min(passed_over)

    # --- what always has to hold ------------------------------------------------------------------------

    def check(self):
        world = self.world
        for part in (world.ledger, world.line, world.breakers, world.retries, world.cluster):
            part.check_invariants()
        assert self.started == self.ended + len(self.running)
        assert world.ledger.total_requests == sum(isinstance(it.step, Generate) for it in self.running)
        assert len(world.line) == len(self.waiting())
        for state in world.cluster.snapshot():
            assert world.ledger.load(state.worker.ref).requests <= state.worker.slots
        self.check_that_nobody_waits_beside_room()
        self.check_that_a_resting_worker_is_tried_by_one_at_a_time()

    def check_that_nobody_waits_beside_room(self):
        granted = sum(isinstance(it.step, Wait) and it.step.ticket.granted for it in self.running)
        assert not self.waiting() or self.world.room("m", self.now_s) <= granted

    def check_that_a_resting_worker_is_tried_by_one_at_a_time(self):
        generating = [it for it in self.running if isinstance(it.step, Generate)]
        for it in generating:
            it.tries_a_resting_worker &= self.world.breakers.is_open(it.step.worker.ref)
        for name in WORKERS:
            ref = self.world.cluster.state(name).worker.ref
            tried_s = [
                it.given_s for it in generating if it.tries_a_resting_worker and it.step.worker.ref == ref
            ]
            assert all(later - before >= TRIAL_S for before, later in pairwise(sorted(tried_s)))

    def end(self):
        for it in list(self.running):
            it.flow.close()
            self.over(it)
        self.check()
        assert self.world.ledger.total_requests == len(self.world.line) == 0
        assert not self.world.line.is_waiting("m")
        assert not self.world.quotas.open


OFTEN = ("start", "start", "start", "use_a_grant", "use_a_grant", "succeed", "succeed", "fail", "fail")
NOW_AND_THEN = (
    "admit", "run_out_of_time", "fail_a_worker", "leave", "interrupt", "worker_up", "worker_up",
    "worker_down", "worker_ill", "pass_time", "pass_time",
)  # fmt: skip


@given(
    slots=st.integers(1, 2),
    capacity=st.integers(0, 8),
    budget=st.sampled_from([0.0, 2.0, 100.0]),
    events=st.lists(st.tuples(st.sampled_from(OFTEN + NOW_AND_THEN), st.integers(0, 10_000)), max_size=80),
)
@settings(max_examples=200, deadline=None)
def test_nobody_is_lost_or_served_twice_and_room_is_used_in_the_right_order(slots, capacity, budget, events):
    flows = ManyFlows(slots, capacity, budget)
    for name, number in events:
        getattr(flows, name)(Random(number))  # noqa: S311 - no secret
        flows.check()
    flows.end()


@pytest.mark.parametrize("seed", range(20))
def test_the_same_holds_over_a_long_and_busy_day(seed):
    dice = Random(seed)  # noqa: S311 - no secret
    flows = ManyFlows(slots=2, capacity=8, budget=100.0)
    for _ in range(600):
        getattr(flows, dice.choice(OFTEN * 3 + NOW_AND_THEN))(dice)
        flows.check()
    assert flows.ended > 50
    flows.end()
