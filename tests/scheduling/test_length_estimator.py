"""Lengths of prompts and answers are foretold from those before them."""

import pytest

from phasewise.scheduling.length_estimator import ASSUMED_OUTPUT_TOKENS, LengthEstimator
from tests.builders import make_request


def test_a_prompt_is_sized_by_the_rule_of_thumb_while_nothing_is_known():
    assert LengthEstimator().prompt_tokens(make_request(prompt_bytes=4_000)) == 1_000


def test_a_model_with_longer_tokens_is_found_out_with_its_templates_share():
    book = LengthEstimator()
    for size in (300, 6_000, 900, 20_000):
        book.learn(make_request(prompt_bytes=size), 25 + size // 6, 10)
    assert book.prompt_tokens(make_request(prompt_bytes=12_000)) == pytest.approx(2_025, rel=0.03)
    assert book.prompt_tokens(make_request(prompt_bytes=60)) == pytest.approx(35, abs=10)
    assert book.prompt_tokens(make_request(model="another", prompt_bytes=400)) == 100


@pytest.mark.parametrize("media_bytes", [0, 995_000])
def test_a_picture_among_a_hundred_texts_does_not_make_texts_look_shorter(media_bytes):
    book = LengthEstimator()
    for number in range(1_000):
        size = 200 + 24 * number
        book.learn(make_request(prompt_bytes=size), 12 + size // 4, 10)
        if number % 100 == 0:
            book.learn(make_request(prompt_bytes=1_000_000, media_bytes=media_bytes), 1_000, 10)
    assert book.prompt_tokens(make_request(prompt_bytes=24_000)) == pytest.approx(6_012, rel=0.05)


def test_a_picture_is_not_taken_for_a_megabyte_of_text():
    request = make_request(prompt_bytes=1_000_000, media_bytes=995_000)
    assert request.estimated_prompt_tokens == 1_250
    assert LengthEstimator().prompt_tokens(request) == 1_250


def test_answers_are_expected_to_use_as_much_of_their_limit_as_the_tenants_did_before():
    book = LengthEstimator()
    for _ in range(30):
        book.learn(make_request(tenant="a", max_output_tokens=1_000), 100, 100)
        book.learn(make_request(tenant="b", max_output_tokens=50), 100, 50)
    assert book.output_tokens(make_request(tenant="a", max_output_tokens=2_000)) == pytest.approx(200, abs=5)
    assert book.output_tokens(make_request(tenant="a")) == pytest.approx(100, abs=5)
    assert book.output_tokens(make_request(tenant="b", max_output_tokens=64)) == 64


def test_an_unknown_tenants_answer_is_as_long_as_assumed_but_never_beyond_its_limit():
    book = LengthEstimator()
    assert book.output_tokens(make_request()) == ASSUMED_OUTPUT_TOKENS
    assert book.output_tokens(make_request(max_output_tokens=8)) == 8


def test_unknown_lengths_teach_nothing():
    book = LengthEstimator()
    book.learn(make_request(max_output_tokens=10), None, None)
    assert book.prompt_tokens(make_request(prompt_bytes=400)) == 100
    assert book.output_tokens(make_request(max_output_tokens=1_000)) == ASSUMED_OUTPUT_TOKENS


def test_tenants_not_heard_of_for_long_are_forgotten():
    book = LengthEstimator()
    book.learn(make_request(tenant="first"), None, 10)
    for index in range(2_000):
        book.learn(make_request(tenant=f"t{index}"), None, 20)
    assert book.output_tokens(make_request(tenant="first")) == ASSUMED_OUTPUT_TOKENS
    assert book.output_tokens(make_request(tenant="t1999")) == 20
