"""A request on two workers: what is booked when, what a failure at each point leads to, what is learned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phasewise.core.decision import Decision, Option, RejectReason, Terms
from phasewise.core.errors import FailureKind
from phasewise.core.kv_transfer import pair_ref
from phasewise.core.timeline import EngineAccount
from phasewise.scheduling import (
    Cancelled,
    Failed,
    Generate,
    Granted,
    Prefill,
    Reject,
    Succeeded,
    Wait,
    let_waiting_in,
)
from phasewise.scheduling.breakers import FAILURES_TO_OPEN, FIRST_OPEN_S, PAIR_FAILURES_TO_OPEN
from phasewise.scheduling.ledger import IDLE, Load
from phasewise.scheduling.world import Health
from tests.scheduling.worlds import make_prefilled, make_split_world, start_flow

KV_TRANSFER = FailureKind.KV_TRANSFER
TOO_LATE = Failed(1.0, FailureKind.TOO_LATE, content_sent=False)
ANSWERED = EngineAccount(100, 0, 20, queue_s=0.03, prefill_s=0.05, gap_s=0.07)
READ = EngineAccount(100, 16, 1, queue_s=0.0, prefill_s=1.4)


def start(world, at_s=0.0, **fields):
    return start_flow(world, at_s, splittable=True, **fields)


def ref(world, name):
    return world.cluster.state(name).worker.ref


def loads(world):
    return {worker.name: load for worker, load in world.ledger.loads.items()}


def send_last(flow, outcome):
    with pytest.raises(StopIteration):
        flow.send(outcome)


def serve(world, at_s=0.0, prefilled=None, succeeded=None, **fields):
    """A request that goes well."""
    flow, step = start(world, at_s, **fields)
    if isinstance(step, Prefill):
        step = flow.send(make_prefilled(step, at_s, **(prefilled or {})))
    step.on_first_content()
    send_last(flow, Succeeded(at_s, **(succeeded or {})))
    return step


def kv_transfer_fails(world, at_s=0.0):
    """A request whose KV does not come over, and is then served whole."""
    flow, step = start(world, at_s)
    assert isinstance(step, Prefill)
    flow.send(make_prefilled(step, at_s))
    step = flow.send(Failed(at_s, KV_TRANSFER, content_sent=False))
    send_last(flow, Succeeded(at_s))
    return step


# --- the way it goes ----------------------------------------------------------------------------------------


def test_the_prompt_is_computed_on_one_worker_and_the_answer_on_another_as_one_attempt():
    world = make_split_world()
    flow, prefill = start(world)
    assert (type(prefill), prefill.worker.name, prefill.attempt) == (Prefill, "p0", 1)
    prefilled = make_prefilled(prefill)
    generate = flow.send(prefilled)
    assert (type(generate), generate.worker.name, generate.attempt) == (Generate, "d0", 1)
    assert generate.kv is prefilled.ticket
    assert not generate.resumes
    send_last(flow, Succeeded(2.0))
    assert not world.ledger.loads


def test_both_workers_are_booked_from_the_start_and_each_for_its_part():
    world = make_split_world()
    flow, step = start(world, prompt_bytes=400, max_output_tokens=50)
    assert loads(world) == {"p0": Load(1, 100, unread_tokens=100, unread_requests=1), "d0": Load(1, 50)}
    step = flow.send(make_prefilled(step))
    assert loads(world) == {"d0": Load(1, 50)}
    step.on_first_content()
    assert loads(world) == {"d0": Load(1, 50, streams=1)}
    flow.close()
    assert loads(world) == {}


def test_a_whole_request_is_read_until_its_answer_begins():
    world = make_split_world(prefill=0)
    flow, step = start(world, prompt_bytes=400, max_output_tokens=50)
    assert loads(world) == {"d0": Load(1, 150, unread_tokens=100, unread_requests=1)}
    step.on_first_content()
    assert loads(world) == {"d0": Load(1, 50, streams=1)}
    send_last(flow, Succeeded(1.0))


def test_what_is_expected_to_be_cached_is_not_booked_as_work():
    world = make_split_world()
    world.prefixes.cached = 60
    _flow, _ = start(world, prompt_bytes=400, max_output_tokens=50, prefix_hashes=(1, 2))
    assert loads(world) == {"p0": Load(1, 40, unread_tokens=40, unread_requests=1), "d0": Load(1, 50)}


def test_a_decision_with_expected_costs_is_booked_by_them():
    def expecting(request, candidates, can_transfer):
        option = Option(candidates[0].worker.ref, None, Terms(), prompt_tokens=130, cached_tokens=30)
        return Decision(candidates[0].worker, "expecting", "", tuple(candidates), options=(option,))

    world = make_split_world(policy=expecting)
    _flow, _ = start(world, prompt_bytes=400, max_output_tokens=50)
    assert loads(world) == {"p0": Load(1, 150, unread_tokens=100, unread_requests=1)}


@pytest.mark.parametrize("interrupt", ["closed", "cancelled"])
@pytest.mark.parametrize("prefilled", [False, True])
def test_whatever_interrupts_a_request_on_two_workers_both_are_free_again(prefilled, interrupt):
    world = make_split_world()
    flow, step = start(world)
    if prefilled:
        flow.send(make_prefilled(step))
    if interrupt == "closed":
        flow.close()
    else:
        send_last(flow, Cancelled(2.0))
    assert loads(world) == {}
    assert not world.breakers.any_open
    assert not world.pairs.any_open


def test_the_prefill_slot_is_granted_to_the_next_request_as_soon_as_the_prompt_is_computed():
    world = make_split_world(slots=1)
    flow, step = start(world)
    _second, wait = start(world)
    assert isinstance(wait, Wait)
    flow.send(make_prefilled(step))
    assert wait.ticket.granted


def test_a_prefill_worker_without_a_free_slot_leaves_requests_whole():
    world = make_split_world(slots=2)
    world.ledger.book(ref(world, "p0"), 1)
    world.ledger.book(ref(world, "p0"), 1)
    _, step = start(world)
    assert (type(step), step.worker.name) == (Generate, "d0")


def test_a_request_that_the_prefill_engine_rejects_ends_there():
    world = make_split_world()
    flow, _ = start(world)
    send_last(flow, Succeeded(1.0))
    assert loads(world) == {}


@pytest.mark.parametrize("prefilled", [False, True])
def test_an_outcome_that_does_not_belong_to_its_step_is_a_mistake_of_the_driver(prefilled):
    world = make_split_world()
    flow, step = start(world)
    if prefilled:
        flow.send(make_prefilled(step))
    with pytest.raises(TypeError, match="no outcome of"):
        flow.send(make_prefilled(step) if prefilled else Granted(1.0))
    assert loads(world) == {}


# --- failures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [FailureKind.CLOSED, FailureKind.TIMED_OUT, FailureKind.SERVER_ERROR, FailureKind.PROTOCOL]
)
def test_a_prefill_worker_that_fails_is_avoided_and_the_other_takes_its_place(kind):
    world = make_split_world(prefill=2)
    flow, step = start(world)
    again = flow.send(Failed(1.0, kind, content_sent=False))
    assert [type(it) for it in (step, again)] == [Prefill, Prefill]
    assert [it.worker.name for it in (step, again)] == ["p0", "p1"]
    assert [it.attempt for it in (step, again)] == [1, 2]
    rejected = flow.send(Failed(2.0, kind, content_sent=False))
    assert isinstance(rejected, Reject), "a poisonous prompt meets two engines, of whatever role"
    assert rejected.attempts == 2


def test_without_another_prefill_worker_the_request_is_served_whole():
    world = make_split_world()
    flow, _ = start(world)
    step = flow.send(Failed(1.0, FailureKind.CLOSED, content_sent=False))
    assert (type(step), step.worker.name, step.kv) == (Generate, "d0", None)
    send_last(flow, Succeeded(2.0))


def test_a_prefill_worker_that_is_not_there_costs_no_attempt():
    world = make_split_world(prefill=3, decode=1)
    flow, _ = start(world)
    rejected = Failed(1.0, FailureKind.CONNECTION_REFUSED, content_sent=False)
    step = flow.send(rejected)
    assert world.cluster.state("p0").health is Health.DOWN
    step = flow.send(rejected)
    assert (type(step), step.worker.name, step.attempt) == (Prefill, "p2", 3)
    assert world.retries._tokens == 10.0
    step = flow.send(Failed(1.0, FailureKind.CLOSED, content_sent=False))
    step = flow.send(Failed(1.0, FailureKind.CLOSED, content_sent=False))
    assert (step.reason, step.attempts) == (RejectReason.ALL_ATTEMPTS_FAILED, 2)


def test_without_sockets_a_prefill_ends_in_the_gateway_being_full():
    world = make_split_world()
    flow, _ = start(world)
    step = flow.send(Failed(1.0, FailureKind.NO_SOCKET, content_sent=False))
    assert (step.reason, step.attempts) == (RejectReason.GATEWAY_FULL, 0)


def test_kv_that_does_not_come_over_is_the_pairs_fault_and_the_same_worker_serves_the_whole():
    world = make_split_world(budget=100.0)
    for number in range(3 * FAILURES_TO_OPEN):
        step = kv_transfer_fails(world, number * 100.0)
        assert (type(step), step.worker.name, step.kv, step.attempt) == (Generate, "d0", None, 2)
    assert world.pairs.is_open(pair_ref(ref(world, "p0"), ref(world, "d0")))
    assert not world.breakers.any_open


def test_kv_that_came_over_speaks_for_a_pair():
    world = make_split_world()
    kv_transfer_fails(world)
    for _ in range(3):
        serve(world)
    kv_transfer_fails(world)
    assert not world.pairs.any_open


def test_a_request_whose_kv_did_not_come_over_waits_for_a_worker_to_come_back():
    world = make_split_world()
    flow, step = start(world)
    flow.send(make_prefilled(step))
    for name in ("p0", "d0"):
        world.cluster.mark_down(name, "gone")
    assert isinstance(flow.send(Failed(1.0, KV_TRANSFER, content_sent=False)), Wait)


def test_kv_that_was_not_even_kept_is_the_pairs_fault_too():
    world = make_split_world()
    flow, _ = start(world)
    step = flow.send(Failed(1.0, KV_TRANSFER, content_sent=False))
    assert (type(step), step.worker.name, step.kv) == (Generate, "d0", None)


@pytest.mark.parametrize(("prefill", "decode"), [(2, 1), (1, 2), (2, 2)])
def test_a_request_whose_kv_did_not_come_over_is_served_whole_though_another_pair_is_there(prefill, decode):
    world = make_split_world(prefill=prefill, decode=decode)
    flow, step = start(world)
    flow.send(make_prefilled(step))
    world.ledger.book(ref(world, "d0"), 1_000)
    step = flow.send(Failed(1.0, KV_TRANSFER, content_sent=False))
    assert isinstance(step, Generate)
    assert (step.worker.name, step.kv, step.attempt) == (f"d{decode - 1}", None, 2)
    send_last(flow, Succeeded(2.0))


def test_a_pair_with_an_open_circuit_transfers_nothing_until_one_request_tries_it():
    world = make_split_world()
    for _ in range(PAIR_FAILURES_TO_OPEN):
        kv_transfer_fails(world)
    assert serve(world, 0.5).kv is None
    later_s = FIRST_OPEN_S
    trying, step = start(world, later_s)
    assert isinstance(step, Prefill)
    assert serve(world, later_s).kv is None, "one tries, the others do not wait for it"
    step = trying.send(make_prefilled(step, later_s))
    step.on_first_content()
    assert serve(world, later_s).kv is not None
    assert not world.pairs.any_open


def test_a_second_attempt_avoids_a_pair_with_an_open_circuit():
    world = make_split_world(prefill=2)
    open_pair = pair_ref(ref(world, "p1"), ref(world, "d0"))
    for _ in range(PAIR_FAILURES_TO_OPEN):
        world.pairs.failed(open_pair, None, 0.0)
    flow, step = start(world, 60.0)
    assert step.worker.name == "p0"
    step = flow.send(Failed(61.0, FailureKind.CLOSED, content_sent=False))
    assert (type(step), step.kv) == (Generate, None)


def test_an_interrupted_trial_of_a_pair_is_inconclusive():
    world = make_split_world()
    for _ in range(PAIR_FAILURES_TO_OPEN):
        kv_transfer_fails(world)
    flow, step = start(world, FIRST_OPEN_S)
    assert isinstance(step, Prefill)
    flow.close()
    assert world.pairs.any_open
    assert isinstance(start(world, FIRST_OPEN_S)[1], Prefill)


@pytest.mark.parametrize("name", ["p0", "d0"])
def test_a_failed_kv_transfer_of_a_former_incarnation_does_not_count_against_the_pair(name):
    world = make_split_world()
    flow, step = start(world)
    flow.send(make_prefilled(step))
    world.cluster.mark_up(name, "2")
    for _ in range(PAIR_FAILURES_TO_OPEN):
        kv_transfer_fails(world)
    today = pair_ref(ref(world, "p0"), ref(world, "d0"))
    assert world.pairs.is_open(today)
    flow.send(Failed(0.0, KV_TRANSFER, content_sent=False))
    assert world.pairs.is_open(today)


def test_a_decode_worker_that_dies_before_the_first_token_is_avoided():
    world = make_split_world(prefill=1, decode=2)
    flow, step = start(world)
    step = flow.send(make_prefilled(step))
    again = flow.send(Failed(1.0, FailureKind.CLOSED, content_sent=False))
    assert (type(again), again.decision.chosen.name) == (Prefill, "d1")


def test_a_decode_worker_that_is_not_there_costs_no_attempt_though_the_prompt_was_computed():
    world = make_split_world(prefill=1, decode=2)
    flow, step = start(world)
    flow.send(make_prefilled(step))
    step = flow.send(Failed(1.0, FailureKind.CONNECTION_REFUSED, content_sent=False))
    flow.send(make_prefilled(step))
    step = flow.send(Failed(2.0, FailureKind.CLOSED, content_sent=False))
    assert isinstance(step, Generate | Prefill)
    assert world.cluster.state("d0").health is Health.DOWN


def test_an_answer_that_broke_off_is_taken_up_whole():
    world = make_split_world(prefill=1, decode=2)
    flow, step = start(world)
    step = flow.send(make_prefilled(step))
    step.on_first_content()
    step = flow.send(Failed(1.0, FailureKind.CLOSED, content_sent=True, resumable=True))
    assert (type(step), step.worker.name, step.resumes, step.kv) == (Generate, "d1", True, None)


def test_a_prefill_worker_resumes_an_answer_if_there_is_no_other_worker():
    world = make_split_world()
    flow, step = start(world)
    step = flow.send(make_prefilled(step))
    step.on_first_content()
    world.cluster.mark_down("d0", "gone")
    step = flow.send(Failed(1.0, FailureKind.CLOSED, content_sent=True, resumable=True))
    assert (type(step), step.worker.name, step.resumes) == (Generate, "p0", True)


def test_without_retry_budget_a_failed_kv_transfer_ends_the_request():
    world = make_split_world(budget=0.5)
    flow, step = start(world)
    flow.send(make_prefilled(step))
    step = flow.send(Failed(1.0, KV_TRANSFER, content_sent=False))
    assert step.reason is RejectReason.RETRY_BUDGET_SPENT


def test_a_ticket_that_is_too_old_is_not_used_and_the_request_goes_on_whole_at_no_charge():
    world = make_split_world(prefill=2, decode=2, budget=0.5)
    flow, step = start(world, max_wait_s=0.0)
    flow.send(make_prefilled(step, 1.0))
    step = flow.send(TOO_LATE)
    assert (type(step), step.kv, step.attempt) == (Generate, None, 2)
    rejected = flow.send(Failed(2.0, FailureKind.CLOSED, content_sent=True))
    assert rejected.attempts == 1


def test_a_gateway_that_was_too_late_to_ask_for_kv_blames_no_worker():
    world = make_split_world()
    for _ in range(3 * FAILURES_TO_OPEN):
        flow, step = start(world)
        assert isinstance(step, Prefill), "the pair is still trusted"
        flow.send(make_prefilled(step))
        flow.send(TOO_LATE)
        send_last(flow, Succeeded(2.0))
    assert not world.breakers.any_open
    assert not world.pairs.any_open
    assert {it.health for it in world.cluster.snapshot()} == {Health.UP}


def test_a_trial_of_a_pair_that_was_sent_too_late_is_inconclusive():
    world = make_split_world()
    for _ in range(PAIR_FAILURES_TO_OPEN):
        kv_transfer_fails(world)
    flow, step = start(world, FIRST_OPEN_S)
    flow.send(make_prefilled(step, FIRST_OPEN_S))
    flow.send(TOO_LATE)
    assert world.pairs.any_open
    assert isinstance(start(world, FIRST_OPEN_S)[1], Prefill)


def test_an_error_of_a_prefill_worker_is_held_against_it_once_another_worker_answers():
    world = make_split_world(budget=100.0)
    error = Failed(1.0, FailureKind.SERVER_ERROR, content_sent=False)
    for _ in range(FAILURES_TO_OPEN):
        flow, _ = start(world)
        flow.send(error)
        flow.send(error)
    assert not world.breakers.any_open, "a request that fails everywhere may be at fault itself"
    for _ in range(FAILURES_TO_OPEN):
        flow, _ = start(world)
        flow.send(error)
        send_last(flow, Succeeded(2.0))
    assert world.breakers.is_open(ref(world, "p0"))
    assert not world.breakers.is_open(ref(world, "d0"))


def test_a_computed_prompt_closes_the_circuit_of_a_prefill_worker():
    world = make_split_world()
    for _ in range(FAILURES_TO_OPEN):
        world.breakers.failed(ref(world, "p0"), None, 0.0)
    assert serve(world, 0.5).kv is None
    flow, step = start(world, FIRST_OPEN_S)
    assert step.trial is not None
    flow.send(make_prefilled(step, FIRST_OPEN_S))
    assert not world.breakers.any_open


# --- slots --------------------------------------------------------------------------------------------------


def test_a_request_waits_only_while_no_worker_of_any_role_has_a_free_slot():
    world = make_split_world(slots=1)
    _whole, first = start_flow(world, splittable=False)
    _spilled, second = start(world)
    assert (first.worker.name, second.worker.name) == ("d0", "p0")
    third, wait = start(world)
    assert isinstance(wait, Wait)
    _whole.close()
    assert wait.ticket.granted
    assert third.send(Granted(1.0)).worker.name == "d0"


def test_where_no_decode_worker_is_left_prefill_workers_serve_all():
    world = make_split_world()
    world.cluster.mark_down("d0", "gone")
    _, step = start(world)
    assert (type(step), step.worker.name) == (Generate, "p0")
    world.cluster.mark_up("d0", "2")
    let_waiting_in(world, 1.0)
    assert isinstance(start(world)[1], Prefill)


# --- what is learned ----------------------------------------------------------------------------------------


def reported(world, *names):
    return [it for it in world.paces.reported if it[0] in names]


def test_a_split_request_shows_how_fast_one_worker_reads_and_the_other_fetches_and_writes():
    world = make_split_world()
    step = serve(world, prefilled={"account": READ}, succeeded={"account": ANSWERED}, prefix_hashes=(1, 2))
    p0, d0 = ref(world, "p0"), ref(world, "d0")
    assert reported(world, "learn_read") == [("learn_read", p0, 100, 16, 1.4)]
    assert reported(world, "learn_fetch") == [("learn_fetch", d0, 100, 0.03)]
    assert reported(world, "learn_step") == [("learn_step", d0, 1, 0.07)]
    assert reported(world, "served") == [
        ("served", p0, (1, 2), 100, 16, 0),
        ("served", d0, (1, 2), 100, 0),
    ]
    ((_, request, prompt_tokens, output_tokens),) = reported(world, "learn")
    assert (request.prefix_hashes, prompt_tokens, output_tokens) == ((1, 2), 100, 20)
    assert step.kv is not None


def test_a_request_that_the_decode_engine_rejects_shows_nothing_about_fetching():
    world = make_split_world()
    flow, step = start(world, prefix_hashes=(1, 2))
    flow.send(make_prefilled(step, account=READ))
    send_last(flow, Succeeded(2.0, 0))
    assert reported(world, "served") == [("served", ref(world, "p0"), (1, 2), 100, 16, 0)]
    assert reported(world, "learn_fetch", "learn_step", "learn") == []


def test_of_a_prompt_of_which_the_decode_worker_has_some_only_the_rest_is_taken_to_be_fetched():
    world = make_split_world()
    world.prefixes.cached = 60
    of_the_other = EngineAccount(100, cached_tokens=16, queue_s=0.03)
    serve(world, succeeded={"account": of_the_other}, prefix_hashes=(1, 2))
    assert reported(world, "learn_fetch") == [("learn_fetch", ref(world, "d0"), 40, 0.03)]


def test_a_whole_request_shows_how_fast_its_worker_reads_and_writes():
    world = make_split_world(prefill=0)
    world.prefixes.cached = 16
    serve(world, succeeded={"account": ANSWERED}, prefix_hashes=(1, 2))
    d0 = ref(world, "d0")
    assert reported(world, "learn_read", "learn_step", "learn_fetch", "served") == [
        ("learn_read", d0, 100, 0, 0.05),
        ("served", d0, (1, 2), 100, 0, 2),
        ("learn_step", d0, 1, 0.07),
    ]


def test_an_engine_that_does_not_say_what_was_cached_is_remembered_and_not_judged():
    world = make_split_world(prefill=0)
    world.prefixes.cached = 16
    account = replace(ANSWERED, cached_tokens=None)
    serve(world, succeeded={"account": account}, prefix_hashes=(1, 2))
    assert reported(world, "learn_read", "served") == [("served", ref(world, "d0"), (1, 2), 100, 0, 0)]


def test_a_prompt_that_was_read_beside_another_shows_nothing_about_reading():
    world = make_split_world(prefill=0)
    flows = [start(world) for _ in range(2)]
    for flow, step in flows:
        step.on_first_content()
        send_last(flow, Succeeded(1.0, account=ANSWERED))
    assert reported(world, "learn_read") == []
    assert [it[2] for it in reported(world, "learn_step")] == [1, 1]


def test_a_stream_shows_its_pace_beside_those_that_ran_with_it():
    world = make_split_world(prefill=0)
    flows = [start(world) for _ in range(3)]
    for _, step in flows:
        step.on_first_content()
    for flow, _ in flows:
        send_last(flow, Succeeded(1.0, account=ANSWERED))
    assert [it[2] for it in reported(world, "learn_step")] == [3, 2, 1]


def test_a_resumed_answer_shows_nothing_about_its_prompt():
    world = make_split_world(prefill=0)
    flow, _ = start(world, prefix_hashes=(1,))
    step = flow.send(Failed(1.0, FailureKind.CLOSED, content_sent=True, resumable=True))
    assert step.resumes
    send_last(flow, Succeeded(2.0, account=ANSWERED))
    learned = reported(world, "learn_read", "learn_fetch", "learn_step")
    assert learned == [("learn_step", ref(world, "d0"), 1, 0.07)]


@pytest.mark.parametrize("name", ["p0", "d0"])
def test_nothing_is_learned_of_a_former_incarnation(name):
    world = make_split_world()
    flow, step = start(world, prefix_hashes=(1,))
    world.cluster.mark_up(name, "2")
    step = flow.send(make_prefilled(step, account=READ))
    step.on_first_content()
    send_last(flow, Succeeded(2.0, account=ANSWERED))
    assert {it[1].name for it in reported(world, "learn_read", "learn_fetch", "learn_step", "served")} == (
        {"p0", "d0"} - {name}
    )


def test_without_learns_pace_only_caches_are_learned():
    world = make_split_world(learns_pace=False)
    serve(world, prefilled={"account": READ}, succeeded={"account": ANSWERED}, prefix_hashes=(1,))
    assert {it[0] for it in world.paces.reported} == {"served"}


def test_an_engine_that_reports_nothing_teaches_nothing():
    world = make_split_world()
    serve(world, prefix_hashes=())
    assert reported(world, "learn_read", "learn_fetch", "learn_step", "served") == []
    assert world.ledger.load(ref(world, "d0")) is IDLE
