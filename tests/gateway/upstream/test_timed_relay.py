"""The comment stands once, right before the end, and every other byte is as the relay let it pass."""

from __future__ import annotations

import pytest

from phasewise.gateway.upstream.relay import TimedRelay
from phasewise.gateway.upstream.response import Answer, StreamRelay
from tests.builders import make_timeline

DONE = b"data: [DONE]\n\n"


def chunk(text, finish="null"):
    return b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":%b}]}\n\n' % (
        text,
        finish.encode(),
    )


STREAM = chunk(b"One") + chunk(rb"\ndata: [DONE]\n\n") + chunk(b"", '"stop"') + DONE


def passed(pieces, timeline=None):
    asked_s = []

    def timeline_at(at_s):
        asked_s.append(at_s)
        return timeline or make_timeline()

    relay = TimedRelay(StreamRelay(Answer(), hide_usage=False), timeline_at)
    out = b"".join(relay.feed(piece, float(number)) for number, piece in enumerate(pieces))
    return out, asked_s


@pytest.mark.parametrize("size", [1, 7, 50, len(STREAM)])
def test_the_comment_stands_right_before_the_end_however_the_stream_is_cut(size):
    pieces = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    out, asked_s = passed(pieces)
    before, comment, after = out.rpartition(b": phasewise ttft_ms=500.000")
    assert before == STREAM.removesuffix(DONE)
    assert comment + after.split(b"\n\n")[0] == out.split(b"\n\n")[-3]
    assert out.endswith(b"\n\n" + DONE)
    assert asked_s == [float(len(pieces) - 1)], "the timeline is put together once, when the end has come"


def test_text_that_looks_like_the_end_is_not_taken_for_it():
    out, asked_s = passed([chunk(b"One"), chunk(rb"\ndata: [DONE]\n\n"), chunk(b"data: [DONE]")])
    assert b": phasewise" not in out
    assert asked_s == []


def test_a_stream_with_nothing_to_report_passes_as_it_is():
    assert passed([STREAM], make_timeline(()))[0] == STREAM
