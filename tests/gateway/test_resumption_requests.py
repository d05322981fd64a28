"""What is asked of the worker that goes on."""

from __future__ import annotations

import orjson
import pytest

from phasewise.core.request import Endpoint
from phasewise.gateway.upstream.response import Answer
from phasewise.gateway.upstream.resumption import Obstacle, Resumption, TokensSoFar, resumption
from tests.gateway.harness import chat_body

SO_FAR = TokensSoFar(prompt_ids=[1, 2, 3], answer_ids=[7, 8, 7, 7], max_model_len=100)


def plan_for(endpoint=Endpoint.CHAT, *, text=None, finish_reason=None, **fields):
    answer = Answer()
    answer.text_escaped.extend(text.encode() if text else b'caf\\u00e9 \\"au lait\\"')
    answer.engine_request_id = "chatcmpl-r1"
    answer.finish_reason = finish_reason
    found = resumption(endpoint, orjson.dumps(fields), answer, None)
    assert isinstance(found, Resumption)
    return found


def continued(endpoint=Endpoint.CHAT, tokens=SO_FAR, **fields):
    body = plan_for(endpoint, **fields).continuation(tokens)
    return None if body is None else orjson.loads(body)


def test_the_prompt_is_rendered_by_the_worker_with_all_that_has_a_part_in_it():
    fields = chat_body(
        add_generation_prompt=True, add_special_tokens=False, chat_template_kwargs={"style": "short"}
    )
    asked = orjson.loads(plan_for(**fields).prompt_question())
    del fields["max_tokens"]
    assert asked == fields


def test_the_text_so_far_is_asked_for_as_it_reads_and_without_special_tokens():
    asked = orjson.loads(plan_for(**chat_body()).answer_question())
    assert asked == {"model": "fake-model", "prompt": 'café "au lait"', "add_special_tokens": False}


@pytest.mark.parametrize("prompt", ["Once", ["Once"]])
def test_the_prompt_of_a_completion_is_asked_for_as_text(prompt):
    plan = plan_for(Endpoint.COMPLETIONS, model="m", prompt=prompt, add_special_tokens=False)
    assert plan.known_prompt_ids() is None
    asked = orjson.loads(plan.prompt_question())
    assert asked == {"model": "m", "prompt": "Once", "add_special_tokens": False}


@pytest.mark.parametrize("prompt", [[5, 6], [[5, 6]]])
def test_a_prompt_of_tokens_needs_no_question(prompt):
    assert plan_for(Endpoint.COMPLETIONS, model="m", prompt=prompt).known_prompt_ids() == [5, 6]


def test_the_worker_completes_prompt_and_answer_together_under_the_same_sampling():
    fields = chat_body(temperature=0.7, top_p=0.9, stop=["."], cache_salt="s", user="u", max_tokens=30)
    body = continued(**fields, stream=True, stream_options={"include_usage": True})
    assert body == {
        "model": "fake-model",
        "prompt": [1, 2, 3, 7, 8, 7, 7],
        "temperature": 0.7,
        "top_p": 0.9,
        "stop": ["."],
        "cache_salt": "s",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 26,
    }


@pytest.mark.parametrize(
    ("endpoint", "fields", "left"),
    [
        (Endpoint.CHAT, {"max_tokens": 10}, 6),
        (Endpoint.CHAT, {"max_tokens": 10, "max_completion_tokens": 20}, 16),
        (Endpoint.CHAT, {}, 93),
        (Endpoint.CHAT, {"max_tokens": 5000}, 93),
        (Endpoint.COMPLETIONS, {"prompt": "a"}, 12),
        (Endpoint.COMPLETIONS, {"prompt": "a", "max_tokens": None}, 12),
        (Endpoint.COMPLETIONS, {"prompt": "a", "max_tokens": 10}, 6),
    ],
)
def test_what_was_written_is_taken_off_the_limit(endpoint, fields, left):
    assert continued(endpoint, model="m", **fields)["max_tokens"] == left


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"max_tokens": 4}, SO_FAR),
        ({"max_tokens": 3}, SO_FAR),
        ({}, TokensSoFar([1, 2, 3], [7], 4)),
        ({"finish_reason": "stop"}, SO_FAR),
    ],
)
def test_nothing_is_asked_where_nothing_is_left_to_write(fields, tokens):
    assert continued(tokens=tokens, model="m", **fields) is None


@pytest.mark.parametrize(("least", "left"), [(10, 6), (3, 0)])
def test_what_was_written_is_taken_off_the_least(least, left):
    assert continued(model="m", min_tokens=least)["min_tokens"] == left


def test_the_frequency_penalty_of_the_past_is_charged_as_a_bias_beside_the_clients_own():
    body = continued(model="m", frequency_penalty=0.5, logit_bias={"7": 2.0, "9": 1.0})
    assert body["logit_bias"] == {"7": 0.5, "8": -0.5, "9": 1.0}
    assert body["frequency_penalty"] == 0.5


def test_notes_go_on_from_the_content_so_far():
    plan = plan_for(**chat_body())
    plan.answer.content_times_s.append(1.5)
    notes = plan.answer_so_far()
    assert list(notes.content_times_s) == [1.5]
    assert notes.text_escaped == plan.answer.text_escaped
    assert notes.engine_request_id is None
    notes.content_times_s.append(2.5)
    assert list(plan.answer.content_times_s) == [1.5]


@pytest.mark.parametrize(
    ("text", "kept", "again"),
    [
        ("a lighthouse in the fo", "a lighthouse in the", " fo"),
        ("a lighthouse in the ", "a lighthouse in the", " "),
        ("a lighthouse", "a", " lighthouse"),
    ],
)
def test_a_word_that_may_be_broken_is_written_again(text, kept, again):
    plan = plan_for(text=text, **chat_body(stop=["END"], temperature=0))
    assert (plan.text, plan.again) == (kept, again)
    assert plan_for(text=text, **chat_body(stop=["."], temperature=0)).again == ""
    assert plan_for(text=text, **chat_body(temperature=0)).text == text


def test_of_an_answer_that_has_ended_no_word_is_broken_so_that_all_of_it_is_counted():
    fields = chat_body(stop=["END"], temperature=0)
    plan = plan_for(text="a lighthouse in the fog", finish_reason="stop", **fields)
    assert (plan.text, plan.again) == ("a lighthouse in the fog", "")


@pytest.mark.parametrize("text", ["one", "a " + "x" * 100])
def test_an_answer_that_is_one_broken_word_cannot_go_on(text):
    answer = Answer()
    answer.text_escaped.extend(text.encode())
    answer.engine_request_id = "chatcmpl-r1"
    body = orjson.dumps(chat_body(stop=["END"], temperature=0))
    assert isinstance(resumption(Endpoint.CHAT, body, answer, None), Obstacle)


def test_line_ends_are_read_as_in_mid_text():
    plan = plan_for(text="one\\n\\n", **chat_body())
    asked = orjson.loads(plan.marked_answer_question())
    assert (asked["prompt"], asked["return_token_strs"]) == ("one\n\nx", True)
    assert plan_for(text="one", **chat_body()).marked_answer_question() is None
