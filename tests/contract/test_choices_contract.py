"""Several answers to one prompt, and log-probabilities: what clients read of them, fake and real alike."""

from __future__ import annotations

import pytest

from tests.contract.engine_calls import (
    CHAT,
    COMPLETIONS,
    STREAM,
    chat_body,
    completion_body,
    post,
    post_json,
    stream,
)

SEVERAL = {"n": 3, "temperature": 1, "seed": 7}


@pytest.mark.parametrize(("path", "make_body"), [(CHAT, chat_body), (COMPLETIONS, completion_body)])
async def test_each_choice_has_its_own_chunks_and_the_usage_counts_all(client, engine, path, make_body):
    seen = await stream(client, path, make_body(engine.model, **SEVERAL, **STREAM))
    *chunks, usage = seen.chunks
    assert all(len(chunk["choices"]) == 1 for chunk in chunks)
    ended = [choice for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert sorted(choice["index"] for choice in ended) == [0, 1, 2]
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 18)
    if path == CHAT:
        first = [chunk["choices"][0] for chunk in chunks[:3]]
        assert [(choice["index"], choice["delta"]["role"]) for choice in first] == [
            (number, "assistant") for number in range(3)
        ]


@pytest.mark.parametrize(("path", "make_body"), [(CHAT, chat_body), (COMPLETIONS, completion_body)])
async def test_a_plain_reply_has_the_choices_in_order_and_they_differ(client, engine, path, make_body):
    reply = await post_json(client, path, make_body(engine.model, **SEVERAL))
    texts = [choice.get("text") or choice["message"]["content"] for choice in reply["choices"]]
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert reply["usage"]["completion_tokens"] == 18


async def test_no_choice_at_all_is_rejected(client, engine):
    reply = await post(client, CHAT, chat_body(engine.model, n=0))
    assert reply.status == 400


async def test_logprobs_of_a_chat_have_one_entry_per_token_streamed_or_not(client, engine):
    asked = {"logprobs": True, "top_logprobs": 2}
    seen = await stream(client, CHAT, chat_body(engine.model, **asked, **STREAM))
    plain = await post_json(client, CHAT, chat_body(engine.model, **asked))
    streamed = [entry for chunk in seen.content for entry in chunk["choices"][0]["logprobs"]["content"]]
    whole = plain["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in whole]
    assert "".join(entry["token"] for entry in whole) == plain["choices"][0]["message"]["content"]
    for entry in whole:
        assert list(entry) == ["token", "logprob", "bytes", "top_logprobs"]
        assert [list(likely) for likely in entry["top_logprobs"]] == [["token", "logprob", "bytes"]] * 2
        assert bytes(entry["bytes"]).decode() == entry["token"]


async def test_logprobs_of_a_completion_say_where_each_token_begins(client, engine):
    seen = await stream(client, COMPLETIONS, completion_body(engine.model, logprobs=2, **STREAM))
    plain = await post_json(client, COMPLETIONS, completion_body(engine.model, logprobs=2))
    whole, parts = plain["choices"][0]["logprobs"], [c["choices"][0]["logprobs"] for c in seen.content]
    assert list(whole) == ["text_offset", "token_logprobs", "tokens", "top_logprobs"]
    for name in ("text_offset", "tokens"):
        assert [entry for part in parts for entry in part[name]] == whole[name]
    assert whole["text_offset"][0] == 0
    assert whole["text_offset"][1] == len(whole["tokens"][0])
    assert [len(likely) for likely in whole["top_logprobs"]] == [2] * 6
