"""`phasewise check` proves running pairs, names mistakes, and looks ahead where nothing runs."""

import asyncio
import contextlib
import json
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phasewise.cli import check as command
from phasewise.cli.app import app
from phasewise.core.errors import EngineNotInstalled
from phasewise.core.worker import Role
from phasewise.fake_engine.engine import FakeEngine, FakeEngineConfig
from phasewise.fleet.engines import known_models
from phasewise.fleet.local.run_files import RunPaths, write_private
from phasewise.simulator.kv import Connector
from tests.fleet.builders import make_engine
from tests.side_channel import greeting_port

SOUND = FakeEngineConfig(kv_transfer=Connector(handshake_timeout_s=0.3))
WITHOUT = FakeEngineConfig()
FLEET = """
model: /models/any
first_engine_port: {port}
pools:
  - {{name: prefill, role: prefill}}
  - {{name: decode, role: decode}}
gateway: {{port: {gateway}}}
"""


@contextlib.contextmanager
def running_pair(prefill=SOUND, decode=SOUND):
    """Both engines in a thread of their own: the command has its own event loop."""
    loop, started, stopping = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    engines = []

    async def serve():
        async with greeting_port() as side_port:
            for config in (prefill, decode):
                own = config.kv_transfer and replace(
                    config.kv_transfer, side_port=0 if engines else side_port
                )
                engines.append(FakeEngine(replace(config, kv_transfer=own)))
                await engines[-1].start()
            started.set()
            await stopping.wait()
            for engine in engines:
                await engine.stop()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    try:
        assert started.wait(10.0)
        yield engines
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join(10.0)
        loop.close()


def gateway_file(folder, engines):
    roles = (Role.PREFILL, Role.DECODE)
    workers = [
        {"name": role.value, "url": engine.base_url, "model": engine.model, "role": role.value}
        for role, engine in zip(roles, engines, strict=True)
    ]
    path = folder / "gateway.yaml"
    path.write_text("gateway: {}\nworkers: " + json.dumps(workers))
    return str(path)


def free_ports():
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]


@pytest.fixture
def fleet_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PHASEWISE_HOME", str(tmp_path))
    monkeypatch.setattr(known_models, "resolve_model", lambda model, home: model)
    path = tmp_path / "fleet.yaml"
    _, gateway = free_ports()
    path.write_text(FLEET.format(port=10_900, gateway=gateway))
    return path


def test_a_running_pair_is_proven_by_counters(tmp_path):
    with running_pair() as engines:
        result = CliRunner().invoke(app, ["check", gateway_file(tmp_path, engines)])
    assert result.exit_code == 0, result.output
    assert "1 pair proven by the engines' counters" in result.output
    assert "prefill -> decode" in result.output


def test_a_gateways_file_may_be_json(tmp_path):
    worker = {"url": "http://127.0.0.1:1", "model": "m"}
    workers = [{**worker, "name": role, "role": role} for role in ("prefill", "decode")]
    path = tmp_path / "gateway.json"
    path.write_text(json.dumps({"gateway": {}, "workers": workers}))
    result = CliRunner().invoke(app, ["check", str(path), "--json"])
    found = [it["mistake"] for it in json.loads(result.stdout)["findings"]]
    assert found.count("engine_not_ready") == 2


def test_engines_of_different_models_are_not_said_to_have_no_role(tmp_path):
    with running_pair(decode=replace(SOUND, model="another")) as engines:
        result = CliRunner().invoke(app, ["check", gateway_file(tmp_path, engines)])
    assert result.exit_code == 1
    assert "no_pair_of_one_model" in result.output


def test_a_mistake_is_named_with_what_to_do_and_exit_code_1(tmp_path):
    with running_pair(decode=WITHOUT) as engines:
        result = CliRunner().invoke(app, ["check", gateway_file(tmp_path, engines)])
    assert result.exit_code == 1
    assert "connector_missing_on_decode" in result.output
    assert "--kv-transfer-config" in result.output


def test_programs_read_the_same_as_one_object(tmp_path):
    with running_pair(prefill=WITHOUT) as engines:
        result = CliRunner().invoke(
            app, ["check", gateway_file(tmp_path, engines), "--json", "--no-test-failure"]
        )
    facts = json.loads(result.stdout)
    assert result.exit_code == 1
    assert not facts["ok"]
    assert [it["mistake"] for it in facts["findings"]] == ["connector_missing_on_prefill"]
    assert facts["pairs"][0]["proven"] is False


def test_a_fleet_that_does_not_run_is_looked_at_before_it_is_started(fleet_file, monkeypatch):
    monkeypatch.setattr(command, "current_engine", lambda python: make_engine(nixl=False))
    result = CliRunner().invoke(app, ["check", str(fleet_file), "--json"])
    facts = json.loads(result.stdout)
    assert not facts["running"]
    assert "nixl_not_installed" in [it["mistake"] for it in facts["findings"]]


def test_an_engine_environment_that_is_missing_is_named(fleet_file, monkeypatch):
    def nothing(python):
        raise EngineNotInstalled("no vLLM was found", hint="run `phasewise engine install`")

    monkeypatch.setattr(command, "current_engine", nothing)
    result = CliRunner().invoke(app, ["check", str(fleet_file)])
    assert result.exit_code == 1
    assert "no_engine_environment" in result.output


def test_a_port_that_is_taken_is_named_with_its_holder(fleet_file, monkeypatch):
    monkeypatch.setattr(command, "current_engine", lambda python: make_engine())
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        fleet_file.write_text(FLEET.format(port=10_900, gateway=port))
        result = CliRunner().invoke(app, ["check", str(fleet_file), "--json"])
    taken = [it for it in json.loads(result.stdout)["findings"] if it["mistake"] == "port_taken"]
    assert any(str(port) in it["words"] for it in taken)


def test_a_fleet_that_runs_is_asked_where_it_runs(fleet_file, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "is_supervised", lambda paths: True)
    with running_pair() as engines:
        written = Path(gateway_file(tmp_path, engines)).read_bytes()
        write_private(RunPaths(tmp_path, "local").gateway_file, written)
        result = CliRunner().invoke(app, ["check", str(fleet_file), "--json", "--no-test-failure"])
    facts = json.loads(result.stdout)
    assert facts["ok"]
    assert facts["running"]
    assert facts["pairs"][0]["proven"]


def test_a_connector_that_hides_failures_is_warned_of_before_the_start(fleet_file, monkeypatch):
    monkeypatch.setattr(command, "current_engine", lambda python: make_engine())
    own = '{"kv_connector":"NixlConnector","kv_role":"kv_consumer","kv_load_failure_policy":"recompute"}'
    flags = f"engine_flags: ['--kv-transfer-config', '{own}']"
    text = FLEET.format(port=10_900, gateway=10_890).replace("role: decode}", f"role: decode, {flags}}}")
    fleet_file.write_text(text)
    result = CliRunner().invoke(app, ["check", str(fleet_file), "--json"])
    (found,) = [it for it in json.loads(result.stdout)["findings"] if it["mistake"] == "fall_back_allowed"]
    assert found["where"] == "pool decode"
    assert found["warning"]


def test_a_place_without_engines_is_named(tmp_path):
    file = tmp_path / "gateway.yaml"
    file.write_text("gateway: {}\ndiscover: [{dns: no-such-name.invalid, port: 8000}, {service: engines}]\n")
    result = CliRunner().invoke(app, ["check", str(file), "--json"])
    found = json.loads(result.stdout)["findings"]
    assert result.exit_code == 1
    assert [it["mistake"] for it in found[:2]] == ["no_engine_found", "no_engine_found"]
    assert "DNS knows no address of no-such-name.invalid" in found[0]["words"]
    assert "this process is in no Kubernetes cluster" in found[1]["words"]
