"""`phasewise levers` in front of a person, on fake engines."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phasewise.bench import validity
from phasewise.bench.session import measure
from phasewise.cli import levers as command
from phasewise.cli.app import app
from phasewise.errors import ConfigError
from phasewise.fake_engine.engine import FakeEngine, FakeEngineConfig
from phasewise.fleet.engine_env import EngineEnvironment
from phasewise.levers.engines import RunningEngine
from tests.levers.builders import EQUAL_ANSWERS, make_case, make_row, make_workload

CASES = (
    make_case("first", rows=(make_row(make_workload("few tokens")),)),
    make_case("second", rows=(make_row(make_workload("more tokens", output=5)),)),
)


@pytest.fixture
def stopped():
    """Which engines were stopped."""
    return []


@pytest.fixture(autouse=True)
def fake_fleets(monkeypatch, tmp_path, stopped):
    """Fake engines in the place of fleets; nothing is void and no answers are read."""

    class Launcher:
        def __init__(self, *settings):
            pass

        @asynccontextmanager
        async def launch(self, spec):
            engine = FakeEngine(FakeEngineConfig())
            await engine.start()
            try:
                yield RunningEngine(spec, engine.base_url)
            finally:
                await engine.stop()
                stopped.append(spec.name)

    async def equal(self, off_url, on_url, effort):
        return EQUAL_ANSWERS

    engine = EngineEnvironment(Path("python"), "0.32.0", "cpu", None, nixl=False)
    monkeypatch.setenv("PHASEWISE_HOME", str(tmp_path))
    monkeypatch.setattr(command, "CASES", CASES)
    monkeypatch.setattr(command, "FleetLauncher", Launcher)
    monkeypatch.setattr(command, "current_engine", lambda chosen: engine)
    monkeypatch.setattr(command, "resolve_model", lambda model, home: model)
    monkeypatch.setattr(command.OutputReader, "compare", equal)
    monkeypatch.setattr(command, "QUICK", command.replace(command.QUICK, block_s=0.01))
    monkeypatch.setattr(validity, "_shown", lambda *lags: "")


def run(*options):
    return CliRunner().invoke(app, ["levers", "--quick", *options])


def test_the_list_needs_no_engine(monkeypatch):
    monkeypatch.setattr(command, "current_engine", lambda chosen: pytest.fail("nothing is to be measured"))
    result = run("--list")
    assert result.exit_code == 0
    assert "the first" in result.stdout
    assert "the second" in result.stdout


def test_an_unknown_lever_is_refused_before_anything_starts():
    result = run("--only", "warp")
    assert isinstance(result.exception, ConfigError)
    assert "first, second" in result.exception.hint


def test_every_row_is_measured_and_written_in_every_form(tmp_path, stopped):
    page, document = tmp_path / "levers.html", tmp_path / "levers.md"
    result = run("--json", "--html", str(page), "--markdown", str(document))
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert [row["case"] for row in facts["rows"]] == ["first", "second"]
    assert all(row["effects"] and row["outputs"]["equal"] == 12 for row in facts["rows"])
    assert {*facts["noise_floor"]} == {"few tokens"}
    assert "the first" in page.read_text()
    assert "the first" in document.read_text()
    assert "2 rows to measure, about 1 min" in result.stderr
    assert {*stopped} == {"base", "lever"}


def test_a_ctrl_c_keeps_what_is_measured_and_the_same_command_goes_on(monkeypatch, stopped):
    async def interrupted(url, spec, label, interrupts):
        if "second" in label:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(10)
        return await measure(url, spec)

    with monkeypatch.context() as patch:
        patch.setattr(command, "measure_with_view", interrupted)
        result = run()
    assert result.exit_code == 130
    assert "the same command goes on where it was" in result.stderr
    assert result.stdout.count("KV room same; answers: 12/12 equal") == 1
    assert {*stopped} == {"base", "lever"}
    resumed = run()
    assert resumed.exit_code == 0, resumed.output
    assert "1 of 2 rows are measured" in resumed.stderr
    assert "1 of 2 rows" not in run("--again").stderr
