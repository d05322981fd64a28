"""What stands in the way of going on elsewhere: field by field."""

from __future__ import annotations

import pytest

from phasewise.core.request import Endpoint
from phasewise.core.request_fields import FIELDS, fields_where
from phasewise.gateway.upstream.response import Answer
from phasewise.gateway.upstream.resumption import Obstacle, Resumption, obstacle, resumption
from tests.gateway.harness import chat_body
from tests.paths import ROOT

OBSTACLES = fields_where(lambda it: it.obstacle is not None)
IN_THE_WAY = {
    "n": 2,
    "best_of": 2,
    "use_beam_search": True,
    "logprobs": 0,
    "prompt_logprobs": 0,
    "logprob_token_ids": [5],
    "echo": True,
    "suffix": "the end",
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "response_format": {"type": "json_object"},
    "structured_outputs": {"choice": ["a", "b"]},
    "guided_json": {},
    "guided_regex": "a*",
    "guided_choice": ["a"],
    "guided_grammar": "root ::= 'a'",
    "guided_decoding_backend": "xgrammar",
    "guided_whitespace_pattern": " ",
    "presence_penalty": 0.1,
    "bad_words": ["bad"],
    "repetition_detection": {"max_pattern_size": 3},
    "thinking_token_budget": 100,
    "include_reasoning": False,
    "skip_special_tokens": False,
    "reasoning_effort": "low",
    "documents": [{"text": "a"}],
    "continue_final_message": True,
    "truncate_prompt_tokens": 100,
}


def answered(text=b"Once upon", **notes):
    answer = Answer()
    answer.text_escaped.extend(text)
    answer.engine_request_id = "chatcmpl-r1"
    for name, value in notes.items():
        setattr(answer, name, value)
    return answer


def in_the_way(fields, text="Once upon"):
    found = obstacle(fields, answered(text.encode()), text)
    return None if found is None else found.reason


@pytest.mark.parametrize("name", sorted(OBSTACLES))
def test_a_field_that_cannot_be_made_up_for_stands_in_the_way_and_is_named(name):
    reason = in_the_way(chat_body(**{name: IN_THE_WAY[name]}))
    assert reason is not None
    assert reason.startswith(f"{name}: ")


@pytest.mark.parametrize("name", sorted(OBSTACLES))
def test_its_harmless_values_do_not(name):
    for value in FIELDS[name].off:
        assert in_the_way(chat_body(**{name: value})) is None


def test_a_field_that_nobody_thought_about_stands_in_the_way():
    assert in_the_way(chat_body(new_in_this_engine=1)).startswith("new_in_this_engine: ")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"seed": 7}, "a"),
        ({"seed": 7, "temperature": 0.5}, "a"),
        ({"frequency_penalty": 0.5, "repetition_penalty": 1.1}, "a"),
        ({"prompt": ["a", "b"]}, "a"),
        ({"prompt": [[1], [2]]}, "a"),
        ({"prompt": []}, "a"),
        ({"max_tokens": "12"}, "a"),
        ({"min_tokens": 1.0}, "a"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "data:,"}]}]}, "a"),
        ({"messages": [{"role": "user", "content": [{"image_url": "data:,"}]}]}, "a"),
        ({"stop": ["END"]}, "this is the end"),
        ({"stop": "END", "temperature": 0, "include_stop_str_in_output": True}, "this is the EN"),
        ({}, "half a \N{REPLACEMENT CHARACTER}"),
    ],
)
def test_fields_that_stand_in_the_way_together_or_by_what_they_hold(fields, text):
    assert in_the_way(fields, text) is not None


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"seed": 7, "temperature": 0}, "a"),
        ({"frequency_penalty": 0.5}, "a"),
        ({"frequency_penalty": 0, "repetition_penalty": 1.1}, "a"),
        ({"prompt": ["a"]}, "a"),
        ({"prompt": [1, 2]}, "a"),
        ({"prompt": [[1, 2]]}, "a"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}, "a"),
        ({"messages": [{"role": "user", "content": None}]}, "a"),
        ({"stop": ["END"], "include_stop_str_in_output": True}, "this is the end"),
        ({"stop": ["END"], "temperature": 0}, "this is the E"),
        ({"stop": ["."]}, "a."),
        ({"cache_salt": "a", "priority": 3}, "a"),
    ],
)
def test_and_those_that_do_not(fields, text):
    assert in_the_way(fields, text) is None


@pytest.mark.parametrize(
    "answer",
    [
        answered(saw_other_than_text=True),
        answered(b""),
        answered(engine_request_id=None),
        answered(b"caf\xc3"),
        answered(b'no"text'),
    ],
)
def test_an_answer_that_is_not_all_text_cannot_go_on(answer):
    found = resumption(Endpoint.CHAT, b'{"model":"m","messages":[]}', answer, None)
    assert isinstance(found, Obstacle)


def test_reasons_hold_nothing_of_the_request_but_the_names_of_fields():
    reason = in_the_way(chat_body("a secret", tools=[{"secret": 1}]))
    assert "secret" not in reason


def test_an_answer_goes_on_under_the_id_it_began_with_however_often_it_breaks():
    body = b'{"model":"m","messages":[]}'
    first = resumption(Endpoint.CHAT, body, answered(created=5), None)
    assert isinstance(first, Resumption)
    second = resumption(Endpoint.CHAT, body, answered(engine_request_id="cmpl-2", created=9), first)
    assert isinstance(second, Resumption)
    assert (second.client_id, second.created) == ("chatcmpl-r1", 5)


def test_all_that_stands_in_the_way_is_documented():
    page = (ROOT / "docs/explanation/streams-stay-whole.md").read_text()
    for name in (*OBSTACLES, "seed", "stop", "frequency_penalty", "messages", "prompt"):
        assert f"`{name}`" in page, f"{name} is not on docs/explanation/streams-stay-whole.md"
