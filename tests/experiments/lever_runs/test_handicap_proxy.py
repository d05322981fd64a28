from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import orjson
import pytest

from phasewise.clients.http_client import HttpClient
from phasewise.core.errors import ConfigError, EngineUnreachable
from phasewise.core.timeline import Outcome
from phasewise.experiments.lever_runs.handicap_proxy import passing_through, recomputing, static_batches
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.loadgen.session import RunSpec, measure
from phasewise.loadgen.workload.arrivals import ClosedLoop
from phasewise.loadgen.workload.lengths import Lengths
from phasewise.loadgen.workload.plan import PlanSpec
from phasewise.loadgen.workload.presets import Shape
from phasewise.simulator.engine import EngineShape
from phasewise.simulator.step_times import PRESETS
from tests.loadgen.scripted_server import Asked, scripted_server

NO_CACHE = EngineShape(prefix_cache=False, mean_output_tokens=20)
CHAT = "/v1/chat/completions"


def chat_body(text: str = "say something", max_tokens: int = 24, **fields: object) -> dict:
    return {
        "model": "fake-model",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }


@asynccontextmanager
async def client_for(url: str):
    client = HttpClient(url)
    try:
        yield client
    finally:
        client.close()


async def ask(url: str, body: dict, path: str = CHAT):
    async with client_for(url) as client:
        return await client.fetch("POST", path, body=orjson.dumps(body))


def events_of(reply) -> list[dict]:
    lines = [line.removeprefix(b"data: ") for line in reply.body.split(b"\n\n") if line]
    return [orjson.loads(line) for line in lines if line != b"[DONE]"]


def said(reply) -> tuple[str, str | None, dict]:
    """The text of an answer, why it ended, and what it counts."""
    assert reply.status == 200
    assert reply.body.endswith(b"data: [DONE]\n\n")
    events = events_of(reply)
    choices = [choice for event in events for choice in event["choices"]]
    text = "".join(choice["delta"].get("content", "") for choice in choices)
    counts = {key: events[-1]["usage"][key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")}
    return text, choices[-1]["finish_reason"], counts


@asynccontextmanager
async def fake_engine(shape: EngineShape = NO_CACHE, **config: object):
    async with running_engines(1, FakeEngineConfig(shape=shape, **config)) as (engine,):
        yield engine


# --- nothing taken away -----------------------------------------------------------------------------------


async def test_a_proxy_that_takes_nothing_away_hands_answers_and_rejections_on():
    async with fake_engine() as engine, passing_through(engine.base_url) as url:
        assert said(await ask(url, chat_body())) == said(await ask(engine.base_url, chat_body()))
        rejected = await ask(url, chat_body(model="another"))
        assert rejected.status == (await ask(engine.base_url, chat_body(model="another"))).status == 404


# --- without a KV cache -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [{}, {"ignore_eos": True, "min_tokens": 24}, {"min_tokens": 12}],
    ids=["free to end", "fixed length", "at least twelve"],
)
async def test_what_is_recomputed_is_what_the_engine_writes(fields):
    async with fake_engine() as engine, recomputing(engine.base_url) as url:
        for text in ("say something", "say something else", "and more", "and a last time"):
            body = chat_body(text, **fields)
            assert said(await ask(url, body)) == said(await ask(engine.base_url, body))


async def test_every_token_is_a_prefill_of_all_before_it():
    async with fake_engine() as engine, recomputing(engine.base_url) as url:
        _, _, counts = said(await ask(url, chat_body(max_tokens=5, ignore_eos=True)))
        async with client_for(engine.base_url) as client:
            metrics = (await client.fetch("GET", "/metrics")).body.decode()
    prompt_tokens = counts["prompt_tokens"]
    computed = next(line for line in metrics.splitlines() if line.startswith("vllm:prompt_tokens_total"))
    assert float(computed.split()[-1]) == sum(prompt_tokens + written for written in range(5))
    assert engine.requests_finished == engine.tokens_written == 5


async def test_an_answer_ends_where_the_context_does():
    shape = replace(NO_CACHE, max_model_len=64, mean_output_tokens=10_000)
    async with fake_engine(shape) as engine, recomputing(engine.base_url) as url:
        body = chat_body("word " * 20, max_tokens=64)
        assert said(await ask(url, body)) == said(await ask(engine.base_url, body))


async def test_usage_comes_only_if_it_is_asked_for():
    async with fake_engine() as engine, recomputing(engine.base_url) as url:
        reply = await ask(url, chat_body(stream_options=None))
    assert all("usage" not in event for event in events_of(reply))


@pytest.mark.parametrize(
    ("fields", "words", "param"),
    [
        ({"max_tokens": 65}, "1 to 64 tokens", "max_tokens"),
        ({"max_tokens": None}, "1 to 64 tokens", "max_tokens"),
        ({"stream": False}, "streamed", "stream"),
        ({"temperature": 0.7}, "greedy", "temperature"),
        ({"n": 2}, "remove it", "n"),
    ],
)
async def test_what_cannot_be_done_without_a_cache_is_rejected(fields, words, param):
    async with fake_engine() as engine, recomputing(engine.base_url) as url:
        reply = await ask(url, chat_body(**fields))
        broken = await ask(url, [])
    error = orjson.loads(reply.body)["error"]
    assert (reply.status, error["param"]) == (400, param)
    assert words in error["message"]
    assert broken.status == 400


async def test_an_engine_with_a_prefix_cache_is_rejected():
    async with fake_engine(EngineShape()) as engine:
        with pytest.raises(ConfigError, match="prefix_cache: false"):
            async with recomputing(engine.base_url):
                pass


async def test_no_engine_is_one_sentence():
    async with fake_engine() as engine:
        pass
    with pytest.raises(EngineUnreachable, match="nothing answers at"):
        async with recomputing(engine.base_url):
            pass


def silent_engine(cached_tokens: int, ids: int = 1):
    """One that does not say whether it has a cache, and then uses it."""

    def answer(asked: Asked):
        if asked.path == "/tokenize":
            return 200, [orjson.dumps({"tokens": [1, 2], "count": 2, "max_model_len": 99})]
        if asked.path != "/v1/completions":
            return 404, [b"no"]
        cached = cached_tokens if len(asked.body["prompt"]) > 2 else 0
        choice = {"text": "a", "token_ids": [3] * ids, "finish_reason": "length"}
        usage = {"prompt_tokens_details": {"cached_tokens": cached}}
        return 200, [orjson.dumps({"choices": [choice], "usage": usage})]

    return answer


async def test_an_answer_breaks_off_in_words_when_the_engine_uses_a_cache():
    async with scripted_server(silent_engine(cached_tokens=2)) as engine, recomputing(engine) as url:
        reply = await ask(url, chat_body())
    *content, error = events_of(reply)
    assert "took 2 tokens from its prefix cache" in error["error"]["message"]
    assert [event["choices"][0]["delta"]["content"] for event in content] == ["", "a"]
    assert b"[DONE]" not in reply.body


async def test_a_reply_that_is_not_vllms_is_an_error():
    async with scripted_server(silent_engine(0, ids=2)) as engine, recomputing(engine) as url:
        reply = await ask(url, chat_body())
    assert reply.status == 503
    assert "token ids" in orjson.loads(reply.body)["error"]["message"]


async def test_a_character_of_several_tokens_is_written_once_and_whole():
    # As vLLM does: a part alone has no text, and a prompt that ends within a character is taken for text.
    words = {10: b"a ", 11: "é".encode()[:1], 12: "é".encode()[1:], 13: b"", 14: b" b"}

    def answer(asked: Asked):
        if asked.path == "/tokenize":
            return 200, [orjson.dumps({"tokens": [1, 2], "max_model_len": 99})]
        if asked.path == "/detokenize":
            text = b"".join(words[token] for token in asked.body["tokens"]).decode(errors="replace")
            return 200, [orjson.dumps({"prompt": text or "<mark>"})]
        if asked.path != "/v1/completions":
            return 404, [b"no"]
        token = 8 + len(asked.body["prompt"])
        text = {11: "", 12: "the whole prompt again, and é"}.get(token, words[token].decode(errors="replace"))
        choice = {"text": text, "token_ids": [token], "finish_reason": "length"}
        return 200, [orjson.dumps({"choices": [choice], "usage": {}})]

    async with scripted_server(answer) as engine, recomputing(engine) as url:
        text, reason, counts = said(await ask(url, chat_body(max_tokens=5)))
    assert (text, reason, counts["completion_tokens"]) == ("a é b", "length", 5)


async def test_the_engines_own_rejection_is_handed_on():
    async with fake_engine() as engine, recomputing(engine.base_url) as url:
        for body in (chat_body(model="another"), chat_body(messages=[]), chat_body("word " * 10_000)):
            reply, own = await ask(url, body), await ask(engine.base_url, body)
            assert (reply.status, reply.body) == (own.status, own.body)
            assert reply.status >= 400


async def test_an_engine_that_fails_midway_ends_the_stream_with_an_error():
    async with fake_engine(cost=PRESETS["cpu-demo"]) as engine, recomputing(engine.base_url) as url:
        asking = asyncio.create_task(ask(url, chat_body(ignore_eos=True)))
        await eventually(lambda: engine.tokens_written >= 2)
        engine.inject("error")
        reply = await asking
    assert "HTTP 500" in events_of(reply)[-1]["error"]["message"]


# --- in static batches ------------------------------------------------------------------------------------


async def test_a_static_batch_answers_byte_for_byte_as_the_engine():
    async with fake_engine() as engine, static_batches(engine.base_url, 1, 0.0) as url:
        body = chat_body(ignore_eos=True)
        assert said(await ask(url, body)) == said(await ask(engine.base_url, body))
        plain = {**body, "stream": False}
        del plain["stream_options"]
        texts = [
            orjson.loads((await ask(at, plain)).body)["choices"][0]["message"]["content"]
            for at in (url, engine.base_url)
        ]
        assert texts[0] == texts[1]


async def test_nobody_joins_a_batch_under_way_however_early_others_end():
    # Two requests of 4 and 40 tokens and two more that wait: an engine of its own would batch them at once.
    async with (
        fake_engine(cost=PRESETS["cpu-demo"]) as engine,
        static_batches(engine.base_url, 2, 60.0) as url,
    ):
        most_running = 0
        ended: list[int] = []

        async def one(number: int, tokens: int) -> None:
            await ask(url, chat_body(f"number {number}", tokens, ignore_eos=True))
            ended.append(number)

        tasks = []
        for number, tokens in enumerate((2, 12, 2, 3)):
            tasks.append(asyncio.create_task(one(number, tokens)))
            await asyncio.sleep(0.01)
        while not all(task.done() for task in tasks):
            most_running = max(most_running, engine.engine.running + engine.engine.waiting)
            if 1 not in ended:
                assert not {2, 3} & set(ended)
            await asyncio.sleep(0.002)
    assert ended == [0, 1, 2, 3]
    assert most_running == 2


async def test_a_client_that_leaves_frees_the_engine_but_not_the_batch():
    async with (
        fake_engine(cost=PRESETS["cpu-demo"]) as engine,
        static_batches(engine.base_url, 2, 0.05) as url,
    ):
        leaving = asyncio.create_task(ask(url, chat_body("a", 60, ignore_eos=True)))
        staying = asyncio.create_task(ask(url, chat_body("b", 8, ignore_eos=True)))
        await eventually(lambda: engine.engine.running == 2)
        waiting = asyncio.create_task(ask(url, chat_body("c", 2, ignore_eos=True)))
        leaving.cancel()
        with suppress(asyncio.CancelledError):
            await leaving
        await eventually(lambda: engine.engine.running == 1)
        said(await staying)
        assert not waiting.done()
        said(await waiting)
    assert engine.requests_finished == 2


async def test_the_engines_errors_pass_through_and_end_a_batch():
    async with fake_engine() as engine, static_batches(engine.base_url, 1, 0.0) as url:
        rejected = await ask(url, chat_body(model="another"))
        engine.inject("error")
        failed = await ask(url, chat_body())
        engine.clear_faults()
        assert (rejected.status, failed.status) == (404, 500)
        said(await ask(url, chat_body()))
        engine.die()
        gone = await ask(url, chat_body())
    assert gone.status == 503
    assert "cannot be reached" in orjson.loads(gone.body)["error"]["message"]


async def test_a_stream_that_breaks_off_is_said_to():
    async with fake_engine() as engine, static_batches(engine.base_url, 1, 0.0) as url:
        engine.inject("cut", after_tokens=3)
        reply = await ask(url, chat_body(ignore_eos=True))
    assert "closed in mid-reply" in events_of(reply)[-1]["error"]["message"]


# --- both -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("handicapped", [recomputing, lambda url: static_batches(url, 2, 0.01)])
async def test_what_is_only_asked_passes_through_and_nothing_else(handicapped):
    async with fake_engine() as engine, handicapped(engine.base_url) as url, client_for(url) as client:
        models = orjson.loads((await client.fetch("GET", "/v1/models")).body)
        assert models["data"][0]["id"] == "fake-model"
        tokenized = await client.fetch(
            "POST", "/tokenize", body=orjson.dumps({"model": "fake-model", "prompt": "some text"})
        )
        assert orjson.loads(tokenized.body)["count"] == 3
        assert b"vllm:cache_config_info" in (await client.fetch("GET", "/metrics")).body
        assert (await client.fetch("GET", "/health")).status == 200
        assert (await client.fetch("GET", "/fake/fault")).status == 404


@pytest.mark.parametrize("handicapped", [recomputing, lambda url: static_batches(url, 2, 0.01)])
async def test_a_bench_run_measures_a_stand_in_like_any_engine(handicapped):
    shape = Shape("test.", Lengths.fixed(60), Lengths.fixed(6))
    async with fake_engine() as engine, handicapped(engine.base_url) as url:
        run = await measure(url, RunSpec(PlanSpec(shape, ClosedLoop(3), 7), seed=1))
    assert [timeline.outcome for timeline in run.timelines] == [Outcome.SUCCEEDED] * 7
    assert run.fixed_lengths
    assert {timeline.prompt_tokens for timeline in run.timelines} == {60}
    assert {timeline.output_tokens for timeline in run.timelines} == {6}


@pytest.mark.parametrize("handicapped", [recomputing, lambda url: static_batches(url, 2, 60.0)])
async def test_a_stand_in_that_is_left_ends_its_streams_and_leaves_no_task(handicapped, caplog):
    async with fake_engine(cost=PRESETS["cpu-demo"]) as engine:
        async with client_for(engine.base_url) as client:
            await client.fetch("GET", "/health")
        before = asyncio.all_tasks()
        async with handicapped(engine.base_url) as url:
            asking = [asyncio.create_task(ask(url, chat_body(str(n), 60, ignore_eos=True))) for n in range(3)]
            await eventually(lambda: engine.tokens_written >= 3)
        ended = await asyncio.gather(*asking, return_exceptions=True)
        assert all(isinstance(error, Exception) for error in ended)
        await eventually(lambda: engine.engine.running == 0)
        await eventually(lambda: asyncio.all_tasks() <= before)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.real
async def test_a_real_engine_with_a_prefix_cache_is_rejected(real_engine):
    with pytest.raises(ConfigError, match="has a prefix cache"):
        async with recomputing(real_engine.base_url):
            pass


async def eventually(holds, within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.002)
