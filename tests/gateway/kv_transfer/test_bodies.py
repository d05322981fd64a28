"""What each of two workers is asked for one request: every field is sent or left out on purpose."""

from __future__ import annotations

import orjson
import pytest

from phasewise.core.errors import RequestRejected
from phasewise.core.request import Endpoint
from phasewise.core.request_fields import fields_where
from phasewise.gateway.api.auth import salted
from phasewise.gateway.api.fields import parse_body
from phasewise.gateway.kv_transfer.tickets import (
    DEFINES_PROMPT,
    decode_body,
    kv_params,
    prefill_body,
    without_kv_params,
)

DEFINES_ANSWER = set(fields_where(lambda it: it.prefill == "answer"))
MESSAGES = [{"role": "user", "content": "hello"}]
CHAT = {"model": "m", "messages": MESSAGES}


def parsed(endpoint=Endpoint.CHAT, **fields):
    return parse_body(endpoint, orjson.dumps({"model": "m", **fields}))


@pytest.mark.parametrize("name", sorted(DEFINES_PROMPT))
def test_what_the_prompt_is_made_of_reaches_the_prefill_worker(name):
    value = {"anything": ["at", "all"]}
    assert orjson.loads(prefill_body(orjson.dumps({name: value})))[name] == value


@pytest.mark.parametrize("name", sorted(DEFINES_ANSWER - {"max_tokens", "stream"}))
def test_what_only_the_answer_is_made_of_does_not(name):
    assert name not in orjson.loads(prefill_body(orjson.dumps({**CHAT, name: 7})))


def test_the_prefill_worker_writes_one_token_at_once_and_keeps_the_kv():
    body = salted(orjson.dumps({**CHAT, "max_tokens": 500, "stream": True}), b"grain")
    asked = orjson.loads(prefill_body(body))
    assert (asked["max_tokens"], asked["stream"], asked["cache_salt"]) == (1, False, "grain")
    assert asked["kv_transfer_params"]["do_remote_decode"] is True
    assert asked["kv_transfer_params"]["do_remote_prefill"] is False


def test_the_decode_worker_gets_the_clients_own_body_and_the_params():
    body = salted(orjson.dumps({**CHAT, "max_tokens": 500, "stream": True}) + b" \n", b"grain")
    params = {"do_remote_prefill": True, "remote_block_ids": [[1, 2]], "remote_host": "127.0.0.1"}
    asked = orjson.loads(decode_body(body, orjson.dumps(params)))
    assert asked.pop("kv_transfer_params") == params
    assert asked == {**CHAT, "max_tokens": 500, "stream": True, "cache_salt": "grain"}


@pytest.mark.parametrize(
    "reply", [b"", b"[]", b"{", b'{"id":"x"}', b'{"kv_transfer_params":null}', b'{"kv_transfer_params":{}}']
)
def test_an_engine_that_kept_no_kv_gives_no_params(reply):
    assert kv_params(reply) is None


def test_params_pass_as_the_engine_wrote_them():
    params = {"remote_engine_id": "e", "remote_block_ids": [[3, 4]], "what_comes_next_year": {"a": 1.5}}
    reply = orjson.dumps({"id": "x", "kv_transfer_params": params})
    assert orjson.loads(kv_params(reply)) == params


@pytest.mark.parametrize(
    "reply",
    [
        b'{"id":"x"}',
        b'{"id":"x","kv_transfer_params":null}',
        b'{"id":"x","kv_transfer_params" : null, "text": "y"}',
        b'{"id":"x","kv_transfer_params": null}',
        orjson.dumps({"text": 'say "kv_transfer_params":{"a":1}'}),
    ],
)
def test_a_reply_without_params_reaches_the_client_byte_for_byte(reply):
    assert without_kv_params(reply) == reply


@pytest.mark.parametrize(
    "reply", [b'{"id":"x","kv_transfer_params":{"a":1}}', b'{"kv_transfer_params": [1],"id":"x"}']
)
def test_params_are_taken_out_of_a_clients_reply(reply):
    assert without_kv_params(reply) == b'{"id":"x"}'


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        (Endpoint.CHAT, {"messages": MESSAGES}),
        (Endpoint.CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}),
        (Endpoint.CHAT, {"messages": MESSAGES, "stream": True, "logprobs": True, "tools": [], "n": 1}),
        (Endpoint.CHAT, {"messages": MESSAGES, "echo": False, "prompt_logprobs": None}),
        (Endpoint.COMPLETIONS, {"prompt": "x", "stream": True}),
        (Endpoint.COMPLETIONS, {"prompt": [1, 2, 3]}),
        (Endpoint.COMPLETIONS, {"prompt": ["x"]}),
    ],
)
def test_one_text_with_one_answer_is_splittable(endpoint, fields):
    assert parsed(endpoint, **fields).splittable


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        (Endpoint.CHAT, {"messages": MESSAGES, "n": 2}),
        (Endpoint.CHAT, {"messages": MESSAGES, "use_beam_search": True}),
        (Endpoint.CHAT, {"messages": MESSAGES, "echo": True}),
        (Endpoint.CHAT, {"messages": MESSAGES, "prompt_logprobs": 0}),
        (Endpoint.CHAT, {"messages": MESSAGES, "truncate_prompt_tokens": -1}),
        (
            Endpoint.CHAT,
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}
                ]
            },
        ),
        (
            Endpoint.CHAT,
            {"messages": [{"role": "user", "content": [{"image_url": {"url": "data:x"}}]}]},
        ),
        (Endpoint.COMPLETIONS, {"prompt": "x", "best_of": 2}),
        (Endpoint.COMPLETIONS, {"prompt": ["x", "y"]}),
        (Endpoint.EMBEDDINGS, {"input": "x"}),
    ],
)
def test_what_asks_for_more_of_its_prompt_or_several_answers_stays_whole(endpoint, fields):
    assert not parsed(endpoint, **fields).splittable


@pytest.mark.parametrize(
    "messages", [None, "text", [1], [{"content": ["x"]}], [{"content": [{"text": "x"}]}]]
)
def test_messages_of_any_shape_are_looked_at_without_an_error(messages):
    assert parsed(messages=messages).splittable in (True, False)


@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS])
def test_a_client_cannot_say_where_kv_lies(endpoint):
    with pytest.raises(RequestRejected) as rejection:
        parsed(endpoint, kv_transfer_params={"do_remote_prefill": True})
    assert rejection.value.param == "kv_transfer_params"
