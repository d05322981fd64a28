"""`phasewise engine validate` in front of a person, on fake engines."""

from __future__ import annotations

import json
import os
import signal
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phasewise.cli import engine_validate as command
from phasewise.cli.app import app
from phasewise.core.errors import ConfigError, FleetError
from phasewise.experiments.lever_runs.engines import RunningEngine
from phasewise.experiments.validate import environment
from phasewise.experiments.validate import run as validation
from phasewise.experiments.validate.crosscheck import VllmBench, own_run
from phasewise.experiments.validate.record import read_report, report_json
from phasewise.fake_engine.engine import FakeEngine, FakeEngineConfig
from phasewise.fleet.engines.environment import EngineEnvironment
from phasewise.fleet.local.placement import Machine
from phasewise.loadgen.session import RunSpec, measure
from tests.experiments.validate.builders import make_report
from tests.test_docs import tool_named

SECRETS = ("gpu-box-7", "alice", "/home/alice", "10.1.2.3", "hunter2", "fe80::1", "corp.example")
LEAK = (
    "engine of alice on gpu-box-7 at http://10.1.2.3:8000/v1 and fe80::1 died, see /home/alice/x.log; "
    "prompt from https://user:hunter2@corp.example/q"
)


@pytest.fixture
def launched():
    """What launchers were made of, and which engines stopped."""
    return []


@pytest.fixture(autouse=True)
def fake_fleets(monkeypatch, tmp_path, launched):
    class Launcher:
        def __init__(self, *settings):
            launched.append(settings)

        @asynccontextmanager
        async def launch(self, spec):
            engine = FakeEngine(FakeEngineConfig())
            await engine.start()
            try:
                yield RunningEngine(spec, engine.base_url)
            finally:
                await engine.stop()
                launched.append(spec.name)

    async def same_tool(self, url, load, seed):
        return own_run(await measure(url, RunSpec(load.plan, seed)))

    engine = EngineEnvironment(Path("python"), "0.32.0", "cpu", "0.3.0", False, "", "2.13.0", "3.11.7")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PHASEWISE_HOME", str(tmp_path))
    monkeypatch.setattr(command, "FleetLauncher", Launcher)
    monkeypatch.setattr(command.engine_size, "current_engine", lambda chosen: engine)
    monkeypatch.setattr(command, "resolve_model", lambda model, home: model)
    monkeypatch.setattr(VllmBench, "run", same_tool)
    monkeypatch.setattr(validation, "BENCH_RUN_S", 0.1)


def run(*options):
    return CliRunner().invoke(app, ["engine", "validate", *options])


def test_a_short_form_writes_a_report_that_its_reader_accepts(tmp_path, launched):
    result = run("--only", "environment,bench", "--minutes", "3", "--output", "mine")
    assert result.exit_code == 0, result.output
    report = read_report((tmp_path / "mine.json").read_bytes(), "mine.json")
    assert report.measured.bench.runs_per_tool == 4
    assert {it.step: it.done for it in report.steps} == {"environment": True, "bench": True}
    assert "What holds on this hardware" in (tmp_path / "mine.html").read_text()
    assert launched[-1] == "base"
    line = run("mine.json").stdout
    assert line.startswith(f"| [{report.day}](validated/mine.json) |")


def test_the_report_can_be_printed_for_programs():
    result = run("--only", "environment", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["format"] == "phasewise-validation"


def test_nothing_private_reaches_the_report(monkeypatch, tmp_path):
    """Strings that a machine could put anywhere: error messages, device names, flags, the model's folder."""
    folder = tmp_path / "home" / "alice" / "gpu-box-7-model"
    folder.mkdir(parents=True)

    async def leaking(self, url, load, seed):
        raise FleetError(LEAK, hint=LEAK)

    monkeypatch.setattr(VllmBench, "run", leaking)
    monkeypatch.setattr(environment.socket, "gethostname", lambda: "gpu-box-7.corp.example")
    monkeypatch.setattr(environment.getpass, "getuser", lambda: "alice")
    monkeypatch.setattr(environment, "processor_name", lambda: f"Xeon of {LEAK}")
    monkeypatch.setattr(command, "check_environment", lambda engine, machine: (LEAK,))
    options = ("--model", str(folder), "--engine-flags", "'--lora /home/alice/x' 10.1.2.3")
    result = run("--only", "bench", "--output", "r", *options)
    assert result.exit_code == 1, result.output
    for file in ("r.json", "r.html"):
        text = (tmp_path / file).read_text()
        assert [secret for secret in SECRETS if secret in text] == []
    assert "died" in (tmp_path / "r.json").read_text()


def test_flags_and_sizes_reach_every_engine(launched):
    run("--only", "environment", "--engine-flags", "--dtype bfloat16", "--context", "4096")
    *_, flags, size, name = launched[0]
    assert flags == ("--dtype", "bfloat16")
    assert (size.context_tokens, name) == (4096, "validate")


def test_ctrl_c_writes_the_report_of_what_was_done_and_stops_the_engines(monkeypatch, tmp_path, launched):
    async def interrupted(self, url, load, seed):
        os.kill(os.getpid(), signal.SIGINT)
        return own_run(await measure(url, RunSpec(load.plan, seed)))

    monkeypatch.setattr(VllmBench, "run", interrupted)
    result = run("--only", "bench,levers", "--output", "cut")
    assert result.exit_code == 130
    report = read_report((tmp_path / "cut.json").read_bytes(), "cut.json")
    assert report.interrupted
    assert [it.why for it in report.steps if not it.done] == ["the run was interrupted"] * 3
    assert launched[-1] == "base"


def test_an_engine_that_does_not_stop_costs_nobody_the_report(monkeypatch, tmp_path):
    class Stubborn(command.FleetLauncher):
        @asynccontextmanager
        async def launch(self, spec):
            async with super().launch(spec) as engine:
                yield engine
            raise FleetError("fleet validate-base does not stop", hint="phasewise down --name validate-base")

    monkeypatch.setattr(command, "FleetLauncher", Stubborn)
    result = run("--only", "bench", "--output", "r")
    assert result.exit_code == 0, result.output
    assert "phasewise down --name validate-base" in result.stderr
    assert read_report((tmp_path / "r.json").read_bytes(), "r.json").measured.bench


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--only", "everything"), "accepted: environment, bench"),
        (("--output", "no/such/folder/x"), "cannot be written"),
        (("missing.json",), "cannot be read"),
    ],
)
def test_wrong_usage_is_an_error_before_anything_starts(options, words, launched):
    result = run(*options)
    assert words in str(result.exception.hint) + result.exception.message
    assert launched == []


def test_a_gpu_engine_without_a_gpu_is_not_started():
    engine = EngineEnvironment(Path("python"), "0.32.0", "cuda", None, nixl=False)
    with pytest.raises(Exception, match="no GPU is visible") as error:
        environment.check_environment(engine, Machine("cuda", (0, 1)))
    assert "nvidia-smi" in error.value.hint


def test_the_page_of_reports_lists_a_strangers_report_and_escapes_it(tmp_path):
    folder = tmp_path / "reports"
    folder.mkdir()
    (folder / "a.json").write_bytes(report_json(make_report(day="2026-01-02")))
    (folder / "b.json").write_bytes(report_json(make_report(hardware={"gpus": ("<b>L4 | x",)})))
    page = tool_named("validated_page").page(folder)
    assert page.index("validated/b.json") < page.index("validated/a.json")
    assert "1 x \\<b\\>L4 \\| x" in page


def test_a_report_that_is_wrong_is_not_called_valid_first(tmp_path, capfd):
    (tmp_path / "wrong.json").write_text("{}")
    result = run(str(tmp_path / "wrong.json"))
    assert isinstance(result.exception, ConfigError)
    assert "valid report" not in capfd.readouterr().err + result.output
