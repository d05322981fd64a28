"""The flow under every order of outcomes: it ends once, pays back what it booked, never tries thrice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.core.decision import RejectReason
from phasewise.core.errors import FailureKind
from phasewise.core.ports import LimitKind, NotCounted, OverLimit
from phasewise.core.request import Limits
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
    QuotaAnswered,
    Reject,
    ServeStored,
    Succeeded,
    TimedOut,
    Wait,
    expected_tokens,
    request_flow,
)
from phasewise.scheduling.breakers import FAILURES_TO_OPEN
from phasewise.scheduling.world import Health
from tests.builders import make_request
from tests.scheduling.worlds import make_world

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
    rejections = sum(isinstance(it, Failed) and it.kind is FailureKind.CONNECTION_REFUSED for it in outcomes)
    assert sum(isinstance(step, Generate) for step in steps) <= MAX_ATTEMPTS + rejections
    assert all(isinstance(step, Generate | Wait) for step in steps[:-1])


def test_only_a_request_with_kv_can_be_sent_too_late_so_that_retries_end():
    late = Failed(1.0, FailureKind.TOO_LATE, content_sent=False)
    *_, step = run_flow(make_world(4), [late] * 3)
    assert (step.reason, step.attempts) == (RejectReason.ALL_ATTEMPTS_FAILED, MAX_ATTEMPTS)


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


def test_a_retry_avoids_a_worker_with_an_open_circuit_if_there_is_another():
    world = make_world(3)
    for _ in range(FAILURES_TO_OPEN):
        world.breakers.failed(world.cluster.state("w1").worker.ref, None, 0.0)
    world.ledger.book(world.cluster.state("w2").worker.ref, 1_000)
    steps = run_flow(world, [Failed(60.0, FailureKind.CLOSED, False), Succeeded(61.0)])
    assert [step.worker.name for step in steps] == ["w0", "w2"]


def test_the_only_worker_is_asked_twice_when_it_still_answers():
    steps = run_flow(make_world(1), [Failed(1.0, FailureKind.CLOSED, False), Succeeded(2.0)])
    assert [step.worker.name for step in steps] == ["w0", "w0"]


def test_a_worker_that_rejects_a_connection_is_taken_out_until_seen_again():
    world = make_world(1)
    steps = run_flow(world, [Failed(1.0, FailureKind.CONNECTION_REFUSED, False), TimedOut(11.0)])
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


def test_workers_that_are_not_there_cost_no_attempt():
    world = make_world(4)
    rejected = Failed(1.0, FailureKind.CONNECTION_REFUSED, False)
    steps = run_flow(world, [rejected, rejected, Failed(1.0, FailureKind.CLOSED, False), Succeeded(2.0)])
    assert [step.worker.name for step in steps] == ["w0", "w1", "w2", "w3"]
    assert [step.attempt for step in steps] == [1, 2, 3, 4]
    assert world.retries._tokens == 9.0


def test_a_worker_that_is_up_but_takes_no_connection_is_not_asked_for_ever():
    world = make_world(1)
    flow = request_flow(make_request(max_wait_s=5.0), world)
    next(flow)
    step = flow.send(CacheMiss(0.0))
    for at_s in range(1, 6):
        step = flow.send(Failed(float(at_s), FailureKind.CONNECTION_REFUSED, False))
        assert (isinstance(step, Wait), step.until_s) == (True, 6.0)
        world.cluster.mark_up("w0", str(at_s + 1))
        step = flow.send(Granted(float(at_s)))
        assert isinstance(step, Generate)
    step = flow.send(Failed(6.0, FailureKind.CONNECTION_REFUSED, False))
    assert (step.reason, step.attempts) == (RejectReason.NO_HEALTHY_WORKER, 0)


NOT_THE_WORKERS = {
    FailureKind.CONNECTION_REFUSED,
    FailureKind.NO_SOCKET,
    FailureKind.NOT_CONTINUED,
    FailureKind.KV_TRANSFER,
    FailureKind.TOO_LATE,
}


@pytest.mark.parametrize("kind", sorted(set(FailureKind) - NOT_THE_WORKERS))
def test_every_failure_that_met_an_engine_counts_against_its_worker(kind):
    world = make_world(1)
    for _ in range(FAILURES_TO_OPEN):
        run_flow(world, [Failed(1.0, kind, content_sent=True)])
    assert world.breakers.is_open(world.cluster.state("w0").worker.ref)


def test_a_gateway_without_sockets_turns_requests_away_and_holds_it_against_no_worker():
    world = make_world(2)
    for _ in range(3 * FAILURES_TO_OPEN):
        step = run_flow(world, [Failed(1.0, FailureKind.NO_SOCKET, content_sent=False)])[-1]
        assert (step.reason, step.attempts) == (RejectReason.GATEWAY_FULL, 0)
        assert step.retry_after_s
    assert not world.breakers.any_open
    assert {it.health for it in world.cluster.snapshot()} == {Health.UP}


def test_a_worker_that_cannot_resume_an_answer_is_not_blamed_and_no_other_is_tried():
    world = make_world(3)
    broke = Failed(1.0, FailureKind.CLOSED, content_sent=True, resumable=True)
    for _ in range(FAILURES_TO_OPEN - 1):
        *_, step = run_flow(world, [broke, Failed(2.0, FailureKind.NOT_CONTINUED, content_sent=True)])
        assert (step.reason, step.attempts) == (RejectReason.NOT_RESUMABLE, 2)
    for _ in range(3 * FAILURES_TO_OPEN):
        run_flow(world, [Failed(2.0, FailureKind.NOT_CONTINUED, content_sent=True)])
    assert not world.breakers.any_open


def test_a_request_that_every_worker_answers_with_an_error_is_held_against_none():
    world = make_world(2, budget=100.0)
    failed = Failed(1.0, FailureKind.SERVER_ERROR, False)
    for _ in range(20):
        assert run_flow(world, [failed, failed])[-1].reason is RejectReason.ALL_ATTEMPTS_FAILED
    assert not world.breakers.any_open


def test_an_error_of_one_worker_is_held_against_it_once_another_answers():
    world = make_world(2, budget=100.0)
    first = run_flow(world, [Succeeded(0.0)])[0].worker.ref
    for _ in range(5):
        run_flow(world, [Failed(1.0, FailureKind.SERVER_ERROR, False), Succeeded(2.0)])
    assert world.breakers.is_open(first)


def test_answers_and_clients_that_leave_do_not_count_against_a_worker():
    world = make_world(1)
    for _ in range(3 * FAILURES_TO_OPEN):
        run_flow(world, [Succeeded(1.0)])
        run_flow(world, [Cancelled(1.0)])
    assert not world.breakers.any_open


def test_failures_of_a_former_incarnation_do_not_count_against_a_restarted_worker():
    world = make_world(1, slots=256)
    flows = []
    for _ in range(FAILURES_TO_OPEN):
        flows.append(request_flow(make_request(), world))
        next(flows[-1])
        flows[-1].send(CacheMiss(0.0))
    world.cluster.mark_up("w0", "2")
    for flow in flows:
        flow.send(Failed(1.0, FailureKind.CLOSED, content_sent=True))
    assert not world.breakers.any_open


@pytest.mark.parametrize(
    ("outcomes", "reason"),
    [
        ([Failed(1.0, FailureKind.CLOSED, True)], RejectReason.NOT_RESUMABLE),
        ([Failed(1.0, FailureKind.CLOSED, True, True)] * 2, RejectReason.ALL_ATTEMPTS_FAILED),
        ([Failed(1.0, FailureKind.TIMED_OUT, False)] * 2, RejectReason.ATTEMPTS_TIMED_OUT),
    ],
)
def test_a_request_that_fails_says_how(outcomes, reason):
    step = run_flow(make_world(3), outcomes)[-1]
    assert (step.reason, step.attempts) == (reason, len(outcomes))


def test_a_broken_answer_is_resumed_and_a_request_without_content_starts_again():
    broke = run_flow(make_world(2), [Failed(1.0, FailureKind.CLOSED, True, True), Succeeded(2.0)])
    unseen = run_flow(make_world(2), [Failed(1.0, FailureKind.CLOSED, False), Succeeded(2.0)])
    assert [step.resumes for step in broke] == [False, True]
    assert [step.resumes for step in unseen] == [False, False]


# --- limits -------------------------------------------------------------------------------------------------

LIMITED = make_request(limits=Limits(tokens_per_minute=1_000), key_id="k", max_output_tokens=50)


def start_limited(world, answer=None):
    """A flow of a key with limits; without an answer it gets a lease."""
    flow = request_flow(LIMITED, world)
    step = next(flow)
    assert step == CountAndLookUp("k", LIMITED.limits, 150)
    answer = answer or world.quotas.lease("lease", 150)
    return flow, flow.send((QuotaAnswered(0.0, answer), CacheMiss(0.5)))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (OverLimit(LimitKind.REQUESTS, 3.0), RejectReason.REQUESTS_OVER_LIMIT),
        (OverLimit(LimitKind.TOKENS, 3.0), RejectReason.TOKENS_OVER_LIMIT),
        (OverLimit(LimitKind.CONCURRENCY, 3.0), RejectReason.CONCURRENCY_OVER_LIMIT),
        (NotCounted(3.0), RejectReason.LIMITS_UNAVAILABLE),
    ],
)
def test_a_key_over_its_limit_gets_the_limit_and_a_retry_time(answer, reason):
    _, step = start_limited(make_world(), answer)
    assert (step.reason, step.retry_after_s, step.attempts) == (reason, 3.0, 0)


@pytest.mark.parametrize(
    ("outcome", "used_tokens"),
    [
        (Succeeded(1.0, 120), 120),
        (Succeeded(1.0), None),
        (Cancelled(1.0), None),
        (Cancelled(1.0, 90), 90),
        (Failed(1.0, FailureKind.CLOSED, True), None),
        (Failed(1.0, FailureKind.CLOSED, True, tokens=90), 90),
    ],
)
def test_a_lease_is_settled_with_what_is_known_to_be_used(outcome, used_tokens):
    world = make_world(1)
    flow, _ = start_limited(world)
    next(iter([*_sent(flow, outcome)]), None)
    assert world.quotas.settled == {"lease": used_tokens}


@pytest.mark.parametrize(
    ("outcomes", "used_tokens"),
    [
        ([Failed(1.0, FailureKind.CLOSED, True, True, 90), Succeeded(2.0, 120)], 120),
        ([Failed(1.0, FailureKind.CLOSED, True, True, 90), Cancelled(2.0, 40)], 90),
        ([Failed(1.0, FailureKind.CLOSED, False, tokens=90), Succeeded(2.0, 70)], 70),
        (
            [
                Failed(1.0, FailureKind.CLOSED, True, True, 90),
                Failed(2.0, FailureKind.CONNECTION_REFUSED, True, True, 0),
                Cancelled(3.0, 0),
            ],
            90,
        ),
    ],
)
def test_of_several_attempts_a_key_pays_for_what_its_client_had(outcomes, used_tokens):
    world = make_world(2)
    flow, _ = start_limited(world)
    for outcome in outcomes:
        list(_sent(flow, outcome))
    flow.close()
    assert world.quotas.settled == {"lease": used_tokens}


def test_an_attempt_that_is_interrupted_leaves_the_charge_as_it_was():
    world = make_world(1)
    flow, _ = start_limited(world)
    flow.close()
    assert world.quotas.settled == {"lease": None}


@pytest.mark.parametrize(("per_minute", "charged"), [(None, 2_100), (5_000, 2_100), (1_000, 1_000)])
def test_a_request_is_charged_as_it_is_booked_but_no_more_than_a_full_bucket(per_minute, charged):
    limits = Limits(tokens_per_minute=per_minute, max_concurrent=1)
    request = make_request(limits=limits, prompt_bytes=400, max_output_tokens=500, choices=4)
    step = next(request_flow(request, make_world()))
    assert expected_tokens(request) == 2_100
    assert step == CountAndLookUp(request.key_id, limits, charged)


def _sent(flow, outcome):
    try:
        yield flow.send(outcome)
    except StopIteration:
        return


@pytest.mark.parametrize("leave", ["cancelled", "closed", "timed out"])
def test_a_lease_of_a_request_that_found_no_slot_is_settled_as_unused(leave):
    world = make_world(1, slots=1)
    run = request_flow(make_request(), world)
    next(run)
    run.send(CacheMiss(0.0))
    flow, step = start_limited(world)
    assert isinstance(step, Wait)
    if leave == "closed":
        flow.close()
    else:
        list(_sent(flow, Cancelled(1.0) if leave == "cancelled" else TimedOut(99.0)))
    assert world.quotas.settled == {"lease": 0}


@pytest.mark.parametrize("limits", [Limits(), Limits(max_concurrent=1)])
def test_a_client_that_leaves_before_it_is_admitted_leaves_nothing_behind(limits):
    world = make_world()
    flow = request_flow(make_request(limits=limits), world)
    next(flow)
    assert list(_sent(flow, Cancelled(0.1))) == []
    assert world.quotas.settled == {}
    assert world.ledger.total_requests == 0


@pytest.mark.parametrize(
    "step", [LookUpCache, CountAndLookUp, ServeStored, FollowIdentical, LookAgain, Generate, Wait]
)
def test_an_outcome_that_does_not_belong_to_its_step_is_a_mistake_of_the_driver(step):
    world = make_world(1, slots=1)
    flow = request_flow(
        make_request(limits=Limits(max_concurrent=1 if step is CountAndLookUp else None)), world
    )
    at = next(flow)
    if step in (Generate, Wait):
        other = request_flow(make_request(), world)
        next(other)
        if step is Wait:
            other.send(CacheMiss(0.0))
        at = flow.send(CacheMiss(0.0))
    if step is ServeStored:
        at = flow.send(CacheHit(0.0))
    if step in (FollowIdentical, LookAgain):
        at = flow.send(IdenticalUnderWay(0.0))
    if step is LookAgain:
        at = flow.send(LeaderLost(0.0))
    assert isinstance(at, step)
    with pytest.raises(TypeError, match="no outcome of"):
        flow.send(QuotaAnswered(0.0, NotCounted(1.0)))


# --- what was found -----------------------------------------------------------------------------------------


def found(world, request=None, looked_up=CacheHit):
    """A flow whose answer was found, about to serve it."""
    flow = request_flow(request or make_request(), world)
    next(flow)
    assert flow.send(looked_up(0.0)) == (ServeStored() if looked_up is CacheHit else FollowIdentical())
    return flow


def following(world, **fields):
    """A flow that follows an identical request."""
    return found(world, make_request(**fields), IdenticalUnderWay)


@pytest.mark.parametrize("looked_up", [CacheHit, IdenticalUnderWay])
@pytest.mark.parametrize("outcome", [Succeeded(1.0), Cancelled(1.0)])
def test_what_was_found_is_served_without_a_worker(looked_up, outcome):
    world = make_world(1, up=0)
    assert list(_sent(found(world, looked_up=looked_up), outcome)) == []
    assert world.ledger.total_requests == 0


@pytest.mark.parametrize("looked_up", [CacheHit, IdenticalUnderWay])
def test_a_stored_answer_of_a_model_that_is_no_longer_served_is_not_served(looked_up):
    flow = request_flow(make_request(model="of yesterday"), make_world(1))
    next(flow)
    assert flow.send(looked_up(0.0)).reason is RejectReason.NO_WORKER_FOR_MODEL


def test_a_hit_uses_none_of_its_keys_tokens():
    world = make_world(1)
    flow = request_flow(LIMITED, world)
    next(flow)
    flow.send((QuotaAnswered(0.0, world.quotas.lease("lease", 150)), CacheHit(0.5)))
    list(_sent(flow, Succeeded(1.0)))
    assert world.quotas.settled == {"lease": 0}


def test_a_key_over_its_limit_is_rejected_though_its_answer_is_there():
    flow = request_flow(LIMITED, make_world())
    next(flow)
    step = flow.send((QuotaAnswered(0.0, OverLimit(LimitKind.REQUESTS, 3.0)), CacheHit(0.0)))
    assert step.reason is RejectReason.REQUESTS_OVER_LIMIT


def test_a_lease_whose_client_left_during_the_look_up_is_given_back():
    world = make_world()
    flow = request_flow(LIMITED, world)
    next(flow)
    lease = world.quotas.lease("lease", 150)
    assert list(_sent(flow, (QuotaAnswered(0.0, lease), Cancelled(0.1)))) == []
    assert world.quotas.settled == {"lease": 0}


@pytest.mark.parametrize("lost", [LeaderLost, NotShareable, TimedOut])
def test_a_follower_that_got_nothing_goes_on_as_a_miss_with_all_its_attempts(lost):
    world = make_world(2)
    flow = following(world, max_wait_s=1.0)
    steps = [flow.send(lost(1.0))]
    steps.append(flow.send(Failed(2.0, FailureKind.CLOSED, False)))
    assert [(step.resumes, step.attempt) for step in steps] == [(False, 1), (False, 2)]
    assert not world.breakers.any_open


def test_a_follower_that_loses_its_leader_looks_for_the_next_and_leads_if_there_is_none():
    flow = following(make_world(1), max_wait_s=5.0)
    for at_s in (1.0, 2.0):
        assert flow.send(LeaderLost(at_s)) == LookAgain()
        assert flow.send(IdenticalUnderWay(at_s)) == FollowIdentical()
    assert flow.send(LeaderLost(3.0)) == LookAgain()
    assert isinstance(flow.send(CacheMiss(3.0)), Generate)


def test_following_lost_leaders_is_bounded_like_the_wait_for_a_slot():
    flow = following(make_world(1), max_wait_s=5.0)
    assert flow.send(LeaderLost(4.9)) == LookAgain()
    assert flow.send(IdenticalUnderWay(4.9)) == FollowIdentical()
    assert isinstance(flow.send(LeaderLost(5.0)), Generate)


def test_a_client_that_leaves_during_the_look_for_another_leader_is_not_served():
    flow = following(make_world(1))
    assert flow.send(LeaderLost(1.0)) == LookAgain()
    assert list(_sent(flow, Cancelled(1.0))) == []


@pytest.mark.parametrize(("lost", "until_s"), [(TimedOut, 5.0), (NotShareable, 9.0)])
def test_a_request_that_waited_too_long_for_a_shared_answer_does_not_wait_again(lost, until_s):
    world = make_world(1, slots=1)
    busy = request_flow(make_request(), world)
    next(busy)
    busy.send(CacheMiss(0.0))
    step = following(world, max_wait_s=5.0).send(lost(4.0))
    assert step.until_s == until_s


def test_a_followed_answer_that_broke_after_it_began_is_taken_up():
    flow = following(make_world(2), splittable=True)
    step = flow.send(Failed(1.0, FailureKind.CLOSED, True, True))
    assert (step.resumes, step.attempt, step.decision.prefill) == (True, 1, None)


def test_a_followed_answer_that_began_and_cannot_be_taken_up_ends():
    step = following(make_world(2)).send(Failed(1.0, FailureKind.CLOSED, True))
    assert (step.reason, step.attempts) == (RejectReason.NOT_RESUMABLE, 0)


@pytest.mark.parametrize(("kind", "until_s"), [(FailureKind.TIMED_OUT, 5.0), (FailureKind.CLOSED, 6.0)])
def test_a_followed_answer_that_began_waits_for_a_worker_though_none_is_there_and_the_queue_is_full(
    kind, until_s
):
    step = following(make_world(1, up=0, capacity=0), max_wait_s=5.0).send(Failed(1.0, kind, True, True))
    assert isinstance(step, Wait)
    assert step.until_s == until_s


BROKE = Failed(1.0, FailureKind.CLOSED, content_sent=True, resumable=True)


def test_an_answer_goes_on_only_where_the_weights_are_the_same():
    for _ in range(4):
        world = make_world(4, weights=("bf16", "q4", "q4", "bf16"))
        steps = run_flow(world, [BROKE, Succeeded(2.0, 10)])
        first, second = (it for it in steps if isinstance(it, Generate))
        assert first.worker.name != second.worker.name
        assert first.worker.weights == second.worker.weights


def test_an_answer_that_no_other_engine_would_write_ends_in_words():
    world = make_world(2, weights=("bf16", "q4"))
    flow = request_flow(make_request(max_wait_s=5.0), world)
    assert isinstance(next(flow), LookUpCache)
    first = flow.send(CacheMiss(0.0))
    world.cluster.mark_down(first.worker.name, "gone")
    step = flow.send(BROKE)
    assert step.reason is RejectReason.NO_SAME_WEIGHTS
    assert "same weights" in step.detail
