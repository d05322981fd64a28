"""The tokens so far, as a worker tells them."""

from __future__ import annotations

import orjson
import pytest

from phasewise.adapters.http_client import HttpClient
from phasewise.errors import FailureKind, UpstreamError
from phasewise.gateway.answer import Answer
from phasewise.gateway.resumption import resumption
from phasewise.gateway.tokenizing import tokens_so_far
from phasewise.model.request import Endpoint
from tests.gateway.harness import chat_body, listening


def plan_for(text_escaped):
    answer = Answer()
    answer.text_escaped.extend(text_escaped)
    answer.engine_request_id = "chatcmpl-r1"
    return resumption(Endpoint.CHAT, orjson.dumps(chat_body()), answer, None)


async def told(plan, answer_to):
    """What is made of a worker whose /tokenize answers so; an answer of None closes the connection."""
    asked = []

    async def answer(head, body, writer):
        question = orjson.loads(body)
        asked.append(question)
        reply = answer_to(question)
        if reply is None:
            writer.transport.abort()
            return
        status, data = reply
        page = orjson.dumps(data)
        writer.write(b"HTTP/1.1 %d x\r\ncontent-length: %d\r\n\r\n" % (status, len(page)) + page)

    async with listening(answer) as worker:
        client = HttpClient(worker.url)
        try:
            return await tokens_so_far(client, plan), asked
        finally:
            client.close()


def tokens(*ids, strs=None):
    return 200, {"tokens": ids, "token_strs": strs, "max_model_len": 100, "count": len(ids)}


async def test_prompt_and_answer_are_asked_for_apart():
    def answer_to(question):
        return tokens(1, 2) if "messages" in question else tokens(7)

    so_far, asked = await told(plan_for(b"one"), answer_to)
    assert (so_far.prompt_ids, so_far.answer_ids, so_far.max_model_len) == ([1, 2], [7], 100)
    assert len(asked) == 2


async def test_a_mark_after_a_lines_end_is_taken_off_again():
    def answer_to(question):
        if "messages" in question:
            return tokens(1, 2)
        marked = question["prompt"] == "one\n\nx"
        return tokens(7, 8, 8, 9, strs=["one", "\n", "\n", "x"]) if marked else tokens(7, 10)

    so_far, _ = await told(plan_for(rb"one\n\n"), answer_to)
    assert so_far.answer_ids == [7, 8, 8]


async def test_a_mark_that_became_part_of_another_token_is_not():
    def answer_to(question):
        if "messages" in question:
            return tokens(1, 2)
        return tokens(7, 11, strs=["one", "\nx"]) if question["prompt"].endswith("x") else tokens(7, 10)

    so_far, _ = await told(plan_for(rb"one\n"), answer_to)
    assert so_far.answer_ids == [7, 10]


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (None, FailureKind.REFUSED),
        ((404, {}), FailureKind.SERVER_ERROR),
        ((200, {"tokens": [1]}), FailureKind.PROTOCOL),
        ((200, []), FailureKind.PROTOCOL),
    ],
)
async def test_a_worker_that_tells_nothing_has_failed_and_one_that_went_away_was_never_there(reply, kind):
    with pytest.raises(UpstreamError) as raised:
        await told(plan_for(b"one"), lambda _: reply)
    assert raised.value.kind is kind
