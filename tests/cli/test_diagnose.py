"""`phasewise diagnose` as it is typed, against a fake engine."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from phasewise.cli.app import app
from phasewise.errors import FleetError, PhasewiseError
from phasewise.fleet.fleet_state import FleetState, MemberState, ProcessIdentity
from phasewise.fleet.run_file import only_supervisor, write_state
from phasewise.fleet.run_paths import RunPaths
from phasewise.workload.traces import read_trace


def diagnose(*arguments):
    return [sys.executable, "-m", "phasewise.cli", "diagnose", *arguments]


def test_a_probe_ends_in_a_verdict_for_programs(fake_engine):
    command = diagnose(fake_engine.base_url, "--probe", "--json", "--steps-url", fake_engine.steps_url)
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    verdict = json.loads(done.stdout)
    assert verdict["verdict"] == "healthy"
    assert verdict["start"]["requests"] == 10
    assert verdict["start"]["step_timed"] > 0
    assert "probing" in done.stderr


def test_a_probe_ends_in_a_screen_for_people(fake_engine):
    command = diagnose(f"{fake_engine.base_url}/v1", "--probe", "--slo", "ttft=1ms,tpot=1ms")
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    for word in ("SLOW TO", "Time to first token", "Time per output token", "residual", "objective"):
        assert word in done.stdout
    assert all(len(line) <= 110 for line in done.stdout.splitlines())


def test_an_interrupt_ends_the_window_early_with_a_verdict(fake_engine):
    watching = subprocess.Popen(
        diagnose(fake_engine.base_url, "--window", "600"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "watching" in watching.stderr.readline()
    time.sleep(0.5)
    watching.send_signal(signal.SIGINT)
    words, _ = watching.communicate(timeout=30)
    assert watching.returncode == 0
    assert "TOO LITTLE SEEN" in words


def test_nothing_at_the_address_is_one_sentence_and_a_hint():
    done = subprocess.run(
        diagnose("http://127.0.0.1:9"), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert "error: nothing answers at http://127.0.0.1:9" in done.stderr
    assert "hint:" in done.stderr
    assert "Traceback" not in done.stderr


def invoke(*arguments):
    return CliRunner().invoke(app, ["diagnose", *arguments])


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("PHASEWISE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def fleet_file(tmp_path):
    file = tmp_path / "fleet.yaml"
    file.write_text("name: quiet\n")
    return str(file)


def test_the_file_of_a_fleet_that_does_not_run_says_how_to_start_it(home, fleet_file):
    done = invoke(fleet_file)
    assert isinstance(done.exception, FleetError)
    assert "fleet quiet" in done.exception.message
    assert f"phasewise up {fleet_file} --detach" in done.exception.hint


def test_the_file_of_a_running_fleet_stands_for_its_gateway(home, fleet_file, fake_engine):
    state = FleetState(
        name="quiet",
        model="m",
        boot_id="b",
        supervisor=ProcessIdentity(pid=1, start_ticks=1),
        started_unix_s=0.0,
        scratch="",
        engines=(),
        gateway=MemberState(name="gateway", url=fake_engine.base_url, log=""),
    )
    paths = RunPaths(home, "quiet")
    with only_supervisor(paths):
        write_state(paths, state)
        done = invoke(fleet_file, "--window", "1")
    assert done.exit_code == 0, done.output
    assert fake_engine.base_url in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["http://127.0.0.1:9", "--verify"], "never touched", "--save-traffic"),
        (["FLEET", "--verify", "--probe"], "together with --probe", "its own load"),
        (["FLEET", "--verify", "--control-pairs", "2"], "--control-pairs 2", "0 leaves it out"),
        (["http://127.0.0.1:9", "--rate", "2"], "--rate was given", "bench URL --diagnose"),
        (["http://127.0.0.1:9", "--requests", "24"], "--requests was given", "add --verify"),
        (["http://127.0.0.1:9", "--turns", "1", "--timeout", "9"], "--turns, --timeout was", "add --verify"),
        (["http://127.0.0.1:9", "--ledger", "x"], "--ledger was given", "add --verify"),
        (["FLEET", "--verify", "--window", "20"], "together with --window", "leave it out"),
        (["FLEET", "--verify", "--steps-url", "http://e"], "together with --steps-url", "leave it out"),
        (["nonsense"], "neither an address nor a fleet file", "http://host:port"),
        (["http://127.0.0.1:9", "--costs", "missing.json"], "cannot be read", "calibrate"),
        (["http://127.0.0.1:9", "--save-traffic", "/no/such/folder/x"], "cannot be written", "another file"),
    ],
)
def test_a_wrong_turn_is_a_sentence_and_says_what_to_do_next(home, fleet_file, arguments, message, hint):
    done = invoke(*(fleet_file if word == "FLEET" else word for word in arguments))
    assert isinstance(done.exception, PhasewiseError)
    assert message in done.exception.message
    assert hint in done.exception.hint


def test_a_windows_page_is_written_and_its_traffic_saved_as_a_trace_without_text(fake_engine, tmp_path):
    file = tmp_path / "window.jsonl"
    done = invoke(
        *(fake_engine.base_url, "--probe", "--steps-url", fake_engine.steps_url),
        *("--save-traffic", str(file), "--report", str(tmp_path / "verdict.html")),
    )
    assert done.exit_code == 0, done.output
    assert "<html" in (tmp_path / "verdict.html").read_text()
    trace = read_trace(file)
    assert len(trace.requests) == 10
    prompts = sorted(request.prompt_tokens for request in trace.requests)
    assert prompts[0] < 100
    assert prompts[-1] > 1_000
    longest = [request for request in trace.requests if request.prompt_tokens == prompts[-1]]
    assert longest[0].block_ids[0] == longest[1].block_ids[0], "one long prompt was sent twice"
    assert "10 requests" in done.stderr


def test_a_window_without_traffic_saves_none_and_says_so(fake_engine, tmp_path):
    file = tmp_path / "window.jsonl"
    done = invoke(fake_engine.base_url, "--window", "1", "--save-traffic", str(file))
    assert done.exit_code == 0
    assert not file.exists()
    assert "no traffic was saved" in done.stderr


def test_an_interrupted_probe_ends_in_a_verdict_too(fake_engine):
    command = diagnose(fake_engine.base_url, "--probe", "--steps-url", fake_engine.steps_url)
    probing = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in probing.stderr:
        if "short prompts" in line:
            break
    probing.send_signal(signal.SIGINT)
    words, _ = probing.communicate(timeout=60)
    assert probing.returncode == 0
    assert any(ruling in words for ruling in ("TOO LITTLE SEEN", "HEALTHY", "SLOW TO"))
    assert "Traceback" not in words


@pytest.mark.parametrize("command", ["diagnose", "ledger"])
def test_every_option_stands_on_the_commands_own_page(command):
    page = (Path(__file__).parents[2] / "docs" / "reference" / f"{command}.md").read_text()
    options = [each.opts[0] for each in get_command(app).commands[command].params if each.name != "help"]
    assert [option for option in options if option.startswith("--") and option not in page] == []
