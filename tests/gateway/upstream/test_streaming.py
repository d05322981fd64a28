"""The relay forwards what came, minus the usage nobody asked for, however the bytes were cut."""

from __future__ import annotations

from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.core.errors import FailureKind, UpstreamError
from phasewise.core.timeline import Part
from phasewise.gateway.upstream.response import HOLD_LIMIT_BYTES, Answer, StreamRelay

DONE = b"data: [DONE]\n\n"


def event(body, separator=b"\n\n"):
    return b"data: " + orjson.dumps(body) + separator


def chunk(delta, finish=None, **more):
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return event({"id": "chatcmpl-r1", "object": "chat.completion.chunk", "choices": [choice], **more})


def content(text, **more):
    return chunk({"content": text}, **more)


USAGE = event(
    {
        "id": "chatcmpl-r1",
        "choices": [],
        "usage": {
            "prompt_tokens": 9,
            "completion_tokens": 3,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
        "metrics": {"queue_time_ms": 1.5, "time_to_first_token_ms": 20.0, "generation_time_ms": 40.0},
    }
)
ROLE = chunk({"role": "assistant", "content": ""})
ENDING = chunk({"content": ""}, finish="stop")


def relayed(pieces, *, hide_usage=True):
    """What a relay releases for these reads, one after the other."""
    relay = StreamRelay(Answer(), hide_usage=hide_usage)
    out = [relay.feed(piece, float(at)) for at, piece in enumerate(pieces)]
    return relay, out


def cut_up(data, cuts):
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges) if start < end]


TEXTS = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=12)


@given(texts=TEXTS, cuts=st.lists(st.integers(0, 10_000), max_size=20), hide=st.booleans())
def test_however_the_bytes_are_cut_the_client_gets_the_same_stream(texts, cuts, hide):
    before = ROLE + b"".join(content(text) for text in texts) + ENDING
    relay, out = relayed(cut_up(before + USAGE + DONE, cuts), hide_usage=hide)
    assert b"".join([*out, relay.close()]) == before + (b"" if hide else USAGE) + DONE
    assert len(relay.answer.content_times_s) == len(texts)
    assert list(relay.answer.content_times_s) == sorted(relay.answer.content_times_s)
    assert relay.answer.finish_reason == "stop"
    assert relay.answer.engine_request_id == "chatcmpl-r1"
    account = relay.answer.account
    assert (account.prompt_tokens, account.cached_tokens, account.output_tokens) == (9, 4, 3)
    assert [span.part for span in account.spans] == [Part.ENGINE_QUEUE, Part.PREFILL, Part.DECODE]


@given(cuts=st.lists(st.integers(0, 10_000), max_size=20))
def test_carriage_returns_pass_through_unchanged(cuts):
    before = content("a").replace(b"\n\n", b"\r\n\r\n") + content("b")
    usage = USAGE.replace(b"\n\n", b"\r\n\r\n")
    relay, out = relayed(cut_up(before + usage + DONE, cuts))
    assert b"".join([*out, relay.close()]) == before + DONE


def test_a_read_that_ends_with_an_event_is_passed_on_as_the_same_object():
    first, *reads = [content(text) for text in ("a", "b", "c", "d")]
    _, out = relayed([first, *reads])
    assert all(sent is read for sent, read in zip(out[1:], reads, strict=True))


def test_nothing_is_released_before_the_first_content():
    _, out = relayed([ROLE, b": ping\n\n", content("a")])
    assert out == [b"", b"", ROLE + b": ping\n\n" + content("a")]


def test_a_stream_without_content_is_released_at_its_end():
    relay, out = relayed([ROLE, ENDING, USAGE, DONE])
    assert b"".join([*out, relay.close()]) == ROLE + ENDING + DONE
    assert not relay.answer.content_times_s


def test_what_is_held_back_is_bounded():
    _, out = relayed([b": " + b"x" * HOLD_LIMIT_BYTES + b"\n\n"])
    assert out[0]


def test_half_an_event_is_never_forwarded():
    _, out = relayed([content("a"), content("b")[:-1]])
    assert out[1] == b""


def test_a_chunk_of_the_usual_shape_but_without_text_is_not_counted_as_content():
    relay, _ = relayed([content("a"), content("b"), content(""), content("c")])
    assert list(relay.answer.content_times_s) == [0.0, 1.0, 3.0]


def test_two_chunks_in_one_read_are_two_pieces_of_content_at_one_time():
    relay, _ = relayed([content("a"), content("b"), content("c") + content("d")])
    assert list(relay.answer.content_times_s) == [0.0, 1.0, 2.0, 2.0]


def test_text_that_looks_like_the_end_of_a_stream_is_only_text():
    tricky = 'data: [DONE]\n\n "finish_reason":"stop" "usage":{'
    relay, out = relayed([content("a"), content(tricky), content(tricky)])
    assert relay.answer.finish_reason is None
    assert out[2] == content(tricky)
    with pytest.raises(UpstreamError):
        relay.close()


def test_usage_inside_ordinary_chunks_stays_in_the_stream():
    with_usage = content("b", usage={"prompt_tokens": 1, "completion_tokens": 2})
    relay, out = relayed([content("a"), with_usage])
    assert out[1] == with_usage
    assert relay.answer.account.output_tokens == 2


@given(
    texts=st.lists(st.text(min_size=1, max_size=8) | st.sampled_from(['"', "\\", '\\"', "\n\n"]), min_size=1),
    last=st.text(max_size=4),
    cuts=st.lists(st.integers(0, 10_000), max_size=20),
)
def test_the_text_so_far_is_what_the_client_could_have_read(texts, last, cuts):
    stream = ROLE + b"".join(content(text, created=1700) for text in texts)
    stream += chunk({"content": last}, finish="length")
    relay, out = relayed(cut_up(stream + USAGE + DONE, cuts))
    seen = [orjson.loads(line[6:]) for line in b"".join(out).split(b"\n\n") if line.startswith(b"data: {")]
    read = "".join(it["choices"][0]["delta"]["content"] for it in seen)
    assert orjson.loads(b'"%b"' % relay.answer.text_escaped) == read == "".join(texts) + last
    assert not relay.answer.saw_other_than_text
    assert relay.answer.created == 1700


def test_the_text_of_the_completions_endpoint_is_kept_too():
    reads = [event({"id": "cmpl-1", "choices": [{"index": 0, "text": text}]}) for text in ("a", "b", "c")]
    relay, _ = relayed(reads)
    assert bytes(relay.answer.text_escaped) == b"abc"


def test_half_an_event_adds_no_text():
    relay, _ = relayed([content("a"), content("b"), content("c")[:-1]])
    assert bytes(relay.answer.text_escaped) == b"ab"


@pytest.mark.parametrize(
    "more",
    [
        chunk({"reasoning_content": "hm"}),
        chunk({"reasoning": "hm"}),
        chunk({"refusal": "no"}),
        chunk({"audio": {"data": "AAAA"}}),
        chunk({"annotations": [{"type": "url_citation"}]}),
        chunk({"content": "", "annotations": [{"type": "url_citation"}]}, finish="stop"),
        chunk({"tool_calls": [{"index": 0, "function": {"name": "f"}}]}),
        event({"choices": [{"index": 1, "delta": {"content": "b"}}]}),
        event(
            {"choices": [{"index": 0, "delta": {"content": "b"}, "logprobs": {"content": [{"token": "b"}]}}]}
        ),
    ],
)
def test_what_is_not_one_choices_text_is_noticed(more):
    relay, _ = relayed([content("a"), content("a")])
    assert not relay.answer.saw_other_than_text
    relay.feed(more, 2.0)
    relay.feed(content("c"), 3.0)
    assert relay.answer.saw_other_than_text


def test_reasoning_is_not_taken_for_text():
    relay, _ = relayed([chunk({"reasoning": "hm"}), chunk({"reasoning": "so"}), content("a"), content("b")])
    assert bytes(relay.answer.text_escaped) == b"ab"
    assert len(relay.answer.content_times_s) == 4


def test_reasoning_and_tool_deltas_are_content():
    reads = [
        chunk({"reasoning_content": "hm"}),
        chunk({"tool_calls": [{"index": 0, "function": {"name": "f"}}]}),
        event({"id": "cmpl-1", "choices": [{"index": 0, "text": "plain"}]}),
    ]
    relay, _ = relayed(reads)
    assert len(relay.answer.content_times_s) == 3


def test_an_error_before_content_is_a_failure_of_the_worker():
    relay = StreamRelay(Answer(), hide_usage=True)
    with pytest.raises(UpstreamError) as caught:
        relay.feed(event({"error": {"message": "secret prompt", "type": "InternalServerError"}}), 0.0)
    assert caught.value.kind is FailureKind.SERVER_ERROR
    assert "secret" not in str(caught.value)


ERROR = event({"error": {"message": "broken", "type": "InternalServerError"}})
ABORT = event({"choices": [{"index": 0, "delta": {"content": "c"}, "finish_reason": "abort"}]})


@pytest.mark.parametrize("broken", [ERROR, ABORT, event({"usage": {}})[:-4] + b"\n\n"])
@pytest.mark.parametrize("together", [True, False])
def test_what_came_before_an_engine_broke_is_passed_on_and_nothing_after_it(broken, together):
    relay = StreamRelay(Answer(), hide_usage=False)
    parts = [content("a"), content("b"), broken, content("d"), DONE]
    out = [relay.feed(part, 0.0) for part in ([b"".join(parts)] if together else parts)]
    assert b"".join(out) == content("a") + content("b")
    assert relay.answer.text_escaped == b"ab"
    with pytest.raises(UpstreamError) as raised:
        relay.close()
    assert raised.value.kind is FailureKind.SERVER_ERROR


def test_a_stream_that_ends_without_saying_so_was_cut():
    relay, _ = relayed([content("a")])
    with pytest.raises(UpstreamError):
        relay.close()


def test_the_first_content_is_reported_once_and_before_it_is_passed_on():
    reported = []
    relay = StreamRelay(Answer(), hide_usage=False)
    relay.on_content = lambda: reported.append(len(relay.answer.content_times_s))
    for data in (chunk({"role": "assistant"}), content("a"), content("b"), content("c"), DONE):
        relay.feed(data, 1.0)
    assert reported == [1]
