"""The live window counts each request once, at the second it belongs to, and names what is slow now."""

from dataclasses import replace

import orjson
import pytest

from phasewise.core.slo import Slo
from phasewise.core.timeline import Outcome, Part
from phasewise.diagnosis.live.snapshot import (
    LiveEngine,
    LiveSnapshot,
    LiveState,
    RequestStatus,
    snapshot_from,
)
from phasewise.diagnosis.live.window import LiveWindow, OpenRequest, held_by, pace
from tests.builders import EPOCH_S, make_span, make_timeline

SLO = Slo(ttft_s=1.0, tpot_s=0.1)


def window_of(*timelines):
    window = LiveWindow(lambda _class: SLO)
    for timeline in timelines:
        window.add(timeline)
    return window


def ended(number, ttft_s=0.5, gap_s=0.05, tokens=5, at_s=0.0, **fields):
    times = tuple(ttft_s + gap_s * it for it in range(tokens))
    return make_timeline(times, request_id=f"r{number}", started_unix_s=EPOCH_S + at_s, **fields)


def streaming(number=0, **fields):
    return OpenRequest(f"o{number}", "default", "default", "w0", **{"age_s": 5.0, **fields})


def composed(window, open_requests=(), now_s=3.0, slo=None):
    around = LiveSnapshot(EPOCH_S + now_s, "gateway", open_requests=len(open_requests))
    return window.snapshot(around, open_requests, lambda it: "held", slo)


def test_quantiles_are_those_of_the_requests_of_the_window_alone():
    old = [ended(it, ttft_s=9.0, at_s=-100.0) for it in range(5)]
    new = [ended(10 + it, ttft_s=0.1 * (it + 1)) for it in range(5)]
    found = composed(window_of(*old, *new))
    assert found.start.requests == 5
    assert found.start.p50_s == pytest.approx(0.3)
    assert found.stream.p50_s == pytest.approx(0.05)
    assert found.state is LiveState.HEALTHY


def test_parts_add_up_to_the_mean_and_the_largest_is_named():
    queue, prefill = make_span(Part.ENGINE_QUEUE, 1.5), make_span(Part.PREFILL, 0.3)
    found = composed(window_of(*(ended(it, 2.0, engine_spans=(queue, prefill)) for it in range(4))))
    assert sum(it.seconds for it in found.start.parts) == pytest.approx(found.start.mean_s)
    assert found.state is LiveState.SLOW_TO_START
    assert (found.phase_part.part, found.phase_part.seconds) == ("engine queue", pytest.approx(1.5))


def test_it_is_slow_to_stream_by_the_pace_or_by_a_long_stall():
    slow = composed(window_of(*(ended(it, gap_s=0.3) for it in range(4))))
    assert (slow.state, slow.phase_part.part) == (LiveState.SLOW_TO_STREAM, "unexplained")
    stalled = [make_timeline((0.1, 0.11, 0.12, 0.13, 0.14, 1.3), request_id=f"s{it}") for it in range(4)]
    quick = [replace(it, output_tokens=100) for it in stalled]
    assert composed(window_of(*quick)).state is LiveState.SLOW_TO_STREAM


def test_a_request_that_waits_beyond_the_objective_is_late_before_it_is_answered():
    fast = window_of(*(ended(it) for it in range(3)))
    waiting = [streaming(it, age_s=4.0) for it in range(3)]
    found = composed(fast, waiting)
    assert (found.state, found.start.over, found.start.requests) == (LiveState.SLOW_TO_START, 3, 6)
    assert [it.status for it in found.requests[:3]] == [RequestStatus.WAITS] * 3
    soon = [replace(it, age_s=0.9) for it in waiting]
    assert composed(fast, soon).state is LiveState.HEALTHY


def test_an_open_stream_counts_with_its_first_token_and_its_recent_pace():
    open_streams = [streaming(it, ttft_s=0.4, pace_s=0.3, silent_s=0.1) for it in range(3)]
    found = composed(window_of(), open_streams)
    assert found.start.p50_s == pytest.approx(0.4)
    assert found.stream.p50_s == pytest.approx(0.3)
    assert found.state is LiveState.SLOW_TO_STREAM


def test_a_stream_stands_still_after_many_times_its_own_pace_and_not_before():
    slow_but_even = streaming(1, ttft_s=0.4, pace_s=0.5, silent_s=4.0)
    still = streaming(2, ttft_s=0.4, pace_s=0.05, silent_s=4.0)
    found = composed(window_of(), [slow_but_even, still])
    assert found.still == 1
    shown = [(it.request_id, it.held_by) for it in found.requests if it.status is RequestStatus.STANDS_STILL]
    assert shown == [("o2", "held")]
    assert not streaming(ttft_s=0.4, pace_s=0.05, silent_s=0.9).stands_still


def test_failed_requests_make_it_failing_and_few_requests_make_no_state():
    failed = [ended(it) for it in range(6)]
    failed += [
        make_timeline((), request_id=f"f{it}", outcome=Outcome.REJECTED, ended_s=0.1) for it in range(2)
    ]
    found = composed(window_of(*failed))
    assert (found.state, found.failed) == (LiveState.FAILING, 2)
    assert composed(window_of(ended(1))).state is LiveState.NOT_ENOUGH_TRAFFIC


def test_requests_that_were_not_served_are_counted_by_reason_while_they_are_in_the_window():
    reasons = ["bodies_full"] * 3 + ["queue_full"] + [None]
    window = window_of(
        *(make_timeline((), outcome=Outcome.REJECTED, reason=reason, ended_s=0.1) for reason in reasons)
    )
    assert [(it.reason, it.requests) for it in composed(window).failures] == [
        ("bodies_full", 3),
        ("queue_full", 1),
        ("rejected", 1),
    ]
    assert composed(window, now_s=60.0).failures == ()


def test_another_objective_changes_the_state_and_nothing_else():
    window = window_of(*(ended(it) for it in range(4)))
    strict = composed(window, slo=Slo(0.2, 0.1))
    assert (strict.state, strict.start.over) == (LiveState.SLOW_TO_START, 4)
    assert strict.start.p50_s == composed(window).start.p50_s


def test_the_past_has_a_point_for_every_second_each_once():
    window = window_of(*(ended(it, ttft_s=0.1 + 0.1 * it, at_s=it) for it in range(4)))
    composed(window, now_s=4.5)
    composed(window, now_s=5.0)
    points = composed(window, now_s=6.2).history
    assert [it.at_unix_s - EPOCH_S for it in points] == [0, 1, 2, 3, 4, 5]
    assert [it.ttft_s for it in points] == [pytest.approx(0.1 + 0.1 * it) for it in range(4)] + [None, None]


def test_embeddings_and_cached_answers_are_not_counted():
    assert composed(window_of(*(ended(it, generates=False) for it in range(5)))).start is None


def test_quantiles_of_many_requests_are_close_to_exact():
    window = window_of(*(ended(it, ttft_s=(it % 1000) / 1000) for it in range(5_000)))
    found = composed(window)
    assert found.start.requests == 5_000
    assert found.start.p90_s == pytest.approx(0.9, abs=0.02)


def test_counts_hold_while_requests_come_and_leave_the_window(monkeypatch):
    monkeypatch.setattr("phasewise.diagnosis.live.window.MOST_KEPT", 50)
    window = window_of()
    for number in range(120):
        outcome = Outcome.FAILED if number % 5 == 0 else Outcome.SUCCEEDED
        window.add(
            ended(number, ttft_s=0.5 + number % 3, gap_s=0.05 * (number % 4), at_s=number, outcome=outcome)
        )
        window.check_invariants()
    found = composed(window, now_s=125.0)
    window.check_invariants()
    assert found.window_s == 30.0
    assert 0 < found.failed < found.start.requests < 50
    crowded = window_of(*(ended(number, at_s=number / 100) for number in range(120)))
    assert composed(crowded, now_s=2.0).window_s == pytest.approx(2.0 - 1.4, abs=0.6)


def test_pace_is_that_of_the_last_gaps():
    assert pace([0.0, 1.0, 2.0]) is None
    assert pace([0.0] + [10 + 0.1 * it for it in range(40)]) == pytest.approx(0.1)


def test_what_holds_a_stream_is_named_nearest_cause_first():
    request, up = streaming(ttft_s=0.4), LiveEngine("w0")
    assert held_by(replace(request, blocked=True), up, 3) == "its client does not read"
    assert held_by(request, replace(up, health="hung"), 3) == "w0 stands still"
    assert held_by(request, replace(up, kv_usage=0.99), 3) == "the KV cache of w0 is full"
    assert held_by(request, up, 1) == "1 other prompt in prefill on w0"
    assert held_by(request, up, 0) == "not observed"
    assert held_by(request, None, 0) == "no engine has it"


def test_a_snapshot_survives_json():
    found = composed(
        window_of(*(ended(it, 2.0) for it in range(4)), ended(5, outcome=Outcome.FAILED)),
        [streaming(ttft_s=0.1, pace_s=0.01, silent_s=3.0)],
    )
    assert snapshot_from(orjson.loads(orjson.dumps(found)) | {"later": 1}) == found
