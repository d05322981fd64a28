"""A real vLLM behind the gateway lives through requests that make no sense, and no client learns of a 500."""

from __future__ import annotations

from collections import Counter
from random import Random

import orjson
import pytest

from benchmarks.hostile.bodies import huge_number, too_deep, twice, wrong_value
from benchmarks.hostile.cases import MODEL
from phasewise.adapters.http_client import HttpClient, Timeouts
from phasewise.gateway.http_errors import HTTP_ERRORS
from tests.gateway.harness import running_gateway

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

CASES = 200
PATIENT = Timeouts(connect_s=5.0, head_s=120.0, idle_s=60.0)
DOCUMENTED = {(kind.value, error.status) for kind, error in HTTP_ERRORS.items()}


def drawn(model):
    rng = Random(20)  # noqa: S311 - the same cases each time
    kinds = (wrong_value, wrong_value, wrong_value, huge_number, too_deep, twice)
    for _ in range(CASES):
        case = rng.choice(kinds)(rng, "a")
        yield case, case.body.replace(f'"{MODEL}"'.encode(), f'"{model}"'.encode())


async def test_no_request_makes_an_engine_die_or_a_client_see_an_error_that_is_not_documented(real_engine):
    told = Counter()
    async with running_gateway([real_engine], timeouts=PATIENT, poll_interval_s=1.0) as gateway:
        for case, body in drawn(real_engine.model):
            reply = await gateway.fetch(case.method, case.path, body)
            told[reply.status] += 1
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
    assert told[200] > 10
    assert told[400] > 10


async def test_a_model_that_gives_no_embeddings_says_so_itself(real_engine):
    async with running_gateway([real_engine], timeouts=PATIENT, poll_interval_s=1.0) as gateway:
        body = {"model": real_engine.model, "input": "a lighthouse"}
        reply = await gateway.fetch("POST", "/v1/embeddings", body)
    assert reply.status in {400, 404}
