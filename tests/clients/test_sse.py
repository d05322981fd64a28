from __future__ import annotations

from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.clients import sse
from phasewise.clients.sse import Chunk, EventSplitter, chunk_id, event_data, parse_chunk
from phasewise.core.errors import UpstreamError
from phasewise.core.timeline import EngineAccount


def make_event(delta: dict[str, object] | None = None, **fields: object) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]
    return b"data: " + orjson.dumps({"id": "chatcmpl-abc", "choices": choices, **fields})


@given(
    texts=st.lists(st.text(max_size=12), min_size=1, max_size=8),
    separator=st.sampled_from([b"\n\n", b"\r\n\r\n"]),
    cuts=st.lists(st.integers(min_value=0, max_value=2000), max_size=20),
)
def test_events_come_out_whole_however_the_bytes_were_cut(texts, separator, cuts):
    events = [make_event({"content": text}) for text in texts] + [b"data: [DONE]"]
    stream = b"".join(event + separator for event in events)
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    splitter = EventSplitter()
    seen = [event for start, end in pairwise(bounds) for event in splitter.feed(stream[start:end])]
    assert seen == events
    assert not splitter.pending


def test_only_the_incomplete_tail_is_held():
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\n\ndata: 2\n\ndata: 3") == [b"data: 1", b"data: 2"]
    assert splitter.pending
    assert splitter.feed(b"\n\n") == [b"data: 3"]


def test_an_event_without_end_is_rejected(monkeypatch):
    monkeypatch.setattr(sse, "EVENT_LIMIT_BYTES", 100)
    splitter = EventSplitter()
    assert splitter.feed(b"data: " + b"x" * 60) == []
    with pytest.raises(UpstreamError, match="larger than 100 bytes"):
        splitter.feed(b"x" * 41)


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "a"},
        {"content": '"'},
        {"reasoning": "so"},
        {"reasoning_content": "so"},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
    ],
)
def test_text_reasoning_and_tool_deltas_are_content(delta):
    assert parse_chunk(make_event(delta)) == Chunk(has_content=True)


@pytest.mark.parametrize(
    "delta", [{"role": "assistant", "content": ""}, {"content": None}, {"tool_calls": []}, {}]
)
def test_a_delta_that_says_nothing_is_no_content(delta):
    assert parse_chunk(make_event(delta)) == Chunk()


def test_the_text_of_a_completion_is_content():
    assert parse_chunk(b'data: {"id":"c","choices":[{"index":0,"text":" a"}]}').has_content
    assert not parse_chunk(b'data: {"id":"c","choices":[{"index":0,"text":""}]}').has_content


@given(st.text())
def test_no_text_passes_for_usage_or_an_end(text):
    quoting = '"usage":{"prompt_tokens":1},"finish_reason":"stop","error":{}' + text
    assert parse_chunk(make_event({"content": quoting})) == Chunk(has_content=True)


def test_the_final_chunks_carry_reason_usage_and_metrics():
    last = b'data: {"choices":[{"index":0,"delta":{"content":"z"},"finish_reason":"length"}]}'
    assert parse_chunk(last) == Chunk(has_content=True, finish_reason="length")
    usage, metrics = {"prompt_tokens": 3}, {"queue_time_ms": 1.0}
    account = EngineAccount(prompt_tokens=3, queue_s=0.001)
    assert parse_chunk(make_event(usage=usage, metrics=metrics)) == Chunk(account=account)


def test_spaces_after_colons_do_not_hide_anything():
    chunk = parse_chunk(
        b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}],'
        b' "usage": {"prompt_tokens": 1}}'
    )
    assert chunk == Chunk(has_content=True, finish_reason="stop", account=EngineAccount(prompt_tokens=1))


def test_the_end_of_the_stream_is_distinguished_from_text_about_it():
    assert parse_chunk(b"data: [DONE]").done
    assert not parse_chunk(make_event({"content": "[DONE]"})).done


def test_an_error_in_mid_stream_keeps_its_kind_but_not_its_message():
    event = b'data: {"error":{"message":"the prompt was ...","type":"InternalServerError","code":500}}'
    assert parse_chunk(event) == Chunk(error="InternalServerError")
    assert parse_chunk(b'data: {"error":{"code":500}}').error == "500"
    assert parse_chunk(b'data: {"error":"gone"}').error == "error"


def test_broken_json_is_said_to_be_broken():
    assert parse_chunk(b'data: {"usage":{').error == sse.MALFORMED


def test_comments_and_other_fields_are_not_data():
    assert event_data(b": ping") == b""
    assert event_data(b"event: x\ndata: 1\r\ndata: 2") == b"1\n2"
    assert parse_chunk(b": ping") == Chunk()


def test_the_engines_id_is_found():
    assert chunk_id(make_event({"content": "a"})) == "chatcmpl-abc"
    assert chunk_id(b"data: [DONE]") is None
