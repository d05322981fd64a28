"""`phasewise top` shows a gateway or a lone engine, once or until it is left, and obeys keys."""

import asyncio
import os
import pty
import re
import select
import subprocess
import sys
import time
from dataclasses import replace

import orjson
import pytest
from typer.testing import CliRunner

from phasewise.cli.app import app
from phasewise.cli.top import after_key
from phasewise.diagnosis.live.snapshot import LiveState, snapshot_from
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.report.live_screen import LiveChoices
from tests.fake_engine_thread import running_fake_engine
from tests.gateway.harness import ADMIN_KEY, chat_body, eventually, running_gateway
from tests.paths import ROOT

CHOICES = LiveChoices("a gateway")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("PHASEWISE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")


async def topped(url, *options):
    arguments = ["top", url, "--admin-key", ADMIN_KEY, "--once", *options]
    return await asyncio.to_thread(CliRunner().invoke, app, arguments)


async def asked(gateway, count):
    for _ in range(count):
        await gateway.chat(max_tokens=8, ignore_eos=True, stream=True)
    await eventually(lambda: len(gateway.app.gateway.timelines) >= count)


async def test_once_shows_a_gateway_in_80_columns_and_json_the_same_snapshot():
    async with running_engines(2) as engines, running_gateway(engines) as gateway:
        await asked(gateway, 6)
        screen = await topped(gateway.url)
        as_json = await topped(gateway.url, "--json", "--slo", "ttft=0.001ms")
    assert screen.exit_code == 0, screen.output
    assert f"{gateway.url} (gateway, 2 engines)" in screen.stdout
    assert "HEALTHY" in screen.stdout
    assert max(map(len, screen.stdout.splitlines())) <= 80
    found = snapshot_from(orjson.loads(as_json.stdout))
    assert (found.source, found.state, found.start.requests) == ("gateway", LiveState.SLOW_TO_START, 6)
    assert found.engines[0].running == 0


async def test_a_wrong_key_and_a_wrong_objective_are_said_so():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        wrong = await asyncio.to_thread(
            CliRunner().invoke, app, ["top", gateway.url, "--admin-key", "x", "--once"]
        )
        bad = await topped(gateway.url, "--slo", "ttft=fast")
    assert "requires its admin key" in str(wrong.exception)
    assert "not a duration" in str(bad.exception)


def keep_busy(url, **fields):
    """Chats until it is stopped, from a process of its own."""
    body = orjson.dumps(chat_body(stream=True, **fields))
    script = (
        "import sys, urllib.request\n"
        "while True:\n"
        f"    asked = urllib.request.Request('{url}/v1/chat/completions', {body!r}, "
        "{'content-type': 'application/json'})\n"
        "    urllib.request.urlopen(asked).read()\n"
    )
    return subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("recorded", [True, False], ids=["by its steps", "by its counters"])
async def test_a_lone_engine_is_shown_by_what_it_shows(recorded):
    with running_fake_engine(FakeEngineConfig()) as engine:
        load = keep_busy(engine.base_url)
        try:
            steps = engine.steps_url if recorded else "http://127.0.0.1:9"
            shown = await topped(engine.base_url, "--json", "--steps-url", steps)
        finally:
            load.kill()
            load.wait()
    found = snapshot_from(orjson.loads(shown.stdout))
    assert found.source == "engine"
    assert found.start.requests > 0
    assert found.stream.p50_s > 0
    assert found.engines[0].kv_usage is not None
    assert ("single requests" in found.not_observed[0]) is not recorded
    assert bool(found.requests) is recorded


@pytest.mark.real
async def test_a_lone_llama_cpp_is_shown_by_its_slots(llama_cpp_engine):
    load = keep_busy(llama_cpp_engine.base_url, max_tokens=400, ignore_eos=True)
    try:
        shown = await topped(llama_cpp_engine.base_url, "--json")
    finally:
        load.kill()
        load.wait()
    found = snapshot_from(orjson.loads(shown.stdout))
    assert found.engines[0].running >= 1
    assert found.engines[0].step_s > 0


def test_keys_sort_filter_freeze_and_choose():
    assert after_key(CHOICES, "s", 5).sort == "tpot"
    assert after_key(CHOICES, "f", 5).frozen
    typing = after_key(CHOICES, "/", 5)
    for key in "qa\x7f":
        typing = after_key(typing, key, 5)
    assert (typing.typing, typing.only) == (True, "q")
    assert after_key(typing, "\n", 5) == replace(typing, typing=False)
    assert after_key(typing, "\x1b", 5).only == ""
    down = after_key(after_key(CHOICES, "\x1b[B", 2), "j", 2)
    assert down.selected == 1
    assert after_key(down, "\x1b[A", 2).selected == 0
    assert after_key(CHOICES, "j", 0).selected == 0


async def test_a_terminal_shows_it_until_q_and_opens_the_chosen_request():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        await asked(gateway, 4)
        text = await asyncio.to_thread(in_a_terminal, gateway.url)
    assert "HEALTHY" in text
    assert "until the first token" in text


def in_a_terminal(url):
    """Everything that the command draws while keys are pressed: enter, any key, q."""
    command = [sys.executable, "-m", "phasewise.cli", "top", url, "--admin-key", ADMIN_KEY]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    drawn, keys = b"", [(b"TPOT", b"\n"), (b"in all", b"x"), (b"req/s", b"q")]
    deadline_s = time.monotonic() + 60
    seen_until = 0
    while process.poll() is None and time.monotonic() < deadline_s:
        if select.select([ours], [], [], 0.2)[0]:
            try:
                drawn += os.read(ours, 65_536)
            except OSError:
                break
        if keys and keys[0][0] in drawn[seen_until:]:
            seen_until = len(drawn)
            os.write(ours, keys.pop(0)[1])
    assert process.wait(10) == 0
    os.close(ours)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.decode(errors="replace"))
