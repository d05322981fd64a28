"""The pieces of benchmarks/faults.py and resume_exactness.py that judge."""

from __future__ import annotations

import sys

import pytest

from benchmarks.resuming.near_tie import parting
from benchmarks.resuming.reading import CUT, WENT_ON, WHOLE, Read, read_stream
from phasewise.clients.http_client import HttpClient
from tests.gateway.harness import listening
from tests.paths import ROOT

BENCHMARKS = ROOT / "benchmarks"
TEXTS = ["Once", " upon", "", " a", " time"]
EXPECTED = Read("Once upon a time", ended=WHOLE, ids=frozenset({"1"}), usage={"prompt_tokens": 3})


@pytest.fixture
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in [it for it in sys.modules if it.partition(".")[0] in {"faults", "resuming", "stress"}]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def faults(scripts):
    import faults

    return faults


@pytest.fixture
def resume_exactness(scripts):
    import resume_exactness

    return resume_exactness


@pytest.mark.parametrize(
    ("got", "at"),
    [
        ("Once upon a time", None),
        ("Once up", None),
        ("Once upon a time and more", None),
        ("Once in a while", 1),
        ("Once upon the", 3),
        ("Twice", 0),
    ],
)
def test_texts_part_at_the_first_token_that_the_other_does_not_hold(got, at):
    assert parting(TEXTS, got) == at


@pytest.mark.parametrize(
    ("read", "counts"),
    [
        (EXPECTED, {"whole": 1}),
        (
            Read("Once a time", ended=WHOLE, ids=EXPECTED.ids, usage=EXPECTED.usage),
            {"whole": 1, "wrong_text": 1},
        ),
        (Read(EXPECTED.text, ended=WHOLE, ids=EXPECTED.ids), {"whole": 1, "wrong_usage": 1}),
        (
            Read(EXPECTED.text, ended=WHOLE, ids=frozenset({"1", "2"}), usage=EXPECTED.usage),
            {"whole": 1, "wrong_text": 1},
        ),
        (Read("Once up", ended="stream_not_resumable"), {"errors": {"stream_not_resumable": 1}}),
        (Read("Once up", ended=CUT), {"errors": {CUT: 1}, "undocumented_ends": 1}),
        (
            Read("Twice", ended="stream_all_attempts_failed"),
            {"errors": {"stream_all_attempts_failed": 1}, "wrong_text": 1},
        ),
    ],
)
def test_a_stream_is_whole_and_right_or_ends_as_documented_after_the_right_beginning(faults, read, counts):
    result = faults.Result()
    faults.judge(result, read, EXPECTED)
    assert result == faults.Result(streams=1, **counts)


@pytest.mark.parametrize(
    ("events", "ended"),
    [
        (b"data: [DONE]\n\n", WHOLE),
        (b"", CUT),
        (b"data: [DONE]\n\n" * 2, WENT_ON),
        (b'data: [DONE]\n\ndata: {"id":"1","choices":[],"usage":{}}\n\n', WENT_ON),
        (b'data: [DONE]\n\ndata: {"error":{"code":"stream_not_resumable"}}\n\n', WENT_ON),
        (b'data: {"error":{"code":"stream_not_resumable"}}\n\n', "stream_not_resumable"),
    ],
)
async def test_a_stream_that_says_more_after_its_end_is_not_whole(events, ended):
    async def answer(head, body, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(events) + events)

    async with listening(answer) as worker:
        client = HttpClient(worker.url)
        read = await read_stream(client, "/v1/chat/completions", {})
        client.close()
    assert read.ended == ended


def test_answers_that_did_not_go_on_count_as_neither_exact_nor_not(resume_exactness):
    pairs = [(True, True), None, (True, False), None]
    assert resume_exactness.penalised_shares(pairs) == {
        "penalised_rejected": 2,
        "penalised_exact": 1.0,
        "penalised_exact_if_forgotten": 0.5,
    }
