"""Which requests have nothing to do with the cache."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.core.caching import Bypass
from phasewise.core.request import Endpoint
from phasewise.semantic_match.identity import (
    LONGEST_QUESTION,
    LONGEST_SEMANTIC,
    MOST_WORDS_SEMANTIC,
    identify,
    may_match_semantically,
    why_bypassed,
)

QUESTION = "how do I reset my password?"
ANSWERED = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]


def chat(question=QUESTION, *, history=(), **fields):
    return {"model": "m", "messages": [*history, {"role": "user", "content": question}], **fields}


def why(fields, endpoint=Endpoint.CHAT, max_temperature=0.5):
    return why_bypassed(endpoint, fields, max_temperature)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (chat(tools=[{"type": "function"}]), Bypass.TOOLS),
        (chat(tool_choice="auto"), Bypass.TOOLS),
        (chat(history=[{"role": "tool", "content": "4"}]), Bypass.TOOLS),
        (chat(history=[{"role": "assistant", "tool_calls": [{"id": "1"}]}]), Bypass.TOOLS),
        (chat(history=[{"role": "assistant", "function_call": {"name": "f"}}]), Bypass.TOOLS),
        (chat([{"type": "image_url", "image_url": "data:,"}]), Bypass.MEDIA),
        (chat(history=[{"role": "user", "content": [{"type": "input_audio"}]}]), Bypass.MEDIA),
        (chat([{"type": "text", "text": "x", "image_url": "data:,"}]), Bypass.MEDIA),
        (chat(temperature=0.51), Bypass.TEMPERATURE),
        (chat(temperature="0"), Bypass.TEMPERATURE),
        (chat(temperature=-1), Bypass.TEMPERATURE),
        (chat(seed=0), Bypass.SEED),
        (chat(n=2), Bypass.SEVERAL_ANSWERS),
        (chat(best_of=2), Bypass.UNKNOWN_FIELD),
        (chat(logprobs=True), Bypass.LOGPROBS),
        (chat(prompt_logprobs=0), Bypass.LOGPROBS),
        (chat(top_logprobs=2), Bypass.LOGPROBS),
        (chat("the second one", history=ANSWERED), Bypass.SHORT_FOLLOW_UP),
        (chat([{"type": "text", "text": "yes"}], history=ANSWERED), Bypass.SHORT_FOLLOW_UP),
        (chat(""), Bypass.NO_USER_TURN),
        (chat(" \n"), Bypass.NO_USER_TURN),
        (chat(None), Bypass.NO_USER_TURN),
        (chat([]), Bypass.NO_USER_TURN),
        ({"model": "m", "messages": ANSWERED}, Bypass.NO_USER_TURN),
        ({"model": "m", "messages": [{"role": ["user"], "content": "x"}]}, Bypass.NO_USER_TURN),
        ({"model": "m", "messages": ["x"]}, Bypass.NO_USER_TURN),
        ({"model": "m"}, Bypass.NO_USER_TURN),
        (chat("x" * (LONGEST_QUESTION + 1)), Bypass.TOO_LONG),
        (chat(continue_final_message=True), Bypass.NOT_CHAT),
        (chat(documents=[{"id": 1e20}]), Bypass.LARGE_NUMBER),
        (chat(chat_template_kwargs={"a": {"b": [-1e19]}}), Bypass.LARGE_NUMBER),
        (chat(history=[{"role": "user", "content": "x", "name": 1e20}]), Bypass.LARGE_NUMBER),
    ],
)
def test_a_request_that_bypasses_the_cache_is_told_why(fields, reason):
    assert why(fields) is reason


@pytest.mark.parametrize(
    "fields",
    [
        chat(),
        chat(temperature=0),
        chat(temperature=0.5),
        chat(n=1, logprobs=False, seed=None, tools=[]),
        chat([{"type": "text", "text": QUESTION}]),
        chat(history=ANSWERED),
        chat("hi", history=[{"role": "system", "content": "be brief"}]),
        chat(response_format={"type": "json_object"}),
        chat(documents=[{"id": 2**63 - 1, "share": 0.5, "new": True, "of": None}]),
    ],
)
def test_a_plain_question_does_not_bypass_the_cache(fields):
    assert why(fields) is None


def test_embeddings_are_not_answered_from_here():
    assert why({"model": "m", "input": "x"}, Endpoint.EMBEDDINGS) is Bypass.NOT_CHAT


@pytest.mark.parametrize("prompt", [None, ["a", "b"], [1, 2], "", "  "])
def test_a_prompt_that_is_no_single_text_bypasses_the_cache(prompt):
    assert why({"model": "m", "prompt": prompt}, Endpoint.COMPLETIONS) is Bypass.NO_USER_TURN


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=5,
)


@given(
    endpoint=st.sampled_from([Endpoint.CHAT, Endpoint.COMPLETIONS]),
    fields=st.dictionaries(
        st.sampled_from(["messages", "prompt", "temperature", "seed", "n", "tools", "logprobs"]), anything
    ),
    message=st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "name"]), anything),
)
def test_whatever_a_client_sends_is_judged_and_what_passes_has_an_identity(endpoint, fields, message):
    for body in (fields, {**fields, "messages": [{"role": "user", "content": "x"}, message]}):
        if why(body, endpoint) is None:
            assert identify(endpoint, {"model": "m", **body}, "acme") is not None


@pytest.mark.parametrize("body", [b'{"documents":[{"id":%d}]}', b'{"guided_json":{"const":-%d}}'])
def test_two_numbers_that_are_read_as_one_share_no_answer(body):
    one, other = (orjson.loads(body % (10**20 + it)) for it in (1, 2))
    assert one == other
    assert why(chat(**one)) is Bypass.LARGE_NUMBER


def test_only_short_chat_questions_are_matched_by_meaning():
    assert may_match_semantically(Endpoint.CHAT, QUESTION)
    assert not may_match_semantically(Endpoint.COMPLETIONS, QUESTION)
    assert not may_match_semantically(Endpoint.CHAT, "x" * (LONGEST_SEMANTIC + 1))
    assert may_match_semantically(Endpoint.CHAT, "x " * MOST_WORDS_SEMANTIC)
    assert not may_match_semantically(Endpoint.CHAT, "x " * (MOST_WORDS_SEMANTIC + 1))
