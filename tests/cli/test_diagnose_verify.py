"""`phasewise diagnose FLEET.YAML --verify` as it is typed; fake engines stand for fleets."""

import asyncio
import json
import os
import signal
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from phasewise.bench import validity
from phasewise.cli import diagnose_verify
from phasewise.cli.app import app
from phasewise.cli.verify_view import duration_words
from phasewise.config import load_fleet
from phasewise.diagnosis.fix import LeverChange
from phasewise.errors import ConfigError, FleetError
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.fake_engine.virtual_engine import EngineShape
from phasewise.fleet.fleet_state import FleetState, MemberState, ProcessIdentity
from phasewise.fleet.run_file import only_supervisor, write_state
from phasewise.fleet.run_paths import RunPaths
from phasewise.workload.traces import Trace, TracedRequest, mooncake_lines, read_trace
from tests.verify.builders import make_effect, make_fix, make_verdict

LOAD = (
    "--requests",
    "6",
    "--concurrency",
    "4",
    "--prompt-tokens",
    "40",
    "--output-tokens",
    "6",
    "--seed",
    "1",
)
STARTED = []
STEP_S = 0.01
"""So long that a busy machine's hiccups do not turn a ratio around."""


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
        config = FakeEngineConfig(shape=EngineShape(max_num_seqs=running), cost=lambda work: STEP_S)
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
    assert "predicted: TTFT p50 -52% (-99% to -5%)" in done.stderr
    assert STARTED == ["verify-a", "verify-b", "verify-a", "verify-b", "verify-a"]
    assert len(read_trace(traffic).requests) == 6
    shown = CliRunner().invoke(app, ["ledger", "--ledger", str(ledger), "--json"])
    (entry,) = json.loads(shown.stdout)["entries"]
    assert entry["outcome"]["ratio"] < 1
    assert entry["outcome"]["pairs"] == 4


class InterruptedAtTheEnd(FakeFleetArm):
    """A fleet that is being stopped when somebody presses Ctrl-C."""

    @asynccontextmanager
    async def serving(self):
        async with super().serving() as url:
            yield url
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(10)


class FailsToStop(FakeFleetArm):
    @asynccontextmanager
    async def serving(self):
        async with super().serving() as url:
            yield url
        raise FleetError("`phasewise down` failed: it hangs")


@pytest.mark.parametrize(("arm", "said"), [(InterruptedAtTheEnd, "interrupted"), (FailsToStop, "it hangs")])
def test_what_goes_wrong_in_stopping_the_last_fleet_does_not_undo_the_result(
    fleet_file, monkeypatch, tmp_path, arm, said
):
    monkeypatch.setattr(diagnose_verify, "FleetArm", arm)
    monkeypatch.setattr(diagnose_verify, "reach_verdict", lambda *evidence: make_verdict(cause=None))
    done = verify(fleet_file, "--json", "--save-traffic", str(tmp_path / "window.jsonl"))
    assert done.exit_code == 0, done.output
    assert "the verdict is healthy" in json.loads(done.stdout)["verification"]["nothing"]
    assert said in done.stderr
    assert (tmp_path / "window.jsonl").exists()


class NoCopy(FakeFleetArm):
    @asynccontextmanager
    async def serving(self):
        if self.fleet_name == "verify-b":
            raise FleetError("`phasewise up` failed: no memory")
        async with super().serving() as url:
            yield url


def test_a_copy_that_does_not_start_costs_neither_the_verdict_nor_the_files(
    fleet_file, monkeypatch, tmp_path
):
    monkeypatch.setattr(diagnose_verify, "FleetArm", NoCopy)
    files = tmp_path / "window.jsonl", tmp_path / "verdict.html"
    done = verify(fleet_file, "--json", "--save-traffic", str(files[0]), "--report", str(files[1]))
    assert done.exit_code == 1, done.output
    facts = json.loads(done.stdout)
    assert facts["verdict"] == "slow_to_start"
    assert "no memory" in facts["verification"]["nothing"]
    assert facts["verification"]["entries"][0]["outcome"]["held"] == "inconclusive"
    assert all(file.exists() for file in files)


def test_where_pools_differ_nothing_is_predicted(fleet_file, monkeypatch):
    monkeypatch.setattr(diagnose_verify, "FleetArm", NoCopy)
    fleet_file.write_text(
        "pools: [{name: a, levers: {max_running: 1}}, {name: b, levers: {max_running: 2}}]\n"
    )
    done = verify(fleet_file)
    assert "Not verified" in done.stdout
    assert "not predictable: TTFT p50, the pools of this fleet have different levers" in done.stderr


@pytest.mark.parametrize(("asked", "sent"), [((), 30), (("--requests", "5"), 5)])
def test_all_of_a_trace_is_replayed_unless_fewer_are_asked_for(
    fleet_file, monkeypatch, tmp_path, asked, sent
):
    monkeypatch.setattr(diagnose_verify, "reach_verdict", lambda *evidence: make_verdict(cause=None))
    requests = tuple(TracedRequest(0.01 * number, 40, 2) for number in range(30))
    trace, seen = tmp_path / "window.jsonl", tmp_path / "seen.jsonl"
    trace.write_bytes(b"".join(mooncake_lines(Trace("window", requests))))
    fleet_file.write_text("pools: [{levers: {max_running: 8}}]\n")
    command = ["diagnose", str(fleet_file), "--verify", "--trace", str(trace), "--save-traffic", str(seen)]
    done = CliRunner().invoke(app, [*command, *asked])
    assert done.exit_code == 0, done.output
    assert f"a block is {sent} of the 30 requests of the trace" in done.stderr
    assert len(read_trace(seen).requests) == sent


def test_how_long_it_takes_counts_a_start_per_pair_and_every_block():
    assert duration_words(4, 0, 60.0, 30.0) == "measuring 4 pairs of blocks: about 8 min"
    told = duration_words(4, 4, 60.0, 30.0)
    assert told == "measuring 4 pairs for the control and 4 pairs of blocks: about 12 min"


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
