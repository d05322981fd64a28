"""What was expected of a request stands beside what became of it."""

import pytest

from phasewise.core.decision import Option, Terms
from phasewise.core.timeline import AttemptKind, Outcome, Part, Placement
from phasewise.core.worker import WorkerRef
from phasewise.diagnosis.analysis.expectations import held, taken_option
from tests.builders import make_attempt, make_span, make_timeline

P0, D0 = WorkerRef("p0", "1"), WorkerRef("d0", "1")
SPLIT = Option(D0, P0, Terms(0.1, 0.2, 0.05, 0.4, 0.3), prompt_tokens=100)
WHOLE = Option(D0, None, Terms(0.0, 0.2, 0.0, 0.4, 0.9), prompt_tokens=100)


def make_pair(*, decode_outcome=Outcome.SUCCEEDED):
    prefill = make_attempt(
        [make_span(Part.ENGINE_QUEUE, 0.12), make_span(Part.PREFILL, 0.25)],
        worker="p0",
        kind=AttemptKind.PREFILL_SIDE,
    )
    decode = make_attempt(
        [make_span(Part.KV_TRANSFER, 0.02), make_span(Part.PREFILL, 0.04), make_span(Part.DECODE, 0.3)],
        worker="d0",
        kind=AttemptKind.DECODE_SIDE,
        outcome=decode_outcome,
    )
    return prefill, decode


def make_split_timeline(attempts, **fields):
    return make_timeline(
        (0.5, 0.6, 0.9), attempts=attempts, placement=Placement("auto", "cheapest", (SPLIT, WHOLE)), **fields
    )


def figures(timeline):
    return {row.name: (row.expected_s, row.measured_s) for row in held(timeline)}


def test_terms_of_a_kv_transfer_are_held_against_both_sides_reports():
    reported = figures(make_split_timeline(make_pair()))
    assert reported["wait"] == (0.1, pytest.approx(0.12))
    assert reported["prefill"] == (0.2, pytest.approx(0.25))
    assert reported["KV transfer"] == (0.05, pytest.approx(0.06))
    assert reported["first token"] == (pytest.approx(0.35), 0.5)
    assert reported["decode"] == (0.4, pytest.approx(0.4))
    assert reported["delay to others"] == (0.3, None)


def test_a_request_that_was_served_another_way_than_priced_has_only_measurements():
    timeline = make_split_timeline((*make_pair(decode_outcome=Outcome.FAILED), make_attempt(worker="d0")))
    assert taken_option(timeline) is None
    assert {expected for expected, _ in figures(timeline).values()} == {None}


def test_without_a_placement_only_measurements_are_reported():
    reported = figures(make_timeline((0.5, 0.6), engine_spans=[make_span(Part.PREFILL, 0.3)]))
    assert reported["prefill"] == (None, pytest.approx(0.3))
    assert reported["wait"] == (None, None)
    assert "KV transfer" not in reported


def test_a_whole_request_has_no_kv_transfer():
    timeline = make_timeline(
        (0.5, 0.6),
        attempts=(make_attempt([make_span(Part.PREFILL, 0.3)], worker="d0"),),
        placement=Placement("auto", "cheapest", (WHOLE, SPLIT)),
    )
    assert figures(timeline)["prefill"] == (0.2, pytest.approx(0.3))
    assert "KV transfer" not in figures(timeline)


def test_a_request_that_never_answered_has_no_times_of_its_own():
    timeline = make_timeline((), attempts=())
    assert {measured for _, measured in figures(timeline).values()} == {None}
