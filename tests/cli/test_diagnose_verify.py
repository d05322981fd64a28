"""`phasewise diagnose FLEET.YAML --verify` as it is typed; fake engines stand for fleets."""

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from phasewise.bench import validity
from phasewise.cli import diagnose_verify
from phasewise.cli.app import app
from phasewise.config import load_fleet
from phasewise.diagnosis.fix import LeverChange
from phasewise.errors import ConfigError, FleetError
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.fake_engine.virtual_engine import EngineShape
from phasewise.fleet.fleet_state import FleetState, MemberState, ProcessIdentity
from phasewise.fleet.run_file import only_supervisor, write_state
from phasewise.fleet.run_paths import RunPaths
from phasewise.workload.traces import read_trace
from tests.verify.builders import make_effect, make_fix, make_verdict

LOAD = (
    "--requests",
    "6",
    "--concurrency",
    "4",
    "--prompt-tokens",
    "40",
    "--output-tokens",
    "12",
    "--seed",
    "1",
)
STARTED = []


@dataclass(frozen=True)
class FakeFleetArm:
    path: Path
    fleet_name: str
    say: object = None

    @property
    def name(self):
        return self.path.name

    @asynccontextmanager
    async def serving(self):
        STARTED.append(self.fleet_name)
        running = load_fleet(self.path).pools[0].levers.max_running
        config = FakeEngineConfig(shape=EngineShape(max_num_seqs=running))
        async with running_engines(1, config) as (engine,):
            yield engine.base_url


@pytest.fixture
def fleet_file(tmp_path, monkeypatch):
    STARTED.clear()
    monkeypatch.setenv("PHASEWISE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(validity, "_shown", lambda *lags: "")
    monkeypatch.setattr(diagnose_verify, "FleetArm", FakeFleetArm)
    engine = SimpleNamespace(device="cpu", vllm_version="0.0")
    monkeypatch.setattr(diagnose_verify, "current_engine", lambda: engine)
    verdict = make_verdict(make_fix(LeverChange("max_running", 8), make_effect(0.01, 0.95)))
    monkeypatch.setattr(diagnose_verify, "reach_verdict", lambda *evidence: verdict)
    file = tmp_path / "fleet.yaml"
    file.write_text("name: small\npools: [{levers: {max_running: 1}}]\n")
    return file


def verify(file, *options):
    return CliRunner().invoke(app, ["diagnose", str(file), "--verify", *LOAD, *options])


def test_a_verification_prints_the_prediction_beside_the_outcome_and_keeps_both(fleet_file, tmp_path):
    ledger, traffic = tmp_path / "ledger.jsonl", tmp_path / "window.jsonl"
    done = verify(fleet_file, "--ledger", str(ledger), "--save-traffic", str(traffic))
    assert done.exit_code == 0, done.output
    assert "pools.main.levers.max_running: 1 -> 8" in done.stdout
    assert "held" in done.stdout
    assert "predicted: TTFT p50 -52% (-99% to -5%)" in done.stderr
    assert STARTED == ["verify-a", "verify-b", "verify-a", "verify-b", "verify-a"]
    assert len(read_trace(traffic).requests) == 6
    shown = CliRunner().invoke(app, ["ledger", "--ledger", str(ledger), "--json"])
    assert json.loads(shown.stdout)["score"]["covered"] == 1


def test_where_there_is_nothing_to_try_programs_are_told_why(fleet_file, monkeypatch, tmp_path):
    monkeypatch.setattr(diagnose_verify, "reach_verdict", lambda *evidence: make_verdict(cause=None))
    done = verify(fleet_file, "--json")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["verdict"] == "healthy"
    assert "the verdict is healthy" in facts["verification"]["nothing"]
    assert facts["verification"]["entries"] == []
    assert STARTED == ["verify-a"]


def test_a_running_fleet_in_the_way_is_named_before_anything_starts(fleet_file, tmp_path):
    member = MemberState(name="main-0", url="http://127.0.0.1:9001", log="", cores=(0, 1, 2, 3))
    state = FleetState(
        name="busy",
        model="m",
        boot_id="b",
        supervisor=ProcessIdentity(pid=1, start_ticks=1),
        started_unix_s=0.0,
        scratch="",
        engines=(member,),
        gateway=MemberState(name="gateway", url="http://127.0.0.1:9002", log=""),
    )
    paths = RunPaths(tmp_path / "home", "busy")
    with only_supervisor(paths):
        write_state(paths, state)
        done = verify(fleet_file)
    assert isinstance(done.exception, FleetError)
    assert "phasewise down --name busy" in done.exception.hint
    assert STARTED == []


def test_a_ledger_that_cannot_be_written_is_found_out_before_anything_starts(fleet_file, tmp_path):
    done = verify(fleet_file, "--ledger", str(tmp_path))
    assert isinstance(done.exception, ConfigError)
    assert STARTED == []
