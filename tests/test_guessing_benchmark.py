"""What n-gram lookup would have guessed of an answer, from its tokens alone."""

from benchmarks.guessing import guess_answer
from phasewise.diagnosis.predict.setup import drafting_of


def guessed(prompt, answer):
    return guess_answer(prompt, answer, guessed_tokens=5, match_tokens=4)


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
