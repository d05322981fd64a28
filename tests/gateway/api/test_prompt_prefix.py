"""Which requests are taken to begin alike."""

from __future__ import annotations

import orjson
import pytest

from phasewise.core.prefixes import HASHED_BYTES
from phasewise.core.request import WITH_KNOWN_FIELDS, Endpoint
from phasewise.core.request_fields import FIELDS_ON
from phasewise.gateway.api.fields import parse_body
from phasewise.gateway.api.prompt_prefix import OPENING_FIELDS, ROOT_FIELDS, PrefixHashing

HASHING = PrefixHashing(key=b"k" * 32)
SYSTEM = {"role": "system", "content": "You are a patient clerk. " * 60}
FIRST = {"role": "user", "content": "Tell me about the river. " * 40}
REPLY = {"role": "assistant", "content": "It is long and slow. " * 40}
NEXT = {"role": "user", "content": "And of its fish? " * 40}
TOOL = {
    "type": "function",
    "function": {"name": "look_up", "parameters": {"type": "object", "b": "x" * 1_100}},
}


def hashes(*messages, salt=None, endpoint=Endpoint.CHAT, **fields):
    body = {"model": "m", **fields}
    if messages:
        body["messages"] = list(messages)
    parsed = parse_body(endpoint, orjson.dumps(body), lends_rights=False)
    return HASHING.hashes(endpoint, parsed.fields, salt)


def in_common(one, other):
    return sum(a == b for a, b in zip(one, other, strict=False))


def test_a_conversation_begins_as_its_last_turn_did():
    before, after = hashes(SYSTEM, FIRST), hashes(SYSTEM, FIRST, REPLY, NEXT)
    assert len(before) >= 4
    assert after[: len(before)] == before


def test_conversations_under_the_same_instructions_share_those():
    one, other = hashes(SYSTEM, FIRST), hashes(SYSTEM, NEXT)
    assert 0 < in_common(one, other) < len(one)


def test_order_of_keys_whitespace_and_escapes_do_not_matter():
    plain = b'{"model":"m","messages":[{"role":"user","name":"Ann","content":"%b"}]}' % (b"river " * 200)
    other = (
        b'{\n "messages":[ {"content": "%b", "name": "Ann", "role": "user"} ], "seed": 3, "model": "\\u006d"}'
        % (b"\\u0072iver " * 200)
    )
    fields = [parse_body(Endpoint.CHAT, body).fields for body in (plain, other)]
    one, two = (HASHING.hashes(Endpoint.CHAT, it, None) for it in fields)
    assert one
    assert one == two


@pytest.mark.parametrize("same", [
    {**FIRST, "content": [{"type": "text", "text": FIRST["content"]}]},
    {**FIRST, "name": None, "tool_calls": None},
])  # fmt: skip
def test_a_message_that_says_the_same_in_other_words_of_json_is_the_same(same):
    assert hashes(FIRST) == hashes(same)


@pytest.mark.parametrize("other", [
    {**FIRST, "role": "system"},
    {**FIRST, "name": "Ann"},
    {**FIRST, "content": [{"type": "text", "text": FIRST["content"]}, {"type": "text", "text": "."}]},
])  # fmt: skip
def test_a_message_that_differs_from_the_beginning_is_another(other):
    assert in_common(hashes(FIRST), hashes(other)) == 0


@pytest.mark.parametrize("difference", [
    {"model": "adapter-of-m"},
    {"salt": b"another tenant"},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"reasoning_effort": "low"},
    {"tools": [TOOL]},
    {"documents": [{"title": "t"}]},
])  # fmt: skip
def test_what_changes_the_prompt_from_its_beginning_keeps_it_apart(difference):
    assert in_common(hashes(SYSTEM, FIRST), hashes(SYSTEM, FIRST, **difference)) == 0


@pytest.mark.parametrize("difference", [
    {"temperature": 0.9}, {"max_tokens": 5}, {"stream": True}, {"tool_choice": "none"}, {"user": "u"},
])  # fmt: skip
def test_what_only_changes_the_answer_does_not(difference):
    assert hashes(SYSTEM, FIRST) == hashes(SYSTEM, FIRST, **difference)


def test_equal_tools_are_a_beginning_in_common():
    one, other = hashes(FIRST, tools=[TOOL]), hashes(NEXT, tools=[TOOL])
    assert in_common(one, other) == 2


def test_equal_parts_of_two_fields_are_two_prompts():
    part = [{"title": "x" * 1_100}]
    assert in_common(hashes(FIRST, tools=part), hashes(FIRST, documents=part)) == 0


@pytest.mark.parametrize("unread", [{"prompt_logprobs": 0}, {"prompt_logprobs": 1}, {"echo": True}])
def test_a_request_for_which_engines_do_not_read_their_cache_has_no_hashes(unread):
    assert hashes(SYSTEM, FIRST, **unread) == ()
    assert hashes(endpoint=Endpoint.COMPLETIONS, prompt="river " * 400, **unread) == ()


@pytest.mark.parametrize("read", [{"prompt_logprobs": None}, {"echo": False}, {"logprobs": True}])
def test_a_request_that_only_names_those_fields_has_its_hashes(read):
    assert hashes(SYSTEM, FIRST, **read) == hashes(SYSTEM, FIRST)


def test_token_ids_are_known_by_the_ids():
    ids = list(range(1_000, 2_000))
    before = hashes(endpoint=Endpoint.COMPLETIONS, prompt=ids)
    after = hashes(endpoint=Endpoint.COMPLETIONS, prompt=[*ids, 5, 6, 7])
    assert before
    assert after[: len(before)] == before
    assert in_common(before, hashes(endpoint=Endpoint.COMPLETIONS, prompt=[7, *ids])) == 0


def test_a_completion_is_known_by_its_text():
    text = "It was the best of times. " * 60
    before = hashes(endpoint=Endpoint.COMPLETIONS, prompt=text)
    assert before
    assert hashes(endpoint=Endpoint.COMPLETIONS, prompt=text + text)[: len(before)] == before


@pytest.mark.parametrize("prompt", [None, "", [], ["a" * 900, "b" * 900], [[1] * 900, [2] * 900], {"a": 1}])
def test_what_is_no_single_prompt_has_no_hashes(prompt):
    assert hashes(endpoint=Endpoint.COMPLETIONS, prompt=prompt) == ()


@pytest.mark.parametrize("messages", [None, "text", {}, [], [None, 3, "text"]])
def test_messages_of_any_kind_are_borne(messages):
    assert hashes(messages=messages) == ()


def test_embeddings_have_no_hashes():
    assert hashes(endpoint=Endpoint.EMBEDDINGS, input="a" * 900) == ()


def test_no_more_than_the_beginning_is_looked_at():
    long = {"role": "user", "content": "river " * HASHED_BYTES}
    assert hashes(long) == hashes(long, NEXT)


def test_another_key_gives_other_hashes():
    fields = {"model": "m", "messages": [FIRST]}
    one, other = (PrefixHashing(key).hashes(Endpoint.CHAT, fields, None) for key in (b"one", b"other"))
    assert set(one).isdisjoint(other)


def test_the_fields_looked_at_are_fields_that_clients_may_set():
    for endpoint in WITH_KNOWN_FIELDS:
        assert {*ROOT_FIELDS[endpoint], *OPENING_FIELDS[endpoint]} <= FIELDS_ON[endpoint].keys()


@pytest.mark.parametrize(
    "name",
    [
        "chat_template",
        "chat_template_kwargs",
        "cache_salt",
        "mm_processor_kwargs",
        "prompt_embeds",
        "made_up",
    ],
)
def test_what_may_change_the_prompt_separates_equal_messages(name):
    plain = hashes(LONG)
    assert hashes(LONG, **{name: None}) == plain
    assert set(hashes(LONG, **{name: {"a": "a"}})).isdisjoint(plain)
    assert set(hashes(LONG, **{name: {"a": "a"}})).isdisjoint(hashes(LONG, **{name: {"a": "b"}}))


@pytest.mark.parametrize("name", ["priority", "session_id", "return_token_ids"])
def test_what_cannot_change_the_prompt_separates_nothing(name):
    assert hashes(LONG, **{name: 1}) == hashes(LONG) != ()


LONG = {"role": "user", "content": "river " * 400}


@pytest.mark.parametrize(
    ("endpoint", "turns", "opening"),
    [(Endpoint.RESPONSES, "input", "instructions"), (Endpoint.MESSAGES, "messages", "system")],
)
def test_conversations_of_other_endpoints_are_known_by_what_they_begin_with(endpoint, turns, opening):
    first = {"model": "m", turns: [LONG], opening: "be brief"}
    before = hashes(endpoint=endpoint, **first)
    assert before
    longer = hashes(endpoint=endpoint, **first | {turns: [LONG, FIRST]})
    assert longer[: len(before)] == before
    assert in_common(before, hashes(endpoint=endpoint, **first | {opening: "be long"})) == 0


def test_a_block_that_differs_in_each_request_and_is_taken_out_is_not_hashed():
    def asked(number):
        header = {"type": "text", "text": f"x-anthropic-billing-header: {number}"}
        return hashes(
            endpoint=Endpoint.MESSAGES, system=[header, {"type": "text", "text": "a"}], messages=[LONG]
        )

    assert asked(1)
    assert asked(1) == asked(2)


# --- Conversations: a number that all turns have in common, for gateways that share a key.

RULES = {"role": "system", "content": "You are a helpful assistant. " * 30}
HASHING = PrefixHashing(b"key", names_conversations=True)


def conversation(*messages, hashing=HASHING, endpoint=Endpoint.CHAT, **fields):
    fields = {"model": "m", **({"messages": list(messages)} if messages else {}), **fields}
    return hashing.conversation(endpoint, fields, hashing.hashes(endpoint, fields, None))


def user(text):
    return {"role": "user", "content": text}


def test_all_turns_of_a_conversation_have_one_number_and_another_has_another():
    answered = (RULES, user("Hello"), {"role": "assistant", "content": "Hi"}, user("Go on"))
    number = conversation(*answered[:2])
    assert number
    assert conversation(*answered) == number
    assert conversation(RULES, user("Good morning")) != number
    assert conversation({**RULES, "content": RULES["content"] * 2}, user("Hello")) != number


def test_the_same_words_to_another_model_are_another_conversation():
    said = (RULES, user("Hello"))
    assert conversation(*said) != conversation(*said, model="other")


def test_a_prompt_without_messages_is_known_by_its_beginning():
    prompt = "once upon a time " * 60
    number = conversation(endpoint=Endpoint.COMPLETIONS, prompt=prompt)
    assert number
    assert conversation(endpoint=Endpoint.COMPLETIONS, prompt=prompt + "there was a king") == number


def test_without_other_gateways_or_with_too_short_a_prompt_there_is_no_number():
    assert conversation(RULES, user("Hello"), hashing=PrefixHashing(b"key")) == 0
    assert conversation(user("Hello")) == 0
