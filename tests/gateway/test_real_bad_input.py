"""A real vLLM behind the gateway lives through requests that make no sense, and no client learns of a 500."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

import orjson
import pytest

from benchmarks.hostile.bodies import huge_number, openais_own, slow_pattern, too_deep, twice, wrong_value
from benchmarks.hostile.cases import MODEL
from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.core.request import Endpoint
from phasewise.gateway.http_errors import HTTP_ERRORS, JSON
from tests.gateway.harness import chat_body, running_gateway

pytestmark = pytest.mark.real

CASES = 60
PATIENT = Timeouts(connect_s=5.0, head_s=120.0, idle_s=60.0)
DOCUMENTED = {(kind.value, error.status) for kind, error in HTTP_ERRORS.items()}


def drawn(model):
    rng = Random(20)  # noqa: S311 - the same cases each time
    kinds = (wrong_value, wrong_value, wrong_value, huge_number, too_deep, twice, slow_pattern, openais_own)
    for _ in range(CASES):
        case = rng.choice(kinds)(rng, "a")
        if ends_soon(case):
            yield case, case.body.replace(f'"{MODEL}"'.encode(), f'"{model}"'.encode())


def ends_soon(case):
    """Not so an answer without a limit: it takes a small machine minutes."""
    try:
        fields = orjson.loads(case.body)
    except orjson.JSONDecodeError:
        return True
    return fields.get("max_tokens") is not None or not Endpoint(case.path).generates


async def test_no_request_makes_an_engine_die_or_a_client_see_an_error_that_is_not_documented(real_engine):
    reported = Counter()
    async with running_gateway([real_engine], timeouts=PATIENT, poll_interval_s=1.0) as gateway:
        for case, body in drawn(real_engine.model):
            reply = await gateway.fetch(case.method, case.path, body)
            reported[reply.status] += 1
            assert case.kind != "openais_own" or reply.status == 200
            if reply.status >= 500:
                code = orjson.loads(reply.body)["error"]["code"]
                assert (code, reply.status) in DOCUMENTED
        served = await gateway.chat(model=real_engine.model)
        assert served.status == 200
    engine = HttpClient(real_engine.base_url)
    try:
        assert (await engine.fetch("GET", "/health")).status == 200
    finally:
        engine.close()
    assert reported[200] > 5
    assert reported[400] > 5


SCHEMAS = [
    {"type": "array", "minItems": 10**9},
    {"type": "array", "maxItems": 10**9},
    {"type": "array", "minItems": 10_000, "items": {}},
    {"type": "string", "minLength": 10**9},
    {"type": "string", "pattern": "a{100000}"},
    {"type": "string", "pattern": "a{3000}"},
    {"type": "string", "pattern": "(("},
    {"$ref": "#"},
    {"allOf": [{"$ref": "#"}]},
    {"type": ["a", 1]},
    {"const": 10**30},
]


async def test_no_schema_makes_an_engine_die_or_stand_still(real_engine):
    async with running_gateway([real_engine], timeouts=PATIENT, poll_interval_s=1.0) as gateway:
        for schema in SCHEMAS:
            body = {**chat_body(model=real_engine.model), "structured_outputs": {"json": schema}}
            reply = await gateway.fetch("POST", "/v1/chat/completions", json.dumps(body).encode())
            if reply.status >= 500:
                assert orjson.loads(reply.body)["error"]["code"] == "all_attempts_failed"
        # Its worker may be left alone for a while: some schemas are errors of the engine's own.
        engine = HttpClient(real_engine.base_url, PATIENT)
        try:
            body = orjson.dumps(chat_body(model=real_engine.model))
            assert (await engine.fetch("POST", "/v1/chat/completions", headers=JSON, body=body)).status == 200
        finally:
            engine.close()


async def test_a_model_that_gives_no_embeddings_says_so_itself(real_engine):
    async with running_gateway([real_engine], timeouts=PATIENT, poll_interval_s=1.0) as gateway:
        body = {"model": real_engine.model, "input": "a lighthouse"}
        reply = await gateway.fetch("POST", "/v1/embeddings", body)
    assert reply.status in {400, 404}
