"""Predictions and outcomes survive crashes and other versions, and the score counts what it says."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.benchmark.compare.ledger import (
    Entry,
    LedgerFile,
    PredictionCheck,
    judge_prediction,
    score,
)
from phasewise.core.errors import ConfigError
from phasewise.core.statistics import Interval
from tests.benchmark.compare.builders import make_outcome, make_prediction


@pytest.fixture
def ledger(tmp_path):
    return LedgerFile(tmp_path / "home" / "ledger.jsonl")


def test_a_ledger_that_nobody_began_is_empty(ledger):
    assert ledger.read().entries == ()
    assert not ledger.path.exists()


def test_a_prediction_stands_beside_its_outcome_once_there_is_one(ledger):
    one, two = (
        make_prediction("a-ttft_p50"),
        make_prediction("b-ttft_p50", ratio=None, unpredictable="no fit"),
    )
    ledger.add(one)
    ledger.add(two)
    outcome = make_outcome(one.id, PredictionCheck.HELD, interval=Interval(0.4, 0.6, 0.95))
    ledger.add(outcome)
    assert ledger.read().entries == (Entry(one, outcome), Entry(two))


def test_a_torn_last_line_is_passed_over_and_the_next_record_is_whole(ledger):
    one, two = make_prediction("a"), make_prediction("b")
    ledger.add(one)
    with ledger.path.open("ab") as file:
        file.write(b'{"v":1,"kind":"outcome","id":"a","he')
    assert ledger.read().entries == (Entry(one),)
    assert ledger.read().passed_over == 1
    ledger.add(two)
    assert [entry.prediction.id for entry in ledger.read().entries] == ["a", "b"]


@given(cut=st.integers(min_value=0), tail=st.binary(max_size=40))
def test_whatever_stands_at_the_end_of_the_file_costs_no_other_record(tmp_path_factory, cut, tail):
    ledger = LedgerFile(tmp_path_factory.mktemp("ledger") / "ledger.jsonl")
    ledger.add(make_prediction("a"))
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole + whole[: cut % len(whole)] + tail.replace(b"\n", b""))
    ledger.add(make_prediction("b"))
    assert {"a", "b"} <= {entry.prediction.id for entry in ledger.read().entries}


def test_records_of_another_version_are_passed_over_and_unknown_fields_left_alone(ledger):
    ledger.add(make_prediction("a"))
    facts = json.loads(ledger.path.read_bytes())
    lines = [facts | {"later": 1, "id": "b"}, facts | {"v": 2, "id": "c"}, facts | {"kind": "joke"}]
    with ledger.path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    found = ledger.read()
    assert [entry.prediction.id for entry in found.entries] == ["a", "b"]
    assert found.passed_over == 2


def test_a_ledger_is_its_users_alone_and_one_that_cannot_be_written_is_said_at_once(ledger, tmp_path):
    ledger.check_writable()
    assert ledger.path.stat().st_mode & 0o077 == 0
    with pytest.raises(ConfigError, match="cannot be written"):
        LedgerFile(tmp_path).check_writable()


LESS = Interval(0.3, 0.7, 0.9)


def entry(held, predicted=LESS, ratio=0.5, **fields):
    prediction = make_prediction("x", ratio=predicted, **fields)
    measured = Interval(ratio - 0.1, ratio + 0.1, 0.95)
    return Entry(
        prediction, None if held is None else make_outcome("x", held, ratio=ratio, interval=measured)
    )


def test_the_score_counts_coverage_signs_and_what_is_open_over_the_figures_that_fixes_aim_at():
    entries = [
        entry(PredictionCheck.HELD),
        entry(PredictionCheck.OUTSIDE, ratio=0.8),
        entry(PredictionCheck.WRONG_SIGN, ratio=1.5),
        entry(PredictionCheck.INCONCLUSIVE),
        entry(PredictionCheck.UNPREDICTED, predicted=None),
        entry(None),
        entry(PredictionCheck.OUTSIDE, aim=False),
        entry(PredictionCheck.HELD, predicted=Interval(0.9, 1.1, 0.9), ratio=1.0),
    ]
    found = score(entries)
    assert (found.predictions, found.judged, found.covered) == (7, 4, 2)
    assert (found.inconclusive, found.unpredicted, found.open) == (1, 1, 1)
    # One that was said to stay where it is has no sign to be right about.
    assert (found.signed, found.sign_right) == (3, 2)
    assert found.coverage.low < 0.5 < found.coverage.high


def test_a_change_that_is_not_sure_has_no_sign_to_be_right_about():
    found = score([entry(PredictionCheck.OUTSIDE, ratio=0.95), entry(PredictionCheck.OUTSIDE, ratio=0.85)])
    assert (found.judged, found.signed, found.sign_right) == (2, 1, 1)


def test_the_score_says_how_wide_the_judged_intervals_are():
    ranges = [(0.5, 1.0), (0.2, 0.8), (0.1, 1.0), (0.01, 9.0)]
    entries = [entry(PredictionCheck.HELD, predicted=Interval(*bounds, 0.9)) for bounds in ranges[:3]]
    entries.append(entry(PredictionCheck.INCONCLUSIVE, predicted=Interval(*ranges[3], 0.9)))
    assert score(entries).median_width == pytest.approx(4.0)
    assert score([]).median_width is None


@pytest.mark.parametrize(
    ("predicted", "ratio", "measured", "held"),
    [
        ((0.3, 0.7), 0.5, (0.4, 0.6), PredictionCheck.HELD),
        ((0.3, 0.7), 0.8, (0.75, 0.85), PredictionCheck.OUTSIDE),
        ((0.3, 0.7), 1.5, (1.2, 1.9), PredictionCheck.WRONG_SIGN),
        ((1.2, 1.6), 0.5, (0.4, 0.6), PredictionCheck.WRONG_SIGN),
        # No change was measured for sure where one was predicted.
        ((0.3, 0.7), 1.0, (0.95, 1.05), PredictionCheck.OUTSIDE),
        # It may be what was predicted, and it may be nothing.
        ((0.3, 0.7), 0.6, (0.35, 1.1), PredictionCheck.INCONCLUSIVE),
        ((0.3, 0.7), 0.85, (0.6, 1.2), PredictionCheck.INCONCLUSIVE),
        # Nothing was predicted to happen.
        ((0.9, 1.1), 1.0, (0.97, 1.03), PredictionCheck.HELD),
        ((0.9, 1.1), 1.3, (1.2, 1.4), PredictionCheck.OUTSIDE),
        ((0.9, 1.1), 1.0, (0.5, 2.0), PredictionCheck.INCONCLUSIVE),
    ],
)
def test_a_prediction_is_held_against_what_was_measured(predicted, ratio, measured, held):
    found = judge_prediction(Interval(*predicted, 0.9), ratio, Interval(*measured, 0.95))
    assert found is held


def test_what_was_not_predicted_or_not_measured_is_not_judged():
    assert judge_prediction(None, 0.5, Interval(0.4, 0.6, 0.95)) is PredictionCheck.UNPREDICTED
    assert judge_prediction(Interval(0.3, 0.7, 0.9), None, None) is PredictionCheck.INCONCLUSIVE


def test_a_prediction_that_is_made_again_replaces_the_first(ledger):
    ledger.add(make_prediction("a"))
    ledger.add(replace(make_prediction("a"), fix="other words"))
    (found,) = ledger.read().entries
    assert found.prediction.fix == "other words"
