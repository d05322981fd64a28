"""The answer cache before a real vLLM, with a real embedding model and a real Redis with vector search."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import orjson
import pytest

from phasewise.clients.embedders import OnnxEmbedder
from phasewise.clients.embedding_folder import resolve_embedding_model
from phasewise.clients.http_client import Timeouts
from phasewise.clients.redis_answers import RedisAnswers
from phasewise.core.caching import Neighbour
from phasewise.fleet.config import CacheConfig
from phasewise.gateway.answer_cache.semantic import evidence_basis
from phasewise.semantic_match.evidence import Bound, EvidenceBook
from phasewise.semantic_match.matching import MatchRules, MatchVerdict, consider
from tests.gateway.cache_parts import make_answer
from tests.gateway.harness import ADMIN, chat_body, events_of, eventually, request_id_of, running_gateway
from tests.real_engine import ROOT

pytestmark = pytest.mark.real

PATIENT = Timeouts(connect_s=5.0, head_s=120.0, idle_s=60.0)
QUESTION = "What is the capital of France?"
REWORDED = "Can you tell me what the capital of France is?"
NEGATED = "What is not the capital of France?"
KEPT_WITHIN_S = 60.0
PATIENT_DEADLINE_S = 10.0
"""Tests run beside an engine on the same cores: here what is found matters, not when."""
MOST_LESSONS = 2_000


@pytest.fixture(scope="module")
def embedding_model():
    home = Path(os.environ.get("PHASEWISE_HOME") or ROOT / ".phasewise")
    return resolve_embedding_model("minilm-l6", home)


def cache(mode, redis=None, embedding_model=None):
    semantic = {"embedder": {"model": str(embedding_model)}, "audit_share": 1e-6} if embedding_model else None
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


async def teach(redis, config, embedding_model, model):
    """Leave in Redis what a former life of the cache would have: that such rewordings were verified right."""
    embedder = OnnxEmbedder(embedding_model)
    await embedder.start()
    store = RedisAnswers(redis.url, config.redis.key_prefix)
    await store.start(embedder.space, embedder.dimensions)
    first, second = [np.frombuffer(await embedder.embed(text), "<f4") for text in (QUESTION, REWORDED)]
    neighbour = Neighbour(make_answer(question=QUESTION), float(first @ second))
    semantic = config.semantic
    book = EvidenceBook(Bound(semantic.max_wrong_answers, semantic.confidence))
    rules, domain = MatchRules(semantic.min_similarity, semantic.audit_share), f"default/default/{model}"
    for _ in range(MOST_LESSONS):
        match = consider(REWORDED, [neighbour], book, rules, domain, draw=0.5)
        if match.verdict is MatchVerdict.SERVE:
            break
        lesson = match.lesson(domain, right=True, at_unix_s=time.time(), basis=evidence_basis(semantic))
        book.learn(lesson)
        await store.teach(lesson)
    assert match.verdict is MatchVerdict.SERVE
    await store.close()
    await embedder.close()


async def test_repeated_and_reworded_questions_stream_from_the_cache_and_a_negated_one_does_not(
    real_engine, redis_search, embedding_model
):
    config = cache("serve", redis_search, embedding_model)
    await teach(redis_search, config, embedding_model, real_engine.model)
    async with gateway_with(config, real_engine) as gateway:
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

        reworded, said, timeline = await ask(gateway, real_engine, REWORDED)
        assert (reworded, said) == (made, "phasewise; hit; detail=semantic")
        assert (timeline["cache"]["result"], timeline["attempts"]) == ("hit_semantic", [])

        _, said, timeline = await ask(gateway, real_engine, NEGATED)
        assert said == "phasewise; fwd=miss; detail=guarded"
        assert (timeline["cache"]["why"], len(timeline["attempts"])) == ("negation", 1)


async def test_a_shadow_serves_nothing_and_counts_what_it_would_have(real_engine):
    async with gateway_with(cache("shadow"), real_engine) as gateway:
        made, _, computed = await ask(gateway, real_engine, QUESTION)
        await until_kept(gateway, 1)
        again, said, timeline = await ask(gateway, real_engine, QUESTION)
        assert "hit" not in said
        assert (timeline["cache"]["result"], len(timeline["attempts"])) == ("shadow_exact", 1)

        async def judged():
            report = await report_of(gateway)
            return report if report["judged"]["exact"]["right"] else None

        report = await eventually(judged, timeout_s=KEPT_WITHIN_S)
        assert again == made
        assert report["results"] == {"miss": 1, "shadow_exact": 1}
        assert report["saved"]["start_s"] > 0
        assert report["saved"]["tokens"] == computed["out"]
