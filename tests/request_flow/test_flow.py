"""The flow under every order of outcomes: it ends once, pays back what it booked, never tries thrice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.errors import FailureKind
from phasewise.model.decision import RejectReason
from phasewise.request_flow import (
    MAX_ATTEMPTS,
    CacheMiss,
    Cancelled,
    Failed,
    Generate,
    LookUpCache,
    Reject,
    Succeeded,
    TimedOut,
    Wait,
    expected_tokens,
    request_flow,
)
from phasewise.state.cluster_view import Health
from tests.builders import make_request
from tests.request_flow.worlds import make_world

OUTCOMES = st.one_of(
    st.just(Succeeded(1.0)),
    st.just(Cancelled(1.0)),
    st.builds(Failed, st.just(1.0), st.sampled_from(FailureKind), st.booleans()),
)


def run_flow(world, outcomes, request=None):
    """Every step of a flow that is sent these outcomes in turn."""
    flow = request_flow(request or make_request(), world)
    assert isinstance(next(flow), LookUpCache)
    steps = [flow.send(CacheMiss(0.0))]
    for outcome in outcomes:
        if isinstance(steps[-1], Reject):
            break
        waits = isinstance(steps[-1], Wait) and not isinstance(outcome, TimedOut | Cancelled)
        try:
            steps.append(flow.send(TimedOut(99.0) if waits else outcome))
        except StopIteration:
            break
    flow.close()
    return steps


@given(
    outcomes=st.lists(OUTCOMES, min_size=MAX_ATTEMPTS + 1, max_size=MAX_ATTEMPTS + 1),
    workers=st.integers(1, 4),
    up=st.integers(0, 4),
    budget=st.sampled_from([0.0, 1.0, 10.0]),
)
def test_whatever_happens_the_ledger_returns_to_zero_and_no_third_attempt_is_made(
    outcomes, workers, up, budget
):
    world = make_world(workers, up=up, budget=budget)
    steps = run_flow(world, outcomes)
    world.ledger.check_invariants()
    world.retries.check_invariants()
    assert world.ledger.total_requests == 0
    assert sum(isinstance(step, Generate) for step in steps) <= MAX_ATTEMPTS
    assert all(isinstance(step, Generate | Wait) for step in steps[:-1])


def test_a_flow_that_is_closed_in_mid_attempt_releases_its_booking():
    world = make_world()
    flow = request_flow(make_request(), world)
    next(flow)
    flow.send(CacheMiss(0.0))
    assert world.ledger.total_requests == 1
    flow.close()
    assert world.ledger.total_requests == 0


def test_a_retry_goes_to_a_worker_that_has_not_failed():
    steps = run_flow(make_world(2), [Failed(1.0, FailureKind.SERVER_ERROR, False), Succeeded(2.0)])
    assert [step.worker.name for step in steps] == ["w0", "w1"]


def test_the_only_worker_is_asked_twice_when_it_still_answers():
    steps = run_flow(make_world(1), [Failed(1.0, FailureKind.CLOSED, False), Succeeded(2.0)])
    assert [step.worker.name for step in steps] == ["w0", "w0"]


def test_a_worker_that_refuses_a_connection_is_taken_out_until_seen_again():
    world = make_world(1)
    steps = run_flow(world, [Failed(1.0, FailureKind.REFUSED, False), TimedOut(11.0)])
    assert world.cluster.snapshot()[0].health is Health.DOWN
    assert steps[-1].reason is RejectReason.NO_HEALTHY_WORKER


def test_two_failures_end_the_request():
    failed = Failed(1.0, FailureKind.SERVER_ERROR, False)
    assert run_flow(make_world(3), [failed, failed, failed])[-1].reason is RejectReason.ALL_ATTEMPTS_FAILED


def test_without_budget_a_failure_is_not_retried():
    steps = run_flow(make_world(2, budget=0.5), [Failed(1.0, FailureKind.CLOSED, False)])
    assert steps[-1].reason is RejectReason.RETRY_BUDGET_SPENT


@pytest.mark.parametrize(
    ("model", "up", "reason"),
    [
        ("unheard-of", 2, RejectReason.NO_WORKER_FOR_MODEL),
        ("unheard-of", 0, RejectReason.NO_WORKER_FOR_MODEL),
        ("m", 0, RejectReason.NO_HEALTHY_WORKER),
    ],
)
def test_a_request_that_cannot_be_placed_is_rejected_with_its_reason(model, up, reason):
    (step,) = run_flow(make_world(2, up=up), [], make_request(model=model))
    assert step.reason is reason


def test_a_request_is_booked_as_its_prompt_and_what_it_may_write():
    world = make_world(1)
    flow = request_flow(make_request(prompt_bytes=400, max_output_tokens=50), world)
    next(flow)
    step = flow.send(CacheMiss(0.0))
    assert world.ledger.load(step.worker.ref).tokens == 150
    assert expected_tokens(make_request(prompt_bytes=400)) == 356
    flow.close()
