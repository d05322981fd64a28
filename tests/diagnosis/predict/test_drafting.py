"""What n-gram lookup would have guessed of an answer, from its tokens alone."""

import pytest

from phasewise.diagnosis.analysis.engine_load import Drafts
from phasewise.diagnosis.predict.setup import drafting_of, guess_answer, reading_of_counters


def guessed(prompt, answer, tokens=5, match=4):
    return guess_answer(prompt, answer, guessed_tokens=tokens, match_tokens=match)


def test_free_text_is_never_guessed():
    reading = guessed(range(100), range(1000, 1050))
    assert (reading.steps, reading.tokens, reading.drafted) == (49, 49, 0)


def test_a_copy_comes_six_tokens_a_step_once_it_is_recognised():
    prompt = list(range(200))
    reading = guessed(prompt, prompt[:101])
    # Three steps until four tokens of the copy are there, then 97 tokens by six.
    assert reading.steps == 3 + 17
    assert reading.tokens == 100


def test_a_wrong_guess_costs_its_tokens_and_yields_one():
    prompt = [1, 2, 3, 4, 9, 9, 9, 9, 9]
    reading = guessed(prompt, [1, 2, 3, 4, 5, 6])
    assert (reading.steps, reading.drafted) == (5, 5)


def test_an_answer_is_guessed_from_itself_when_it_repeats():
    assert guessed([1], [7] * 40).steps < 15


def test_one_token_has_no_steps():
    assert guessed([1, 2], [3]).steps == 0
    assert drafting_of([guessed([1, 2], [3])]).tokens_per_step == 1.0


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
