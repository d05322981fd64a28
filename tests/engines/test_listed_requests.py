"""Steps from listings: the requests of a small server that computes in known steps."""

import pytest

from phasewise.core.steps import StepLog
from phasewise.engines.listed_requests import (
    SHOWN_LATE_S,
    ListedRequest,
    Listing,
    ReadListing,
    StepsFromListings,
)

PROMPT_S, DECODE_S = 0.4, 0.02


def request(number, *, computed=0, output=0, prompt=100, slot=0):
    return ListedRequest(number, slot, prompt, computed, 0, output)


def reading(at_s, *requests, waiting=0, asked_s=None):
    return ReadListing(Listing(requests, 4096), at_s if asked_s is None else asked_s, at_s, waiting)


def steps_of(*readings):
    made = StepsFromListings()
    return [step for it in readings for step in made.add(it)]


def finished(steps):
    return {ended.request_id: ended for step in steps for ended in step.finished}


def test_a_stream_makes_a_step_per_token():
    steps = steps_of(
        reading(10.0),
        reading(10.5, request(1, computed=100, output=1), asked_s=10.1),
        reading(10.6, request(1, computed=100, output=6)),
        reading(10.7, request(1, computed=100, output=9)),
        reading(10.72),
    )
    assert [step.decode_tokens for step in steps] == [0, *[1] * 9]
    assert [step.prompt_tokens for step in steps] == [100, *[0] * 9]
    assert steps[1].ended_unix_s - steps[0].ended_unix_s == pytest.approx(0.02)
    ended = finished(steps)["task-1"]
    assert (ended.prompt_tokens, ended.output_tokens) == (100, 10)
    assert ended.queue_s == pytest.approx(0.0)
    assert ended.prefill_s == pytest.approx(0.45)  # from between the listings until the first token
    assert ended.decode_s == pytest.approx(0.22)
    assert not steps[-1].leaves_work


def test_requests_wait_in_the_order_of_their_arrival():
    steps = steps_of(
        reading(10.0),
        reading(10.1, request(1, computed=100, output=1)),
        reading(10.2, request(1, computed=100, output=5), waiting=1),
        reading(10.3, request(1, computed=100, output=10), waiting=2),
        reading(10.4, request(2, computed=100, output=1), waiting=1),
        reading(10.5, request(3, computed=100, output=1), waiting=0),
        reading(10.6, waiting=0),
    )
    ended = finished(steps)
    assert ended["task-2"].queue_s == pytest.approx(0.2, abs=0.01)
    assert ended["task-3"].queue_s == pytest.approx(0.2, abs=0.01)
    assert ended["task-1"].queue_s == pytest.approx(0.0, abs=0.01)


def test_a_prompt_beside_a_stream_takes_what_its_usual_steps_leave():
    calm = [reading(10.0 + 0.1 * n, request(1, computed=100, output=1 + 5 * n)) for n in range(4)]
    steps = steps_of(
        reading(9.9),
        *calm,
        reading(10.8, request(1, computed=100, output=18), request(2, computed=90, output=1, slot=1)),
    )
    timed = StepLog(steps).steps
    with_prompt = [it for it in timed if it.step.prompt_tokens == 90]
    assert len(with_prompt) == 1
    assert with_prompt[0].duration_s == pytest.approx(0.5 - 0.02, abs=0.001)
    assert with_prompt[0].step.first_tokens == 1


def test_a_request_that_ran_before_the_first_listing_has_no_start():
    steps = steps_of(
        reading(10.0, request(1, computed=100, output=50)),
        reading(10.1, request(1, computed=100, output=55)),
        reading(10.2),
    )
    assert finished(steps) == {}
    assert sum(step.decode_tokens for step in steps) == 6


def test_a_slot_with_another_request_has_ended_the_one_before():
    steps = steps_of(
        reading(10.0),
        reading(10.1, request(1, computed=100, output=2)),
        reading(10.2, request(2, computed=100, output=1)),
        reading(10.3, request(2, computed=100, output=6)),
    )
    assert finished(steps)["task-1"].output_tokens == 3
    assert max(step.running + len(step.finished) for step in steps) == 1


def test_nothing_happens_while_an_engine_is_idle_or_stands_still():
    stuck = request(1, computed=100, output=5)
    assert steps_of(reading(1.0), reading(2.0), reading(3.0)) == []
    (there,) = steps_of(reading(1.0, stuck), reading(2.0, stuck), reading(30.0, stuck))
    assert (there.ended_unix_s, there.running, there.decode_tokens) == (1.0 - SHOWN_LATE_S, 1, 0)


def test_the_slots_tokens_are_its_kv():
    listing = Listing((request(1, computed=900, output=100),), 4000)
    assert listing.kv_usage == pytest.approx(0.25)


def test_a_step_that_takes_longer_than_the_time_between_listings_is_timed_whole():
    slow = [
        reading(10.0 + 0.05 * n, request(1, computed=100, output=1 + n // 4), request(2, slot=1, prompt=9))
        for n in range(1, 80)
    ]
    timed = StepLog(steps_of(reading(10.0), *slow)).steps
    usual = sorted(it.duration_s for it in timed if it.duration_s is not None)[len(timed) // 2]
    assert usual == pytest.approx(0.2, abs=0.01)
    late_s = timed[-1].step.ended_unix_s - 10.0 - 0.05 * 76
    assert late_s == pytest.approx(
        -SHOWN_LATE_S - 0.2, abs=0.02
    )  # a listing and a step earlier than it was seen


def test_counts_that_go_back_are_no_steps():
    steps = steps_of(
        reading(10.0, request(1, computed=100, output=50)), reading(10.1, request(1, computed=10, output=3))
    )
    assert [step.decode_tokens for step in steps] == [0]
