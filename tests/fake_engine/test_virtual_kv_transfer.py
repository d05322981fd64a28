"""Keeping, fetching and losing KV between virtual engines, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.core.errors import ConfigError, EngineStartFailed
from phasewise.fake_engine.faults import Fault, FaultBoard, FaultKind
from phasewise.simulator.engine import VirtualEngine
from phasewise.simulator.kv import Connector, KvLink, OnLoadFailure, RemoteKv, SideChannels
from tests.fake_engine.engine_builders import SMALL, STEP_S, make_request, run_to_end

LEASE_S = 100.0
CONNECTOR = Connector(
    lease_s=LEASE_S,
    floor_s=0.5,
    bytes_per_s=8.0,
    kv_bytes_per_token=1,
    handshake_s=10.0,
    handshake_timeout_s=20.0,
)
"""A block of four tokens takes half a second; the first KV transfer ten seconds more."""


@dataclass
class Seen:
    """What became of KV transfers."""

    transfers: list[tuple[float, int]] = field(default_factory=list)
    failed: int = 0
    expired: int = 0
    late: int = 0

    def on_transfer(self, seconds, kv_bytes, blocks):
        self.transfers.append((seconds, kv_bytes))

    def on_failed_transfer(self):
        self.failed += 1

    def on_expired(self):
        self.expired += 1

    def on_late_read(self):
        self.late += 1


class Pair:
    """A prefill and a decode engine of one kind that can find each other."""

    def __init__(self, connector=CONNECTOR, shape=SMALL, decode_layout="same"):
        self.channels, self.faults = SideChannels(), FaultBoard()
        self.shape, self.connector = shape, connector
        self.seen_by_prefill, self.seen_by_decode = Seen(), Seen()
        self.prefill = self.start_prefill()
        link = KvLink(
            "d", ("d", 1), self.channels, connector, decode_layout, self.faults, self.seen_by_decode
        )
        self.decode = VirtualEngine(shape, lambda work: STEP_S, link)

    def start_prefill(self, engine_id="p"):
        address = ("p", 1)
        link = KvLink(
            engine_id, address, self.channels, self.connector, "same", observer=self.seen_by_prefill
        )
        return VirtualEngine(self.shape, lambda work: STEP_S, link)

    def computed_on_prefill(self, request, now=0.0):
        """Have the prompt computed and kept; where its KV lies and when it was there."""
        name = f"{request.request_id}/p"
        self.prefill.add(replace(request, request_id=name, max_tokens=1, keep_kv=True), now)
        reports = run_to_end(self.prefill, now)
        (token,) = [token for report in reports for token in report.emitted if token.request_id == name]
        return RemoteKv(("p", 1), "p", name, token.kept_blocks), reports[-1].step.ended_unix_s

    def decoded(self, request, now):
        """Everything the decode engine does from now on until nothing is left."""
        self.decode.add(request, now)
        return run_with_transfers(self.decode, now)

    def check(self):
        self.prefill.check_invariants()
        self.decode.check_invariants()


def run_with_transfers(engine, now):
    """Step and settle to the end; the reports and who failed."""
    reports, failed = [], []
    for _ in range(10_000):
        failed += engine.settle(now)
        engine.check_invariants()
        report = engine.step(now)
        engine.check_invariants()
        if report is not None:
            reports.append(report)
            now = report.step.ended_unix_s
        elif not engine.waiting:
            return reports, failed
        else:
            assert engine.next_event_s != inf, "nothing will ever happen"
            now = max(now, engine.next_event_s)
    raise AssertionError("the engine makes no progress")


def words(reports, name="r"):
    return [token.token_id for report in reports for token in report.emitted if token.request_id == name]


def words_alone(request):
    engine = VirtualEngine(SMALL, lambda work: STEP_S)
    engine.add(request, 0.0)
    return words(run_to_end(engine))


def finished(reports):
    return [request for report in reports for request in report.step.finished]


def test_kv_is_kept_until_it_was_fetched_and_the_answer_is_that_of_one_engine():
    pair, request = Pair(), make_request(prompt=10, max_tokens=5)
    remote, now = pair.computed_on_prefill(request)
    assert (pair.prefill.kept_requests, pair.prefill.kv_usage) == (1, 3 / 32)
    reports, failed = pair.decoded(replace(request, remote_kv=remote), now)
    assert (words(reports), failed) == (words_alone(request), [])
    assert (pair.prefill.kept_requests, pair.prefill.kv_usage, pair.decode.kv_usage) == (0, 0.0, 0.0)


def test_the_decode_side_computes_one_token_of_the_prompt_and_waits_in_its_queue_for_the_rest():
    pair, request = Pair(), make_request(prompt=10, max_tokens=3)
    remote, now = pair.computed_on_prefill(request)
    reports, _ = pair.decoded(replace(request, remote_kv=remote), now)
    assert [(r.step.prompt_tokens, r.step.decode_tokens) for r in reports] == [(1, 0), (0, 1), (0, 1)]
    assert (reports[0].begun_fetched_tokens, reports[0].begun_cached_tokens) == (10, 0)
    transfer_s = 0.5 + 12 / 8
    assert pair.seen_by_decode.transfers == [(transfer_s, 12)]
    assert [(it.seconds, it.kv_bytes) for it in reports[0].step.transfers] == [(transfer_s, 12)]
    (account,) = finished(reports)
    assert (account.queue_s, account.prefill_s) == (10.0 + transfer_s, STEP_S)


def test_engines_that_know_each_other_shake_hands_no_more():
    pair = Pair()
    for number in range(2):
        request = make_request(prompt=range(100 * number, 100 * number + 8), max_tokens=1)
        remote, now = pair.computed_on_prefill(request)
        reports, _ = pair.decoded(replace(request, remote_kv=remote), now)
    assert finished(reports)[0].queue_s == 0.5 + 8 / 8


def test_what_the_decode_side_has_cached_is_not_fetched():
    pair, request = Pair(), make_request(prompt=10, max_tokens=3)
    pair.decode.add(replace(request, request_id="before"), 0.0)
    run_to_end(pair.decode)
    remote, now = pair.computed_on_prefill(request)
    reports, _ = pair.decoded(replace(request, remote_kv=remote), now)
    assert (reports[0].begun_cached_tokens, reports[0].begun_fetched_tokens) == (8, 2)
    assert pair.seen_by_decode.transfers[0][1] == 4
    assert words(reports) == words_alone(request)


def test_what_was_fetched_is_found_by_later_requests():
    pair, request = Pair(), make_request(prompt=10, max_tokens=1)
    remote, now = pair.computed_on_prefill(request)
    pair.decoded(replace(request, remote_kv=remote), now)
    reports, _ = pair.decoded(replace(request, request_id="later"), now)
    assert reports[0].begun_cached_tokens == 8


def test_others_go_on_while_kv_is_under_way():
    pair = Pair()
    remote, now = pair.computed_on_prefill(make_request(prompt=10))
    pair.decode.add(make_request("other", prompt=4, max_tokens=4), now)
    pair.decode.add(make_request(prompt=10, remote_kv=remote), now)
    report = pair.decode.step(now)
    assert [token.request_id for token in report.emitted] == ["other"]
    assert (pair.decode.running, pair.decode.waiting, pair.decode.deferred, report.deferred) == (1, 1, 1, 1)


def test_kv_that_nobody_fetches_is_given_up_when_its_lease_is_over():
    pair = Pair()
    _, now = pair.computed_on_prefill(make_request(prompt=10))
    assert pair.prefill.next_event_s == now + LEASE_S
    pair.prefill.settle(now + LEASE_S - 0.1)
    assert pair.prefill.kept_requests == 1
    pair.prefill.settle(now + LEASE_S)
    assert (pair.prefill.kept_requests, pair.prefill.kv_usage) == (0, 0.0)
    assert (pair.seen_by_prefill.expired, pair.prefill.next_event_s) == (1, inf)


def test_kv_that_somebody_waits_for_is_not_given_up():
    pair = Pair()
    remote, now = pair.computed_on_prefill(make_request(prompt=10))
    pair.decode.add(make_request(prompt=10, remote_kv=remote), now)
    pair.prefill.settle(now + 10 * LEASE_S)
    assert pair.prefill.kept_requests == 1


def test_a_decode_engine_that_dies_leaves_the_kv_to_its_lease():
    pair = Pair()
    remote, now = pair.computed_on_prefill(make_request(prompt=10))
    pair.decode.add(make_request(prompt=10, remote_kv=remote), now)
    pair.decode.step(now)
    pair.decode.close(now)
    pair.prefill.settle(now + LEASE_S)
    assert pair.prefill.kept_requests == 0


@pytest.mark.parametrize("steps", [0, 1])
def test_who_goes_away_while_kv_is_waited_for_leaves_nothing_behind(steps):
    pair = Pair()
    remote, now = pair.computed_on_prefill(make_request(prompt=10))
    pair.decode.add(make_request(prompt=10, remote_kv=remote), now)
    for _ in range(steps):
        pair.decode.step(now)
    assert pair.decode.abort("r")
    pair.check()
    assert (pair.prefill.kv_usage, pair.decode.kv_usage, pair.decode.waiting) == (0.0, 0.0, 0)


def test_a_ticket_used_twice_gives_wrong_words_without_a_word():
    pair, request = Pair(), make_request(prompt=10, max_tokens=5)
    remote, now = pair.computed_on_prefill(request)
    pair.decoded(replace(request, remote_kv=remote), now)
    reports, failed = pair.decoded(replace(request, request_id="again", remote_kv=remote), now)
    assert failed == []
    assert words(reports, "again") != words_alone(request)
    assert pair.seen_by_prefill.late == 1


def test_the_kv_of_another_prompt_gives_wrong_words():
    pair, other = Pair(), make_request(prompt=range(10), max_tokens=5)
    remote, now = pair.computed_on_prefill(make_request(prompt=10))
    reports, _ = pair.decoded(replace(other, remote_kv=remote), now)
    assert words(reports) != words_alone(other)


def lost(pair):
    pair.prefill.close(0.0)


def restarted(pair):
    pair.prefill.close(0.0)
    pair.start_prefill("another incarnation")


def rejected(pair):
    pair.faults.add(Fault(FaultKind.KV_REJECT, times=1))


@pytest.mark.parametrize(("trouble", "wait_s"), [(lost, 20.0), (restarted, 0.5), (rejected, 0.5)])
def test_kv_that_cannot_be_had_fails_the_request(trouble, wait_s):
    pair = Pair()
    remote, now = pair.computed_on_prefill(make_request(prompt=10))
    trouble(pair)
    pair.decode.add(make_request(prompt=10, remote_kv=remote), now)
    pair.decode.step(now)
    assert pair.decode.settle(now + wait_s - 0.1) == ()
    assert pair.decode.settle(now + wait_s) == ("r",)
    pair.check()
    assert (pair.decode.kv_usage, pair.decode.waiting, pair.seen_by_decode.failed) == (0.0, 0, 1)


def test_an_engine_that_was_known_fails_at_once_when_it_has_gone():
    pair, request = Pair(), make_request(prompt=10)
    remote, now = pair.computed_on_prefill(request)
    pair.decoded(replace(request, remote_kv=remote), now)
    pair.prefill.close(now)
    pair.decode.add(make_request("again", prompt=range(9), remote_kv=remote), now)
    pair.decode.step(now)
    assert pair.decode.settle(now + 0.5) == ("again",)


def test_engines_of_different_models_do_not_understand_each_other():
    pair, request = Pair(decode_layout="different"), make_request(prompt=10)
    remote, now = pair.computed_on_prefill(request)
    _, failed = pair.decoded(replace(request, remote_kv=remote), now)
    assert failed == ["r"]


def test_a_failed_fetch_leaves_the_kv_to_its_lease():
    pair, request = Pair(), make_request(prompt=10)
    remote, now = pair.computed_on_prefill(request)
    rejected(pair)
    pair.decoded(replace(request, remote_kv=remote), now)
    assert pair.prefill.next_event_s == pytest.approx(now + 0.5 + LEASE_S)


def test_where_recomputing_is_the_policy_it_happens_without_a_word():
    pair, request = Pair(replace(CONNECTOR, on_failure=OnLoadFailure.RECOMPUTE)), make_request(prompt=10)
    remote, now = pair.computed_on_prefill(request)
    rejected(pair)
    reports, failed = pair.decoded(replace(request, remote_kv=remote), now)
    assert (words(reports), failed) == (words_alone(request), [])
    assert (reports[0].step.prompt_tokens, reports[0].begun_fetched_tokens) == (10, 0)


def test_an_engine_without_a_connector_keeps_and_fetches_nothing():
    engine = VirtualEngine(SMALL, lambda work: STEP_S)
    remote = RemoteKv(("p", 1), "p", "r/p", (0, 1, 2))
    engine.add(make_request(prompt=10, max_tokens=1, keep_kv=True, remote_kv=remote), 0.0)
    (report,) = run_to_end(engine)
    assert (report.step.prompt_tokens, report.emitted[0].kept_blocks) == (10, None)
    assert (engine.kept_requests, engine.kv_usage) == (0, 0.0)


def test_hung_and_slow_transfers_come_in_the_end():
    pair, request = Pair(), make_request(prompt=10, max_tokens=1)
    pair.faults.add(Fault(FaultKind.KV_SLOW, factor=10.0))
    pair.faults.add(Fault(FaultKind.KV_HANG))
    remote, now = pair.computed_on_prefill(request)
    pair.decode.add(replace(request, remote_kv=remote), now)
    pair.decode.step(now)
    assert pair.decode.next_event_s == now + 10.0 + 10 * 2.0
    pair.decode.settle(now + 500.0)
    assert pair.decode.deferred == 1
    pair.faults.clear()
    reports, _ = run_with_transfers(pair.decode, now + 600.0)
    assert words(reports) == words_alone(request)


def test_a_stopped_keeper_is_waited_for():
    pair, request = Pair(), make_request(prompt=10, max_tokens=1)
    remote, now = pair.computed_on_prefill(request)
    pair.prefill.hang(True)
    pair.decode.add(replace(request, remote_kv=remote), now)
    pair.decode.step(now)
    assert pair.decode.settle(now + 500.0) == ()
    pair.prefill.hang(False)
    reports, _ = run_with_transfers(pair.decode, now + 600.0)
    assert words(reports) == words_alone(request)


def test_kept_kv_leaves_others_no_room_until_it_is_given_up():
    shape = replace(SMALL, total_blocks=16)
    pair = Pair(shape=shape)
    now = 0.0
    for number in range(2):
        prompt = range(100 * number, 100 * number + 30)
        _, now = pair.computed_on_prefill(make_request(f"r{number}", prompt=prompt), now)
    pair.prefill.add(make_request("blocked", prompt=4, max_tokens=1), now)
    assert pair.prefill.step(now) is None
    assert pair.prefill.has_work
    pair.prefill.settle(now + LEASE_S)
    assert pair.prefill.step(now + LEASE_S) is not None


def test_two_engines_cannot_have_one_side_channel():
    pair = Pair()
    with pytest.raises(EngineStartFailed, match="p:1"):
        pair.start_prefill()


def test_a_connector_without_time_or_room_is_rejected():
    with pytest.raises(ConfigError, match="connector"):
        Connector(lease_s=0)


actions = st.lists(
    st.tuples(
        st.sampled_from(["split", "split", "whole", "keep only", "abort", "refuse", "step", "wait"]),
        st.integers(1, 40),
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(actions)
def test_whatever_happens_no_block_is_lost_and_right_tickets_give_right_words(done):
    # Room for all: computed_on_prefill does not wait for leases to end.
    pair, now, asked, reports, failed = Pair(shape=replace(SMALL, total_blocks=400)), 0.0, {}, [], []
    for number, (action, size) in enumerate(done):
        request = make_request(f"r{number}", prompt=[number, *range(size)], max_tokens=3)
        if action in {"split", "keep only"}:
            remote, now = pair.computed_on_prefill(request, now)
            request = replace(request, remote_kv=remote)
        if action in {"split", "whole"}:
            pair.decode.add(request, now)
            asked[request.request_id] = request
        elif action == "abort" and asked:
            name = next(iter(asked))
            if pair.decode.abort(name):
                del asked[name]
        elif action == "refuse":
            pair.faults.add(Fault(FaultKind.KV_REJECT, times=1))
        elif action == "wait":
            now += size
        pair.prefill.settle(now)
        failed += pair.decode.settle(now)
        if (report := pair.decode.step(now)) is not None:
            reports.append(report)
            now = report.step.ended_unix_s
        pair.check()
    late_reports, late_failed = run_with_transfers(pair.decode, now)
    reports, failed = reports + late_reports, failed + late_failed
    pair.prefill.settle(now + 1000 * LEASE_S)
    pair.check()
    assert (pair.prefill.kv_usage, pair.decode.kv_usage) == (0.0, 0.0)
    assert {account.request_id for account in finished(reports)} >= set(asked) - set(failed)
    for name in set(asked) - set(failed):
        whole = replace(asked[name], request_id="r", remote_kv=None)
        assert words(reports, name) == words_alone(whole)
