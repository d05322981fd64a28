"""up, status and down as typed: what they print, where, and their exit codes."""

import json
import os
import signal
import stat
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from phasewise.benchmark.demo_traffic import USERS
from phasewise.cli import up
from phasewise.cli.app import app
from phasewise.core.errors import ConfigError
from phasewise.fleet.engines import environment
from phasewise.fleet.engines.known_models import gguf_file
from phasewise.fleet.local.run_files import read_state
from phasewise.fleet.local.state import FleetState, MemberState, ProcessIdentity, ProcessStage
from phasewise.fleet.local.stop import stop_fleet
from phasewise.fleet.local.supervisor import Assignment
from phasewise.report.fleet_view import FleetDisplay, curl_line, print_ready, runs_on, stage_words
from tests.fleet.builders import free_engine_port, free_ports, make_plan


def phasewise(*arguments, home, **environment):
    return subprocess.run(
        [sys.executable, "-m", "phasewise.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env={**os.environ, "PHASEWISE_HOME": str(home), "PATH": "/nowhere", **environment},
    )


def start_detached(plan):
    """What `up --detach` does once it has planned, in a process that ends as the command's does."""
    script = (
        "import sys; from phasewise.cli.up import _run_detached, FleetPlan;"
        "_run_detached(FleetPlan.model_validate_json(sys.argv[1]), 30.0, as_json=True)"
    )
    subprocess.run([sys.executable, "-c", script, plan.model_dump_json()], check=True, timeout=500)


@pytest.fixture
def fleet(tmp_path):
    """A fleet of stand-ins in the background; its plan."""
    plan = make_plan(tmp_path, "--with-child")
    plan.paths.plan.parent.mkdir(parents=True)
    plan.paths.plan.write_text(Assignment(plan=plan, ready_within_s=30).model_dump_json())
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "phasewise.fleet.local.supervisor", str(plan.paths.plan)],
        start_new_session=True,
    )
    while not ((state := read_state(plan.paths)) and state.all_ready):
        time.sleep(0.05)
    yield plan
    supervisor.terminate()
    supervisor.wait()


def test_nothing_runs_is_exit_code_1(tmp_path):
    status, down = phasewise("status", home=tmp_path), phasewise("down", home=tmp_path)
    assert (status.returncode, status.stdout) == (1, "")
    assert "no fleet and no gateway runs here" in status.stderr
    assert down.returncode == 1
    assert "no fleet runs here" in down.stderr


def test_missing_engine_says_what_to_run(tmp_path):
    result = phasewise("up", home=tmp_path)
    assert result.returncode == 1
    assert "phasewise engine install" in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("dtype", ["float32", None])
def test_up_says_that_it_chose_the_dtype_and_why(tmp_path, monkeypatch, dtype):
    plan = make_plan(tmp_path).model_copy(update={"dtype": dtype})
    monkeypatch.setenv("PHASEWISE_HOME", str(tmp_path))
    monkeypatch.setattr(up, "current_engine", lambda given: None)
    monkeypatch.setattr(up, "fleet_model", lambda *given: None)
    monkeypatch.setattr(up, "plan_fleet", lambda *given: plan)
    monkeypatch.setattr(up, "_run_detached", lambda *given: None)
    said = CliRunner().invoke(app, ["up", "--detach"])
    assert said.exit_code == 0, said.exception
    assert ("dtype float32: this CPU has no native bfloat16" in said.stderr) is (dtype is not None)
    assert said.stdout == ""


def test_llama_cpp_without_its_package_says_what_to_install(tmp_path, monkeypatch):
    file = tmp_path / "fleet.yaml"
    file.write_text("pools: [{engine: llama.cpp}]")
    monkeypatch.setenv("PHASEWISE_HOME", str(tmp_path))
    monkeypatch.setattr(environment, "find_spec", lambda name: None)
    error = CliRunner().invoke(app, ["up", str(file)]).exception
    assert (type(error), error.hint) == (ConfigError, "pip install 'phasewise[demo]'")
    checked = CliRunner().invoke(app, ["check", str(file), "--json"])
    assert checked.exit_code == 1
    (found,) = json.loads(checked.stdout)["findings"]
    assert (found["mistake"], found["fix"]) == ("no_engine_environment", "pip install 'phasewise[demo]'")


def test_what_llama_cpp_does_not_take_is_named(tmp_path):
    file = tmp_path / "fleet.yaml"
    file.write_text("pools: [{engine: llama.cpp, levers: {kv_dtype: fp8}}]")
    for command in ("up", "check"):
        said = phasewise(command, str(file), home=tmp_path)
        assert said.returncode == 1
        assert "pools.0: llama.cpp has no lever kv_dtype; it has prefix_cache," in said.stderr


def test_demo_has_a_fleet_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("PHASEWISE_HOME", str(tmp_path))
    error = CliRunner().invoke(app, ["up", "--demo", "--model", "m"]).exception
    assert "--demo has a fleet and a model of its own" in str(error)


def test_demo_fetches_its_model_and_plans_its_traffic(tmp_path, monkeypatch):
    def fetch(alias, home):
        gguf_file(alias, home).parent.mkdir()
        gguf_file(alias, home).touch()

    plans = []
    monkeypatch.setenv("PHASEWISE_HOME", str(tmp_path))
    monkeypatch.setattr(environment, "find_spec", lambda name: True)
    monkeypatch.setattr(up, "fetch_gguf_here", fetch)
    monkeypatch.setattr(up, "current_engine", lambda given: pytest.fail("no vLLM is needed"))
    monkeypatch.setattr(up, "_run_detached", lambda plan, *given: plans.append(plan))
    ports = ["--port", str(*free_ports(1)), "--engine-port", str(free_engine_port(engines=1))]
    assert CliRunner().invoke(app, ["up", "--demo", "--detach", *ports]).exit_code == 0
    (plan,) = plans
    argv = plan.engines[0].process.argv
    assert int(argv[argv.index("-np") + 1]) < USERS < plan.gateway_file.workers[0].slots
    assert plan.traffic.process.argv[-2:] == ("phasewise.benchmark.demo_traffic", plan.gateway.url)
    assert plan.members[-1] is plan.traffic


def test_a_fleet_that_plays_traffic_says_so(capsys):
    traffic = make_member(name="demo-traffic", url="http://127.0.0.1:8080")
    print_ready(make_state().model_copy(update={"traffic": traffic}), "Ctrl-C stops it.")
    said = capsys.readouterr().out
    assert f"It plays {USERS} users of its own" in said
    assert "phasewise diagnose http://127.0.0.1:8080\n" in said


def test_wrong_file_names_the_key_the_value_and_what_is_accepted(tmp_path):
    file = tmp_path / "fleet.yaml"
    file.write_text("pools: [{levers: {kv_cache_memory_bytes: 1GB, prefill: 3}}]")
    result = phasewise("up", str(file), home=tmp_path)
    assert result.returncode == 1
    assert "pools.0.levers.kv_cache_memory_bytes is '1GB': accepted: a number and a unit" in result.stderr
    assert "pools.0.levers.prefill: unknown key" in result.stderr


def test_status_and_down_of_a_running_fleet(fleet, tmp_path):
    words = phasewise("status", home=tmp_path)
    assert words.returncode == 0
    for member in fleet.members:
        assert member.url in words.stdout
    facts = json.loads(phasewise("status", "--json", home=tmp_path).stdout)["fleets"][0]
    assert facts["all_ready"]
    assert facts["supervised"]
    down = phasewise("down", "--json", home=tmp_path)
    assert json.loads(down.stdout)["stopped"]
    assert phasewise("status", home=tmp_path).returncode == 1


def test_down_and_status_say_that_streams_are_waited_for(tmp_path):
    plan = make_plan(tmp_path, gateway_options=("--drain-s", "10"))
    start_detached(plan)
    down = subprocess.Popen(
        [sys.executable, "-m", "phasewise.cli", "down"],
        env={**os.environ, "PHASEWISE_HOME": str(tmp_path)},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    while read_state(plan.paths).gateway.stage is not ProcessStage.DRAINING:
        time.sleep(0.05)
    status = phasewise("status", home=tmp_path)
    _, said = down.communicate(timeout=300)
    assert "draining (running streams have 120 s to finish)" in status.stdout
    assert said.count("draining") == 1
    assert "a second `phasewise down` does not wait" in said
    assert down.returncode == 0


def test_the_log_of_a_supervisor_in_the_background_is_its_users_alone(tmp_path):
    plan = make_plan(tmp_path)
    start_detached(plan)
    stop_fleet(plan.paths, read_state(plan.paths))
    assert stat.S_IMODE(plan.paths.supervisor_log.stat().st_mode) == 0o600


def test_status_of_a_dead_engine_is_exit_code_1_at_once(fleet, tmp_path):
    state = read_state(fleet.paths)
    os.kill(state.supervisor.pid, signal.SIGSTOP)
    try:
        os.kill(state.engines[0].process.pid, signal.SIGKILL)
        result = phasewise("status", home=tmp_path)
    finally:
        os.kill(state.supervisor.pid, signal.SIGCONT)
    assert result.returncode == 1
    line = next(line for line in result.stdout.splitlines() if line.startswith("main-0"))
    assert "dead" in line


def make_member(**changes):
    return MemberState(**{"name": "main-0", "url": "http://127.0.0.1:8100", "log": "/x/a.log", **changes})


def make_state(*engines, keys_needed=False):
    return FleetState(
        name="local",
        model="it's a model",
        boot_id="b",
        supervisor=ProcessIdentity(pid=1, start_ticks=1),
        started_unix_s=0.0,
        keys_needed=keys_needed,
        scratch="/nowhere",
        engines=engines or (make_member(),),
        gateway=make_member(name="gateway", url="http://127.0.0.1:8080"),
    )


def test_stages_are_words():
    assert stage_words(make_member(stage=ProcessStage.LOADING)) == "loading weights"
    assert (
        stage_words(make_member(stage=ProcessStage.READY, ready_in_s=12.34, restarts=1))
        == "ready in 12.3 s, 1 restart"
    )
    assert stage_words(make_member(stage=ProcessStage.BACKING_OFF, note="why")) == "restarting (why)"


def test_cores_are_shown_as_ranges():
    assert runs_on(make_member(cores=(0, 1, 2, 5))) == "cores 0-2,5"
    assert runs_on(make_member(gpus=(3,))) == "gpu 3"
    assert runs_on(make_member()) == "any core"


def test_curl_line_is_understood_by_a_shell():
    script = curl_line(make_state(keys_needed=True)).replace("curl -N", "printf '%s\\n'", 1)
    words = subprocess.run(
        ["/bin/sh", "-c", script], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert words[0] == "http://127.0.0.1:8080/v1/chat/completions"
    assert json.loads(words[-1])["model"] == "it's a model"
    assert "authorization: Bearer YOUR_KEY" in words


def test_without_a_terminal_every_change_is_one_line(capsys):
    with FleetDisplay() as display:
        display.show(make_state(make_member(stage=ProcessStage.STARTING)))
        display.show(make_state(make_member(stage=ProcessStage.STARTING)))
        display.show(make_state(make_member(stage=ProcessStage.LOADING)))
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [line.partition("] ")[2] for line in captured.err.splitlines()]
    assert lines == ["main-0: starting", "main-0: loading weights"]
