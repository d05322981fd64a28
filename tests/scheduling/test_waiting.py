"""Requests that find no free slot: which wait, which goes first, and what becomes of an unused grant."""

from __future__ import annotations

import pytest

from phasewise.core.decision import RejectReason
from phasewise.core.errors import FailureKind
from phasewise.scheduling import (
    Cancelled,
    Failed,
    Generate,
    Granted,
    Reject,
    Succeeded,
    TimedOut,
    Wait,
    let_waiting_in,
)
from phasewise.scheduling.breakers import FAILURES_TO_OPEN, FIRST_OPEN_S
from tests.scheduling.worlds import make_world, start_flow

BROKE = {"content_sent": True, "resumable": True}


def make_full_world(**fields):
    """One worker with one slot, and the flow that has it."""
    world = make_world(1, slots=1, **fields)
    busy, step = start_flow(world)
    assert isinstance(step, Generate)
    return world, busy


def end(flow, at_s=1.0):
    with pytest.raises(StopIteration):
        flow.send(Succeeded(at_s))


def test_a_request_without_a_slot_waits_until_another_ends():
    world, busy = make_full_world()
    flow, wait = start_flow(world, 0.5)
    assert isinstance(wait, Wait)
    assert not wait.ticket.granted
    end(busy)
    assert wait.ticket.granted
    assert isinstance(flow.send(Granted(1.0)), Generate)
    flow.close()


def test_a_request_waits_no_longer_than_it_may():
    world, _busy = make_full_world()
    flow, wait = start_flow(world, 2.0, max_wait_s=3.0)
    assert wait.until_s == 5.0
    step = flow.send(TimedOut(5.0))
    assert (step.reason, step.attempts) == (RejectReason.QUEUE_TIMEOUT, 0)
    assert step.retry_after_s >= 1.0


def test_when_too_many_wait_one_more_is_rejected():
    world, _busy = make_full_world(capacity=1)
    _waiting = start_flow(world)
    _, step = start_flow(world)
    assert (step.reason, step.attempts) == (RejectReason.QUEUE_FULL, 0)
    assert step.retry_after_s >= 1.0


@pytest.mark.parametrize(
    "leave",
    [lambda flow: flow.close(), lambda flow: next(iter_send(flow, Cancelled(1.0)), None)],
    ids=["closed", "cancelled"],
)
def test_a_slot_granted_to_a_request_that_ended_goes_to_the_next(leave):
    world, busy = make_full_world()
    first, first_wait = start_flow(world)
    _second, second_wait = start_flow(world)
    end(busy)
    assert (first_wait.ticket.granted, second_wait.ticket.granted) == (True, False)
    leave(first)
    assert second_wait.ticket.granted


def iter_send(flow, outcome):
    try:
        yield flow.send(outcome)
    except StopIteration:
        return


def test_a_new_request_waits_behind_a_grant_that_is_not_in_use_yet():
    world, busy = make_full_world()
    first, first_wait = start_flow(world)
    end(busy)
    assert first_wait.ticket.granted
    _second, step = start_flow(world, 1.0)
    assert isinstance(step, Wait)
    assert not step.ticket.granted
    assert isinstance(first.send(Granted(1.1)), Generate)


def test_a_new_request_behind_a_grant_goes_on_at_once_if_there_are_two_free_slots():
    world = make_world(1, slots=2)
    flows = [start_flow(world)[0] for _ in range(2)]
    _first, first_wait = start_flow(world)
    for flow in flows:
        end(flow)
    assert first_wait.ticket.granted
    _second, wait = start_flow(world, 1.0)
    assert wait.ticket.granted


def test_a_grant_whose_worker_died_gives_the_old_position_and_the_old_deadline_back():
    world, busy = make_full_world(capacity=2)
    first, first_wait = start_flow(world, 0.0)
    _second, second_wait = start_flow(world, 0.1)
    end(busy)
    world.cluster.mark_down("w0", "gone")
    third, _ = start_flow(world, 1.5)
    again = first.send(Granted(2.0))
    assert isinstance(again, Wait)
    assert again.until_s == first_wait.until_s
    world.cluster.mark_up("w0", "2")
    let_waiting_in(world, 3.0)
    assert (again.ticket.granted, second_wait.ticket.granted) == (True, False)
    third.close()


def test_a_higher_priority_goes_first_and_waiting_makes_up_for_it():
    world, busy = make_full_world(aging_s=5.0)
    flows = {
        "old": start_flow(world, 0.0),
        "urgent": start_flow(world, 4.0, priority=1),
        "urgent but late": start_flow(world, 6.0, priority=1),
        "young": start_flow(world, 6.0),
    }
    order = []
    for _ in range(len(flows)):
        end(busy, 7.0)
        (name,) = [name for name, (_, wait) in flows.items() if wait.ticket.granted]
        order.append(name)
        busy, _ = flows.pop(name)
        busy.send(Granted(7.0))
    assert order == ["urgent", "old", "urgent but late", "young"]


def test_an_answer_that_broke_off_goes_before_newer_requests_even_if_the_queue_is_full():
    world = make_world(1, slots=1, capacity=1)
    flow, _ = start_flow(world, 0.0)
    _newer, newer = start_flow(world, 1.0)
    world.cluster.mark_down("w0", "gone")
    step = flow.send(Failed(5.0, FailureKind.CLOSED, **BROKE))
    assert isinstance(step, Wait)
    assert step.until_s == 15.0
    world.cluster.mark_up("w0", "2")
    let_waiting_in(world, 6.0)
    assert (step.ticket.granted, newer.ticket.granted) == (True, False)
    resumed = flow.send(Granted(6.0))
    assert (resumed.resumes, resumed.attempt) == (True, 2)


def test_an_answer_that_broke_off_and_finds_no_worker_in_time_has_failed():
    world = make_world(1)
    flow, _ = start_flow(world)
    world.cluster.mark_down("w0", "gone")
    flow.send(Failed(1.0, FailureKind.CLOSED, **BROKE))
    step = flow.send(TimedOut(11.0))
    assert (step.reason, step.attempts) == (RejectReason.NO_HEALTHY_WORKER, 1)


def test_a_new_request_is_rejected_at_once_without_workers_though_others_wait_for_one_to_come_back():
    world = make_world(1)
    flow, _ = start_flow(world)
    world.cluster.mark_down("w0", "gone")
    assert isinstance(flow.send(Failed(1.0, FailureKind.CLOSED, **BROKE)), Wait)
    _, step = start_flow(world, 1.5)
    assert (step.reason, step.retry_after_s) == (RejectReason.NO_HEALTHY_WORKER, 1.0)


def test_a_worker_that_comes_back_lets_in_as_many_as_it_has_slots():
    world = make_world(1, slots=2)
    flows = [start_flow(world)[0] for _ in range(2)]
    waiting = [start_flow(world) for _ in range(3)]
    world.cluster.mark_down("w0", "gone")
    for flow in flows:
        flow.send(Failed(1.0, FailureKind.CLOSED, content_sent=True, resumable=False))
    assert not any(wait.ticket.granted for _, wait in waiting)
    world.cluster.mark_up("w0", "2")
    let_waiting_in(world, 2.0)
    assert [wait.ticket.granted for _, wait in waiting] == [True, True, False]


def test_an_open_circuit_admits_one_trial_and_the_others_when_it_succeeded():
    world = make_world(1, slots=10)
    for _ in range(FAILURES_TO_OPEN):
        world.breakers.failed(world.cluster.state("w0").worker.ref, None, 0.0)
    flows = [start_flow(world) for _ in range(3)]
    let_waiting_in(world, FIRST_OPEN_S)
    assert [wait.ticket.granted for _, wait in flows] == [True, False, False]
    assert isinstance(flows[0][0].send(Granted(1.1)), Generate)
    let_waiting_in(world, 1.2)
    assert [wait.ticket.granted for _, wait in flows] == [True, False, False]
    end(flows[0][0], 1.5)
    assert all(wait.ticket.granted for _, wait in flows)


def test_a_trial_whose_client_leaves_lets_the_next_one_try():
    world = make_world(1, slots=10)
    for _ in range(FAILURES_TO_OPEN):
        world.breakers.failed(world.cluster.state("w0").worker.ref, None, 0.0)
    flows = [start_flow(world) for _ in range(2)]
    let_waiting_in(world, FIRST_OPEN_S)
    flows[0][0].send(Granted(1.1))
    flows[0][0].close()
    assert flows[1][1].ticket.granted


def test_a_request_without_attempts_is_rejected_and_one_with_attempts_has_failed():
    world, busy = make_full_world()
    flow, _ = start_flow(world)
    assert flow.send(TimedOut(10.0)).attempts == 0
    world.cluster.mark_down("w0", "gone")
    busy.send(Failed(11.0, FailureKind.TIMED_OUT, content_sent=False))
    assert isinstance(step := busy.send(TimedOut(21.0)), Reject)
    assert step.attempts == 1


def test_a_request_goes_only_to_the_workers_that_it_may_use():
    world = make_world(3)
    for _ in range(4):
        flow, step = start_flow(world, workers=frozenset({"w1"}))
        assert step.worker.name == "w1"
        assert [it.worker.name for it in step.decision.candidates] == ["w1"]
    flow.close()


def test_a_request_whose_workers_are_full_is_rejected_and_does_not_wait_for_others():
    world = make_world(2, slots=1)
    _busy, step = start_flow(world, workers=frozenset({"w0"}))
    assert isinstance(step, Generate)
    flow, step = start_flow(world, workers=frozenset({"w0"}))
    assert (step.reason, step.retry_after_s) == (RejectReason.QUEUE_FULL, 1.0)
    assert len(world.queue) == 0
    flow.close()


@pytest.mark.parametrize("workers", [frozenset(), frozenset({"w7"})])
def test_a_request_without_a_usable_worker_of_its_own_is_rejected_at_once(workers):
    _flow, step = start_flow(make_world(2), workers=workers)
    assert step.reason is RejectReason.NO_HEALTHY_WORKER
