"""A completion that goes on looks to the client like the rest of its own stream."""

from __future__ import annotations

from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.core.errors import FailureKind, UpstreamError
from phasewise.core.request import Endpoint
from phasewise.core.timeline import Part
from phasewise.gateway.upstream.continuation import ClientsView, ContinuedStream, completion_ending
from phasewise.gateway.upstream.response import Answer
from tests.gateway.harness import events_of

DONE = b"data: [DONE]\n\n"
CHAT = ClientsView(Endpoint.CHAT, "chatcmpl-r1", 1000, prompt_tokens=20, answer_tokens=5)
COMPLETION = ClientsView(Endpoint.COMPLETIONS, "cmpl-r1", 1000, prompt_tokens=20, answer_tokens=5)


def event(choices=(), **more):
    frame = {"id": "cmpl-r1-2", "object": "text_completion", "created": 2000, "model": "m"}
    return b"data: " + orjson.dumps({**frame, "choices": list(choices), **more}) + b"\n\n"


def content(text, finish=None, **more):
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
    return event([choice], **more)


USAGE = event(
    usage={
        "prompt_tokens": 25,
        "total_tokens": 28,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 24},
    },
    metrics={"queue_time_ms": 1.0, "time_to_first_token_ms": 2.0},
)


def so_far():
    answer = Answer()
    answer.content_times_s.extend([1.0, 2.0])
    answer.text_escaped.extend(b"Once")
    return answer


def continued(parts, view=CHAT, *, hide_usage=False):
    relay = ContinuedStream(so_far(), view, hide_usage=hide_usage)
    out = b"".join(relay.feed(part, 3.0) for part in parts)
    return relay, out + relay.close()


@given(st.lists(st.integers(0, 2000), max_size=8))
def test_a_chats_chunks_have_its_id_its_time_and_its_shape_however_the_bytes_were_cut(cuts):
    whole = content(" upon") + content(' "a"\n') + content("", "stop") + USAGE + DONE
    edges = [0, *sorted(cut % len(whole) for cut in cuts), len(whole)]
    relay, out = continued([whole[a:b] for a, b in pairwise(edges)])
    *chunks, usage, done = events_of(out)
    assert done == "[DONE]"
    assert {it["id"] for it in (*chunks, usage)} == {"chatcmpl-r1"}
    assert {it["created"] for it in (*chunks, usage)} == {1000}
    assert {it["object"] for it in (*chunks, usage)} == {"chat.completion.chunk"}
    assert [it["choices"][0]["delta"] for it in chunks] == [
        {"content": " upon"},
        {"content": ' "a"\n'},
        {"content": ""},
    ]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert orjson.loads(b'"%b"' % relay.answer.text_escaped) == 'Once upon "a"\n'


def test_a_completions_chunks_keep_their_shape():
    _, out = continued([content("a"), content("", "length"), DONE], COMPLETION)
    first, *_ = events_of(out)
    assert (first["id"], first["object"], first["choices"][0]["text"]) == ("cmpl-r1", "text_completion", "a")


def test_usage_counts_what_was_written_before_as_answer():
    relay, out = continued([content("a", "stop"), USAGE, DONE])
    usage = events_of(out)[-2]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (20, 8, 28)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 20
    account = relay.answer.account
    assert (account.prompt_tokens, account.cached_tokens, account.output_tokens) == (20, 20, 8)
    assert [span.part for span in account.spans] == [Part.ENGINE_QUEUE, Part.PREFILL]


def test_usage_nobody_asked_for_is_noted_and_kept_back():
    relay, out = continued([content("a", "stop"), USAGE, DONE], hide_usage=True)
    assert b"usage" not in out
    assert relay.answer.account.output_tokens == 8


@given(st.lists(st.integers(1, 4), max_size=8))
def test_what_the_client_has_is_not_sent_twice_however_it_comes(sizes):
    text, parts = " lighthouse keeper", []
    for size in sizes:
        parts.append(content(text[:size]))
        text = text[size:]
    relay = ContinuedStream(so_far(), CHAT, again=" lightho", hide_usage=True)
    out = b"".join(relay.feed(part, 3.0) for part in (*parts, content(text, "stop"), DONE)) + relay.close()
    sent = "".join(it["choices"][0]["delta"]["content"] for it in events_of(out)[:-1])
    assert sent == "use keeper"
    assert relay.answer.text_escaped == b"Onceuse keeper"


@pytest.mark.parametrize("other", [content(" lightning"), content(" light", "stop"), content("x")])
def test_a_worker_that_chooses_another_word_cannot_go_on(other):
    relay = ContinuedStream(so_far(), CHAT, again=" lightho", hide_usage=True)
    with pytest.raises(UpstreamError) as raised:
        relay.feed(other, 3.0)
    assert raised.value.kind is FailureKind.NOT_CONTINUED
    assert relay.answer.text_escaped == b"Once"


def test_a_chunk_need_not_say_that_it_is_not_the_last():
    relay = ContinuedStream(so_far(), CHAT, again=" lightho", hide_usage=True)
    relay.feed(event([{"index": 0, "text": " li"}]), 3.0)
    assert b'"content":"use"' in relay.feed(event([{"index": 0, "text": "ghthouse"}]), 3.0)


@pytest.mark.parametrize("again", ["", " lightho"])
@pytest.mark.parametrize(
    "odd",
    [
        event(["a"]),
        event([None]),
        event([[]]),
        event([], usage={"completion_tokens": "many"}),
        event([], usage={"completion_tokens": [1]}),
    ],
)
def test_a_worker_whose_chunks_are_no_completions_has_failed(odd, again):
    relay = ContinuedStream(so_far(), CHAT, again=again, hide_usage=True)
    with pytest.raises(UpstreamError) as raised:
        relay.feed(odd, 3.0)
    assert raised.value.kind is FailureKind.PROTOCOL


@pytest.mark.parametrize("odd", [event([{"text": 5}]), event().replace(b"[]", b"5")])
def test_one_that_writes_the_word_again_in_something_else_than_text_has_failed_too(odd):
    relay = ContinuedStream(so_far(), CHAT, again=" lightho", hide_usage=True)
    with pytest.raises(UpstreamError) as raised:
        relay.feed(odd, 3.0)
    assert raised.value.kind is FailureKind.PROTOCOL


def test_the_notes_hold_the_new_engines_own_id():
    relay, _ = continued([content("a", "stop"), DONE])
    assert relay.answer.engine_request_id == "cmpl-r1-2"


@pytest.mark.parametrize("last", [b"", b'data: {"error": {"type": "InternalServerError"}}\n\n' + DONE])
def test_a_continuation_that_breaks_too_is_a_failure(last):
    with pytest.raises(UpstreamError) as raised:
        continued([content("a"), last])
    assert raised.value.kind in {FailureKind.CLOSED, FailureKind.SERVER_ERROR}


def test_an_answer_of_which_nothing_is_left_to_write_still_ends_as_it_should():
    relay, out = continued([completion_ending("m", "length")])
    end, usage, done = events_of(out)
    assert (end["choices"][0]["finish_reason"], end["choices"][0]["delta"]) == ("length", {"content": ""})
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 5)
    assert done == "[DONE]"
    assert relay.answer.finish_reason == "length"


def test_one_whose_reason_was_given_gets_none_again():
    _, out = continued([completion_ending("m", None)])
    usage, _ = events_of(out)
    assert usage["choices"] == []
