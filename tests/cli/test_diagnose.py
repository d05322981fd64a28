"""`phasewise diagnose` as it is typed, against a fake engine."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from phasewise.api import diagnose as diagnosing
from phasewise.benchmark.workload.traces import read_trace
from phasewise.cli import diagnose as diagnosing_command
from phasewise.cli.app import app
from phasewise.clients.host import CpuTimes
from phasewise.core.errors import FleetError, PhasewiseError
from phasewise.diagnosis.finding import Cause
from phasewise.diagnosis.gather import probe as probing
from phasewise.diagnosis.gather import watch
from phasewise.diagnosis.observed.observation import Observed, TargetKind
from phasewise.diagnosis.verdict import Ruling
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.faults import Fault, FaultKind
from phasewise.fleet.local.run_files import RunPaths, only_supervisor, write_state
from phasewise.fleet.local.state import FleetState, MemberState, ProcessIdentity
from phasewise.report.diagnosis.words import headline
from phasewise.simulator.requests import PRESETS
from tests.benchmark.compare.builders import make_verdict
from tests.fake_engine_thread import running_fake_engine
from tests.paths import ROOT


def diagnose(*arguments):
    return [sys.executable, "-m", "phasewise.cli", "diagnose", *arguments]


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch):
    """Whatever other machines take from this one, a probe is judged."""
    monkeypatch.setattr(watch, "read_cpu_times", lambda: None)


def test_a_probe_ends_in_a_verdict_for_programs(fake_engine):
    done = invoke(fake_engine.base_url, "--probe", "--json", "--steps-url", fake_engine.steps_url)
    assert done.exit_code == 0, done.output
    verdict = json.loads(done.stdout)
    assert verdict["verdict"] == "healthy"
    assert verdict["synthetic"] is True
    assert verdict["start"]["requests"] == 10
    assert verdict["start"]["step_timed"] > 0
    assert verdict["probe"]["streams"] == 4
    assert "probing" in done.stderr


def test_a_probe_ends_in_a_screen_for_people(fake_engine):
    done = invoke(f"{fake_engine.base_url}/v1", "--probe", "--slo", "ttft=1ms,tpot=1ms")
    assert done.exit_code in {3, 5}, done.output  # 5 where the probe itself was sent late
    for word in ("Time to first token", "Time per output token", "unexplained", "objective", "measured"):
        assert word in done.stdout
    assert done.stdout.startswith(("SYNTHETIC PROBE: SLOW TO", "SYNTHETIC PROBE: MACHINE TOO BUSY"))
    assert all(len(line) <= 110 for line in done.stdout.splitlines())


def test_a_probe_from_a_machine_that_is_taken_away_is_not_judged(fake_engine, monkeypatch):
    readings = iter((CpuTimes(0.0, 0.0, 0.0), CpuTimes(4.0, 5.0, 10.0)))
    monkeypatch.setattr(watch, "read_cpu_times", lambda: next(readings))
    done = invoke(fake_engine.base_url, "--probe", "--steps-url", fake_engine.steps_url)
    assert done.exit_code == 5
    assert done.stdout.startswith("SYNTHETIC PROBE: MACHINE TOO BUSY TO JUDGE\n")
    assert "took 50% of this machine's processor time" in done.stdout


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
    words, _ = watching.communicate(timeout=300)
    assert watching.returncode == 4
    assert words.startswith("NOT ENOUGH TRAFFIC TO JUDGE\n")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:9", "Connection refused"),
        ("http://no-such-host.invalid:8000", "its name cannot be resolved"),
    ],
)
def test_nothing_at_the_address_is_one_sentence_and_a_hint(url, why):
    done = subprocess.run(diagnose(url), capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 1
    assert f"error: nothing answers at {url}: cannot be reached ({why})" in done.stderr
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
    assert done.exit_code == 4, done.output
    assert fake_engine.base_url in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["nonsense"], "neither an address nor a file", "http://host:port"),
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
        *("--save-traffic", str(file), "--html", str(tmp_path / "verdict.html")),
    )
    assert done.exit_code == 0, done.output
    assert "<h1>SYNTHETIC PROBE: " in (tmp_path / "verdict.html").read_text()
    trace = read_trace(file)
    assert len(trace.requests) == 10
    prompts = sorted(request.prompt_tokens for request in trace.requests)
    assert prompts[0] < 100
    assert prompts[-1] > 1_000
    longest = [request for request in trace.requests if request.prompt_tokens == prompts[-1]]
    assert longest[0].block_ids[0] == longest[1].block_ids[0], "one long prompt was sent twice"
    assert "10 requests" in done.stderr


def test_kept_evidence_is_judged_again_by_the_same_objective_or_another(fake_engine, tmp_path):
    file = tmp_path / "evidence.gz"
    live = invoke(
        *(fake_engine.base_url, "--probe", "--steps-url", fake_engine.steps_url, "--json"),
        *("--slo", "ttft=50s,tpot=50s", "--save-evidence", str(file)),
    )
    assert live.exit_code == 0, live.output
    assert json.loads(invoke(str(file), "--json").stdout)["verdict"] == "healthy"
    strict = invoke(str(file), "--json", "--slo", "ttft=0.001ms,tpot=0.001ms")
    assert strict.exit_code == 3, strict.output
    assert fake_engine.base_url in invoke(str(file)).stdout


def test_a_file_cannot_be_probed(fake_engine, tmp_path):
    file = tmp_path / "evidence.gz"
    invoke(fake_engine.base_url, "--window", "1", "--save-evidence", str(file))
    done = invoke(str(file), "--probe")
    assert isinstance(done.exception, PhasewiseError)
    assert "this is a file" in done.exception.message


def test_a_window_without_traffic_saves_none_and_says_so(fake_engine, tmp_path):
    file = tmp_path / "window.jsonl"
    done = invoke(fake_engine.base_url, "--window", "1", "--save-traffic", str(file))
    assert done.exit_code == 4
    assert not file.exists()
    assert "no traffic was saved" in done.stderr


def test_an_interrupted_probe_says_that_it_cannot_judge():
    # Steps of 50 ms: the probe takes many seconds, and the interrupt comes in its first.
    config = FakeEngineConfig(faults=(Fault(FaultKind.SLOW, factor=50.0),))
    with running_fake_engine(config) as engine:
        command = diagnose(engine.base_url, "--probe", "--steps-url", engine.steps_url)
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for line in running.stderr:
            if "short prompts" in line:
                break
        running.send_signal(signal.SIGINT)
        words, _ = running.communicate(timeout=300)
    assert running.returncode == 4
    assert words.startswith("SYNTHETIC PROBE: NOT ENOUGH TRAFFIC TO JUDGE\n")
    assert "let it finish" in words
    assert "Traceback" not in words


def test_a_probe_that_was_interrupted_near_its_end_is_not_called_healthy(fake_engine, monkeypatch):
    async def interrupted(*arguments):
        await probing.probe(*arguments)
        raise asyncio.CancelledError

    monkeypatch.setattr(watch, "probe", interrupted)
    arguments = (fake_engine.base_url, "--probe", "--steps-url", fake_engine.steps_url)
    done = invoke(*arguments, "--slo", "ttft=20s,tpot=1s")
    assert done.exit_code == 4, done.output
    assert "10 succeeded" in done.stdout
    assert done.stdout.startswith("SYNTHETIC PROBE: NOT ENOUGH TRAFFIC TO JUDGE\n")


def test_the_same_probe_gives_the_same_verdict_three_times(monkeypatch):
    # The demo engine at 2.5 times its speed; the long prompt arrives in the middle of the streams as usual.
    monkeypatch.setattr(probing, "LONG_ARRIVES_AT_S", 0.3)
    config = FakeEngineConfig(cost=PRESETS["cpu-demo"], faults=(Fault(FaultKind.SLOW, factor=0.4),))
    with running_fake_engine(config) as engine:
        arguments = (engine.base_url, "--probe", "--steps-url", engine.steps_url, "--seed", "7")
        reported = [invoke(*arguments, "--slo", "ttft=20s,tpot=40ms").stdout for _ in range(3)]
    # The headline without its cause: on a busy machine that may be a starved engine.
    assert [words.split(": ")[:2] for words in reported] == [["SYNTHETIC PROBE", "SLOW TO STREAM"]] * 3
    first, *later = [int(re.search(r"(\d+)%\s+cached", words)[1]) for words in reported]
    assert later == [first, first]


def test_a_load_that_was_sent_late_is_not_called_a_probe_unless_it_is_one():
    lagging = make_verdict(cause=Cause.GENERATOR_LAG)
    assert headline(lagging).startswith("MACHINE TOO BUSY TO JUDGE: ")
    probed = replace(lagging, summary=replace(lagging.summary, synthetic=True))
    assert headline(probed).startswith("SYNTHETIC PROBE: MACHINE TOO BUSY TO JUDGE: ")


VERDICTS = [
    (0, make_verdict(cause=None)),
    (3, make_verdict()),
    (3, replace(make_verdict(), ruling=Ruling.SLOW_TO_STREAM)),
    (3, replace(make_verdict(cause=None), ruling=Ruling.FAILING)),
    (4, replace(make_verdict(cause=None), ruling=Ruling.NOT_ENOUGH_TRAFFIC)),
    (5, make_verdict(cause=Cause.GENERATOR_LAG)),
]


@pytest.mark.parametrize(("code", "verdict"), VERDICTS)
def test_a_script_reads_the_verdict_from_the_exit_code(fake_engine, monkeypatch, code, verdict):
    monkeypatch.setattr(diagnosing, "verdict_on", lambda *evidence: verdict)
    monkeypatch.setattr(diagnosing, "gather", gathered_nothing)
    reported = invoke(fake_engine.base_url, "--json")
    assert (reported.exit_code, json.loads(reported.stdout)["exit_code"]) == (code, code)
    lenient = invoke(fake_engine.base_url, "--json", "--exit-zero")
    assert (lenient.exit_code, json.loads(lenient.stdout)["exit_code"]) == (0, 0)
    assert invoke(fake_engine.base_url).exit_code == code


async def gathered_nothing(*asked):
    return Observed("http://127.0.0.1:9", TargetKind.ENGINE, 0.0, 1.0, ())


def test_every_ruling_has_an_exit_code_and_wrong_usage_is_2():
    assert set(diagnosing.EXIT_CODES) == set(Ruling)
    assert invoke("http://127.0.0.1:9", "--rate", "2").exit_code == 2
    assert "Exit codes: 0 healthy, 3 slow" in " ".join(invoke("--help").stdout.split())


def test_without_a_target_the_only_gateway_that_runs_here_is_judged(tmp_path, monkeypatch):
    monkeypatch.setenv("PHASEWISE_HOME", str(tmp_path))
    assert "no gateways run here, so TARGET is required" in str(invoke().exception)
    asked = []
    monkeypatch.setattr(diagnosing_command, "gateway_address", lambda *given: "http://127.0.0.1:9")
    monkeypatch.setattr(diagnosing_command, "observe", lambda target, *given: asked.append(target))
    invoke()
    assert asked == ["http://127.0.0.1:9"]


@pytest.mark.parametrize("command", ["diagnose", "compare"])
def test_every_option_stands_on_the_commands_own_page(command):
    page = (ROOT / "docs" / "reference" / f"{command}.md").read_text()
    options = [
        each.opts[0] for each in get_command(app).get_command(None, command).params if each.name != "help"
    ]
    assert [option for option in options if option.startswith("--") and option not in page] == []
