"""The tokens so far, as a worker returns them."""

from __future__ import annotations

import re

import orjson
import pytest

from phasewise.clients.http_client import HttpClient
from phasewise.core.errors import FailureKind, UpstreamError
from phasewise.core.request import Endpoint
from phasewise.gateway.upstream.continuation import tokens_so_far
from phasewise.gateway.upstream.response import Answer
from phasewise.gateway.upstream.resumption import resumption
from tests.gateway.harness import chat_body, listening


def plan_for(text_escaped):
    answer = Answer()
    answer.text_escaped.extend(text_escaped)
    answer.engine_request_id = "chatcmpl-r1"
    return resumption(Endpoint.CHAT, orjson.dumps(chat_body()), answer, None)


async def reported(plan, answer_to, spell=None):
    """What is made of a worker whose /tokenize answers so; an answer of None closes the connection.

    `spell` is what tokens spell; unless given, all that is asked for is spelled as it should be.
    """
    asked = []

    def spelled(ids):
        return "prompt" + ("" if ids == [1, 2] else plan.text) if spell is None else spell(ids)

    async def answer(head, body, writer):
        question = orjson.loads(body)
        if head.startswith(b"POST /detokenize "):
            reply = 200, {"prompt": spelled(question["tokens"])}
        else:
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

    so_far, asked = await reported(plan_for(b"one"), answer_to)
    assert (so_far.prompt_ids, so_far.answer_ids, so_far.max_model_len) == ([1, 2], [7], 100)
    assert len(asked) == 2


async def test_a_mark_after_a_lines_end_is_taken_off_again():
    def answer_to(question):
        if "messages" in question:
            return tokens(1, 2)
        marked = question["prompt"] == "one\n\nx"
        return tokens(7, 8, 8, 9, strs=["one", "\n", "\n", "x"]) if marked else tokens(7, 10)

    so_far, _ = await reported(plan_for(rb"one\n\n"), answer_to)
    assert so_far.answer_ids == [7, 8, 8]


async def test_a_mark_that_became_part_of_another_token_is_not():
    def answer_to(question):
        if "messages" in question:
            return tokens(1, 2)
        return tokens(7, 11, strs=["one", "\nx"]) if question["prompt"].endswith("x") else tokens(7, 10)

    so_far, _ = await reported(plan_for(rb"one\n"), answer_to)
    assert so_far.answer_ids == [7, 10]


class SpacePuttingTokenizer:
    """Reads text as Llama 2's does: a space is put before it, and words begin with theirs.

    What is spelled has its first space taken off. Line ends stand alone, and the chat's prompt ends in ":".
    """

    def __init__(self):
        self.words = ["<s>", "▁Say", "▁it", ":"]

    def ids(self, text):
        pieces = re.findall("▁?[^▁\\n:]+|[▁\\n:]", "▁" + text.replace(" ", "▁"))
        self.words += [it for it in pieces if it not in self.words]
        return [self.words.index(it) for it in pieces]

    def answer_to(self, question):
        if "messages" in question:
            return tokens(0, 1, 2, 3)
        ids = self.ids(question["prompt"])
        return tokens(*ids, strs=[self.words[it] for it in ids])

    def spell(self, ids):
        return "".join(self.words[it] for it in ids).replace("▁", " ").removeprefix(" ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b" Once upon", ["▁Once", "▁upon"]),
        (b"Once upon", ["Once", "▁upon"]),
        (b"  Once", ["▁", "▁Once"]),
        (rb" one\n\n", ["▁one", "\n", "\n"]),
        (rb"\none", ["\n", "one"]),
    ],
)
async def test_a_space_that_the_tokenizer_put_before_the_answer_is_not_the_answers(text, words):
    tokenizer = SpacePuttingTokenizer()
    so_far, _ = await reported(plan_for(text), tokenizer.answer_to, tokenizer.spell)
    assert so_far.prompt_ids == [0, 1, 2, 3]
    assert [tokenizer.words[it] for it in so_far.answer_ids] == words
    assert so_far.max_model_len == 100


async def test_tokens_that_do_not_spell_the_answer_are_no_ground_to_go_on_from():
    def answer_to(question):
        return tokens(1, 2) if "messages" in question else tokens(7)

    with pytest.raises(UpstreamError) as raised:
        await reported(plan_for(b"One"), answer_to, lambda ids: "prompt" + "one" * (7 in ids))
    assert raised.value.kind is FailureKind.NOT_CONTINUED


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (None, FailureKind.CONNECTION_REFUSED),
        ((404, {}), FailureKind.NOT_CONTINUED),
        ((400, {}), FailureKind.NOT_CONTINUED),
        ((500, {}), FailureKind.SERVER_ERROR),
        ((200, {"tokens": [1]}), FailureKind.NOT_CONTINUED),  # as llama.cpp answers
        ((200, {"count": 1}), FailureKind.PROTOCOL),
        ((200, []), FailureKind.PROTOCOL),
    ],
)
async def test_a_worker_fails_by_what_it_breaks_not_by_what_it_rejects_or_by_having_gone(reply, kind):
    with pytest.raises(UpstreamError) as raised:
        await reported(plan_for(b"one"), lambda _: reply)
    assert raised.value.kind is kind
