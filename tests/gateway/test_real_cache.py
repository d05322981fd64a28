"""The answer cache before a real vLLM, with a real embedding model and a real Redis with vector search."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from phasewise.cli.app import app
from phasewise.clients.embedding_folder import resolve_embedding_model
from phasewise.clients.http_client import Timeouts
from phasewise.fleet.config import CacheConfig
from phasewise.semantic_match.planted import PER_JUDGED
from tests.gateway.harness import (
    ADMIN,
    ADMIN_KEY,
    chat_body,
    events_of,
    eventually,
    request_id_of,
    running_gateway,
)
from tests.real_engine import ROOT

pytestmark = pytest.mark.real

PATIENT = Timeouts(connect_s=5.0, head_s=120.0, idle_s=60.0)
QUESTION = "What is the capital of France?"
REWORDED = "Can you tell me what the capital of France is?"
NEGATED = "What is not the capital of France?"
KEPT_WITHIN_S = 60.0
PATIENT_DEADLINE_S = 10.0
"""Tests run beside an engine on the same cores: here what is found matters, not when."""


@pytest.fixture(scope="module")
def embedding_model():
    home = Path(os.environ.get("PHASEWISE_HOME") or ROOT / ".phasewise")
    return resolve_embedding_model("minilm-l6", home)


def cache(mode, redis=None, embedding_model=None):
    embedder, judge = {"model": str(embedding_model)}, {"share": 1.0}
    semantic = {"embedder": embedder, "judge": judge, "audit_share": 1e-6} if embedding_model else None
    shared = {"url": redis.url, "key_prefix": f"real-{time.monotonic_ns()}"} if redis else None
    return CacheConfig(mode=mode, redis=shared, semantic=semantic, deadline_s=PATIENT_DEADLINE_S)


def gateway_with(config, real_engine):
    return running_gateway([real_engine], timeouts=PATIENT, poll_interval_s=1.0, cache=config)


async def ask(gateway, real_engine, question):
    """What was streamed, what the headers say of the cache, and the request's timeline."""
    # It ends with its first clause: what is cut off by its length is not kept.
    fields = {"max_tokens": 48, "stop": [".", ",", ":"], "temperature": 0, "stream": True}
    body = chat_body(question, model=real_engine.model, **fields)
    reply = await gateway.fetch("POST", "/v1/chat/completions", body)
    assert reply.status == 200
    *events, done = events_of(reply.body)
    assert done == "[DONE]"
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
    said = dict(reply.headers)[b"cache-status"].decode()
    return text, said, await gateway.timeline(request_id_of(reply))


async def until_kept(gateway, count):
    """Answers are kept a moment after they were given."""

    async def kept():
        report = await report_of(gateway)
        return report["entries"] is not None and report["entries"] >= count

    await eventually(kept, timeout_s=KEPT_WITHIN_S)


async def report_of(gateway):
    return orjson.loads((await gateway.fetch("GET", "/phasewise/v1/cache", headers=ADMIN)).body)


class Overheard:
    """What the judge asks the engine, and what that replies."""

    def __init__(self, gateway):
        judge = gateway.app.gateway.cache._judge
        self.asked = []
        self._post = judge._post
        judge._post = self.post

    async def post(self, worker, path, body):
        reply = await self._post(worker, path, body)
        self.asked.append((path, body, reply))
        return reply


async def until_judged(gateway, matches):
    """Once this many matches have been judged, and what was planted after them."""

    async def judged():
        semantic = (await report_of(gateway))["semantic"]
        planted = sum(sum(semantic["judge"][kind].values()) for kind in ("different", "equal"))
        is_done = sum(semantic["judged"].values()) == matches and planted == PER_JUDGED * matches
        return semantic if is_done else None

    return await eventually(judged, timeout_s=KEPT_WITHIN_S)


async def test_exact_hits_alone_are_served_while_the_fleets_own_small_model_is_not_trusted(
    real_engine, redis_search, embedding_model
):
    async with gateway_with(cache("serve", redis_search, embedding_model), real_engine) as gateway:
        overheard = Overheard(gateway)
        made, said, computed = await ask(gateway, real_engine, QUESTION)
        assert "fwd=miss" in said
        assert (computed["finish"], len(computed["attempts"])) == ("stop", 1), made
        assert made
        await until_kept(gateway, 1)

        again, said, timeline = await ask(gateway, real_engine, QUESTION)
        assert (again, said) == (made, "phasewise; hit; detail=exact")
        assert (timeline["cache"]["result"], timeline["attempts"]) == ("hit_exact", [])
        assert timeline["out"] == computed["out"]
        assert timeline["in"] == computed["in"]
        # What the hit spared is what the first asker waited for, in each phase.
        assert timeline["cache"]["start"] > 0
        for each in (computed, timeline):
            assert each["ttft"]["total_ms"] > 0
        assert overheard.asked == []

        _, said, timeline = await ask(gateway, real_engine, REWORDED)
        assert said == "phasewise; fwd=miss; detail=explored"
        assert (timeline["cache"]["why"], len(timeline["attempts"])) == ("new_change", 1)
        _, said, timeline = await ask(gateway, real_engine, NEGATED)
        assert said == "phasewise; fwd=miss; detail=guarded"
        assert (timeline["cache"]["why"], len(timeline["attempts"])) == ("negation", 1)

        semantic = await until_judged(gateway, 1)
        assert len(overheard.asked) == semantic["judge"]["calls"] == 1 + PER_JUDGED
        for path, body, reply in overheard.asked:
            assert (path, body["max_tokens"]) == ("/v1/chat/completions", 1)
            assert (reply["model"], reply["usage"]["completion_tokens"]) == (real_engine.model, 1)
        tokens = sum(reply["usage"]["prompt_tokens"] for _, _, reply in overheard.asked)
        assert semantic["judge"]["prompt_tokens"] == tokens > 0
        assert semantic["judge"]["busy_s"] > 0

        # Whatever it said of them, the next is explored too, and no alias is served.
        purged = await gateway.fetch("POST", "/phasewise/v1/cache/purge", {"all": True}, ADMIN)
        assert orjson.loads(purged.body)["purged"] >= 1
        await ask(gateway, real_engine, QUESTION)
        await until_kept(gateway, 1)
        _, said, _ = await ask(gateway, real_engine, REWORDED)
        assert said == "phasewise; fwd=miss; detail=explored"
        assert (await until_judged(gateway, 2))["judge"]["trusted"] is False
        stats = ["cache", "stats", gateway.url, "--admin-key", ADMIN_KEY]
        shown = (await asyncio.to_thread(CliRunner().invoke, app, stats)).stdout
        assert "Only exact hits" in " ".join(shown.split())


async def test_a_shadow_serves_nothing_and_counts_what_it_would_have(real_engine):
    async with gateway_with(cache("shadow"), real_engine) as gateway:
        made, _, computed = await ask(gateway, real_engine, QUESTION)
        await until_kept(gateway, 1)
        again, said, timeline = await ask(gateway, real_engine, QUESTION)
        assert "hit" not in said
        assert (timeline["cache"]["result"], len(timeline["attempts"])) == ("shadow_exact", 1)
        assert again == made
        report = await report_of(gateway)
        assert report["results"] == {"miss": 1, "shadow_exact": 1}
        assert report["saved"]["start_s"] > 0
        assert report["saved"]["tokens"] == computed["out"]
