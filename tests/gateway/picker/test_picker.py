"""The picker places requests as the gateway does, answers what it rejects, and releases what it booked."""

from __future__ import annotations

import asyncio
import socket

import grpc
import orjson
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from phasewise.fleet.config import ApiKey, QueueConfig, TlsConfig
from phasewise.gateway.api.auth import key_sha256
from phasewise.gateway.picker import picker
from phasewise.gateway.picker.server import PickerServer
from phasewise.gateway.picker.stream import MessageStream
from phasewise.scheduling.world import Health
from tests.gateway.harness import eventually
from tests.gateway.picker_messages import ENDED, Picking, body, chat, head, response, trailers
from tests.paths import ROOT

CERTIFICATE = ROOT / "tests" / "clients" / "localhost-for-tests-only.pem"


def status_of(answer):
    return answer.immediate_response.status.code


async def rejected(exchanged):
    """The status and the code of a request's only answer."""
    (answer,) = await exchanged.end()
    return status_of(answer), orjson.loads(answer.immediate_response.body)["error"]["code"]


async def test_load_is_booked_until_envoy_closes_the_stream():
    picking = Picking()
    asked = picking.ask()
    await asked.first(2)
    assert (asked.address, picking.load) == ("127.0.0.1:8000", 1)
    asked.send(response())
    await asked.first(3)
    assert picking.load == 1
    await asked.end()
    assert picking.load == 0


async def test_requests_spread_by_booked_load():
    picking = Picking()
    one, other = picking.ask(), picking.ask()
    await asyncio.gather(one.first(2), other.first(2))
    assert {one.address, other.address} == {"127.0.0.1:8000", "127.0.0.1:8001"}
    await asyncio.gather(one.end(), other.end())


async def test_a_prompt_goes_where_it_was_computed():
    picking, addresses = Picking(3), []
    for _ in range(4):
        asked = picking.ask(chat("river " * 400))
        await asked.first(2)
        asked.send(response())
        await asked.end()
        addresses.append(asked.address)
    assert len(set(addresses)) == 1
    assert picking.world.prefixes.known_blocks(picking.world.cluster.state("w0").worker.ref)


async def test_where_envoy_sends_no_responses_load_is_released_after_an_assumed_time(monkeypatch):
    monkeypatch.setattr(picker, "ASSUMED_S_PER_TOKEN", 1e-4)
    picking = Picking()
    picking.picker._sees_responses = False
    asked = picking.ask(chat("river " * 400, max_tokens=400))
    await asked.first(2)
    await asked.end()
    assert picking.load == 1
    await eventually(lambda: picking.load == 0)
    assert picking.world.prefixes.known_blocks(picking.world.cluster.state("w0").worker.ref)


@pytest.mark.parametrize("ending", ["cancelled", "closed"])
async def test_a_client_that_leaves_releases_the_load(ending):
    picking = Picking()
    asked = picking.ask()
    await asked.first(2)
    if ending == "closed":
        await asked.end()
    else:
        asked.task.cancel()
        await asyncio.gather(asked.task, return_exceptions=True)
    await eventually(lambda: picking.load == 0)


async def test_an_engine_that_accepts_no_connection_is_down_at_once():
    picking = Picking()
    asked = picking.ask()
    await asked.first(2)
    asked.send(response(503, "upstream_reset_before_response_started{remote_connection_failure}"))
    await asked.end()
    assert picking.load == 0
    assert picking.world.cluster.state("w0").health is Health.DOWN


async def test_an_engines_own_error_says_nothing_about_it():
    picking = Picking()
    for _ in range(20):
        asked = picking.ask()
        await asked.first(2)
        asked.send(response(500))
        await asked.end()
    assert picking.load == 0
    assert not picking.world.breakers.any_open


async def test_a_body_in_parts_with_trailers_is_read_whole():
    picking = Picking()
    content = chat("hello " * 100)
    asked = picking.exchange(
        head(), body(content[:10], ends=False), body(content[10:], ends=False), trailers()
    )
    _, piece, last = await asked.first(3)
    assert piece.request_body.response.body_mutation.streamed_response.body == content
    assert last.HasField("request_trailers")
    await asked.end()


async def test_only_engines_of_the_subset_are_chosen():
    picking = Picking(3)
    for _ in range(3):
        asked = picking.ask(subset=["127.0.0.1:8002"])
        await asked.first(2)
        assert asked.address == "127.0.0.1:8002"
        await asked.end()


@pytest.mark.parametrize("subset", [[], ["10.0.0.9:1"], ""])
async def test_without_an_engine_in_the_subset_the_answer_is_503(subset):
    assert await rejected(Picking().ask(subset=subset)) == (503, "no_healthy_worker")


async def test_a_full_subset_is_shed_and_a_subset_of_all_waits():
    picking = Picking(2, slots=1)
    busy = [picking.ask(), picking.ask()]
    await asyncio.gather(*(it.first(2) for it in busy))
    assert await rejected(picking.ask(subset=["127.0.0.1:8000"])) == (429, "queue_full")
    waits = picking.ask(subset=["127.0.0.1:8000", "127.0.0.1:8001"])
    await eventually(lambda: len(picking.world.queue) == 1)
    assert not waits.got
    await busy[0].end()
    await waits.first(2)
    await asyncio.gather(waits.end(), busy[1].end())
    assert picking.load == 0


async def test_a_full_queue_is_shed_with_429():
    picking = Picking(1, slots=1, queue=QueueConfig(max_waiting=0))
    busy = picking.ask()
    await busy.first(2)
    assert await rejected(picking.ask()) == (429, "queue_full")
    await busy.end()


async def test_a_client_that_leaves_the_queue_gets_no_slot():
    picking = Picking(1, slots=1)
    busy = picking.ask()
    await busy.first(2)
    leaves = picking.ask()
    await eventually(lambda: len(picking.world.queue) == 1)
    assert await leaves.end() == []
    assert len(picking.world.queue) == 0
    await busy.end()


async def test_no_request_waits_longer_than_its_objective_for_the_first_token():
    picking = Picking(1, slots=1)
    busy = picking.ask()
    await busy.first(2)
    for name in ("x_llm_d_slo_ttft_ms", "x_slo_ttft_ms"):
        (answer,) = await picking.ask(**{name: "20"}).first()
        assert status_of(answer) == 429
    await busy.end()


async def test_fairness_ids_are_tenants_where_there_are_no_keys():
    picking = Picking(1, slots=1)
    busy = picking.ask()
    await busy.first(2)
    waiting = [picking.ask(x_gateway_inference_fairness_id=name) for name in ("a", "b")]
    await eventually(lambda: len(picking.world.queue.waiting_by_tenant) == 2)
    for asked in (*waiting, busy):
        await asked.end()


async def test_without_a_healthy_engine_the_answer_is_503():
    picking = Picking(1)
    picking.world.cluster.mark_down("w0", "gone")
    assert await rejected(picking.ask()) == (503, "no_healthy_worker")
    metrics = picking.parts.gateway.metrics.text(afresh=True)
    assert b'outcome="rejected",reason="no_healthy_worker"} 1' in metrics, "it is counted, and logged soon"


@pytest.mark.parametrize(
    ("about", "content", "expected"),
    [
        ({}, b"{", (400, "bad_request")),
        ({}, chat(kv_transfer_params={"a": 1}), (400, "bad_request")),
        ({}, chat(model="other"), (404, "no_worker_for_model")),
        ({"path": "/v1/load_lora_adapter"}, b"{}", (404, "not_found")),
        ({"method": "GET"}, b"", (404, "not_found")),
        ({"mode": 2}, b"{}", (409, "bad_config")),
    ],
)
async def test_what_the_gateway_rejects_is_rejected_here_too(about, content, expected):
    assert await rejected(Picking().ask(content, **about)) == expected


async def test_a_body_beyond_the_limit_is_rejected_before_it_is_kept():
    picking = Picking(limits={"body": "1MiB", "bodies": "2MiB"})
    asked = picking.exchange(head(), *(body(bytes(600_000), ends=False) for _ in range(2)))
    (answer,) = await asked.first()
    assert status_of(answer) == 413
    await asked.end()
    assert picking.parts.reservations.reserved_bytes == 0


async def test_a_body_that_does_not_come_in_time_is_rejected():
    picking = Picking(limits={"body_s": 0.05})
    (answer,) = await picking.exchange(head(), body(b"{", ends=False)).first()
    assert status_of(answer) == 408
    assert picking.parts.reservations.reserved_bytes == 0


async def test_keys_are_the_gateways_and_engines_do_not_get_them():
    key = ApiKey(sha256=key_sha256("mine"), tenant="t", requests_per_minute=1)
    picking = Picking(api_keys=(key,))
    assert await rejected(picking.ask()) == (401, "unauthenticated")
    asked = picking.ask(authorization="Bearer mine")
    answer, piece = await asked.first(2)
    assert "authorization" in answer.request_headers.response.header_mutation.remove_headers
    assert b'"cache_salt"' in piece.request_body.response.body_mutation.streamed_response.body
    await asked.end()
    assert await rejected(picking.ask(authorization="Bearer mine")) == (429, "requests_over_limit")


async def test_an_engine_gets_the_key_that_it_asks_for(tmp_path):
    file = tmp_path / "key"
    file.write_text("engines-own")
    file.chmod(0o600)
    picking = Picking(1, api_key_file=str(file))
    asked = picking.ask(authorization="Bearer clients")
    (answer,) = await asked.first()
    lines = answer.request_headers.response.header_mutation.set_headers
    assert (b"Bearer engines-own") in [it.header.raw_value for it in lines]
    await asked.end()


async def test_an_engine_with_a_host_name_is_not_named_to_envoy():
    picking = Picking(urls=["http://engine:8000"])
    assert await rejected(picking.ask()) == (503, "no_healthy_worker")
    assert picking.load == 0


async def test_a_stop_ends_streams_in_order_and_answers_whoever_waits():
    picking = Picking(1, slots=1)
    busy = picking.ask()
    await busy.first(2)
    waits = picking.ask()
    await eventually(lambda: len(picking.world.queue) == 1)
    picking.picker.stop()
    await asyncio.gather(busy.task, waits.task)
    assert len(busy.got) == 2
    assert status_of(waits.got[0]) == 503
    assert picking.load == 0


async def test_a_stop_between_two_messages_is_noticed():
    async def messages():
        yield head()
        await asyncio.Event().wait()

    stream = MessageStream(messages())
    assert await stream.next() is not None
    stream.end()
    assert await stream.next() is None


async def test_a_gateway_with_a_certificate_uses_it_for_its_picker():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"localhost:{taken.getsockname()[1]}"
    server = PickerServer(
        Picking().picker, address, TlsConfig(certificate=str(CERTIFICATE), key=str(CERTIFICATE))
    )
    server.bind()
    await server.start()
    trusted = grpc.ssl_channel_credentials(CERTIFICATE.read_bytes())
    async with grpc.aio.secure_channel(address, trusted) as channel:
        answer = await HealthStub(channel).Check(HealthCheckRequest(service="readiness"), timeout=20)
    await server.stop()
    assert answer.status == HealthCheckResponse.SERVING


async def test_a_stream_without_a_request_is_nothing():
    assert await Picking().exchange(ENDED).end() == []
