"""The live view fits 80 columns, says what is slow, and leaves out what has no room."""

from dataclasses import replace

from rich.console import Console

from phasewise.diagnosis.live.snapshot import (
    LiveEngine,
    LiveFailure,
    LivePart,
    LivePhase,
    LivePoint,
    LiveRequest,
    LiveSnapshot,
    LiveState,
    LiveTenant,
    RequestStatus,
)
from phasewise.report.live_screen import LiveChoices, chosen_requests, render, sparkline, state_in_words

QUEUE = LivePart("engine queue", 1.2)
START = LivePhase(40, 20, 0.9, 2.5, 1.5, (QUEUE, LivePart("prefill", 0.2), LivePart("unexplained", 0.1)))
STREAM = LivePhase(40, 0, 0.03, 0.05, 0.04, (LivePart("decode", 0.04),))
SLOW = LiveSnapshot(
    at_unix_s=1_800_000_000.0,
    source="gateway",
    window_s=30.0,
    slo_ttft_s=1.0,
    slo_tpot_s=0.1,
    state=LiveState.SLOW_TO_START,
    phase_part=QUEUE,
    start=START,
    stream=STREAM,
    requests_per_s=12.0,
    tokens_per_s=900.0,
    open_requests=30,
    waiting=9,
    engines=tuple(
        LiveEngine(f"engine-{it:02}", "up", "", 4, 4, it, 0.5, 0.3, 0.02, 0.5, 0.03) for it in range(30)
    ),
    tenants=(LiveTenant("shop", 20, 7), LiveTenant("lab", 10, 2)),
    requests=(
        LiveRequest("a" * 32, RequestStatus.ENDED, "shop", "engine-01", 3.0, 0.5, 0.05),
        LiveRequest("b" * 32, RequestStatus.WAITS, "lab", "", 4.0),
        LiveRequest(
            "c" * 32,
            RequestStatus.STANDS_STILL,
            "shop",
            "engine-01",
            9.0,
            0.1,
            0.2,
            3.0,
            "its client does not read",
        ),
    ),
    still=1,
    history=tuple(LivePoint(float(it), 0.1 * it, None if it % 2 else 0.03, 3) for it in range(100)),
    not_observed=("nothing",),
)
CHOICES = LiveChoices(
    "http://127.0.0.1:8000 (gateway, 30 engines)", diagnose="phasewise diagnose http://127.0.0.1:8000"
)


def shown(snapshot=SLOW, choices=CHOICES, height=None, width=80):
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(render(snapshot, choices, width, height))
    return captured.get()


def test_it_says_what_is_slow_in_which_part_and_where_the_cause_is_found():
    text = shown()
    assert "SLOW TO START: engine queue 1.20 s of TTFT 1.50 s" in text
    assert "`phasewise diagnose http://127.0.0.1:8000`" in text
    assert "9 queued (shop 7, lab 2)" in text
    assert "1 standing still" in text
    assert "cccccccc silent for 3.00 s, held by: its client does not read" in text
    assert "diagnose" not in shown(replace(SLOW, state=LiveState.HEALTHY, phase_part=None))


def test_it_names_why_requests_were_not_served():
    failing = replace(SLOW, failed=4, failures=(LiveFailure("bodies_full", 3), LiveFailure("queue_full", 1)))
    assert "4 failed (bodies_full 3, queue_full 1)" in shown(failing, width=120)


def test_it_fits_80_columns_and_the_height_of_the_terminal():
    assert max(map(len, shown().splitlines())) <= 80
    for height in (22, 24, 50):
        assert len(shown(height=height).splitlines()) <= height
    assert "and 30 more" not in shown()


def test_a_filter_leaves_engines_and_requests_that_hold_the_text():
    only = replace(CHOICES, only="engine-01")
    text = shown(choices=only)
    assert "engine-01" in text
    assert "engine-02" not in text
    assert {it.request_id[0] for it in chosen_requests(SLOW, only)} == {"a", "c"}


def test_requests_are_sorted_by_what_was_asked_for_after_those_that_stand_still():
    assert [it.request_id[0] for it in chosen_requests(SLOW, CHOICES)] == ["c", "b", "a"]
    assert [it.request_id[0] for it in chosen_requests(SLOW, replace(CHOICES, sort="tpot"))] == [
        "c",
        "a",
        "b",
    ]


def test_both_phases_are_named_if_both_are_slow():
    both = replace(SLOW, also_slow=LiveState.SLOW_TO_STREAM)
    assert state_in_words(both).endswith("of TTFT 1.50 s; also slow to stream")
    assert state_in_words(replace(SLOW, state=LiveState.NOT_ENOUGH_TRAFFIC)) == "NOT ENOUGH TRAFFIC TO JUDGE"


def test_a_sparkline_reaches_from_zero_to_the_largest_value():
    assert sparkline([0.0, None, 1.0]) == "▁ █"
    assert sparkline([None]) == ""
