"""The gateway in front of a real vLLM, asked by OpenAI's own client."""

from __future__ import annotations

import asyncio
import time

import orjson
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError
from typer.testing import CliRunner

from phasewise.cli.app import app
from phasewise.clients.engine_metrics import fetch_metrics
from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.clients.step_feed import StepFeed
from tests.gateway.harness import ADMIN_KEY, eventually, request_id_of, running_gateway

pytestmark = pytest.mark.real

PATIENT = Timeouts(connect_s=5.0, head_s=120.0, idle_s=60.0)
STORY = [{"role": "user", "content": "Tell me a long story about a lighthouse."}]


@pytest.fixture
async def gateway(real_engine):
    async with running_gateway([real_engine], timeouts=PATIENT, poll_interval_s=1.0) as gateway:
        yield gateway


@pytest.fixture
async def openai_client(gateway):
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


async def running_requests(real_engine):
    client = HttpClient(real_engine.base_url)
    try:
        return (await fetch_metrics(client)).gauge("num_requests_running")
    finally:
        client.close()


async def test_openais_client_streams_and_the_parts_of_ttft_add_up(gateway, openai_client, real_engine):
    stream = await openai_client.chat.completions.create(
        model=real_engine.model, messages=STORY, max_tokens=16, stream=True, temperature=0,
        extra_body={"ignore_eos": True}, extra_headers={"X-Request-Id": "real-stream"},
    )  # fmt: skip
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert all(chunk.usage is None for chunk in chunks)
    timeline = await gateway.timeline_of_client("real-stream")
    assert timeline["attempts"][0]["engine_id"] == f"chatcmpl-{timeline['id']}"
    assert (timeline["outcome"], timeline["out"], timeline["finish"]) == ("succeeded", 16, "length")
    assert timeline["in"] > 8
    ttft = timeline["ttft"]
    parts = {entry["part"]: entry["ms"] for entry in ttft["parts"]}
    assert {"gateway_wait", "engine_queue", "prefill"} <= set(parts)
    assert sum(parts.values()) + ttft["unexplained_ms"] == pytest.approx(ttft["total_ms"], abs=0.01)
    assert 0 < parts["prefill"] < ttft["total_ms"]
    assert ttft["unexplained_ms"] > 0


async def test_openais_client_gets_a_plain_reply_with_usage(gateway, openai_client, real_engine):
    reply = await openai_client.chat.completions.with_raw_response.create(
        model=real_engine.model, messages=STORY, max_completion_tokens=8, temperature=0
    )
    completion = reply.parse()
    assert completion.choices[0].message.content
    timeline = await gateway.timeline(reply.headers["x-request-id"])
    assert timeline["out"] == completion.usage.completion_tokens
    spans = {span[0]: span[2] for span in timeline["attempts"][0]["spans"]}
    assert {"engine_queue", "prefill", "decode"} == set(spans)
    # The engine's phases lie within what the gateway saw of the whole; both count in units of 0.1 ms.
    assert sum(spans.values()) < timeline["end"]


async def test_openais_client_gets_completions_streamed_with_the_usage_it_asked_for(
    gateway, openai_client, real_engine
):
    stream = await openai_client.completions.create(
        model=real_engine.model, prompt="Once upon a time", max_tokens=8, stream=True,
        stream_options={"include_usage": True}, extra_headers={"X-Request-Id": "real-completion"},
    )  # fmt: skip
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].usage.completion_tokens <= 8
    timeline = await gateway.timeline_of_client("real-completion")
    assert timeline["attempts"][0]["engine_id"].startswith(f"cmpl-{timeline['id']}")
    assert timeline["out"] == chunks[-1].usage.completion_tokens
    assert timeline["ttft"]["total_ms"] > 0


async def test_a_request_is_found_by_every_id_that_the_engine_has_of_it(gateway, openai_client, real_engine):
    feed = StepFeed(real_engine.steps_url)
    try:
        await feed.poll()
        few = {"model": real_engine.model, "max_tokens": 4}
        chat = await openai_client.chat.completions.create(messages=STORY, **few)
        choices = await openai_client.chat.completions.create(messages=STORY, n=2, **few)
        prompts = await openai_client.completions.create(prompt=["Once upon a time", "It was night"], **few)
        replies = {(await gateway.timeline(it.id))["id"] for it in (chat, choices, prompts)}
        ended = [it.request_id for step in (await feed.poll()).steps for it in step.finished]
    finally:
        feed.close()
    assert len(replies) == 3
    assert len(ended) == 5
    assert {(await gateway.timeline(it))["id"] for it in ended} == replies


async def test_the_prompt_that_a_request_waited_for_is_named_and_its_life_is_drawn(
    gateway, real_engine, tmp_path, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    page = tmp_path / "life.html"
    few = {"model": real_engine.model, "stream": True, "ignore_eos": True}
    reading = asyncio.create_task(gateway.chat("lighthouse " * 1500, max_tokens=2, **few))
    await eventually(lambda: gateway.under_way > 0)
    # The engine counts a request as running only after its first step, which takes seconds here.
    await asyncio.sleep(0.3)
    reply = await gateway.chat("Hello!", max_tokens=12, **few)
    assert (await reading).status == 200
    request_id = request_id_of(reply)
    await gateway.timeline(request_id)
    asked = ["explain", request_id[:12], "--gateway", gateway.url, "--admin-key", ADMIN_KEY]
    explained = await asyncio.to_thread(CliRunner().invoke, app, [*asked, "--html", str(page)])
    assert explained.exit_code == 0, explained.exception
    assert "another request's" in explained.stdout.partition("request " + request_id)[0]
    ledger = orjson.loads((await asyncio.to_thread(CliRunner().invoke, app, [*asked, "--json"])).stdout)[
        "ledger"
    ]
    unexplained = next(row["seconds"] for row in ledger["start"] if row["name"] == "unexplained")
    assert abs(unexplained) < 0.3 * ledger["start_s"]
    drawn = page.read_text()
    assert "Its prefill and its 11 decode steps" in drawn
    assert "Every step reads" in drawn, "the engine names the folder of its model, which is on this machine"


async def test_a_client_that_leaves_frees_the_engine(gateway, openai_client, real_engine):
    stream = await openai_client.chat.completions.create(
        model=real_engine.model, messages=STORY, max_tokens=2000, stream=True,
        extra_body={"ignore_eos": True}, extra_headers={"X-Request-Id": "real-leaver"},
    )  # fmt: skip
    gaps_s, last_s = [], None
    async for _ in stream:
        now_s = time.monotonic()
        if last_s is not None:
            gaps_s.append(now_s - last_s)
        last_s = now_s
        if len(gaps_s) == 5:
            break
    assert await running_requests(real_engine) == 1
    await stream.close()

    async def idle():
        return await running_requests(real_engine) == 0

    # Long before the 2,000 tokens that were asked for.
    await eventually(idle, timeout_s=100 * max(gaps_s))
    timeline = await gateway.timeline_of_client("real-leaver")
    assert (timeline["outcome"], timeline["why"]) == ("cancelled", "client_left")
    assert gateway.under_way == 0


async def test_several_streams_run_side_by_side_and_each_has_its_engine_parts(
    gateway, openai_client, real_engine
):
    async def one(number):
        stream = await openai_client.chat.completions.create(
            model=real_engine.model, messages=[{"role": "user", "content": f"Count from {number}."}],
            max_tokens=12, stream=True, extra_headers={"X-Request-Id": f"real-many-{number}"},
        )  # fmt: skip
        return [chunk async for chunk in stream]

    assert all(await asyncio.gather(*(one(number) for number in range(6))))
    for number in range(6):
        timeline = await gateway.timeline_of_client(f"real-many-{number}")
        parts = {entry["part"] for entry in timeline["ttft"]["parts"]}
        assert {"engine_queue", "prefill"} <= parts
    metrics = (await gateway.fetch("GET", "/metrics")).body.decode()
    model = f'model="{real_engine.model}"'
    for part in ("gateway_wait", "engine_queue", "prefill", "unexplained"):
        labels = f'{model},pool="default",outcome="succeeded",part="{part}"'
        assert f"phasewise_ttft_part_seconds_count{{{labels}}} 6\n" in metrics
    assert f'phasewise_tokens_total{{{model},kind="output"}}' in metrics


async def test_errors_look_to_openais_client_as_it_expects_them(openai_client, real_engine):
    with pytest.raises(NotFoundError):
        await openai_client.chat.completions.create(model="nobody-serves-this", messages=STORY)
    with pytest.raises(BadRequestError, match="kv_transfer_params"):
        await openai_client.chat.completions.create(
            model=real_engine.model, messages=STORY, extra_body={"kv_transfer_params": {"a": 1}}
        )
    with pytest.raises(BadRequestError):
        await openai_client.chat.completions.create(model=real_engine.model, messages=STORY, temperature=-3.0)


async def test_the_worker_is_known_by_its_recorders_boot(gateway, real_engine):
    (state,) = gateway.app.gateway.cluster.snapshot()
    assert state.worker.incarnation.startswith("boot-")
    models = await gateway.fetch("GET", "/v1/models")
    assert real_engine.model.encode() in models.body
