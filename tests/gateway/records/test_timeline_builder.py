"""Milestones become a timeline whose parts add up to its time to first token."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phasewise.core.caching import CacheNote, CacheResult
from phasewise.core.decision import Decision, Option, Terms
from phasewise.core.errors import FailureKind
from phasewise.core.latency import e2e_s, ttft_breakdown
from phasewise.core.timeline import NO_ACCOUNT, AttemptKind, EngineAccount, Outcome, Part
from phasewise.core.worker import WorkerRef
from phasewise.gateway.answer_cache.lookup import CacheLookup
from phasewise.gateway.records.timeline_builder import TimelineBuilder, attempt_outcome
from phasewise.gateway.upstream.response import Answer, read_plain_answer
from tests.builders import EPOCH_S, make_request, make_worker

W0, W1 = WorkerRef("w0", "1"), WorkerRef("w1", "1")


def make_builder(**fields):
    return TimelineBuilder(make_request(arrived_s=100.0, **fields), EPOCH_S)


def make_answer(times_s, **phases_s):
    answer = Answer()
    answer.content_times_s.extend(times_s)
    answer.engine_request_id = "chatcmpl-r1"
    answer.account = EngineAccount(10, 4, len(times_s), **phases_s)
    return answer


def served(builder, worker, at_s, answer):
    builder.begin_attempt(worker, at_s)
    builder.note_sent(at_s + 0.01)
    builder.note_answer(answer)
    builder.end_attempt(Outcome.SUCCEEDED, at_s + 1.0)


def test_times_become_offsets_from_the_head_of_the_request():
    builder = make_builder(tenant="a", slo_class="fast")
    served(builder, W0, 100.02, make_answer([100.5, 100.6]))
    timeline = builder.build(Outcome.SUCCEEDED, 101.1)
    assert timeline.started_unix_s == EPOCH_S
    assert timeline.content_times_s == pytest.approx((0.5, 0.6))
    assert timeline.ended_s == pytest.approx(1.1)
    assert timeline.attempts[0].started_s == pytest.approx(0.02)
    assert timeline.attempts[0].engine_request_id == "chatcmpl-r1"
    assert (timeline.prompt_tokens, timeline.cached_tokens, timeline.output_tokens) == (10, 4, 2)
    assert (timeline.tenant, timeline.slo_class) == ("a", "fast")


def test_gateway_wait_runs_until_the_request_was_written():
    builder = make_builder()
    served(builder, W0, 100.02, make_answer([100.5], queue_s=0.1, prefill_s=0.3))
    breakdown = ttft_breakdown(builder.build(Outcome.SUCCEEDED, 101.0))
    assert breakdown.seconds(Part.GATEWAY_WAIT) == pytest.approx(0.03)
    assert breakdown.unexplained_s == pytest.approx(0.5 - 0.03 - 0.4)


def test_an_answer_taken_up_elsewhere_was_begun_by_the_attempt_before():
    builder = make_builder()
    builder.begin_attempt(W0, 100.02)
    builder.note_sent(100.03)
    builder.note_answer(make_answer([100.5, 100.6]))
    builder.end_attempt(Outcome.FAILED, 100.7)
    builder.begin_attempt(W1, 100.8, AttemptKind.RESUMED)
    builder.note_answer(make_answer([100.5, 100.6, 101.0], prefill_s=0.1))
    builder.end_attempt(Outcome.SUCCEEDED, 101.1)
    timeline = builder.build(Outcome.SUCCEEDED, 101.1)
    assert [attempt.kind for attempt in timeline.attempts] == [AttemptKind.LOCAL, AttemptKind.RESUMED]
    assert timeline.serving_attempt is timeline.attempts[0]
    assert timeline.content_times_s == pytest.approx((0.5, 0.6, 1.0))
    breakdown = ttft_breakdown(timeline)
    assert breakdown.seconds(Part.GATEWAY_WAIT) == pytest.approx(0.03)
    assert breakdown.seconds(Part.EARLIER_ATTEMPTS) is None
    assert breakdown.seconds(Part.PREFILL) is None


def test_time_in_failed_attempts_is_counted_once_and_apart():
    builder = make_builder()
    builder.begin_attempt(W0, 100.02)
    builder.end_attempt(Outcome.FAILED, 100.22, "it broke")
    served(builder, W1, 100.23, make_answer([100.5]))
    timeline = builder.build(Outcome.SUCCEEDED, 101.0)
    breakdown = ttft_breakdown(timeline)
    assert breakdown.seconds(Part.EARLIER_ATTEMPTS) == pytest.approx(0.21)
    assert breakdown.seconds(Part.GATEWAY_WAIT) == pytest.approx(0.03)
    assert breakdown.unexplained_s == pytest.approx(0.26)
    assert [attempt.worker.name for attempt in timeline.attempts] == ["w0", "w1"]
    assert timeline.serving_attempt.worker == W1
    assert timeline.attempts[0].note == "it broke"


def test_the_answer_of_a_failed_attempt_is_not_that_of_the_next():
    builder = make_builder()
    builder.begin_attempt(W0, 100.0)
    builder.note_answer(make_answer([100.1]))
    builder.end_attempt(Outcome.FAILED, 100.2)
    builder.begin_attempt(W1, 100.2)
    builder.end_attempt(Outcome.FAILED, 100.3)
    assert builder.build(Outcome.FAILED, 100.3).content_times_s == ()


def test_the_clients_own_id_stands_beside_ours():
    builder = TimelineBuilder(make_request(request_id="ours"), EPOCH_S, "theirs")
    timeline = builder.build(Outcome.REJECTED, 100.5)
    assert (timeline.request_id, timeline.client_request_id) == ("ours", "theirs")
    assert make_builder().build(Outcome.REJECTED, 100.5).client_request_id is None


def test_a_rejected_request_waited_in_the_gateway_all_the_time():
    timeline = make_builder().build(Outcome.REJECTED, 100.5, "no_healthy_worker")
    assert timeline.attempts == ()
    assert timeline.spans[0].duration_s == pytest.approx(0.5)
    assert timeline.reason == "no_healthy_worker"


def test_a_plain_reply_has_no_time_to_first_token_but_an_end():
    builder = make_builder()
    body = b'{"id":"chatcmpl-r1","choices":[{"finish_reason":"stop"}],"usage":{"completion_tokens":3}}'
    served(builder, W0, 100.0, read_plain_answer(body))
    timeline = builder.build(Outcome.SUCCEEDED, 101.5)
    assert timeline.content_times_s == ()
    assert ttft_breakdown(timeline) is None
    assert e2e_s(timeline) == pytest.approx(1.5)
    assert (timeline.finish_reason, timeline.output_tokens) == ("stop", 3)


@pytest.mark.parametrize(
    "body", [b"", b"not json", b"[]", b'{"choices":[7],"usage":3,"id":4}', b'{"choices":[]}']
)
def test_a_strange_plain_reply_leaves_everything_unknown(body):
    answer = read_plain_answer(body)
    assert (answer.finish_reason, answer.engine_request_id, answer.account) == (None, None, NO_ACCOUNT)


def test_only_a_deadline_is_a_timeout():
    assert attempt_outcome(FailureKind.TIMED_OUT) is Outcome.TIMED_OUT
    assert attempt_outcome(FailureKind.CLOSED) is Outcome.FAILED


def test_a_request_under_way_stands_as_it_is_and_goes_on():
    builder = make_builder(text_marks=("a1",))
    builder.begin_attempt(W0, 100.0)
    builder.end_attempt(Outcome.FAILED, 100.2)
    builder.begin_attempt(W1, 100.25)
    builder.note_sent(100.26)
    builder.note_answer(answer := make_answer([100.5]))
    seen = builder.so_far(101.0, 0.125)
    assert (seen.outcome, seen.ended_s, seen.client_blocked_s) == (Outcome.UNFINISHED, 1.0, 0.125)
    assert [it.outcome for it in seen.attempts] == [Outcome.FAILED, Outcome.UNFINISHED]
    assert (seen.attempts[1].worker, seen.attempts[1].ended_s) == (W1, 1.0)
    assert (seen.content_times_s, seen.text_marks) == ((0.5,), ("a1",))
    assert ttft_breakdown(seen).seconds(Part.EARLIER_ATTEMPTS) == pytest.approx(0.25)
    answer.content_times_s.append(101.5)
    builder.end_attempt(Outcome.SUCCEEDED, 101.6)
    ended = builder.build(Outcome.SUCCEEDED, 101.6)
    assert (len(ended.attempts), ended.content_times_s) == (2, (0.5, 1.5))
    assert ended.client_blocked_s is None


def test_a_request_that_was_not_placed_yet_waits_in_the_gateway():
    seen = make_builder().so_far(100.5)
    assert (seen.attempts, seen.outcome) == ((), Outcome.UNFINISHED)
    assert seen.spans[0].duration_s == pytest.approx(0.5)


def test_an_attempt_cannot_end_before_it_begins():
    with pytest.raises(RuntimeError):
        make_builder().end_attempt(Outcome.FAILED, 100.0)


@pytest.mark.parametrize("streamed", [True, False])
def test_a_plain_reply_is_distinguished_from_a_stream(streamed):
    builder = make_builder(stream=streamed)
    assert builder.so_far(101.0).streamed is streamed
    served(builder, W0, 100.02, make_answer([]))
    assert builder.build(Outcome.SUCCEEDED, 101.1).streamed is streamed


# --- two workers for one request --------------------------------------------------------------------------


def prefilled(builder, at_s, outcome=Outcome.SUCCEEDED):
    """The prefill side of an attempt, which takes half a second."""
    builder.begin_attempt(W0, at_s, AttemptKind.PREFILL_SIDE)
    builder.note_sent(at_s + 0.01)
    builder.note_answer(make_answer([], queue_s=0.1, prefill_s=0.3, decode_s=0.0))
    builder.end_attempt(outcome, at_s + 0.5)


def decoded(builder, at_s, outcome=Outcome.SUCCEEDED):
    """The decode side, whose engine takes none of the prompt for cached; 0.1 s to the first content."""
    builder.begin_attempt(W1, at_s, AttemptKind.DECODE_SIDE)
    builder.note_sent(at_s + 0.01)
    answer = make_answer([at_s + 0.1, at_s + 0.2], queue_s=0.05, prefill_s=0.02, decode_s=0.4)
    answer.account = replace(answer.account, cached_tokens=0)
    builder.note_answer(answer)
    builder.end_attempt(outcome, at_s + 0.5)


def test_the_two_sides_of_a_kv_transfer_add_up_to_the_time_to_first_token():
    builder = make_builder()
    prefilled(builder, 100.02)
    decoded(builder, 100.53)
    timeline = builder.build(Outcome.SUCCEEDED, 101.1)
    found = ttft_breakdown(timeline)
    assert found.ttft_s == pytest.approx(0.63)
    # Until the prefill worker was asked, and from its reply until the decode worker was.
    assert found.seconds(Part.GATEWAY_WAIT) == pytest.approx(0.03 + 0.02)
    assert found.seconds(Part.ENGINE_QUEUE) == pytest.approx(0.1)
    assert found.seconds(Part.PREFILL) == pytest.approx(0.3 + 0.02)
    assert found.seconds(Part.KV_TRANSFER) == pytest.approx(0.05)
    assert found.unexplained_s == pytest.approx(0.63 - 0.05 - 0.1 - 0.32 - 0.05)
    assert (timeline.prompt_tokens, timeline.cached_tokens, timeline.output_tokens) == (10, 4, 2)
    assert (timeline.tries, timeline.serving_attempt.worker, timeline.reading_attempt.worker) == (1, W1, W0)


def test_a_pair_that_failed_is_an_earlier_attempt():
    builder = make_builder()
    prefilled(builder, 100.0)
    decoded(builder, 100.5, Outcome.FAILED)
    served(builder, W1, 101.0, make_answer([101.4], prefill_s=0.3))
    timeline = builder.build(Outcome.SUCCEEDED, 102.0)
    found = ttft_breakdown(timeline)
    assert found.seconds(Part.EARLIER_ATTEMPTS) == pytest.approx(1.0)
    assert found.seconds(Part.GATEWAY_WAIT) == pytest.approx(0.01)
    assert found.seconds(Part.PREFILL) == pytest.approx(0.3)
    assert found.seconds(Part.KV_TRANSFER) is None
    assert (timeline.prefill_attempt, timeline.tries, timeline.cached_tokens) == (None, 2, 4)


def test_a_second_pair_counts_its_own_sides_only():
    builder = make_builder()
    prefilled(builder, 100.0, Outcome.FAILED)
    prefilled(builder, 101.0)
    decoded(builder, 101.5)
    timeline = builder.build(Outcome.SUCCEEDED, 102.1)
    found = ttft_breakdown(timeline)
    assert found.seconds(Part.PREFILL) == pytest.approx(0.32)
    assert found.seconds(Part.EARLIER_ATTEMPTS) == pytest.approx(1.0)
    assert timeline.prefill_attempt is timeline.attempts[1]
    assert timeline.tries == 2


def test_a_prefill_side_alone_gave_the_client_nothing():
    builder = make_builder()
    prefilled(builder, 100.0)
    timeline = builder.build(Outcome.CANCELLED, 100.6)
    assert (timeline.prompt_tokens, timeline.output_tokens, timeline.finish_reason) == (10, None, None)
    assert timeline.serving_attempt.kind is AttemptKind.PREFILL_SIDE


def test_an_answer_begun_by_a_pair_and_taken_up_elsewhere_keeps_the_pairs_parts():
    builder = make_builder()
    prefilled(builder, 100.0)
    decoded(builder, 100.5, Outcome.FAILED)
    builder.begin_attempt(W0, 101.0, AttemptKind.RESUMED)
    builder.note_answer(make_answer([100.6, 100.7, 101.2]))
    builder.end_attempt(Outcome.SUCCEEDED, 101.5)
    timeline = builder.build(Outcome.SUCCEEDED, 101.6)
    found = ttft_breakdown(timeline)
    assert timeline.serving_attempt is timeline.attempts[1]
    assert found.seconds(Part.KV_TRANSFER) == pytest.approx(0.05)
    assert found.seconds(Part.GATEWAY_WAIT) == pytest.approx(0.01 + 0.01)
    assert found.seconds(Part.EARLIER_ATTEMPTS) is None


def test_what_was_expected_of_the_first_attempt_is_kept_with_the_request():
    options = (Option(W0, None, Terms(prefill_s=0.3), 100),)
    worker = make_worker("w0")
    builder = make_builder()
    builder.begin_attempt(W0, 100.0)
    builder.note_placement(Decision(worker, "auto", "cheapest", (), options=options))
    builder.end_attempt(Outcome.FAILED, 100.1)
    builder.begin_attempt(W0, 100.2)
    builder.note_placement(Decision(worker, "auto", "what was left", (), options=options[:1]))
    builder.end_attempt(Outcome.SUCCEEDED, 100.3)
    placement = builder.build(Outcome.SUCCEEDED, 100.4).placement
    assert (placement.policy, placement.reason, placement.options) == ("auto", "cheapest", options)


def test_a_placement_of_which_nothing_was_expected_is_not_written_down():
    builder = make_builder()
    builder.begin_attempt(W0, 100.0)
    builder.note_placement(Decision(make_worker("w0"), "least_outstanding", "fewest tokens", ()))
    builder.end_attempt(Outcome.SUCCEEDED, 100.3)
    assert builder.build(Outcome.SUCCEEDED, 100.4).placement is None


# --- the answer cache -------------------------------------------------------------------------------------


def looked_up(builder, result=CacheResult.MISS):
    lookup = CacheLookup(None, CacheNote(result))
    builder.note_cache(lookup)
    builder.note_look_up(100.01, 100.03)
    return lookup


def test_a_look_up_is_counted_once_and_apart_from_the_wait_that_contains_it():
    builder = make_builder()
    looked_up(builder)
    served(builder, W0, 100.04, make_answer([100.5]))
    timeline = builder.build(Outcome.SUCCEEDED, 101.0)
    breakdown = ttft_breakdown(timeline)
    assert breakdown.seconds(Part.CACHE_LOOK_UP) == pytest.approx(0.02)
    assert breakdown.seconds(Part.GATEWAY_WAIT) == pytest.approx(0.03)
    assert breakdown.unexplained_s == pytest.approx(0.45)
    assert timeline.cache.result is CacheResult.MISS


def test_until_the_first_content_of_what_was_found_all_is_the_gateways():
    builder = make_builder()
    lookup = looked_up(builder, CacheResult.HIT_EXACT)
    builder.note_answer(make_answer([100.05, 100.4]))
    lookup.note = CacheNote(CacheResult.HIT_EXACT, age_s=3.0)
    timeline = builder.build(Outcome.SUCCEEDED, 101.0)
    breakdown = ttft_breakdown(timeline)
    assert breakdown.seconds(Part.GATEWAY_WAIT) == pytest.approx(0.03)
    assert breakdown.unexplained_s == pytest.approx(0)
    assert (timeline.cache.age_s, timeline.attempts) == (3.0, ())


def test_an_answer_that_was_joined_and_taken_up_began_before_its_first_attempt():
    builder = make_builder()
    looked_up(builder, CacheResult.JOINED)
    builder.note_answer(make_answer([100.05]))
    builder.begin_attempt(W1, 100.8, AttemptKind.RESUMED)
    builder.note_sent(100.85)
    builder.note_answer(make_answer([100.05, 101.0], prefill_s=0.1))
    builder.end_attempt(Outcome.SUCCEEDED, 101.1)
    timeline = builder.build(Outcome.SUCCEEDED, 101.1)
    breakdown = ttft_breakdown(timeline)
    assert timeline.serving_attempt is None
    assert breakdown.ttft_s == pytest.approx(0.05)
    assert breakdown.unexplained_s == pytest.approx(0)


@pytest.mark.parametrize(
    ("ends_s", "expected"),
    [
        ([100.1, 100.3, 100.4], (0.1, 0.2, 0.1)),
        ([100.1, 100.3], (0.1, 0.2, 0.7)),
        ([100.1], (0.1, 0.9, 0.0)),
        ([], (1.0, 0.0, 0.0)),
    ],
)
def test_a_request_ended_in_the_stage_that_had_not_ended(ends_s, expected):
    builder = TimelineBuilder(make_request(arrived_s=100.0), EPOCH_S, stage_ends_s=ends_s)
    stages = builder.build(Outcome.REJECTED, 101.0, "bad_request").in_gateway.stages
    assert [seconds for _, seconds in stages] == pytest.approx([*expected, 0.0])


def test_the_wait_for_a_slot_between_attempts_is_not_the_gateways_queue():
    builder = TimelineBuilder(make_request(arrived_s=100.0), EPOCH_S, stage_ends_s=[100.0] * 3)
    builder.note_queue(0.3)
    builder.begin_attempt(W0, 100.3)
    builder.end_attempt(Outcome.FAILED, 100.4)
    builder.note_queue(5.0)
    assert builder.build(Outcome.FAILED, 106.0).in_gateway.queue_s == pytest.approx(0.3)
