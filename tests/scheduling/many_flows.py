"""Many flows that share one world, and what has to hold of them whatever happens."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from phasewise.core.decision import RejectReason
from phasewise.core.errors import FailureKind
from phasewise.core.kv_transfer import pair_ref
from phasewise.core.ports import LimitKind, NotCounted, OverLimit
from phasewise.core.request import Limits
from phasewise.core.timeline import EngineAccount
from phasewise.scheduling import (
    MAX_ATTEMPTS,
    CacheHit,
    CacheMiss,
    Cancelled,
    CountAndLookUp,
    Failed,
    FollowIdentical,
    Generate,
    Granted,
    IdenticalUnderWay,
    LeaderLost,
    LookAgain,
    LookUpCache,
    NotShareable,
    Prefill,
    QuotaAnswered,
    Reject,
    ServeStored,
    Succeeded,
    TimedOut,
    Wait,
)
from phasewise.scheduling.breakers import FAILURES_TO_OPEN, PAIR_FAILURES_TO_OPEN, TRIAL_S
from phasewise.scheduling.queue import LATEST_RETURN_S, SOONEST_RETURN_S
from phasewise.scheduling.recording import UNRECORDED
from tests.builders import make_request
from tests.scheduling.worlds import make_prefilled

AGING_S = 5.0
BROKE = {"content_sent": True, "resumable": True}
UNMET = {FailureKind.CONNECTION_REFUSED, FailureKind.NO_SOCKET, FailureKind.TOO_LATE}
OF_KV_TRANSFERS = {FailureKind.KV_TRANSFER, FailureKind.TOO_LATE}


@dataclass(eq=False)
class Running:
    """One flow, and what became of it so far."""

    flow: object
    request: object
    step: object
    admitted_s: float | None = None
    met_engines: int = 0
    failed_engines: int = 0
    was_given: bool = False
    content_sent: bool = False
    not_transferred: bool = False
    has_waited: bool = False
    is_trial: bool = False
    given_s: float = 0.0

    @property
    def order_s(self):
        return self.admitted_s - self.request.priority * AGING_S

    @property
    def kv(self):
        return getattr(self.step, "kv", None)


class ManyFlows:
    """A world and its flows. Each event is made from a number, and leaves behind what has to hold."""

    def __init__(self, world, calls=UNRECORDED):
        self.world = world
        self.calls = calls
        self.names = [state.worker.name for state in world.cluster.snapshot()]
        self.used_tickets = []
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
            splittable=dice.random() < 0.8,
            prefix_hashes=dice.choice([(), (1, 2)]),
        )
        flow = self.calls.request_flow(request, self.world)
        it = Running(flow, request, next(flow))
        self.running.append(it)
        if dice.random() < 0.9:
            self.admit(dice, it)

    def admit(self, dice, it=None):
        it = it or self.one(dice, LookUpCache, CountAndLookUp)
        if it is None:
            return
        it.admitted_s = self.now_s
        looked_up = dice.choice([CacheMiss] * 7 + [CacheHit] + [IdenticalUnderWay] * 2)(self.now_s)
        if isinstance(it.step, LookUpCache):
            self.send(it, looked_up)
            return
        if dice.random() < 0.1:
            looked_up = Cancelled(self.now_s)
        lease = self.world.quotas.lease
        answer = dice.choice(
            [lambda: lease(it.request.request_id, it.step.tokens)] * 4
            + [lambda: OverLimit(LimitKind.TOKENS, 7.0), lambda: NotCounted(7.0)]
        )
        self.send(it, (QuotaAnswered(self.now_s, answer()), looked_up))

    def use_a_grant(self, dice):
        granted = [it for it in self.running if isinstance(it.step, Wait) and it.step.ticket.granted]
        if granted:
            self.send(dice.choice(granted), Granted(self.now_s))

    def run_out_of_time(self, dice):
        if it := self.one(dice, Wait):
            self.now_s = max(self.now_s, it.step.until_s)
            self.look()
            self.send(it, (Granted if it.step.ticket.granted else TimedOut)(self.now_s))

    def serve_stored(self, dice):
        if it := self.one(dice, ServeStored):
            self.send(it, Succeeded(self.now_s))

    def follow(self, dice):
        """An identical request's answer is passed on, or its leader is lost before or after it began."""
        if it := self.one(dice, FollowIdentical):
            if dice.random() < 0.3:
                kind = dice.choice([FailureKind.CLOSED, FailureKind.TIMED_OUT])
                self.send(it, Failed(self.now_s, kind, True, dice.random() < 0.7))
                return
            ends = [Succeeded, LeaderLost, LeaderLost, LeaderLost, NotShareable, TimedOut]
            self.send(it, dice.choice(ends)(self.now_s))

    def look_again(self, dice):
        if it := self.one(dice, LookAgain):
            self.send(it, dice.choice([CacheMiss, IdenticalUnderWay])(self.now_s))

    def succeed(self, dice):
        if it := self.one(dice, Generate):
            self.send(it, Succeeded(self.now_s, dice.choice([None, 100]), self.account(dice)))

    def prefill(self, dice):
        """The KV is there, or the engine rejects the request."""
        if it := self.one(dice, Prefill):
            if dice.random() < 0.1:
                self.send(it, Succeeded(self.now_s, 100))
                return
            self.send(it, make_prefilled(it.step, self.now_s, account=self.account(dice)))

    def begin_answer(self, dice):
        if it := self.one(dice, Generate):
            it.step.on_first_content()
            it.content_sent = True

    def fail(self, dice):
        if it := self.one(dice, Generate, Prefill):
            can_transfer = it.step.decision.prefill and not it.content_sent
            kinds = set(FailureKind) - (set() if can_transfer else OF_KV_TRANSFERS)
            if it.kv is None:
                kinds.discard(FailureKind.TOO_LATE)
            kind = dice.choice(sorted(kinds))
            sent = it.content_sent or (kind not in UNMET and dice.random() < 0.5)
            if isinstance(it.step, Prefill) or kind is FailureKind.KV_TRANSFER:
                sent = False
            self.send(it, Failed(self.now_s, kind, sent, sent and dice.random() < 0.7))

    def fail_a_worker(self, dice):
        name = dice.choice(self.names)
        if dice.random() < 0.5:
            self.world.cluster.mark_down(name, "gone")
        for it in list(self.running):
            if isinstance(it.step, Generate | Prefill) and it.step.worker.name == name:
                broke = {"content_sent": False} if isinstance(it.step, Prefill) else BROKE
                self.send(it, Failed(self.now_s, FailureKind.CLOSED, **broke))

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
        name = dice.choice(self.names)
        if dice.random() < 0.5:
            self.incarnations += 1
            self.world.cluster.mark_up(name, str(self.incarnations))
        else:
            self.world.cluster.mark_up(name, self.world.cluster.state(name).worker.incarnation)
        self.look()

    def worker_down(self, dice):
        self.world.cluster.mark_down(dice.choice(self.names), "gone")

    def worker_fails(self, dice):
        """As if others' requests had failed there, all at once."""
        ref = self.world.cluster.state(dice.choice(self.names)).worker.ref
        for _ in range(FAILURES_TO_OPEN):
            self.world.breakers.failed(ref, None, self.now_s)

    def pair_fails(self, dice):
        """As if others' KV had not come over."""
        states = [dice.choice(self.world.cluster.snapshot()).worker.ref for _ in range(2)]
        for _ in range(PAIR_FAILURES_TO_OPEN):
            self.world.pairs.failed(pair_ref(*states), None, self.now_s)

    def pass_time(self, dice):
        self.now_s += dice.choice([0.0, 0.1, 1.0, 1.0, 4.0, 20.0])
        self.look()

    # --- helpers ----------------------------------------------------------------------------------------

    def one(self, dice, *kinds):
        those = [it for it in self.running if isinstance(it.step, kinds)]
        return dice.choice(those) if those else None

    def account(self, dice):
        tokens, seconds = dice.choice([None, 100]), dice.choice([None, 0.1])
        return EngineAccount(tokens, dice.choice([None, 0, 16]), tokens, seconds, seconds, gap_s=seconds)

    def look(self):
        """What the gateway's health watcher does all the time."""
        before = self.waiting()
        self.calls.let_waiting_in(self.world, self.now_s)
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
        queue_was_empty = not self.world.queue.is_waiting(model)
        no_worker_was_up = not self.world.cluster.usable(model)
        self.note(it, outcome)
        last_of = outcome[-1] if isinstance(outcome, tuple) else outcome
        try:
            it.step = it.flow.send(outcome)
        except StopIteration:
            assert isinstance(last_of, Succeeded | Cancelled)
            self.over(it)
        else:
            assert not isinstance(outcome, Succeeded | Cancelled)
            served = model == "m" and not isinstance(it.step, Reject)
            assert isinstance(it.step, ServeStored) is (served and isinstance(last_of, CacheHit))
            followed = served and isinstance(last_of, IdenticalUnderWay)
            assert isinstance(it.step, FollowIdentical) is followed
            if isinstance(it.step, LookAgain):
                assert isinstance(last_of, LeaderLost)
                assert self.now_s < it.request.arrived_s + it.request.max_wait_s, "a follower waits for ever"
            new = isinstance(last, LookUpCache | CountAndLookUp) or (
                isinstance(last, FollowIdentical | LookAgain) and not it.content_sent
            )
            if new:
                assert queue_was_empty or not isinstance(it.step, Generate | Prefill), "a newcomer overtook"
                assert not (no_worker_was_up and isinstance(it.step, Wait)), (
                    "a new request waits though no worker is up"
                )
            self.check_step(it, last)
        self.check_order(before)

    def note(self, it, outcome):
        if isinstance(it.step, FollowIdentical):
            it.content_sent |= isinstance(outcome, Failed)
            it.has_waited = isinstance(outcome, TimedOut) or getattr(outcome, "kind", "") == "timed_out"
        elif isinstance(outcome, Failed):
            it.met_engines -= outcome.kind in UNMET
            it.failed_engines += outcome.kind not in UNMET
            it.content_sent |= outcome.content_sent
            it.not_transferred |= outcome.kind in OF_KV_TRANSFERS

    def check_step(self, it, last):
        if isinstance(it.step, Generate | Prefill):
            it.was_given = True
            it.is_trial = it.step.trial is not None
            if it.kv is None:
                it.met_engines += 1
                it.given_s = self.now_s
            assert it.met_engines <= MAX_ATTEMPTS
            assert it.failed_engines < MAX_ATTEMPTS, "a poisonous prompt is given to a third engine"
            self.check_kv_transfer(it, last)
        elif isinstance(it.step, Wait):
            if isinstance(last, Wait):
                assert it.step.until_s == last.until_s, "a lost grant shortened the wait"
            elif isinstance(last, LookUpCache | CountAndLookUp | FollowIdentical | LookAgain):
                since_s = it.admitted_s if it.has_waited else self.now_s
                assert it.step.until_s == since_s + it.request.max_wait_s
        elif isinstance(it.step, Reject):
            self.check_reject(it)
            it.flow.close()
            self.over(it)

    def check_kv_transfer(self, it, last):
        if it.step.decision.prefill is not None:
            assert it.request.splittable
            assert not it.content_sent, "there is no KV of a half-written answer"
        if isinstance(it.step, Prefill):
            assert not it.not_transferred, "a KV transfer failed and another was tried"
        if it.kv is not None:
            assert isinstance(last, Prefill)
            assert not any(it.kv is used for used in self.used_tickets)
            assert it.kv.source == last.worker.ref
            self.used_tickets.append(it.kv)
        if isinstance(last, FollowIdentical | LookAgain):
            assert getattr(it.step, "resumes", False) is it.content_sent

    def check_reject(self, it):
        reason = it.step.reason
        assert it.step.attempts == it.met_engines
        if reason in {RejectReason.ALL_ATTEMPTS_FAILED, RejectReason.ATTEMPTS_TIMED_OUT}:
            assert it.met_engines == MAX_ATTEMPTS
        if reason in {RejectReason.QUEUE_FULL, RejectReason.QUEUE_TIMEOUT}:
            assert SOONEST_RETURN_S <= it.step.retry_after_s <= LATEST_RETURN_S
        if reason is RejectReason.QUEUE_FULL:
            begun = it.was_given or it.content_sent
            assert not begun, "an answer that broke off was rejected"

    def check_order(self, before):
        """Waiting requests are granted in their order."""
        still = [it for it in before if it in self.running and isinstance(it.step, Wait)]
        granted = [it.order_s for it in still if it.step.ticket.granted]
        passed_over = [it.order_s for it in still if not it.step.ticket.granted]
        assert not granted or not passed_over or max(granted) <= min(passed_over)

    # --- what always has to hold ------------------------------------------------------------------------

    def check(self):
        world = self.world
        for part in (world.ledger, world.queue, world.breakers, world.pairs, world.retries, world.cluster):
            part.check_invariants()
        assert self.started == self.ended + len(self.running)
        self.check_loads()
        assert len(world.queue) == len(self.waiting())
        for state in world.cluster.snapshot():
            assert world.ledger.load(state.worker.ref).requests <= state.worker.slots
        self.check_that_no_request_waits_beside_a_free_slot()
        self.check_that_an_open_circuit_admits_one_trial_at_a_time()

    def check_loads(self):
        """Every worker has what the flows that are with it say, and nothing else."""
        expected = Counter()
        for it in self.running:
            if isinstance(it.step, Generate | Prefill):
                expected[it.step.decision.chosen.ref] += 1
                expected[it.step.worker.ref] += isinstance(it.step, Prefill)
        loads = self.world.ledger.loads
        assert {ref: load.requests for ref, load in loads.items()} == expected
        reads = any(isinstance(it.step, Generate | Prefill) and not it.kv for it in self.running)
        assert reads or not any(load.unread_tokens for load in loads.values())

    def check_that_no_request_waits_beside_a_free_slot(self):
        granted = sum(isinstance(it.step, Wait) and it.step.ticket.granted for it in self.running)
        assert not self.waiting() or self.world.free_slots("m", self.now_s) <= granted

    def check_that_an_open_circuit_admits_one_trial_at_a_time(self):
        generating = [it for it in self.running if isinstance(it.step, Generate | Prefill)]
        for it in generating:
            it.is_trial &= self.world.breakers.is_open(it.step.worker.ref)
        for name in self.names:
            ref = self.world.cluster.state(name).worker.ref
            tried_s = [it.given_s for it in generating if it.is_trial and it.step.worker.ref == ref]
            assert all(later - before >= TRIAL_S for before, later in pairwise(sorted(tried_s)))

    def finish(self):
        """From now on everything succeeds, so every request is served or rejected."""
        for name in self.names:
            self.world.cluster.mark_up(name, self.world.cluster.state(name).worker.incarnation)
        for _ in range(20 * len(self.running)):
            self.now_s += 100.0
            self.look()
            if not self.running:
                return
            it = self.running[0]
            if isinstance(it.step, LookUpCache | CountAndLookUp):
                self.admit(Random(0), it)  # noqa: S311 - no secret
            elif isinstance(it.step, LookAgain):
                self.send(it, CacheMiss(self.now_s))
            elif isinstance(it.step, Wait):
                self.send(it, (Granted if it.step.ticket.granted else TimedOut)(self.now_s))
            elif isinstance(it.step, Prefill):
                self.send(it, make_prefilled(it.step, self.now_s))
            else:
                self.send(it, Succeeded(self.now_s))
            self.check()
        assert not self.running, "a request goes on for ever"

    def end(self):
        for it in list(self.running):
            it.flow.close()
            self.over(it)
        self.check()
        assert self.world.ledger.total_requests == len(self.world.queue) == 0
        assert not self.world.queue.is_waiting("m")
        assert not self.world.quotas.open
