"""A fleet of a real llama.cpp server, with the commands a user types."""

import json
import subprocess
import urllib.request

import pytest

from phasewise.fleet.local import process as proc_fs
from phasewise.fleet.local.run_files import RunPaths, read_state
from tests.fleet.builders import free_engine_port, free_ports
from tests.fleet.test_fleet_real import phasewise, real_home, status_without_a_key, stream_words

NAME = "real-llama"
pytestmark = pytest.mark.real
FLEET = """
name: real-llama
pools:
  - engine: llama.cpp
    levers: {max_num_seqs: 2, max_num_batched_tokens: 128, prefix_cache: true, max_model_len: 1024}
    engine_flags: [-b, "256"]
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home of our own with the fetched models linked into it."""
    folder = tmp_path_factory.mktemp("home")
    (real_home() / "models").mkdir(parents=True, exist_ok=True)
    (folder / "models").symlink_to(real_home() / "models")
    fetched = phasewise(folder, "model", "fetch", "smollm2-135m", "--gguf")
    assert fetched.returncode == 0, fetched.stderr
    return folder


@pytest.fixture(scope="module")
def fleet(home):
    """One llama.cpp server and a gateway in the background; what `up` printed."""
    file = home / "fleet.yaml"
    file.write_text(FLEET)
    ports = ["--port", str(*free_ports(1)), "--engine-port", str(free_engine_port(engines=1))]
    started = phasewise(home, "up", str(file), "--detach", "--timeout", "120", "--json", *ports)
    assert started.returncode == 0, started.stderr
    yield json.loads(started.stdout)
    phasewise(home, "down", NAME)


def test_a_stream_comes_through_the_gateway(fleet):
    assert stream_words(fleet["gateway"]["url"], fleet["model"]).strip()


def with_key(url, key):
    asked = urllib.request.Request(url, headers={"authorization": f"Bearer {key}"})
    with urllib.request.urlopen(asked, timeout=60) as reply:
        return reply.read().decode()


def test_the_engine_answers_only_with_its_key_and_has_its_levers(fleet, home):
    (engine,) = fleet["engines"]
    for path in ("/slots", "/metrics", "/props"):
        assert status_without_a_key(engine["url"] + path) == 401
    key = RunPaths(home, NAME).engine_key(engine["name"]).read_text().strip()
    slots = json.loads(with_key(f"{engine['url']}/slots", key))
    assert [slot["n_ctx"] for slot in slots] == [1024, 1024]
    assert "llamacpp:requests_processing" in with_key(f"{engine['url']}/metrics", key)
    processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert key not in processes


def test_down_leaves_nothing(fleet, home):
    state = read_state(RunPaths(home, NAME))
    assert phasewise(home, "down", NAME).returncode == 0
    assert [pid for member in state.members for pid in proc_fs.living_in_group(member.process)] == []
    assert not proc_fs.is_alive(state.supervisor)
    assert {path.suffix for path in (home / "run").iterdir()} == {".lock", ".admin-key"}


def test_a_flag_that_llama_cpp_does_not_have_is_named(home):
    file = home / "wrong.yaml"
    file.write_text("name: wrong\npools: [{engine: llama.cpp, engine_flags: [--no-such-flag]}]")
    ports = ["--port", str(*free_ports(1)), "--engine-port", str(free_engine_port(engines=1))]
    said = phasewise(home, "up", str(file), "--detach", *ports)
    assert said.returncode == 1
    assert "unrecognized arguments: --no-such-flag" in said.stderr
