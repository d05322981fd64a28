"""The price of a lever: none where nothing differs, an interval where it does, words where it is unknown."""

from dataclasses import replace
from math import exp, log

import numpy as np
import pytest

from phasewise.core.errors import MeasurementError
from phasewise.experiments.levers.accuracy_price import AccuracyReading, GreedyAnswer, price


def make_reading(answers=((1, 2, 3), (4, 5)), passages=((-1.0,) * 64, (-3.0,) * 64), leads=None):
    made = tuple(GreedyAnswer(tuple(tokens), leads) for tokens in answers)
    return AccuracyReading("m", made, tuple(map(tuple, passages)))


def compare(off, on, seed=1):
    return price(off, on, np.random.default_rng(seed))


def noisy(off, shift, spread, seed):
    """The same text under a lever that costs `shift` nats per token on average."""
    rng = np.random.default_rng(seed)
    passages = tuple(tuple(rng.normal(np.array(each) - shift, spread)) for each in off.passages)
    return replace(off, passages=passages)


def test_same_reading_twice_is_free():
    result = compare(make_reading(), make_reading())
    assert result.answers.equal == result.answers.asked
    assert result.perplexity.off == result.perplexity.on == pytest.approx(exp(2))
    assert result.sentence == "2 of 2 answers equal; perplexity 7.39 -> 7.39 (no token's probability differs)"


def test_answers_are_equal_until_their_first_different_token():
    off = make_reading(answers=((1, 2, 3), (4, 5), (6,)))
    result = compare(off, make_reading(answers=((1, 2, 9), (4, 5, 7), (6,))))
    assert (result.answers.asked, result.answers.equal) == (3, 1)
    assert result.answers.equal_tokens_median == 2
    assert result.answers.near_ties is None
    assert "1 of 3 answers equal, the others for 2 tokens (median)" in result.sentence


def test_near_ties_are_counted_where_the_engine_reported_its_second_candidate():
    off = make_reading(answers=((1, 2, 3), (4, 5, 6)), leads=(2.0, 0.1, 3.0))
    on = make_reading(answers=((1, 9, 9), (4, 5, 9)), leads=(2.0, 2.0, 2.0))
    assert compare(off, on).answers.near_ties == 1


def test_an_answer_that_only_ends_sooner_differs_where_it_ends():
    off = make_reading(answers=((1, 2),), leads=(1.0, 1.0))
    on = make_reading(answers=((1, 2, 3),), leads=(1.0, 1.0, 1.0))
    result = compare(off, on).answers
    assert (result.equal, result.equal_tokens_median, result.near_ties) == (0, 2, None)


def test_perplexity_ratio_has_an_interval_around_the_truth():
    off = make_reading(passages=((-2.5,) * 250,) * 4)
    result = compare(off, noisy(off, shift=log(1.05), spread=0.3, seed=3)).perplexity
    assert result.interval.low < 1.05 < result.interval.high
    assert result.interval.high - result.interval.low < 0.08
    assert result.ratio == pytest.approx(result.on / result.off)


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    off = make_reading(passages=((-2.5,) * 250,) * 4)
    held = 0
    for seed in range(100):
        interval = compare(off, noisy(off, shift=0.0, spread=0.5, seed=seed), seed).perplexity.interval
        held += interval.low < 1.0 < interval.high
    assert held >= 89


def test_sentence_says_what_is_lost():
    off = make_reading(passages=((-2.0,) * 200,))
    on = make_reading(passages=((-2.0 - log(1.1),) * 200,))
    assert compare(off, on).sentence.endswith("perplexity 7.39 -> 8.13 (+10.0%, +10.0% to +10.0%)")


def test_too_little_text_gives_a_ratio_without_an_interval():
    off, on = make_reading(passages=((-2.0,) * 20,)), make_reading(passages=((-2.1,) * 20,))
    result = compare(off, on)
    assert result.perplexity.interval is None
    assert result.sentence.endswith("(+10.5%)")


def test_what_an_engine_rejected_is_said_and_not_guessed():
    on = AccuracyReading("m", None, None, "the engine rejects answers", "the engine rejects texts")
    result = compare(make_reading(), on)
    assert (result.answers, result.perplexity) == (None, None)
    assert result.answers_missing == "the engine rejects answers"
    assert result.sentence == (
        "answers not compared: the engine rejects answers; perplexity not compared: the engine rejects texts"
    )


def test_texts_cut_into_other_tokens_are_not_compared():
    result = compare(make_reading(), make_reading(passages=((-1.0,) * 63, (-3.0,) * 64)))
    assert result.perplexity is None
    assert "tokenize the text differently" in result.perplexity_missing


def test_readings_of_other_prompts_are_a_mistake():
    with pytest.raises(MeasurementError, match="the same prompts"):
        compare(make_reading(), make_reading(answers=((1, 2, 3),)))
