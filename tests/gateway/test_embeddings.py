"""Embeddings take the same way as answers, and are never taken for one."""

from __future__ import annotations

import orjson
import pytest
from openai import AsyncOpenAI

from phasewise.core.errors import RequestRejected
from phasewise.core.request import Endpoint
from phasewise.diagnosis.observed.not_observed import _of_kinds
from phasewise.fake_engine.fleet import running_engines
from phasewise.gateway.api.fields import parse_body
from tests.builders import make_timeline
from tests.gateway.harness import ADMIN, listening, request_id_of, running_gateway

BODY = {"model": "fake-model", "input": ["a lighthouse", "a ship"]}


async def embed(gateway, **fields):
    return await gateway.fetch("POST", "/v1/embeddings", {**BODY, **fields})


async def test_openais_client_gets_a_vector_for_each_text():
    async with (
        running_engines(1) as engines,
        running_gateway(engines) as gateway,
        AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0) as client,
    ):
        reply = await client.embeddings.create(**BODY)
    first, second = (item.embedding for item in reply.data)
    assert len(first) == len(second) > 0
    assert first != second


async def test_its_timeline_says_that_nothing_was_generated():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        reply = await embed(gateway)
        timeline = await gateway.timeline(request_id_of(reply))
        assert timeline["generates"] is False
        assert timeline["streamed"] is False
        assert (timeline["outcome"], timeline["out"], timeline["content"]) == ("succeeded", 0, [])
        assert timeline["in"] > 0
        metrics = (await gateway.fetch("GET", "/metrics")).body.decode()
    assert 'phasewise_requests_total{model="fake-model",outcome="succeeded",reason="none"} 1' in metrics
    phases = [line for line in metrics.splitlines() if "_seconds_count" in line or "objectives" in line]
    assert all(line.endswith((" 0", " 0.0")) for line in phases if not line.startswith("#"))


async def test_an_engines_own_rejection_is_passed_on():
    async def reject(head, body, writer):
        reported = b'{"error":{"message":"This model does not support embeddings"}}'
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: %d\r\n\r\n" % len(reported) + reported)

    async with listening(reject) as stub, running_gateway([stub]) as gateway:
        reply = await embed(gateway)
        assert reply.status == 400
        assert orjson.loads(reply.body)["error"]["message"] == "This model does not support embeddings"
        requests = await gateway.fetch("GET", "/phasewise/v1/requests", headers=ADMIN)
        assert orjson.loads(requests.body.splitlines()[0])["why"] == "engine_4xx"


@pytest.mark.parametrize("field", ["stream", "messages", "max_tokens"])
def test_fields_of_other_endpoints_are_left_out_and_controls_rejected(field):
    parsed = parse_body(Endpoint.EMBEDDINGS, orjson.dumps({**BODY, field: 1}))
    assert (parsed.ignored, orjson.loads(parsed.upstream_body)) == ((field,), BODY)
    with pytest.raises(RequestRejected):
        parse_body(Endpoint.EMBEDDINGS, orjson.dumps({**BODY, "priority": 1}))


def test_it_is_expected_to_write_nothing():
    assert parse_body(Endpoint.EMBEDDINGS, orjson.dumps(BODY)).max_output_tokens == 0


def test_a_verdict_says_that_embeddings_were_left_out():
    said = list(_of_kinds([make_timeline(), make_timeline(streamed=False, generates=False)]))
    assert said == ["1 requests for embeddings or counts of tokens: only generation is diagnosed"]
