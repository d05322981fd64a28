"""The gateway in front of two real vLLM with KV transfers: one runs prefill, the other decode."""

from __future__ import annotations

import asyncio

import orjson
import pytest
from typer.testing import CliRunner

from phasewise.cli.app import app
from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.core.kv_transfer import SplitRule
from phasewise.core.latency import ttft_breakdown
from phasewise.core.timeline import AttemptKind, Part
from phasewise.core.timeline_record import from_record
from phasewise.fleet.config import KvTransferConfig
from tests.gateway.harness import ADMIN_KEY, eventually, request_id_of, running_gateway
from tests.gateway.kv_transfer.test_tickets import CHAT, COMPLETIONS, text_of

pytestmark = pytest.mark.real

PATIENT = Timeouts(connect_s=5.0, head_s=120.0, idle_s=60.0)


@pytest.fixture
async def gateway(real_pair):
    kv_transfer = KvTransferConfig(
        when=SplitRule.ALWAYS, timeout_s=real_pair.lease_s / 2, lease_s=real_pair.lease_s
    )
    async with running_gateway(
        real_pair.workers, timeouts=PATIENT, poll_interval_s=1.0, kv_transfer=kv_transfer
    ) as gateway:
        yield gateway


def body_of(path, model, stream, subject):
    text = f"Write about {subject}. " + " ".join(f"{subject} number {place}." for place in range(60))
    fields = {"model": model, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "stream": stream}
    if path == CHAT:
        return {**fields, "messages": [{"role": "user", "content": text}]}
    return {**fields, "prompt": text}


async def prompt_tokens(engine):
    """What the engine's prompt tokens came from: fetched, computed there."""
    seen = await asyncio.to_thread(engine.counters)
    sources = ("external_kv_transfer", "local_compute")
    return [seen.counter("prompt_tokens_by_source_total", source=it) or 0 for it in sources]


async def whole_text(engine, path, body):
    """The text of an engine that computes all of it, whatever it has cached."""
    client = HttpClient(engine.url, PATIENT)
    try:
        salted = orjson.dumps({**body, "cache_salt": "another"})
        headers = [(b"content-type", b"application/json")]
        return text_of(await client.fetch("POST", path, headers=headers, body=salted))
    finally:
        client.close()


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_the_same_text_comes_from_kv_that_another_engine_computed(gateway, real_pair, path, stream):
    subject = f"{'boats' if path == CHAT else 'birds'}{'' if stream else ' and bees'}"
    body = body_of(path, real_pair.model, stream, subject)
    fetched, computed = await prompt_tokens(real_pair.decode)
    reply = await gateway.fetch("POST", path, body)
    timeline = from_record(await gateway.timeline(request_id_of(reply)))
    fetched_then, computed_then = await prompt_tokens(real_pair.decode)

    assert reply.status == 200
    assert [it.kind for it in timeline.attempts] == [AttemptKind.PREFILL_SIDE, AttemptKind.DECODE_SIDE]
    assert fetched_then - fetched == timeline.prompt_tokens > 300
    assert computed_then == computed
    assert b"remote_" not in reply.body
    assert text_of(reply) == await whole_text(real_pair.prefill, path, body)
    if stream:
        found = ttft_breakdown(timeline)
        assert found.seconds(Part.PREFILL) > found.seconds(Part.KV_TRANSFER) > 0
        assert found.unexplained_s > -0.005
    usage = "kv_cache_usage_perc"
    await eventually(lambda: real_pair.prefill.counters().gauge(usage) == 0, timeout_s=20.0)


async def test_paces_learned_from_the_first_requests_decide_and_explain_shows_how(real_pair, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    kv_transfer = KvTransferConfig(
        when=SplitRule.AUTO, timeout_s=real_pair.lease_s / 2, lease_s=real_pair.lease_s
    )
    async with running_gateway(
        real_pair.workers, timeouts=PATIENT, poll_interval_s=1.0, kv_transfer=kv_transfer
    ) as gateway:
        for topic in ("boats", "clouds"):
            await gateway.fetch("POST", CHAT, body_of(CHAT, real_pair.model, True, topic))
        body = body_of(CHAT, real_pair.model, True, "kites")
        request_id = request_id_of(await gateway.fetch("POST", CHAT, body))
        timeline = from_record(await gateway.timeline(request_id))
        reported, record = [await explain(gateway, request_id, *it) for it in ((), ("--json",))]

    options = timeline.placement.options
    ways = [[it.name for it in (option.prefill, option.worker) if it] for option in options]
    prefill, decode = (it.name for it in real_pair.workers)
    assert sorted(ways) == sorted([[prefill], [decode], [prefill, decode]])
    assert options[0].terms.cost_s == min(it.terms.cost_s for it in options)
    assert [it.worker.name for it in timeline.attempts] == ways[0]
    for option in options:
        assert option.terms.prefill_s > 0
        assert option.terms.decode_s > 0
        assert (option.terms.kv_transfer_s > 0) == (option.prefill is not None)

    for expected in (
        f"auto: {timeline.placement.reason[:20]}",
        f"{prefill} > {decode}",
        "Expected and measured",
    ):
        assert expected in reported
    terms = {row["name"]: row for row in orjson.loads(record)["terms"]}
    for name in ("prefill", "first token", "decode"):
        assert terms[name]["expected_s"] > 0
        assert terms[name]["measured_s"] > 0
    assert "kites" not in reported


async def explain(gateway, request_id, *options):
    arguments = ["explain", request_id, "--gateway", gateway.url, "--admin-key", ADMIN_KEY, *options]
    reported = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    assert reported.exit_code == 0, reported.output
    return reported.stdout
