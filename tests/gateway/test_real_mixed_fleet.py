"""A real vLLM and a real llama.cpp behind one gateway: both serve, one takes over, and each is explained."""

import os
import signal

import orjson
import pytest

from phasewise.clients.http_client import Timeouts
from phasewise.core.latency import ttft_breakdown
from phasewise.core.timeline import Part
from phasewise.core.timeline_record import from_record
from tests.gateway.harness import chat_body, events_of, eventually, request_id_of, running_gateway, worker_for
from tests.llama_engine import running_llama_cpp
from tests.real_engine import MODEL

pytestmark = pytest.mark.real
LLAMA = "llama"
JSON = [(b"content-type", b"application/json")]
PATIENT = Timeouts(connect_s=5.0, head_s=120.0, idle_s=120.0)
"""Plain replies begin when they are complete."""


@pytest.fixture
def own_llama(tmp_path):
    """A llama.cpp that a test may kill."""
    with running_llama_cpp(tmp_path / "llama.log") as engine:
        yield engine


def both(real_engine, llama):
    return (
        worker_for(real_engine, "vllm"),
        worker_for(llama, LLAMA).model_copy(update={"weights": "q4_1", "steps_url": None}),
    )


async def up(gateway, names):
    async def are_up():
        return {it.worker.name for it in gateway.app.gateway.cluster.snapshot() if it.health == "up"} >= names

    await eventually(are_up)


async def ask(gateway, number, **fields):
    body = chat_body(f"Question {number}: what is a river?", MODEL, max_tokens=24, ignore_eos=True, **fields)
    return await gateway.fetch("POST", "/v1/chat/completions", body)


async def served_by(gateway, reply):
    record = await gateway.timeline(request_id_of(reply))
    return from_record(record).serving_attempt.worker.name


async def test_both_kinds_serve_and_their_requests_are_explained(real_engine, own_llama):
    async with running_gateway(both(real_engine, own_llama), policy="round_robin") as gateway:
        await up(gateway, {"vllm", LLAMA})
        seen = {}
        for number in range(4):
            reply = await ask(gateway, number, stream=True, stream_options={"include_usage": True})
            assert reply.status == 200
            record = await gateway.timeline(request_id_of(reply))
            timeline = from_record(record)
            seen[timeline.serving_attempt.worker.name] = timeline
    assert set(seen) == {"vllm", LLAMA}
    for timeline in seen.values():
        assert timeline.output_tokens == 24
        assert ttft_breakdown(timeline).seconds(Part.PREFILL) > 0
        assert Part.DECODE in {span.part for span in timeline.serving_attempt.spans}


async def test_one_kind_takes_over_from_the_other(real_engine, own_llama):
    async with running_gateway(
        both(real_engine, own_llama), timeouts=PATIENT, policy="round_robin"
    ) as gateway:
        await up(gateway, {"vllm", LLAMA})
        os.killpg(own_llama.pid, signal.SIGKILL)
        replies = [await ask(gateway, number) for number in range(4)]
        assert [reply.status for reply in replies] == [200] * 4
        assert {await served_by(gateway, reply) for reply in replies} == {"vllm"}


async def test_an_answer_of_other_weights_is_not_continued(real_engine, own_llama):
    workers = both(real_engine, own_llama)
    async with running_gateway(workers, timeouts=PATIENT, policy="round_robin") as gateway:
        await up(gateway, {"vllm", LLAMA})
        cut = b""
        for number in range(6):
            body = chat_body(f"Story {number}", MODEL, max_tokens=400, ignore_eos=True, stream=True)
            sent = gateway.client.send("POST", "/v1/chat/completions", headers=JSON, body=orjson.dumps(body))
            async with await sent as reply:
                got = await reply.read()
                loads = gateway.app.gateway.ledger.loads.items()
                if any(load.requests for ref, load in loads if ref.name == LLAMA):
                    os.killpg(own_llama.pid, signal.SIGKILL)
                    cut = got + await reply.read_all(1 << 20)
                    break
        assert cut, "no request went to llama.cpp"
        (error,) = [it["error"] for it in events_of(cut) if isinstance(it, dict) and "error" in it]
        assert error["code"] == "stream_no_same_weights"
        assert "same weights" in error["message"]
