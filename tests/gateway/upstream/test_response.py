"""What is kept of an engine's answer, and what it shows about the engine."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from phasewise.core.timeline import NO_ACCOUNT, EngineAccount
from phasewise.gateway.upstream.response import LATEST_GAPS, Answer, account_of, read_plain_answer


def make_answer(times_s=(), account=NO_ACCOUNT):
    answer = Answer()
    answer.content_times_s.extend(times_s)
    answer.account = account
    return answer


def test_an_account_holds_what_the_engine_counted_and_timed():
    reported = EngineAccount(100, 64, 3, queue_s=0.1, prefill_s=0.4, decode_s=2.0)
    found = account_of(make_answer([1.0, 1.1, 1.2], reported))
    assert found == replace(reported, gap_s=pytest.approx(0.1))


def test_a_stall_does_not_move_the_gap():
    assert account_of(make_answer([1.0, 1.1, 1.2, 9.0, 9.1])).gap_s == pytest.approx(0.1)


def test_the_gap_is_that_of_the_streams_end():
    times = [float(second) for second in range(50)]
    times += [times[-1] + 0.1 * number for number in range(1, LATEST_GAPS + 1)]
    assert account_of(make_answer(times)).gap_s == pytest.approx(0.1)


def test_tokens_that_share_a_chunk_share_its_gap():
    assert account_of(make_answer([1.0, 1.2, 1.4], EngineAccount(output_tokens=6))).gap_s == pytest.approx(
        0.1
    )


@pytest.mark.parametrize("times", [[], [1.0]])
def test_what_nobody_saw_is_unknown(times):
    assert account_of(make_answer(times)) == NO_ACCOUNT
    assert account_of(None) == NO_ACCOUNT


# --- what may be kept of it -------------------------------------------------------------------------------


def plain(message=None, **choice):
    choices = [{"index": 0, "message": {"role": "assistant", "content": 'He said "no"\n', **(message or {})}}]
    choices[0] |= {"finish_reason": "stop", "logprobs": None, **choice}
    return orjson.dumps({"id": "chatcmpl-r1", "choices": choices})


def test_the_text_of_a_plain_reply_is_noted_where_it_may_be_kept():
    nothing_more = {"refusal": None, "tool_calls": [], "reasoning": None}
    answer = read_plain_answer(plain(nothing_more), with_text=True)
    assert (answer.text(), answer.saw_other_than_text) == ('He said "no"\n', False)
    assert not read_plain_answer(plain()).text_escaped


def test_the_text_of_a_completion_stands_elsewhere():
    body = orjson.dumps({"choices": [{"index": 0, "text": "No.", "finish_reason": "stop"}]})
    assert read_plain_answer(body, with_text=True).text() == "No."


@pytest.mark.parametrize(
    "body",
    [
        plain({"reasoning": "hm"}),
        plain({"tool_calls": [{"id": "1"}]}),
        plain({"refusal": "no"}),
        plain({"audio": {"id": "a"}}),
        plain({"annotations": [{"type": "url_citation"}]}),
        b"<html>",
        b"[]",
        plain({"content": None}),
        plain(logprobs={"content": []}),
        plain(token_ids=[1]),
        orjson.dumps({"choices": []}),
        orjson.dumps({"choices": [7]}),
        orjson.dumps({"choices": [{"text": "a"}, {"text": "b"}]}),
        orjson.dumps({"choices": {"text": "a"}}),
    ],
)
def test_a_plain_reply_of_more_than_text_has_none(body):
    assert read_plain_answer(body, with_text=True).text() is None


def test_text_that_ends_within_a_character_is_none():
    answer = Answer()
    answer.text_escaped += b"\\ud83d"
    assert answer.text() is None
