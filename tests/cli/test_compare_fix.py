"""`phasewise compare FLEET --fix` and `--set` as they are typed; fake engines stand for fleets."""

import asyncio
import json
import os
import signal
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from phasewise.benchmark.statistics import window as validity
from phasewise.benchmark.workload.traces import Trace, TracedRequest, mooncake_lines
from phasewise.cli import compare_fleet
from phasewise.cli.app import app
from phasewise.core.errors import ConfigError, FleetError
from phasewise.diagnosis.advice.fix import LeverChange
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import load_fleet, phasewise_home
from phasewise.fleet.local.run_files import RunPaths, only_supervisor, write_state
from phasewise.fleet.local.state import FleetState, MemberState, ProcessIdentity
from phasewise.report.ledger_view import duration_words
from phasewise.simulator.engine import EngineShape
from tests.benchmark.compare.builders import make_effect, make_fix, make_verdict

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


@contextmanager
def running_fleet(home, name):
    """A fleet that runs as far as the data folder knows, and holds the cores of this machine."""
    state = FleetState(
        name=name,
        model="m",
        boot_id="b",
        supervisor=ProcessIdentity(pid=1, start_ticks=1),
        started_unix_s=0.0,
        scratch="",
        engines=(MemberState(name="main-0", url="http://127.0.0.1:9001", log="", cores=(0, 1, 2, 3)),),
        gateway=MemberState(name="gateway", url="http://127.0.0.1:9002", log=""),
    )
    paths = RunPaths(home, name)
    with only_supervisor(paths):
        write_state(paths, state)
        yield


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
        with running_fleet(phasewise_home(os.environ), self.fleet_name):
            async with running_engines(1, config) as (engine,):
                yield engine.base_url


@pytest.fixture
def fleet_file(tmp_path, monkeypatch):
    STARTED.clear()
    monkeypatch.setenv("PHASEWISE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(validity, "_shown", lambda *lags: "")
    monkeypatch.setattr(compare_fleet, "FleetArm", FakeFleetArm)
    engine = SimpleNamespace(device="cpu", vllm_version="0.0")
    monkeypatch.setattr(compare_fleet, "current_engine", lambda: engine)
    verdict = make_verdict(make_fix(LeverChange("max_num_seqs", 8), make_effect(0.01, 0.95)))
    monkeypatch.setattr(compare_fleet, "diagnose", lambda *evidence: verdict)
    file = tmp_path / "fleet.yaml"
    file.write_text("name: small\npools: [{levers: {max_num_seqs: 1}}]\n")
    return file


def try_fix(file, *options):
    return CliRunner().invoke(app, ["compare", str(file), "--fix", *LOAD, *options])


def test_a_verification_prints_the_prediction_beside_the_outcome_and_keeps_both(fleet_file, tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    done = try_fix(fleet_file, "--ledger", str(ledger))
    assert done.exit_code == 0, done.output
    assert "pools.main.levers.max_num_seqs: 1 -> 8" in done.stdout
    assert "predicted: TTFT p50 -52% (-5 to -99%)" in done.stderr
    assert STARTED == ["compare-a", "compare-b", "compare-a", "compare-b", "compare-a"]
    shown = CliRunner().invoke(app, ["compare", "--history", "--ledger", str(ledger), "--json"])
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
    monkeypatch.setattr(compare_fleet, "FleetArm", arm)
    monkeypatch.setattr(compare_fleet, "diagnose", lambda *evidence: make_verdict(cause=None))
    done = try_fix(fleet_file, "--json", "--html", str(tmp_path / "verdict.html"))
    assert done.exit_code == 0, done.output
    assert "the verdict is healthy" in json.loads(done.stdout)["fix_trial"]["nothing"]
    assert said in done.stderr
    assert (tmp_path / "verdict.html").exists()


class NoCopy(FakeFleetArm):
    @asynccontextmanager
    async def serving(self):
        if self.fleet_name == "compare-b":
            raise FleetError("`phasewise up` failed: no memory")
        async with super().serving() as url:
            yield url


def test_a_copy_that_does_not_start_costs_neither_the_verdict_nor_the_files(
    fleet_file, monkeypatch, tmp_path
):
    monkeypatch.setattr(compare_fleet, "FleetArm", NoCopy)
    page = tmp_path / "verdict.html"
    done = try_fix(fleet_file, "--json", "--html", str(page))
    assert done.exit_code == 1, done.output
    facts = json.loads(done.stdout)
    assert facts["verdict"] == "slow_to_start"
    assert "no memory" in facts["fix_trial"]["nothing"]
    assert facts["fix_trial"]["entries"][0]["outcome"]["held"] == "inconclusive"
    assert page.exists()


def test_where_pools_differ_nothing_is_predicted(fleet_file, monkeypatch):
    monkeypatch.setattr(compare_fleet, "FleetArm", NoCopy)
    fleet_file.write_text(
        "pools: [{name: a, levers: {max_num_seqs: 1}}, {name: b, levers: {max_num_seqs: 2}}]\n"
    )
    done = try_fix(fleet_file)
    assert "Not measured" in done.stdout
    assert "not predictable: TTFT p50, the pools of this fleet have different levers" in done.stderr


@pytest.mark.parametrize(("asked", "sent"), [((), 30), (("--requests", "5"), 5)])
def test_all_of_a_trace_is_replayed_unless_fewer_are_asked_for(
    fleet_file, monkeypatch, tmp_path, asked, sent
):
    monkeypatch.setattr(compare_fleet, "diagnose", lambda *evidence: make_verdict(cause=None))
    requests = tuple(TracedRequest(0.01 * number, 40, 2) for number in range(30))
    trace = tmp_path / "window.jsonl"
    trace.write_bytes(b"".join(mooncake_lines(Trace("window", requests))))
    fleet_file.write_text("pools: [{levers: {max_num_seqs: 8}}]\n")
    command = ["compare", str(fleet_file), "--fix", "--trace", str(trace), "--json"]
    done = CliRunner().invoke(app, [*command, *asked])
    assert done.exit_code == 0, done.output
    assert f"a block has {sent} of the trace's 30 requests" in done.stderr
    assert STARTED == ["compare-a"]


def test_how_long_it_takes_counts_a_start_per_pair_and_every_block():
    assert duration_words(4, 0, 60.0, 30.0) == "measuring 4 pairs of blocks: about 8 min"
    reported = duration_words(4, 4, 60.0, 30.0)
    assert reported == "measuring 4 pairs for the control and 4 pairs of blocks: about 12 min"


def test_where_there_is_nothing_to_try_programs_are_reported_why(fleet_file, monkeypatch, tmp_path):
    monkeypatch.setattr(compare_fleet, "diagnose", lambda *evidence: make_verdict(cause=None))
    done = try_fix(fleet_file, "--json")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["verdict"] == "healthy"
    assert "the verdict is healthy" in facts["fix_trial"]["nothing"]
    assert facts["fix_trial"]["entries"] == []
    assert STARTED == ["compare-a"]


def test_a_running_fleet_in_the_way_is_named_before_anything_starts(fleet_file, tmp_path):
    with running_fleet(tmp_path / "home", "busy"):
        done = try_fix(fleet_file)
    assert isinstance(done.exception, FleetError)
    assert "phasewise down busy" in done.exception.hint
    assert STARTED == []


def test_a_ledger_that_cannot_be_written_is_found_out_before_anything_starts(fleet_file, tmp_path):
    done = try_fix(fleet_file, "--ledger", str(tmp_path))
    assert isinstance(done.exception, ConfigError)
    assert STARTED == []


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["http://127.0.0.1:9", "--fix"], "never changes a running server", "--save-traffic"),
        (["http://127.0.0.1:9", "--set", "replicas=2"], "never changes a running server", "--save-traffic"),
        (["FLEET", "--fix", "--control-pairs", "2"], "--control-pairs 2", "0 for no control"),
        (["FLEET", "other.yaml", "--fix"], "B and --fix were given together", "give one of them"),
        (["FLEET", "--set", "prefix_cache"], "has no value", "--block-size=32"),
        (["FLEET", "--set", "nonsense=1"], "unknown lever 'nonsense'", "max_num_seqs"),
        (["FLEET", "--set", "--max-num-seqs=4"], "this flag has a lever", "--set max_num_seqs=VALUE"),
        (["FLEET", "--history"], "together with a", "remove what --history ignores"),
        (
            ["--history", "--pairs", "9", "--rate", "2"],
            "together with --pairs, --rate",
            "remove what --history ignores",
        ),
    ],
)
def test_a_wrong_turn_is_a_sentence_and_says_what_to_do_next(fleet_file, arguments, message, hint):
    words = [str(fleet_file) if word == "FLEET" else word for word in arguments]
    done = CliRunner().invoke(app, ["compare", *words])
    assert isinstance(done.exception, ConfigError)
    assert message in done.exception.message
    assert hint in done.exception.hint
    assert STARTED == []


def test_without_a_fleet_file_it_is_wrong_usage():
    for arguments in ([], ["fleet.yaml"]):
        done = CliRunner().invoke(app, ["compare", *arguments])
        assert done.exit_code == 2
        assert "--fix" in done.output


def test_a_lever_and_a_flag_are_measured_off_against_on(fleet_file):
    """Five starts for four pairs: a fleet is kept until the other one is needed."""
    settings = ("--set", "max_num_seqs=8", "--set", "--block-size=32")
    options = ("--pairs", "4", "--control-pairs", "0", "--json")
    done = CliRunner().invoke(app, ["compare", str(fleet_file), *settings, *LOAD, *options])
    assert done.exit_code == 0, done.output
    assert "B has pools.main.levers.max_num_seqs: 1 -> 8" in done.stderr
    assert "B has pools.main.engine_flags: + --block-size=32" in done.stderr
    facts = json.loads(done.stdout)
    assert facts["b_name"] == "fleet.yaml with max_num_seqs=8, --block-size=32"
    changes = {each["metric"]["name"]: each["change"] for each in facts["comparisons"]}
    assert changes["ttft_p50"] < 0
    assert STARTED == ["compare-a", "compare-b", "compare-a", "compare-b", "compare-a"]
    assert fleet_file.read_text() == "name: small\npools: [{levers: {max_num_seqs: 1}}]\n"
