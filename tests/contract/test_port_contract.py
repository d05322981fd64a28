"""What every kind of engine shows through its adapter, on the fake one, a real vLLM and a real llama.cpp."""

import asyncio

import pytest

from phasewise.clients.engine_metrics import fetch_metrics, fetch_page, identify_engine
from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.clients.sse import events_in, parse_chunk
from phasewise.clients.step_feed import ListingFeed
from phasewise.core.engine_metrics import EngineSeries, delta
from phasewise.core.timeline import Part
from phasewise.engines import llama_cpp, vllm
from phasewise.engines.known import read_account
from tests.contract.engine_calls import chat_body, post_json
from tests.gateway.harness import eventually

KINDS = {"fake": vllm, "real": vllm, "llama_cpp": llama_cpp}
OUTPUT_TOKENS = 24


@pytest.fixture(params=["fake", *(pytest.param(it, marks=pytest.mark.real) for it in ("real", "llama_cpp"))])
def kind(request):
    return request.param


@pytest.fixture
def engine(request, kind):
    return request.getfixturevalue(f"{kind}_engine")


@pytest.fixture
async def client(engine):
    client = HttpClient(engine.base_url, Timeouts(connect_s=5, head_s=120, idle_s=120))
    yield client
    client.close()


def long_answer(engine, text="Tell me a long story."):
    return chat_body(engine.model, text, max_tokens=OUTPUT_TOKENS, ignore_eos=True)


async def test_it_is_recognised(client, kind):
    assert await identify_engine(client) is KINDS[kind]


async def test_it_reports_its_load_and_its_cache(client, engine):
    async def idle():
        page = await fetch_page(client)
        # An engine shared with other tests may still be leaving a request whose client has gone.
        return page if (page.load.running, page.load.waiting) == (0, 0) else None

    page = await eventually(idle)
    assert page.load.output_tokens is not None
    assert page.kv.computed_tokens is not None


async def test_its_counters_grow_by_what_was_asked(client, engine):
    before = await fetch_metrics(client)
    reply = await post_json(client, "/v1/chat/completions", long_answer(engine))

    async def counted():
        grown = delta(before, await fetch_metrics(client))
        return grown if grown.counter(EngineSeries.OUTPUT_TOKENS) else None

    grown = await eventually(counted)
    assert grown.counter(EngineSeries.OUTPUT_TOKENS) == pytest.approx(
        reply["usage"]["completion_tokens"], abs=1
    )
    assert grown.counter(EngineSeries.PREFIX_QUERIES) >= grown.counter(EngineSeries.PREFIX_HITS) >= 0


async def test_a_step_moves_its_signs(client, engine):
    async def signs():
        return {name: rank.signs for name, rank in (await fetch_page(client)).ranks.items()}

    before = await signs()
    assert before
    await post_json(client, "/v1/chat/completions", long_answer(engine))

    async def moved():
        return await signs() != before

    assert await eventually(moved)


async def test_a_plain_reply_has_the_times_of_its_phases(client, engine):
    reply = await post_json(client, "/v1/chat/completions", long_answer(engine))
    account = read_account(reply)
    assert account.prefill_s > 0
    assert account.decode_s > 0
    assert account.output_tokens == OUTPUT_TOKENS


async def test_a_stream_has_them_too(client, engine):
    body = chat_body(
        engine.model,
        "Tell me more.",
        max_tokens=OUTPUT_TOKENS,
        ignore_eos=True,
        stream=True,
        stream_options={"include_usage": True},
    )
    reply = await client.fetch(
        "POST", "/v1/chat/completions", headers=[(b"content-type", b"application/json")], body=body
    )
    chunks = [parse_chunk(event) for event in events_in(reply.body)]
    account = next(chunk.account for chunk in chunks if chunk.account is not None)
    assert {span.part for span in account.spans} >= {Part.PREFILL, Part.DECODE}
    assert sum(chunk.has_content for chunk in chunks) >= OUTPUT_TOKENS // 2


async def test_an_engine_that_lists_its_requests_shows_their_steps(client, engine, kind):
    adapter = KINDS[kind]
    if adapter.LISTING_PATH is None:
        assert adapter.parse_listing((await client.fetch("GET", "/health")).body) is None
        return
    feed = ListingFeed(client, adapter)
    assert await feed.poll(0) == ()
    asked = asyncio.create_task(post_json(client, "/v1/chat/completions", long_answer(engine, "Sing.")))
    steps = []
    while not steps or not steps[-1].finished:
        steps += await feed.poll(0)
        await asyncio.sleep(0.02)
    reply = await asked
    (ended,) = steps[-1].finished
    usage = reply["usage"]
    assert ended.prompt_tokens == usage["prompt_tokens"]
    assert ended.output_tokens == pytest.approx(usage["completion_tokens"], abs=8)
    assert ended.e2e_s == pytest.approx(ended.prefill_s + ended.decode_s, abs=0.2)


def test_every_flag_that_is_advised_is_one_it_takes(kind):
    adapter = KINDS[kind]
    for name, value in {"max_num_seqs": 4, "max_num_batched_tokens": 256, "prefix_cache": True}.items():
        words = adapter.flags(name, value)
        assert words
        assert all(isinstance(word, str) for word in words)
