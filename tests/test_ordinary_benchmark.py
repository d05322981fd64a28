"""What benchmarks/ordinary.py would tell of a gateway that changes answers: its checks can fail."""

from __future__ import annotations

import orjson
import pytest

from benchmarks.applications.sending import Answer

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def chunk(text, index=0, reason=None, usage=None):
    choice = {"index": index, "delta": {"content": text}, "logprobs": None, "finish_reason": reason}
    return b"data: " + orjson.dumps({"choices": [choice], "usage": usage}) + b"\n\n"


PARTS = (chunk(" t0001"), chunk(" t0002", 1, "length"), chunk(" t0003", reason="length"), b"data: [DONE]\n\n")
WHOLE = Answer(data=HEAD + b"\r\n" + b"".join(PARTS))


def test_an_answer_means_the_same_however_it_is_framed():
    framed = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in PARTS) + b"0\r\n\r\n"
    assert Answer(data=CHUNKED + framed).meaning() == WHOLE.meaning()


@pytest.mark.parametrize(
    "parts",
    [
        PARTS[1:],
        PARTS[:-1],
        (*PARTS[:2], chunk(" t0003", reason="stop"), PARTS[3]),
        (chunk(" t0001", 1), *PARTS[1:]),
        (*PARTS[:3], b"data: {broken\n\n", PARTS[3]),
    ],
    ids=["lost_token", "no_end", "another_reason", "another_choice", "unreadable"],
)
def test_what_is_lost_or_changed_on_the_way_is_wrong(parts):
    assert Answer(data=HEAD + b"\r\n" + b"".join(parts)).meaning() != WHOLE.meaning()


def test_what_is_not_200_is_rejected_and_says_why():
    error = orjson.dumps({"error": {"code": "bodies_full", "message": "no memory"}})
    rejected = Answer(data=b"HTTP/1.1 503 Service Unavailable\r\n\r\n" + error)
    assert rejected.rejection() == "503 bodies_full: no memory"
    assert WHOLE.rejection() is None
    assert Answer(failure="ConnectionResetError").rejection() == "0 ConnectionResetError"
