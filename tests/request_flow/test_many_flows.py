"""Many flows that share one world, under any order of arrivals, outcomes, deaths and returns of workers."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

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
from tests.builders import make_request
from tests.request_flow.worlds import make_world

WORKERS = 2
AGING_S = 5.0
NAMES = st.sampled_from([f"w{index}" for index in range(WORKERS)])
PICKS = st.integers(0, 1_000)
FAILURES = st.tuples(
    st.sampled_from(FailureKind), st.sampled_from([(False, False), (True, True), (True, True), (True, False)])
)


@dataclass
class Running:
    """One flow, and what became of it so far."""

    flow: object
    request: object
    step: object
    admitted_s: float | None = None
    met_engines: int = 0
    was_given: bool = False
    tries_a_resting_worker: bool = False
    steps: list = field(default_factory=list)

    @property
    def order_s(self):
        return self.admitted_s - self.request.priority * AGING_S


class ManyFlows(RuleBasedStateMachine):
    """Whatever happens: nobody is lost, nobody is served twice, and room is used in the right order."""

    def __init__(self):
        super().__init__()
        self.world = make_world(WORKERS)
        self.now_s = 0.0
        self.running = []
        self.started = self.ended = 0
        self.incarnations = 1

    @initialize(
        slots=st.integers(1, 2), capacity=st.integers(0, 8), budget=st.sampled_from([0.0, 2.0, 100.0])
    )
    def begin(self, slots, capacity, budget):
        self.world = make_world(WORKERS, slots=slots, capacity=capacity, aging_s=AGING_S, budget=budget)

    # --- what may happen --------------------------------------------------------------------------------

    @rule(
        model=st.sampled_from(["m", "m", "m", "unheard-of"]),
        priority=st.integers(-1, 2),
        max_wait_s=st.sampled_from([0.5, 5.0, 30.0]),
        limited=st.booleans(),
    )
    def start(self, model="m", priority=0, max_wait_s=5.0, limited=False):
        self.started += 1
        request = make_request(
            f"r{self.started}",
            model=model,
            priority=priority,
            max_wait_s=max_wait_s,
            arrived_s=self.now_s,
            limits=Limits(max_concurrent=100) if limited else Limits(),
        )
        flow = request_flow(request, self.world)
        self.running.append(Running(flow, request, next(flow)))

    @rule(
        priorities=st.lists(st.integers(-1, 2), min_size=2, max_size=8),
        max_wait_s=st.sampled_from([5.0, 30.0]),
    )
    def a_crowd_comes(self, priorities, max_wait_s):
        for priority in priorities:
            self.start(priority=priority, max_wait_s=max_wait_s)
            self.admit(-1, "lease")

    def picked(self, pick, *kinds):
        those = [it for it in self.running if isinstance(it.step, kinds)]
        return those[pick % len(those)] if those else None

    @rule(pick=PICKS, answer=st.sampled_from(["lease", "lease", "lease", "over", "not counted"]))
    def admit(self, pick, answer):
        if it := self.picked(pick, LookUpCache, Together):
            miss = CacheMiss(self.now_s)
            it.admitted_s = self.now_s
            if isinstance(it.step, LookUpCache):
                self.send(it, miss)
                return
            answers = {
                "lease": lambda: self.world.quotas.lease(it.request.request_id, it.step.steps[0].tokens),
                "over": lambda: OverLimit(LimitKind.TOKENS, 7.0),
                "not counted": lambda: NotCounted(7.0),
            }
            self.send(it, (QuotaAnswered(self.now_s, answers[answer]()), miss))

    @rule(pick=PICKS)
    def use_the_grant(self, pick):
        granted = [it for it in self.running if isinstance(it.step, Wait) and it.step.ticket.granted]
        if granted:
            self.send(granted[pick % len(granted)], Granted(self.now_s))

    @rule(pick=PICKS)
    def run_out_of_time(self, pick):
        if it := self.picked(pick, Wait):
            self.pass_time(max(0.0, it.step.until_s - self.now_s))
            if it.step.ticket.granted:
                self.send(it, Granted(self.now_s))
            else:
                self.send(it, TimedOut(self.now_s))

    @rule(pick=PICKS, tokens=st.none() | st.integers(1, 500))
    def succeed(self, pick, tokens):
        if it := self.picked(pick, Generate):
            self.send(it, Succeeded(self.now_s, tokens))

    @rule(pick=PICKS, failure=FAILURES)
    def fail(self, pick, failure):
        if it := self.picked(pick, Generate):
            kind, (content_sent, resumable) = failure
            self.send(it, Failed(self.now_s, kind, content_sent, resumable))

    @rule(name=NAMES)
    def fail_all_of_one_worker(self, name):
        for it in [
            it for it in self.running if isinstance(it.step, Generate) and it.step.worker.name == name
        ]:
            self.send(it, Failed(self.now_s, FailureKind.CLOSED, content_sent=True, resumable=True))

    @rule(pick=PICKS)
    def leave(self, pick):
        if it := self.picked(pick, object):
            self.send(it, Cancelled(self.now_s))

    @rule(pick=PICKS)
    def interrupt(self, pick):
        if it := self.picked(pick, object):
            before = self.waiting()
            it.flow.close()
            self.over(it)
            self.check_order(before)

    @rule(name=NAMES, restarted=st.booleans())
    def worker_comes_up(self, name, restarted):
        self.incarnations += restarted
        incarnation = (
            str(self.incarnations) if restarted else self.world.cluster.state(name).worker.incarnation
        )
        self.world.cluster.mark_up(name, incarnation)
        self.look()

    @rule(name=NAMES)
    def worker_goes_down(self, name):
        self.world.cluster.mark_down(name, "gone")
        self.look()

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 4.0, 20.0]))
    def pass_time(self, seconds):
        self.now_s += seconds
        self.look()

    def look(self):
        """What the gateway's health watcher does every second."""
        before = self.waiting()
        let_waiting_in(self.world, self.now_s)
        self.check_order(before)

    # --- what has to hold when something happened -------------------------------------------------------

    def send(self, it, outcome):
        line_was_empty = not self.world.line.is_waiting(it.request.model)
        nobody_there = not self.world.cluster.usable(it.request.model)
        before, last, was_given = self.waiting(), it.step, it.was_given
        if isinstance(last, Generate) and isinstance(outcome, Failed):
            it.met_engines -= outcome.kind is FailureKind.REFUSED
        try:
            it.step = it.flow.send(outcome)
        except StopIteration:
            assert isinstance(outcome, Succeeded | Cancelled)
            self.over(it)
        else:
            assert not isinstance(outcome, Succeeded | Cancelled)
            self.check_step(it, last)
            if isinstance(last, LookUpCache | Together) and isinstance(it.step, Generate):
                assert line_was_empty, "a newcomer overtook"
            if not was_given and isinstance(it.step, Wait) and isinstance(last, LookUpCache | Together):
                assert not nobody_there, "a new request waits for workers that are not there"
            if isinstance(it.step, Reject):
                self.check_reject(it)
                it.flow.close()
                self.over(it)
        self.check_order(before)

    def check_step(self, it, last):
        if isinstance(it.step, Generate):
            it.was_given = True
            it.met_engines += 1
            it.tries_a_resting_worker = self.world.breakers.is_open(it.step.worker.ref)
            assert it.met_engines <= MAX_ATTEMPTS
        if isinstance(it.step, Wait):
            if isinstance(last, Wait):
                assert it.step.until_s == last.until_s, "a place that was lost was paid for with time"
            elif isinstance(last, LookUpCache | Together):
                assert it.step.until_s == it.admitted_s + it.request.max_wait_s

    def check_reject(self, it):
        assert it.step.attempts == it.met_engines
        if it.step.reason in {RejectReason.ALL_ATTEMPTS_FAILED, RejectReason.ATTEMPTS_TIMED_OUT}:
            assert it.met_engines == MAX_ATTEMPTS
        if it.step.reason in {RejectReason.QUEUE_FULL, RejectReason.QUEUE_TIMEOUT}:
            assert 1.0 <= it.step.retry_after_s <= 60.0
        if it.step.reason is RejectReason.QUEUE_FULL:
            assert not it.was_given, "an answer that broke off was turned away"

    def over(self, it):
        self.running.remove(it)
        self.ended += 1
        assert next(it.flow, "over") == "over"
        quotas, request_id = self.world.quotas, it.request.request_id
        assert request_id not in quotas.open
        if request_id in quotas.settled and not it.was_given:
            assert quotas.settled[request_id] == 0

    def waiting(self):
        return [it for it in self.running if isinstance(it.step, Wait) and not it.step.ticket.granted]

    def check_order(self, before):
        """Of those who waited, nobody was granted before one who comes first."""
        still = [it for it in before if it in self.running and isinstance(it.step, Wait)]
        granted = [it.order_s for it in still if it.step.ticket.granted]
        passed_over = [it.order_s for it in still if not it.step.ticket.granted]
        assert not granted or not passed_over or max(granted) <= min(passed_over)

    # --- what always has to hold ------------------------------------------------------------------------

    @invariant()
    def books_are_in_step(self):
        world = self.world
        for part in (world.ledger, world.line, world.breakers, world.retries, world.cluster):
            part.check_invariants()
        assert self.started == self.ended + len(self.running)
        assert world.ledger.total_requests == sum(isinstance(it.step, Generate) for it in self.running)
        assert len(world.line) == len(self.waiting())

    @invariant()
    def no_worker_has_more_than_its_slots(self):
        for state in self.world.cluster.snapshot():
            assert self.world.ledger.load(state.worker.ref).requests <= state.worker.slots

    @invariant()
    def nobody_waits_beside_room(self):
        granted = sum(isinstance(it.step, Wait) and it.step.ticket.granted for it in self.running)
        assert not self.waiting() or self.world.room("m", self.now_s) <= granted

    @invariant()
    def a_resting_worker_is_tried_by_one(self):
        for it in self.running:
            if isinstance(it.step, Generate) and not self.world.breakers.is_open(it.step.worker.ref):
                it.tries_a_resting_worker = False
        trying = [
            it.step.worker.ref
            for it in self.running
            if isinstance(it.step, Generate) and it.tries_a_resting_worker
        ]
        assert len(trying) == len(set(trying))

    def teardown(self):
        for it in list(self.running):
            it.flow.close()
            self.over(it)
        assert self.world.ledger.total_requests == len(self.world.line) == 0
        assert not self.world.line.is_waiting("m")
        assert not self.world.quotas.open


ManyFlows.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestManyFlows = ManyFlows.TestCase
