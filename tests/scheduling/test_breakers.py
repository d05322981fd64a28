"""When a worker is left alone, when it is tried again, and what is forgotten."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from phasewise.core.worker import WorkerRef
from phasewise.scheduling.breakers import (
    FAILURES_TO_OPEN,
    FIRST_OPEN_S,
    LONGEST_OPEN_S,
    REMEMBERED,
    TRIAL_S,
    UNBOUNDED,
    Breakers,
)

W0, W1 = WorkerRef("w0", "1"), WorkerRef("w1", "1")


def make_breakers(*, open_circuits=(), at_s=0.0):
    breakers = Breakers()
    for ref in open_circuits:
        fail(breakers, ref, FAILURES_TO_OPEN, at_s)
    return breakers


def fail(breakers, ref, times, at_s=0.0):
    for trial in [breakers.begin(ref, at_s) for _ in range(times)]:
        breakers.failed(ref, trial, at_s)


def succeed(breakers, ref, times):
    for _ in range(times):
        breakers.succeeded(ref, breakers.begin(ref, 0.0))


def open_after(breakers, ref, at_s):
    """How long the circuit stays open after a trial that fails at this time."""
    breakers.failed(ref, breakers.begin(ref, at_s), at_s)
    return breakers._open[ref].open_until_s - at_s


def test_some_failures_open_the_circuit_of_one_worker_only():
    breakers = make_breakers()
    fail(breakers, W0, FAILURES_TO_OPEN - 1)
    assert breakers.allowance(W0, 0.0) == UNBOUNDED
    fail(breakers, W0, 1)
    assert breakers.allowance(W0, 0.0) == 0
    assert breakers.allowance(W1, 0.0) == UNBOUNDED
    assert (breakers.is_open(W0), breakers.is_open(W1)) == (True, False)


def test_a_success_now_and_then_does_not_hide_a_worker_that_fails_most():
    breakers = make_breakers()
    for _ in range(2):
        fail(breakers, W0, 2)
        succeed(breakers, W0, 1)
    fail(breakers, W0, 1)
    assert breakers.is_open(W0)


def test_failures_that_are_a_minority_do_not_make_a_worker_rest():
    breakers = make_breakers()
    for _ in range(50):
        fail(breakers, W0, 1)
        succeed(breakers, W0, 2)
    assert not breakers.is_open(W0)


def test_after_its_rest_a_worker_is_tried_by_one_request():
    breakers = make_breakers(open_circuits=[W0])
    assert breakers.allowance(W0, FIRST_OPEN_S - 0.01) == 0
    assert breakers.allowance(W0, FIRST_OPEN_S) == 1
    assert breakers.begin(W0, 2.0) is not None
    assert breakers.allowance(W0, FIRST_OPEN_S) == 0


def test_a_trial_that_succeeds_ends_the_rest():
    breakers = make_breakers(open_circuits=[W0])
    breakers.succeeded(W0, breakers.begin(W0, 2.0))
    assert breakers.allowance(W0, 2.0) == UNBOUNDED
    assert not breakers.any_open


def test_a_trial_passes_when_its_answer_begins_though_it_is_not_complete():
    breakers = make_breakers(open_circuits=[W0])
    trial = breakers.begin(W0, 2.0)
    assert breakers.allowance(W0, 2.0) == 0
    trial.answered = lambda: True
    assert breakers.allowance(W0, 2.0) == UNBOUNDED
    assert breakers.begin(W0, 2.0) is None
    assert not breakers.is_open(W0)


def test_a_trial_does_not_pass_by_lasting_long_but_lets_another_try_too():
    breakers = make_breakers(open_circuits=[W0])
    breakers.begin(W0, 2.0)
    assert breakers.allowance(W0, 2.0 + TRIAL_S - 0.01) == 0
    for number in range(1, 100):
        at_s = 2.0 + number * TRIAL_S
        assert breakers.allowance(W0, at_s) == 1
        assert breakers.begin(W0, at_s) is not None
        assert breakers.allowance(W0, at_s) == 0


def test_of_several_trials_the_first_to_be_answered_or_to_fail_decides():
    breakers = make_breakers(open_circuits=[W0, W1])
    first, second = breakers.begin(W0, 2.0), breakers.begin(W0, 2.0 + TRIAL_S)
    breakers.failed(W0, second, 6.0)
    assert breakers.allowance(W0, 6.0) == 0
    breakers.succeeded(W0, first)
    assert breakers.is_open(W0), "it started before the circuit opened, so it does not count"
    breakers.begin(W1, 2.0)
    breakers.begin(W1, 2.0 + TRIAL_S).answered = lambda: True
    assert breakers.allowance(W1, 6.0) == UNBOUNDED


def test_a_trial_that_passed_and_fails_late_is_a_failure_like_any_other():
    breakers = make_breakers(open_circuits=[W0])
    trial = breakers.begin(W0, 2.0)
    trial.answered = lambda: True
    breakers.begin(W0, 2.0)
    breakers.failed(W0, trial, 30.0)
    assert not breakers.is_open(W0)


def test_each_failed_trial_doubles_the_open_time_up_to_a_bound():
    breakers = make_breakers(open_circuits=[W0])
    open_s = [open_after(breakers, W0, 100.0 * number) for number in range(1, 6)]
    assert open_s == [FIRST_OPEN_S * 2, FIRST_OPEN_S * 4, LONGEST_OPEN_S, LONGEST_OPEN_S, LONGEST_OPEN_S]


def test_many_failures_at_once_open_the_circuit_once_and_not_for_long():
    breakers = make_breakers()
    fail(breakers, W0, 100)
    assert breakers.allowance(W0, FIRST_OPEN_S) == 1


def test_a_stream_from_before_that_succeeds_does_not_close_the_circuit():
    breakers = make_breakers()
    old = breakers.begin(W0, 2.0)
    fail(breakers, W0, FAILURES_TO_OPEN)
    breakers.succeeded(W0, old)
    assert breakers.is_open(W0)


def test_after_an_inconclusive_trial_another_request_tries_the_worker():
    breakers = make_breakers(open_circuits=[W0])
    trial = breakers.begin(W0, 2.0)
    breakers.abandoned(W0, None)
    assert breakers.allowance(W0, 2.0) == 0
    breakers.abandoned(W0, trial)
    assert breakers.allowance(W0, 2.0) == 1


def test_a_trial_whose_client_left_in_mid_answer_has_passed():
    breakers = make_breakers(open_circuits=[W0])
    trial = breakers.begin(W0, 2.0)
    trial.answered = lambda: True
    breakers.abandoned(W0, trial)
    assert not breakers.any_open


def test_a_worker_that_fails_again_soon_stays_open_longer_and_one_that_recovered_does_not():
    breakers = make_breakers(open_circuits=[W0])
    breakers.succeeded(W0, breakers.begin(W0, 2.0))
    fail(breakers, W0, FAILURES_TO_OPEN, at_s=3.0)
    assert breakers.allowance(W0, 3.0 + FIRST_OPEN_S) == 0
    breakers.succeeded(W0, breakers.begin(W0, 2.0))
    succeed(breakers, W0, REMEMBERED)
    fail(breakers, W0, FAILURES_TO_OPEN, at_s=20.0)
    assert breakers.allowance(W0, 20.0 + FIRST_OPEN_S) == 1


def test_a_restarted_worker_starts_with_a_closed_circuit_and_its_former_incarnation_is_forgotten():
    breakers = make_breakers(open_circuits=[W0])
    for life in range(2, 200):
        ref = WorkerRef("w0", str(life))
        assert breakers.allowance(ref, 0.0) == UNBOUNDED
        fail(breakers, ref, FAILURES_TO_OPEN)
        breakers.check_invariants()
    assert len(breakers._breakers) == len(breakers._open) == 1


def test_a_worker_that_restarted_while_its_circuit_was_open_has_a_closed_one():
    breakers = make_breakers(open_circuits=[W0, W1])
    assert breakers.begin(WorkerRef("w0", "2"), 2.0) is None
    breakers.check_invariants()
    assert (breakers.is_open(W0), breakers.is_open(W1)) == (False, True)
    assert breakers.begin(WorkerRef("w1", "2"), 2.0) is None
    assert not breakers.any_open


def test_breakers_can_open_sooner_and_stay_open_longer():
    breakers = Breakers(failures_to_open=2, longest_open_s=64.0)
    fail(breakers, W0, 1)
    assert not breakers.is_open(W0)
    fail(breakers, W0, 1)
    open_s = [open_after(breakers, W0, 100.0 * number) for number in range(1, 9)]
    assert open_s == [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 64.0, 64.0]


def test_a_circuit_opened_by_hand_admits_a_trial_per_back_off_and_only_a_proof_closes_it():
    breakers = make_breakers()
    succeed(breakers, W0, REMEMBERED - 2)
    breakers.open(W0, 10.0, at_least_s=4.0)
    breakers.succeeded(W0, None)
    for now_s in (14.0, 18.0, 22.0):
        assert breakers.allowance(W0, now_s - 0.01) == 0
        assert breakers.allowance(W0, now_s) == 1
        trial = breakers.begin(W0, now_s)
        trial.answered = lambda: True
        assert breakers.allowance(W0, now_s) == 0
        breakers.succeeded(W0, trial)
        breakers.check_invariants()
        assert breakers.is_open(W0)
    breakers.open(W0, 22.0, at_least_s=4.0)
    assert breakers.allowance(W0, 29.9) == 0, "each time it stays open for longer"
    breakers.proved(W0)
    assert not breakers.any_open


def test_a_proof_closes_no_circuit_that_failures_opened():
    breakers = make_breakers(open_circuits=[W0])
    breakers.proved(W0)
    assert breakers.is_open(W0)


@pytest.mark.parametrize("answered", [False, True])
def test_a_circuit_opened_by_hand_opens_again_during_a_trial_and_after_its_success(answered):
    breakers = make_breakers(open_circuits=[W0])
    trial = breakers.begin(W0, 2.0)
    trial.answered = lambda: answered
    breakers.open(W0, 3.0)
    breakers.succeeded(W0, trial)
    breakers.check_invariants()
    assert breakers.is_open(W0), "requests from before it opened do not count"
    assert breakers.allowance(W0, 3.0) == 0


def test_opening_the_circuit_of_a_restarted_worker_forgets_its_former_incarnation():
    breakers = make_breakers(open_circuits=[W0])
    breakers.open(WorkerRef("w0", "2"), 0.0)
    breakers.check_invariants()
    assert (breakers.is_open(W0), breakers.is_open(WorkerRef("w0", "2"))) == (False, True)


class AnyOutcomes(RuleBasedStateMachine):
    """After some time an open circuit admits a trial, and only an answer closes it."""

    requests = Bundle("requests")

    def __init__(self):
        super().__init__()
        self.breakers = Breakers()
        self.now_s = 0.0
        self.silent = []

    @rule(target=requests, ref=st.sampled_from([W0, W1]))
    def give(self, ref):
        if not self.breakers.allowance(ref, self.now_s):
            return (ref, None)
        trial = self.breakers.begin(ref, self.now_s)
        if trial is not None:
            self.silent.append((ref, trial))
        return (ref, trial)

    @rule(request=requests)
    def answer_begins(self, request):
        if request in self.silent:
            self.decided(request[0])
            request[1].answered = lambda: True

    @rule(request=consumes(requests), outcome=st.sampled_from(["succeeded", "failed", "abandoned"]))
    def end(self, request, outcome):
        if request in self.silent:
            self.silent.remove(request)
            if outcome != "abandoned":
                self.decided(request[0])
        extra = (self.now_s,) if outcome == "failed" else ()
        getattr(self.breakers, outcome)(*request, *extra)

    def decided(self, ref):
        self.silent = [it for it in self.silent if it[0] != ref]

    @rule(ref=st.sampled_from([W0, W1]), times=st.integers(1, 8))
    def fail_often(self, ref, times):
        for _ in range(times):
            self.breakers.failed(ref, None, self.now_s)

    @rule(ref=st.sampled_from([W0, W1]))
    def open(self, ref):
        self.decided(ref)
        self.breakers.open(ref, self.now_s)
        assert self.breakers.allowance(ref, self.now_s) == 0

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0]))
    def pass_time(self, seconds):
        self.now_s += seconds

    @invariant()
    def no_circuit_stays_open_for_ever(self):
        self.breakers.check_invariants()
        for ref in (W0, W1):
            assert self.breakers.allowance(ref, self.now_s + LONGEST_OPEN_S + TRIAL_S) >= 1

    @invariant()
    def no_circuit_closes_before_an_answer_begins(self):
        for ref, _ in self.silent:
            assert self.breakers.allowance(ref, self.now_s) <= 1


AnyOutcomes.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyOutcomes = AnyOutcomes.TestCase


def test_breakers_out_of_step_are_noticed():
    breakers = make_breakers(open_circuits=[W0])
    breakers._breakers["w0"].open_until_s = None
    with pytest.raises(AssertionError, match="out of step"):
        breakers.check_invariants()
