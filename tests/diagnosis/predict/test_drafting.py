"""Speculative decoding of a window, from an engine's counters."""

import pytest

from phasewise.diagnosis.analysis.engine_load import Drafts
from phasewise.diagnosis.predict.setup import drafting_of, reading_of_counters

COUNTED = Drafts(drafts=10, drafted_tokens=50, accepted_tokens=30)


def test_steps_without_a_guess_count_as_much_as_those_with_one():
    # 25 steps of a stream: each carried its own token, and 50 guessed ones were among them.
    drafting = drafting_of([reading_of_counters(COUNTED, carried_per_step=75 / 25)])
    assert drafting.tokens_per_step == pytest.approx(55 / 25)
    assert drafting.drafted_per_step == pytest.approx(50 / 25)


def test_where_every_step_guessed_counters_report_all():
    drafting = drafting_of([reading_of_counters(COUNTED, carried_per_step=6.0)])
    assert drafting.tokens_per_step == pytest.approx(4.0)
    assert drafting.drafted_per_step == pytest.approx(5.0)


@pytest.mark.parametrize("carried", [None, 1.0])
def test_counters_without_a_step_record_that_has_guesses_report_nothing(carried):
    assert reading_of_counters(COUNTED, carried) is None
