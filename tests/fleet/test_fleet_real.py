"""A disaggregated fleet of real engines, with the commands a user types."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from phasewise.fleet.config import phasewise_home
from phasewise.fleet.local import process as proc_fs
from phasewise.fleet.local.run_files import RunPaths, read_state
from phasewise.fleet.local.stop import checked
from tests.fleet.builders import free_engine_port, free_ports
from tests.paths import ROOT

NAME = "real-test"
pytestmark = pytest.mark.real


def real_home():
    if "PHASEWISE_HOME" in os.environ:
        return phasewise_home(os.environ)
    return ROOT / ".phasewise"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home of our own with the installed engine and models linked into it."""
    folder = tmp_path_factory.mktemp("home")
    for part in ("engine", "models"):
        source = real_home() / part
        assert source.exists(), "run: phasewise engine install && phasewise model fetch smollm2-135m"
        (folder / part).symlink_to(source)
    return folder


def phasewise(home, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "phasewise.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env={**os.environ, "PHASEWISE_HOME": str(home)},
    )


@pytest.fixture(scope="module")
def fleet(home):
    """A prefill engine, a decode engine and a gateway in the background; what `up` printed."""
    ports = ["--port", str(*free_ports(1)), "--engine-port", str(free_engine_port(engines=2))]
    example = str(ROOT / "examples" / "disaggregated.yaml")
    result = phasewise(home, "up", example, "--detach", "--name", NAME, "--timeout", "240", "--json", *ports)
    assert result.returncode == 0, result.stderr
    yield json.loads(result.stdout)
    phasewise(home, "down", NAME)


def stream_words(url, model):
    """A streamed answer through the gateway, as text."""
    body = {"model": model, "stream": True, "max_tokens": 12, "messages": [{"role": "user", "content": "Hi"}]}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    text = ""
    with urllib.request.urlopen(request, timeout=500) as reply:
        for line in reply:
            if line.startswith(b"data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    text += choice["delta"].get("content") or ""
    return text


def test_a_stream_comes_through_the_gateway(fleet):
    assert stream_words(fleet["gateway"]["url"], fleet["model"]).strip()


def status_without_a_key(url):
    try:
        with urllib.request.urlopen(url, timeout=60) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code


def test_whoever_reaches_an_engines_port_gets_no_answer_without_its_key(fleet, home):
    for engine in fleet["engines"]:
        closed = ("/v1/models", "/tokenizer_info", "/is_paused", "/load", "/docs", "/openapi.json")
        assert {status_without_a_key(engine["url"] + path) for path in closed} == {401}
        assert status_without_a_key(f"{engine['url']}/metrics") == 200
        key_file = RunPaths(home, NAME).engine_key(engine["name"])
        assert key_file.stat().st_mode & 0o77 == 0
        key = key_file.read_text().strip()
        headers = {"authorization": f"Bearer {key}"}
        asked = urllib.request.Request(f"{engine['url']}/v1/models", headers=headers)
        with urllib.request.urlopen(asked, timeout=60) as reply:
            assert reply.status == 200
    processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert key not in processes


def test_every_engine_has_its_role_and_records_its_steps(fleet, home):
    assert [engine["role"] for engine in fleet["engines"]] == ["prefill", "decode"]
    for engine in fleet["engines"]:
        with urllib.request.urlopen(engine["steps_url"] + "/steps?limit=1", timeout=60) as reply:
            assert reply.status == 200
    shown = phasewise(home, "status").stdout
    assert [line.split()[1] for line in shown.splitlines() if line.startswith(("prefill-0", "decode-0"))] == [
        "prefill",
        "decode",
    ]


def test_a_killed_prefill_engine_is_dead_in_status_at_once_and_serves_again(fleet, home):
    engine = read_state(RunPaths(home, NAME)).engines[0]
    os.kill(engine.process.pid, signal.SIGKILL)
    killed_s = time.monotonic()
    result = phasewise(home, "status", "--json")
    assert result.returncode == 1
    # The decode engine takes whole requests in the meantime.
    assert stream_words(fleet["gateway"]["url"], fleet["model"]).strip()
    # On a busy machine the supervisor may be the quicker: then it is being started again already.
    stage = json.loads(result.stdout)["fleets"][0]["engines"][0]["stage"]
    assert stage in {"dead", "restarting", "starting"}
    while not asyncio.run(checked(read_state(RunPaths(home, NAME)))).all_ready:
        # How long it takes is measured by benchmarks/kill_and_serve.py; here it only has to come back.
        assert time.monotonic() - killed_s < 300
        time.sleep(0.5)
    assert stream_words(fleet["gateway"]["url"], fleet["model"]).strip()
    assert proc_fs.living_in_group(engine.process) == []


def test_down_leaves_nothing(fleet, home):
    state = read_state(RunPaths(home, NAME))
    assert phasewise(home, "down", NAME).returncode == 0
    assert [pid for member in state.members for pid in proc_fs.living_in_group(member.process)] == []
    assert not proc_fs.is_alive(state.supervisor)
    assert not Path(state.scratch).exists()
    assert {path.suffix for path in (home / "run").iterdir()} == {".lock", ".admin-key"}
