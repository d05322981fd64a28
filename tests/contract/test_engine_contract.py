"""What phasewise relies on of an engine: one suite, run unchanged against the fake and the real one."""

from __future__ import annotations

import asyncio
import re
import time

import orjson
import pytest

from tests.contract.engine_calls import (
    CHAT,
    COMPLETIONS,
    STREAM,
    chat_body,
    completion_body,
    finished_steps,
    fresh_id,
    fresh_prompt_ids,
    next_step,
    post,
    post_json,
    running_requests,
    steps,
    stream,
    until,
)

BLOCK_TOKENS = 128
CLOCK_TOLERANCE_S = 0.02
JSON_HEADERS = [(b"content-type", b"application/json")]
METRIC_NAMES = [
    *("request_queue_time_seconds", "num_requests_waiting", "num_requests_waiting_by_reason"),
    *("num_requests_running", "request_prefill_time_seconds", "time_to_first_token_seconds"),
    *("prompt_tokens_total", "prompt_tokens_by_source_total", "prompt_tokens_cached_total"),
    "prompt_tokens_cached_by_source_total",
    *("request_decode_time_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds"),
    *("generation_tokens_total", "e2e_request_latency_seconds", "iteration_tokens_total"),
    *("request_success_total", "kv_cache_usage_perc", "num_preemptions_total", "cache_config_info"),
    *("prefix_cache_queries_total", "prefix_cache_hits_total"),
    *("external_prefix_cache_queries_total", "external_prefix_cache_hits_total"),
]


async def test_streamed_chat_is_role_then_content_then_finish_then_usage_then_done(client, engine):
    seen = await stream(client, CHAT, chat_body(engine.model, **STREAM))
    assert seen.status == 200
    assert seen.content_type.startswith(b"text/event-stream")
    opening, *content, usage = seen.chunks
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(list(chunk["choices"][0]["delta"]) == ["content"] for chunk in content)
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in content[:-1])
    assert content[-1]["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 6
    assert seen.last_event == b"data: [DONE]"
    assert {chunk["object"] for chunk in seen.chunks} == {"chat.completion.chunk"}


async def test_chunks_carry_the_same_keys_in_the_same_order(client, engine):
    seen = await stream(client, CHAT, chat_body(engine.model, **STREAM))
    opening, first, *_, last, usage = seen.chunks
    frame = ["id", "object", "created", "model", "choices"]
    assert list(opening) == [*frame, "prompt_token_ids", "prompt_text"]
    assert list(first) == frame
    choice = ["index", "delta", "logprobs", "finish_reason", "token_ids"]
    assert list(first["choices"][0]) == choice
    assert list(last["choices"][0]) == [*choice[:-1], "stop_reason", "token_ids"]
    assert list(usage) == [*frame, "usage", "system_fingerprint", "metrics"]


async def test_plain_chat_has_the_same_text_as_the_stream(client, engine):
    seen = await stream(client, CHAT, chat_body(engine.model, **STREAM))
    reply = await post_json(client, CHAT, chat_body(engine.model))
    (choice,) = reply["choices"]
    assert reply["object"] == "chat.completion"
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"] == seen.text
    assert choice["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 6


async def test_completions_stream_and_plain_agree(client, engine):
    seen = await stream(client, COMPLETIONS, completion_body(engine.model, **STREAM))
    reply = await post_json(client, COMPLETIONS, completion_body(engine.model))
    assert {chunk["object"] for chunk in seen.chunks} == {reply["object"]} == {"text_completion"}
    assert reply["choices"][0]["text"] == seen.text != ""
    assert seen.finish_reasons == [reply["choices"][0]["finish_reason"]] == ["length"]
    assert seen.last_event == b"data: [DONE]"


async def test_usage_adds_up_and_counts_the_streamed_tokens(client, engine):
    body = chat_body(engine.model, max_tokens=12, return_token_ids=True, **STREAM)
    seen = await stream(client, CHAT, body)
    usage = seen.chunks[-1]["usage"]
    token_ids = [token for chunk in seen.content for token in chunk["choices"][0]["token_ids"]]
    assert usage["completion_tokens"] == len(token_ids) == 12
    assert usage["prompt_tokens"] == len(seen.chunks[0]["prompt_token_ids"])
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert len(seen.content) == 12


async def test_tokenize_counts_what_the_engine_bills(client, engine):
    reply = await post_json(client, CHAT, chat_body(engine.model, "How many tokens is this?"))
    counted = await post_json(client, "/tokenize", chat_body(engine.model, "How many tokens is this?"))
    assert counted["count"] == len(counted["tokens"]) == reply["usage"]["prompt_tokens"]


@pytest.mark.parametrize(("path", "make_body"), [(CHAT, chat_body), (COMPLETIONS, completion_body)])
async def test_the_account_of_a_request_fits_into_the_time_it_took(client, engine, path, make_body):
    seen = await stream(client, path, make_body(engine.model, **STREAM))
    metrics = seen.chunks[-1]["metrics"]
    parts_ms = [metrics[name] for name in ("queue_time_ms", "time_to_first_token_ms", "generation_time_ms")]
    assert all(part_ms >= 0 for part_ms in parts_ms)
    assert sum(parts_ms) / 1e3 <= seen.wall_s + CLOCK_TOLERANCE_S
    assert metrics["mean_itl_ms"] == pytest.approx(metrics["generation_time_ms"] / 5)
    busy_ms = metrics["time_to_first_token_ms"] + metrics["generation_time_ms"]
    assert metrics["tokens_per_second"] == pytest.approx(6e3 / busy_ms)


async def test_a_plain_reply_carries_the_account_too(client, engine):
    reply = await post_json(client, CHAT, chat_body(engine.model))
    expected = {"queue_time_ms", "time_to_first_token_ms", "generation_time_ms", "mean_itl_ms"}
    assert expected <= set(reply["metrics"])
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_one_token_has_no_time_between_tokens(client, engine):
    seen = await stream(client, CHAT, chat_body(engine.model, max_tokens=1, **STREAM))
    assert seen.chunks[-1]["metrics"].get("mean_itl_ms") is None
    assert seen.chunks[-1]["metrics"]["generation_time_ms"] == 0


async def test_the_clients_request_id_becomes_the_engines(client, engine):
    request_id = fresh_id()
    chat = await stream(client, CHAT, chat_body(engine.model, **STREAM), request_id)
    completion = await post_json(client, COMPLETIONS, completion_body(engine.model), request_id)
    assert {chunk["id"] for chunk in chat.chunks} == {f"chatcmpl-{request_id}"}
    assert completion["id"] == f"cmpl-{request_id}"


async def test_an_id_may_be_used_twice_at_once(client, engine):
    request_id, body = fresh_id(), completion_body(engine.model)
    replies = await asyncio.gather(*(post_json(client, COMPLETIONS, body, request_id) for _ in range(2)))
    assert [reply["id"] for reply in replies] == [f"cmpl-{request_id}"] * 2
    assert all(reply["usage"]["completion_tokens"] == 6 for reply in replies)


async def test_the_head_of_a_stream_comes_before_the_prompt_is_computed(client, engine):
    """So a head says nothing of the first token, and a worker that took a request may still fail it."""
    body = completion_body(engine.model, fresh_prompt_ids(3000), max_tokens=2, **STREAM)
    async with await client.send("POST", COMPLETIONS, body=body, headers=JSON_HEADERS) as reply:
        head_s = time.monotonic()
        first = await reply.read()
        waited_s = time.monotonic() - head_s
        rest = await reply.read_all(1_000_000)
    usage = orjson.loads((first + rest).split(b"\n\n")[-3].removeprefix(b"data: "))
    prefill_s = usage["metrics"]["time_to_first_token_ms"] / 1e3
    assert waited_s > prefill_s / 4


async def test_asking_for_more_tokens_than_fit_beside_the_prompt_is_no_error(client, engine):
    body = completion_body(engine.model, fresh_prompt_ids(100), max_tokens=8150, **STREAM)
    async with await client.send("POST", COMPLETIONS, body=body, headers=JSON_HEADERS) as reply:
        assert reply.status == 200
        assert b'"text"' in await reply.read()


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_an_unknown_model_is_not_found(client, path):
    body = chat_body("no-such-model") if path == CHAT else completion_body("no-such-model")
    reply = await post(client, path, body)
    error = orjson.loads(reply.body)["error"]
    assert reply.status == 404
    assert sorted(error) == ["code", "message", "param", "type"]
    assert (error["type"], error["param"], error["code"]) == ("NotFoundError", "model", 404)
    assert "no-such-model" in error["message"]


async def test_a_prompt_beyond_the_context_is_rejected(client, engine):
    reply = await post(client, COMPLETIONS, completion_body(engine.model, fresh_prompt_ids(8300)))
    error = orjson.loads(reply.body)["error"]
    assert reply.status == 400
    assert (error["type"], error["param"], error["code"]) == ("BadRequestError", "input_tokens", 400)
    assert "maximum context length is 8192 tokens" in error["message"]


@pytest.mark.parametrize(
    "body",
    [b'{"model":', b"[]", b'{"max_tokens": 3}', b'{"messages": [{"role": "user", "content": 1.5}]}'],
    ids=["cut", "list", "empty", "number"],
)
async def test_a_body_that_is_no_request_is_rejected(client, body):
    reply = await post(client, CHAT, body)
    error = orjson.loads(reply.body)["error"]
    assert (reply.status, error["code"]) == (400, 400)
    assert isinstance(error["message"], str)


async def test_a_repeated_prompt_is_cached_and_another_salt_is_not(client, engine):
    prompt = fresh_prompt_ids(2 * BLOCK_TOKENS + 44)

    async def cached_tokens(salt):
        body = completion_body(engine.model, prompt, max_tokens=2, cache_salt=salt)
        usage = (await post_json(client, COMPLETIONS, body))["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    assert await cached_tokens("tenant-a") == 0
    assert await cached_tokens("tenant-a") == 2 * BLOCK_TOKENS
    assert await cached_tokens("tenant-b") == 0


async def test_the_block_with_the_last_prompt_token_is_always_computed(client, engine):
    body = completion_body(engine.model, fresh_prompt_ids(2 * BLOCK_TOKENS), max_tokens=2)
    await post_json(client, COMPLETIONS, body)
    usage = (await post_json(client, COMPLETIONS, body))["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == BLOCK_TOKENS


async def test_steps_account_for_every_token_of_a_request(client, steps_client, engine):
    request_id, prompt = fresh_id(), fresh_prompt_ids(300)
    await post_json(client, COMPLETIONS, completion_body(engine.model, prompt, max_tokens=2))
    since = await next_step(steps_client)
    body = completion_body(engine.model, prompt, max_tokens=7, **STREAM)
    seen = await stream(client, COMPLETIONS, body, request_id)
    records = await finished_steps(steps_client, since, f"cmpl-{request_id}")
    (ended,) = [request for record in records for request in record["finished"]]
    assert ended["id"] == seen.chunks[0]["id"]
    assert (ended["reason"], ended["preemptions"]) == ("length", 0)
    assert (ended["prompt_tokens"], ended["cached_tokens"], ended["output_tokens"]) == (300, 256, 7)
    assert sum(record["prompt_tokens"] or 0 for record in records) == 300 - 256
    assert sum(record["decode_tokens"] or 0 for record in records) == 7 - 1
    assert sum(record["first_tokens"] for record in records) == 1
    assert ended["queue_s"] + ended["prefill_s"] + ended["decode_s"] <= ended["e2e_s"] + CLOCK_TOLERANCE_S
    assert ended["e2e_s"] <= seen.wall_s + CLOCK_TOLERANCE_S


async def test_the_steps_account_of_a_request_is_the_one_the_client_got(client, steps_client, engine):
    request_id = fresh_id()
    since = await next_step(steps_client)
    seen = await stream(client, CHAT, chat_body(engine.model, **STREAM), request_id)
    records = await finished_steps(steps_client, since, f"chatcmpl-{request_id}")
    (ended,) = [request for record in records for request in record["finished"]]
    metrics = seen.chunks[-1]["metrics"]
    for name, theirs in (("queue_s", "queue_time_ms"), ("prefill_s", "time_to_first_token_ms")):
        assert ended[name] == pytest.approx(metrics[theirs] / 1e3, abs=2e-6)
    assert ended["decode_s"] == pytest.approx(metrics["generation_time_ms"] / 1e3, abs=2e-6)


async def test_steps_are_numbered_without_a_gap_and_end_in_order(client, steps_client, engine):
    await post_json(client, CHAT, chat_body(engine.model))
    header, records = await steps(steps_client)
    assert header["v"] == 1
    assert header["details"] is True
    assert re.fullmatch(r"[0-9a-f]+", header["boot"])
    assert abs(header["now_unix_s"] - time.time()) < 5
    assert [record["seq"] for record in records] == list(range(header["oldest"], records[-1]["seq"] + 1))
    assert all(record["v"] == 1 for record in records)
    ends = [record["at"] for record in records]
    assert ends == sorted(ends)
    assert all(0 <= record["kv"] <= 1 for record in records)


async def test_a_long_prompt_is_computed_in_chunks(client, steps_client, engine):
    request_id = fresh_id()
    since = await next_step(steps_client)
    body = completion_body(engine.model, fresh_prompt_ids(2500), max_tokens=2)
    await post_json(client, COMPLETIONS, body, request_id)
    records = await finished_steps(steps_client, since, f"cmpl-{request_id}")
    chunks = [record["prompt_tokens"] for record in records if record["prompt_tokens"]]
    assert chunks == [2048, 452]


async def test_two_streams_share_steps(client, steps_client, engine):
    ids = [fresh_id(), fresh_id()]
    since = await next_step(steps_client)
    body = chat_body(engine.model, max_tokens=24, **STREAM)
    seen = await asyncio.gather(*(stream(client, CHAT, body, request_id) for request_id in ids))
    assert all(len(one.content) == 24 for one in seen)
    for request_id in ids:
        records = await finished_steps(steps_client, since, f"chatcmpl-{request_id}")
    assert any(record["decode_requests"] == 2 for record in records)


@pytest.mark.parametrize("prompt_tokens", [20, 3000], ids=["while_decoding", "while_prefilling"])
async def test_a_client_that_leaves_ends_the_work(client, steps_client, engine, prompt_tokens):
    body = completion_body(engine.model, fresh_prompt_ids(prompt_tokens), max_tokens=4000, **STREAM)
    async with await client.send("POST", COMPLETIONS, body=body, headers=JSON_HEADERS) as reply:
        if prompt_tokens == 20:
            await reply.read()
        else:
            await until(lambda: running_requests(client), within_s=60.0)
    left_s = time.monotonic()

    async def idle():
        return await running_requests(client) == 0

    assert await until(idle, within_s=60.0)
    assert time.monotonic() - left_s < 1.0 + await longest_step_s(steps_client)


async def longest_step_s(steps_client):
    """The longest time between the ends of two steps of late, with work pending."""
    _, records = await steps(steps_client)
    pairs = zip(records[-100:], records[-99:], strict=False)
    return max((after["at"] - before["at"] for before, after in pairs if before["running"]), default=0.0)


async def test_metrics_have_the_names_phasewise_reads(client):
    text = (await client.fetch("GET", "/metrics")).body.decode()
    missing = [name for name in METRIC_NAMES if not re.search(rf"^vllm:{name}(_bucket)?\{{", text, re.M)]
    assert missing == []
    assert re.search(r'^vllm:num_requests_running\{engine="0",model_name="[^"]+"\} ', text, re.M)


async def test_the_counters_grow_by_what_was_asked(client, engine):
    async def counters():
        text = (await client.fetch("GET", "/metrics")).body.decode()
        names = ("prompt_tokens_total", "generation_tokens_total", "time_to_first_token_seconds_count")
        return [float(re.search(rf"^vllm:{name}\{{.*\}} (\S+)$", text, re.M)[1]) for name in names]

    before = await counters()
    await post_json(client, COMPLETIONS, completion_body(engine.model, fresh_prompt_ids(50), max_tokens=3))
    after = await counters()
    assert [then - now for then, now in zip(after, before, strict=True)] == [50, 3, 1]


async def test_models_version_and_health_answer(client, engine):
    (model,) = orjson.loads((await client.fetch("GET", "/v1/models")).body)["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == (engine.model, "model", 8192)
    assert orjson.loads((await client.fetch("GET", "/version")).body)["version"].startswith("0.")
    health = await client.fetch("GET", "/health")
    assert (health.status, health.body) == (200, b"")
    assert (await client.fetch("GET", "/nothing-here")).status == 404


async def test_the_same_prompt_gives_the_same_text(client, engine):
    body = chat_body(engine.model, "Name three rivers.", max_tokens=16)
    first, second = [await post_json(client, CHAT, body) for _ in range(2)]
    assert first["choices"][0]["message"]["content"] == second["choices"][0]["message"]["content"] != ""


async def test_an_answer_is_taken_up_from_its_token_ids(client, engine):
    # A pattern that the model is sure to go on with: elsewhere two tokens may be equally likely, and which
    # one wins depends on how the steps fell.
    prompt = [1000 + index * 211 for index in range(6)] * 8
    whole = await post_json(
        client, COMPLETIONS, completion_body(engine.model, prompt, max_tokens=8, return_token_ids=True)
    )
    ids = whole["choices"][0]["token_ids"]
    rest = await post_json(
        client,
        COMPLETIONS,
        completion_body(engine.model, prompt + ids[:3], max_tokens=5, return_token_ids=True),
    )
    assert rest["choices"][0]["token_ids"] == ids[3:]


async def test_a_final_message_can_be_continued(client, engine):
    messages = [{"role": "user", "content": "Count to ten."}]
    whole = await post_json(client, CHAT, chat_body(engine.model, max_tokens=8, messages=messages))
    assert whole["usage"]["completion_tokens"] == 8
    opened = [*messages, {"role": "assistant", "content": "One, two"}]
    reply = await post_json(
        client,
        CHAT,
        chat_body(engine.model, messages=opened, continue_final_message=True, add_generation_prompt=False),
    )
    assert reply["usage"]["prompt_tokens"] > whole["usage"]["prompt_tokens"]
    rejected = await post(client, CHAT, chat_body(engine.model, messages=opened, continue_final_message=True))
    assert rejected.status == 400
