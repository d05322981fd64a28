"""`phasewise compare FLEET --fix` and `--set` on real engines: fleets from files, the lever in the engine."""

import asyncio
import json
import os
import socket
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phasewise.benchmark.compare.arms import run_phasewise
from phasewise.benchmark.compare.ledger import LedgerFile
from phasewise.benchmark.statistics import window as validity
from phasewise.cli import compare_fleet
from phasewise.cli.app import app
from phasewise.clients.step_feed import StepFeed
from phasewise.diagnosis.advice.fix import LeverChange
from phasewise.diagnosis.gather.target import identify
from phasewise.fleet.config import fleet_with, load_fleet, phasewise_home
from phasewise.fleet.local.placement import STEPS_PORT_OFFSET
from phasewise.fleet.local.run_files import find_admin_key
from tests.benchmark.compare.builders import make_effect, make_fix, make_verdict
from tests.paths import ROOT
from tests.real_engine import free_port

LOAD = (
    "--requests",
    "5",
    "--concurrency",
    "4",
    "--prompt-tokens",
    "40",
    "--output-tokens",
    "8",
    "--seed",
    "1",
)
pytestmark = pytest.mark.real


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home of our own with the installed engine and models linked into it."""
    installed = phasewise_home(os.environ) if "PHASEWISE_HOME" in os.environ else ROOT / ".phasewise"
    for part in ("engine", "models"):
        assert (installed / part).exists(), "run: phasewise engine install && phasewise model fetch"
        (tmp_path / part).symlink_to(installed / part)
    monkeypatch.setenv("PHASEWISE_HOME", str(tmp_path))
    return tmp_path


def free_engine_port():
    """A port that is free, with its step recorder's; a gateway's, which the system picks, lies elsewhere."""
    for port in range(20_000 + os.getpid() % 1_000, 22_000):
        if is_free(port) and is_free(port + STEPS_PORT_OFFSET):
            return port
    raise AssertionError("no port is free")


def is_free(port):
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@dataclass
class SideBySide:
    """Starts each fleet once, on ports of its own: starting them in turn would take minutes."""

    folder: Path
    urls: dict = field(default_factory=dict)
    levers: dict = field(default_factory=dict)

    def arm(self, path, name, say):
        return _StartedOnce(self, path, name)

    async def url(self, path, name):
        fleet = load_fleet(path)
        if name not in self.urls:
            fleet = fleet_with(fleet, first_engine_port=free_engine_port(), gateway_port=free_port())
            file = self.folder / f"{name}.yaml"
            file.write_text(fleet.model_dump_json(exclude_none=True))
            state = json.loads(await run_phasewise("up", str(file), "--detach", "--json", "--name", name))
            self.urls[name], self.levers[name] = state["gateway"]["url"], fleet.pools[0].levers
        assert fleet.pools[0].levers == self.levers[name]
        return self.urls[name]

    async def stop(self):
        for name in self.urls:
            await run_phasewise("down", name)


@dataclass
class _StartedOnce:
    fleets: SideBySide
    path: Path
    fleet_name: str

    @property
    def name(self):
        return self.path.name

    @asynccontextmanager
    async def serving(self):
        yield await self.fleets.url(self.path, self.fleet_name)


@pytest.fixture
def fleets(home, monkeypatch):
    side_by_side = SideBySide(home)
    monkeypatch.setattr(compare_fleet, "FleetArm", side_by_side.arm)
    yield side_by_side
    asyncio.run(side_by_side.stop())


def compare(*arguments):
    done = CliRunner().invoke(app, ["compare", *map(str, arguments), *LOAD, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout), done.stderr


def test_a_raised_batch_cap_is_predicted_tried_and_measured(home, fleets, monkeypatch):
    monkeypatch.setattr(validity, "_shown", lambda *lags: "")  # other tests may keep the machine busy
    file, ledger = home / "fleet.yaml", home / "ledger.jsonl"
    file.write_text(
        "pools: [{levers: {max_num_seqs: 1, kv_cache_memory_bytes: 256MiB, max_model_len: 1024}}]\n"
    )
    written, seen = file.read_bytes(), []
    fix = make_fix(LeverChange("max_num_seqs", 8), make_effect(0.01, 0.9))

    def diagnose(evidence, *known):
        seen.append(evidence)
        return make_verdict(fix)

    monkeypatch.setattr(compare_fleet, "diagnose", diagnose)
    trial = compare(file, "--fix", "--ledger", ledger)[0]["fix_trial"]
    running = [asyncio.run(most_running(url, home)) for url in fleets.urls.values()]
    (evidence,) = seen
    served_by = {timeline.serving_attempt.worker.name for timeline in evidence.timelines}
    assert served_by == set(evidence.logs) == {"main-0"}
    assert running[0] == 1 < running[1], "the copy's engine runs with the changed lever"
    assert trial["change"] == ["pools.main.levers.max_num_seqs: 1 -> 8"]
    (entry,) = LedgerFile(ledger).read().entries
    assert entry.outcome.ratio < 1, entry.outcome
    assert entry.outcome.pairs == 4

    # They still run, side by side, which keeps other fleets from their cores.
    monkeypatch.setattr(compare_fleet, "running_fleets", lambda home: ())
    measured, said = compare(file, "--set", "max_num_seqs=8", "--pairs", "4", "--control-pairs", "0")
    assert "B has pools.main.levers.max_num_seqs: 1 -> 8" in said
    changes = {each["metric"]["name"]: each["change"] for each in measured["comparisons"]}
    assert changes["ttft_p50"] < 0
    assert file.read_bytes() == written


async def most_running(url, home):
    (engine,) = (await identify(url, find_admin_key(url, home))).engines
    feed = StepFeed(engine.steps_url)
    try:
        return max(step.running for step in (await feed.poll()).steps)
    finally:
        feed.close()
