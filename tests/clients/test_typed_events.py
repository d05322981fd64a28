"""Events of /v1/responses and /v1/messages as vLLM 0.32 writes them."""

from __future__ import annotations

import orjson
import pytest

from phasewise.clients.sse import ABORTED, Chunk, finish_reason_of, parse_typed_event


def event(name, **data):
    return b"event: %b\ndata: %b" % (name.encode(), orjson.dumps({"type": name, **data}))


def text_delta(text):
    return event("content_block_delta", delta={"type": "text_delta", "text": text}, index=0)


CONTENT = [
    event("response.output_text.delta", delta="a", content_index=0, logprobs=[]),
    event("response.reasoning_text.delta", delta="a"),
    event("response.function_call_arguments.delta", delta="{"),
    text_delta("a"),
    text_delta('"text":""'),
    event("content_block_delta", delta={"type": "thinking_delta", "thinking": "a"}, index=0),
    event("content_block_delta", delta={"type": "input_json_delta", "partial_json": "{"}, index=1),
]
NOTHING = [
    event("response.in_progress", response={"status": "in_progress", "usage": None}),
    event("response.output_item.added", item={"content": []}),
    event("response.output_text.done", text="all of it"),
    event("response.output_text.delta", delta=""),
    event("content_block_start", content_block={"type": "text", "text": ""}),
    event("content_block_delta", delta={"type": "signature_delta", "signature": "ab"}, index=0),
    event("content_block_stop", index=0),
    event("ping"),
    b": a comment",
    b"",
]


@pytest.mark.parametrize("chunk", CONTENT)
def test_a_piece_of_the_answer_is_content(chunk):
    parsed = parse_typed_event(chunk)
    assert parsed.has_content
    assert (parsed.done, parsed.finish_reason, parsed.error) == (False, None, None)


@pytest.mark.parametrize("chunk", NOTHING)
def test_other_events_say_nothing(chunk):
    assert parse_typed_event(chunk) == Chunk()


@pytest.mark.parametrize(
    "opening",
    [
        event("response.created", response={"id": "resp_1", "usage": None}),
        event("message_start", message={"id": "resp_1", "usage": {"input_tokens": 5, "output_tokens": 0}}),
    ],
)
def test_the_first_event_has_the_engines_id_and_no_count_yet(opening):
    parsed = parse_typed_event(opening)
    assert (parsed.engine_id, parsed.account) == ("resp_1", None)


def test_a_response_ends_with_its_counts_and_timings():
    usage = {"input_tokens": 7, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 4}}
    reply = {"status": "incomplete", "usage": usage, "metrics": {"queue_time_ms": 2.0}}
    parsed = parse_typed_event(event("response.completed", response=reply))
    account = parsed.account
    assert (parsed.done, parsed.finish_reason) == (True, "length")
    assert (account.prompt_tokens, account.cached_tokens, account.output_tokens) == (7, 4, 3)
    assert account.queue_s == pytest.approx(0.002)


def test_a_message_ends_in_two_events_and_its_cached_tokens_are_part_of_the_prompt():
    usage = {"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 4}
    usage["cache_creation_input_tokens"] = 1
    parsed = parse_typed_event(event("message_delta", delta={"stop_reason": "tool_use"}, usage=usage))
    account = parsed.account
    assert (parsed.done, parsed.finish_reason) == (False, "tool_calls")
    assert (account.prompt_tokens, account.cached_tokens, account.output_tokens) == (8, 4, 2)
    assert parse_typed_event(event("message_stop")).done


def test_a_message_without_a_reason_for_its_end_was_given_up_by_the_engine():
    assert parse_typed_event(event("message_delta", delta={"stop_reason": None})).finish_reason == ABORTED


@pytest.mark.parametrize(
    "failed",
    [
        event("error", error={"type": "internal_error", "message": "x"}),
        event("response.failed", response={"status": "failed"}),
        b"event: message_delta\ndata: {",
        b"event: response.completed\ndata: []",
    ],
)
def test_a_failure_of_the_engine_is_an_error(failed):
    assert parse_typed_event(failed).error


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ({"status": "completed"}, "stop"),
        ({"status": "incomplete"}, "length"),
        ({"stop_reason": "end_turn"}, "stop"),
        ({"stop_reason": "max_tokens"}, "length"),
        ({}, None),
    ],
)
def test_plain_replies_end_for_the_same_reasons(reply, reason):
    assert finish_reason_of(reply) == reason
