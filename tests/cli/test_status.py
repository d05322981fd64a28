"""`phasewise status` shows gateways that no fleet started, and what they say of their workers."""

from __future__ import annotations

import asyncio
import json
import stat
import time

import pytest
from typer.testing import CliRunner

from phasewise.api.targets import gateway_address
from phasewise.cli.app import app
from phasewise.core.errors import FleetError
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import GatewayConfig
from phasewise.fleet.local.gateway_run import GatewayRun, WorkerReport, living_gateways
from phasewise.report.fleet_view import print_troubled, state_in_words
from tests.gateway.gateway_process import home_of, running_process
from tests.gateway.harness import eventually


def report(**fields):
    given = {
        **{"name": "a", "url": "http://127.0.0.1:9", "model": "m", "role": "mixed", "pool": "default"},
        **{"health": "up", "note": "", "since_unix_s": 1_000.0, "circuit_open": False, "incarnation": "1"},
        **{"steps_url": None, **fields},
    }
    return WorkerReport(**given)


@pytest.fixture
def status(tmp_path, monkeypatch):
    monkeypatch.setenv("PHASEWISE_HOME", str(tmp_path))
    return lambda *options: CliRunner().invoke(app, ["status", *options])


@pytest.fixture
def recorded(tmp_path):
    """This process as a gateway whose workers a test chooses."""
    run = GatewayRun(tmp_path, GatewayConfig(port=8123))
    yield run
    run.remove()


async def test_a_gateway_that_was_started_alone_is_shown_with_its_workers(tmp_path, status, monkeypatch):
    async with running_engines(1) as (engine,), running_process(tmp_path, engine) as gateway:
        home = home_of(tmp_path / "gateway.yaml")
        monkeypatch.setenv("PHASEWISE_HOME", str(home))
        await eventually(lambda: living_gateways(home) or None)
        (path,) = (home / "run").glob("*.gateway-run")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        shown = await asyncio.to_thread(status)
        assert shown.exit_code == 0, shown.output
        assert f"gateway http://127.0.0.1:{gateway.port}, pid {gateway.process.pid}" in shown.stdout
        assert engine.base_url in shown.stdout
        assert gateway_address(None, home) == f"http://127.0.0.1:{gateway.port}"
        gateway.process.terminate()
        await gateway.ended()
    assert not path.exists()
    assert (await asyncio.to_thread(status)).exit_code == 1


def test_the_line_of_a_worker_fits_80_columns_and_its_note_stands_below(status, recorded):
    url, now_s = "http://127.0.0.1:18001", time.time()
    note = f"{url} cannot be reached (Connection refused)"
    down = report(name="engine-0", url=url, health="down", note=note, since_unix_s=now_s - 15)
    recorded.write((down, report(name="engine-1", url=url, circuit_open=True)))
    lines = status().stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "engine-0: cannot be reached (Connection refused)" in lines
    assert any(line.startswith("engine-1: it answers and fails most of its requests") for line in lines)


def test_a_worker_that_is_down_is_shown_with_its_time_and_note(status, recorded):
    recorded.write((report(), report(name="b", health="down", note="connection refused")))
    shown = status()
    assert shown.exit_code == 1
    row = next(line for line in shown.stdout.splitlines() if line.startswith("b "))
    assert "down since" in row
    assert "b: connection refused" in shown.stdout.splitlines()


def test_programs_get_the_same_facts(status, recorded):
    recorded.write((report(circuit_open=True),))
    shown = status("--json")
    (gateway,) = json.loads(shown.stdout)["gateways"]
    assert (gateway["url"], gateway["workers"][0]["circuit_open"]) == ("http://127.0.0.1:8123", True)
    assert shown.exit_code == 1


def test_a_named_fleet_is_shown_without_other_gateways(status, recorded):
    recorded.write((report(),))
    shown = status("other")
    assert shown.stdout == ""
    assert "no fleet named other runs here" in shown.stderr


def test_the_record_of_a_killed_gateway_is_removed(tmp_path, status, recorded):
    recorded.write((report(),))
    (path,) = (tmp_path / "run").glob("*.gateway-run")
    state = json.loads(path.read_text())
    state["process"]["start_ticks"] += 1
    path.write_text(json.dumps(state))
    assert status().exit_code == 1
    assert not path.exists()


def test_without_any_gateway_one_must_be_named(tmp_path):
    with pytest.raises(FleetError, match="no gateways run here"):
        gateway_address(None, tmp_path)


def test_a_fleet_s_workers_get_a_line_only_if_there_is_something_to_say(capsys):
    print_troubled(
        (report(), report(name="b", health="hung", note="no step for 14 s"), report(name="c", note="x"))
    )
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("gateway: worker b: stands still since ")
    assert first.endswith(": no step for 14 s")
    assert second == "gateway: worker c: up: x"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "up"),
        ({"circuit_open": True}, "up, circuit open"),
        ({"health": "unknown", "since_unix_s": None}, "not checked yet"),
    ],
)
def test_states_are_words(fields, words):
    assert state_in_words(report(**fields), 1_024.0) == words


@pytest.mark.parametrize(
    ("health", "word"), [("down", "down"), ("suspect", "stands still"), ("hung", "stands still")]
)
def test_a_worker_that_does_not_serve_says_since_when(health, word):
    words = state_in_words(report(health=health), 1_024.0)
    assert words.startswith(f"{word} since ")
    assert words.endswith("(24 seconds)")
