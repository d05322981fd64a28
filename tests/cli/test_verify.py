"""`phasewise verify FLEET` as it is typed; fake engines stand for fleets."""

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

from phasewise.cli import verify_fleet
from phasewise.cli.app import app
from phasewise.core.errors import ConfigError, FleetError
from phasewise.diagnosis.advice.fix import LeverChange
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import load_fleet
from phasewise.fleet.local.run_files import RunPaths, only_supervisor, write_state
from phasewise.fleet.local.state import FleetState, MemberState, ProcessIdentity
from phasewise.loadgen.statistics import window as validity
from phasewise.loadgen.workload.traces import Trace, TracedRequest, mooncake_lines, read_trace
from phasewise.report.verify_view import duration_words
from phasewise.simulator.engine import EngineShape
from tests.experiments.verify.builders import make_effect, make_fix, make_verdict

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
        running = load_fleet(self.path).pools[0].levers.max_num_seqs
        config = FakeEngineConfig(shape=EngineShape(max_num_seqs=running), cost=lambda work: STEP_S)
        async with running_engines(1, config) as (engine,):
            yield engine.base_url


@pytest.fixture
def fleet_file(tmp_path, monkeypatch):
    STARTED.clear()
    monkeypatch.setenv("PHASEWISE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(validity, "_shown", lambda *lags: "")
    monkeypatch.setattr(verify_fleet, "FleetArm", FakeFleetArm)
    engine = SimpleNamespace(device="cpu", vllm_version="0.0")
    monkeypatch.setattr(verify_fleet, "current_engine", lambda: engine)
    verdict = make_verdict(make_fix(LeverChange("max_num_seqs", 8), make_effect(0.01, 0.95)))
    monkeypatch.setattr(verify_fleet, "diagnose", lambda *evidence: verdict)
    file = tmp_path / "fleet.yaml"
    file.write_text("name: small\npools: [{levers: {max_num_seqs: 1}}]\n")
    return file


def verify(file, *options):
    return CliRunner().invoke(app, ["verify", str(file), *LOAD, *options])


def test_a_verification_prints_the_prediction_beside_the_outcome_and_keeps_both(fleet_file, tmp_path):
    ledger, traffic = tmp_path / "ledger.jsonl", tmp_path / "window.jsonl"
    done = verify(fleet_file, "--ledger", str(ledger), "--save-traffic", str(traffic))
    assert done.exit_code == 0, done.output
    assert "pools.main.levers.max_num_seqs: 1 -> 8" in done.stdout
    assert "predicted: TTFT p50 -52% (-99% to -5%)" in done.stderr
    assert STARTED == ["verify-a", "verify-b", "verify-a", "verify-b", "verify-a"]
    assert len(read_trace(traffic).requests) == 6
    shown = CliRunner().invoke(app, ["verify", "--history", "--ledger", str(ledger), "--json"])
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
    monkeypatch.setattr(verify_fleet, "FleetArm", arm)
    monkeypatch.setattr(verify_fleet, "diagnose", lambda *evidence: make_verdict(cause=None))
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
    monkeypatch.setattr(verify_fleet, "FleetArm", NoCopy)
    files = tmp_path / "window.jsonl", tmp_path / "verdict.html"
    done = verify(fleet_file, "--json", "--save-traffic", str(files[0]), "--html", str(files[1]))
    assert done.exit_code == 1, done.output
    facts = json.loads(done.stdout)
    assert facts["verdict"] == "slow_to_start"
    assert "no memory" in facts["verification"]["nothing"]
    assert facts["verification"]["entries"][0]["outcome"]["held"] == "inconclusive"
    assert all(file.exists() for file in files)


def test_where_pools_differ_nothing_is_predicted(fleet_file, monkeypatch):
    monkeypatch.setattr(verify_fleet, "FleetArm", NoCopy)
    fleet_file.write_text(
        "pools: [{name: a, levers: {max_num_seqs: 1}}, {name: b, levers: {max_num_seqs: 2}}]\n"
    )
    done = verify(fleet_file)
    assert "Not verified" in done.stdout
    assert "not predictable: TTFT p50, the pools of this fleet have different levers" in done.stderr


@pytest.mark.parametrize(("asked", "sent"), [((), 30), (("--requests", "5"), 5)])
def test_all_of_a_trace_is_replayed_unless_fewer_are_asked_for(
    fleet_file, monkeypatch, tmp_path, asked, sent
):
    monkeypatch.setattr(verify_fleet, "diagnose", lambda *evidence: make_verdict(cause=None))
    requests = tuple(TracedRequest(0.01 * number, 40, 2) for number in range(30))
    trace, seen = tmp_path / "window.jsonl", tmp_path / "seen.jsonl"
    trace.write_bytes(b"".join(mooncake_lines(Trace("window", requests))))
    fleet_file.write_text("pools: [{levers: {max_num_seqs: 8}}]\n")
    command = ["verify", str(fleet_file), "--trace", str(trace), "--save-traffic", str(seen)]
    done = CliRunner().invoke(app, [*command, *asked])
    assert done.exit_code == 0, done.output
    assert f"a block has {sent} of the trace's 30 requests" in done.stderr
    assert len(read_trace(seen).requests) == sent


def test_how_long_it_takes_counts_a_start_per_pair_and_every_block():
    assert duration_words(4, 0, 60.0, 30.0) == "measuring 4 pairs of blocks: about 8 min"
    reported = duration_words(4, 4, 60.0, 30.0)
    assert reported == "measuring 4 pairs for the control and 4 pairs of blocks: about 12 min"


def test_where_there_is_nothing_to_try_programs_are_reported_why(fleet_file, monkeypatch, tmp_path):
    monkeypatch.setattr(verify_fleet, "diagnose", lambda *evidence: make_verdict(cause=None))
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


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["http://127.0.0.1:9"], "never changes a running server", "--save-traffic"),
        (["FLEET", "--control-pairs", "2"], "--control-pairs 2", "0 for no control"),
        (["FLEET", "--history"], "together with fleet", "remove what --history ignores"),
        (
            ["--history", "--pairs", "9", "--rate", "2"],
            "together with --pairs, --rate",
            "remove what --history ignores",
        ),
    ],
)
def test_a_wrong_turn_is_a_sentence_and_says_what_to_do_next(fleet_file, arguments, message, hint):
    words = [str(fleet_file) if word == "FLEET" else word for word in arguments]
    done = CliRunner().invoke(app, ["verify", *words])
    assert isinstance(done.exception, ConfigError)
    assert message in done.exception.message
    assert hint in done.exception.hint
    assert STARTED == []


def test_without_a_fleet_file_it_is_wrong_usage():
    done = CliRunner().invoke(app, ["verify"])
    assert done.exit_code == 2
    assert "--history" in done.output
