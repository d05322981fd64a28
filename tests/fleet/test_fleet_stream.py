"""The real gateway before a fake engine: a stream that runs when the fleet is stopped comes to its end."""

import asyncio
import json
import sys
import time

from phasewise.fleet.local import process as proc_fs
from phasewise.fleet.local.plan import ProcessPlan
from phasewise.fleet.local.state import ProcessStage
from phasewise.fleet.local.supervisor import FleetSupervisor, _write_gateway_file
from tests.fleet.builders import make_plan

TOKENS = 30


def make_serving_plan(home):
    plan = make_plan(home)
    fake = (
        "-m",
        "phasewise.cli",
        "engine",
        "fake",
        "--no-steps",
        "--model",
        "stand-in",
        "--preset",
        "cpu-demo",
    )
    engine = with_command(plan.engines[0], *fake, "--port", str(plan.engines[0].port))
    gateway = with_command(plan.gateway, "-m", "phasewise.cli", "gateway", str(plan.paths.gateway_file))
    return plan.model_copy(update={"engines": (engine,), "gateway": gateway})


def with_command(member, *arguments):
    process = ProcessPlan(argv=(sys.executable, *arguments), log=member.process.log)
    return member.model_copy(update={"process": process})


async def open_stream(port):
    """A stream through the gateway, once its first event has begun; what came of it so far."""
    body = json.dumps(
        {"model": "stand-in", "stream": True, "max_tokens": TOKENS, "ignore_eos": True, "prompt": "a b c"}
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + body)
    return reader, writer, await reader.readuntil(b"data: ")


async def test_a_stream_that_runs_while_the_fleet_is_stopped_comes_to_its_end(tmp_path):
    plan = make_serving_plan(tmp_path)
    _write_gateway_file(plan)
    supervisor = FleetSupervisor(plan, lambda state: None)
    task = asyncio.create_task(supervisor.run())
    try:
        while not supervisor.state.all_ready:
            assert not task.done()
            await asyncio.sleep(0.05)
        reader, writer, begin = await open_stream(plan.gateway.port)
        supervisor.stop()
        text = begin + await asyncio.wait_for(reader.read(), 60)
        writer.close()
        ended_s = time.monotonic()
        await task
        took_s = time.monotonic() - ended_s
    finally:
        supervisor.stop()
        supervisor.stop()
        await asyncio.gather(task, return_exceptions=True)
    assert b"data: [DONE]" in text
    assert text.count(b'"text"') >= TOKENS
    # With the last stream gone, nothing is waited for.
    assert took_s < 5.0
    assert {member.stage for member in supervisor.state.members} == {ProcessStage.STOPPED}
    assert not any(proc_fs.is_alive(member.process) for member in supervisor.state.members)
