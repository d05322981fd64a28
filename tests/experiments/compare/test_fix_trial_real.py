"""A fix tried on real engines: fleets from files, the lever in the engine, the outcome in the ledger."""

import os
import socket
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from phasewise.clients.step_feed import StepFeed
from phasewise.core.slo import DEFAULT_SLO
from phasewise.diagnosis.advice.fix import LeverChange
from phasewise.diagnosis.gather.own_run import observed
from phasewise.diagnosis.gather.target import identify
from phasewise.experiments.compare.arms import FleetArm
from phasewise.experiments.compare.compare import ComparePlan
from phasewise.experiments.compare.fix_trial import (
    Diagnosed,
    FixTrialPlan,
    FixTrialTools,
    Setting,
    try_top_fix,
)
from phasewise.experiments.compare.ledger_file import LedgerFile
from phasewise.experiments.compare.verdict import Rules
from phasewise.fleet.config import fleet_with, load_fleet, phasewise_home
from phasewise.fleet.local.placement import STEPS_PORT_OFFSET
from phasewise.fleet.local.run_files import find_admin_key, fleet_names
from phasewise.loadgen.session import RunSpec, measure
from phasewise.loadgen.statistics import window as validity
from phasewise.loadgen.statistics.comparison import FEWEST_PAIRS
from phasewise.loadgen.workload.arrivals import ClosedLoop
from phasewise.loadgen.workload.lengths import Lengths
from phasewise.loadgen.workload.plan import PlanSpec
from phasewise.loadgen.workload.presets import Shape
from tests.experiments.compare.builders import make_effect, make_fix, make_verdict
from tests.paths import ROOT
from tests.real_engine import free_port

SPEC = RunSpec(
    PlanSpec(Shape("short", Lengths.fixed(40), Lengths.fixed(8)), ClosedLoop(4), requests=5), seed=1
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

    stack: AsyncExitStack
    folder: Path
    urls: dict

    def arm(self, path, name):
        return _StartedOnce(self, path, name)

    async def url(self, path, name):
        if name not in self.urls:
            fleet = fleet_with(
                load_fleet(path), first_engine_port=free_engine_port(), gateway_port=free_port()
            )
            file = self.folder / f"{name}.yaml"
            file.write_text(fleet.model_dump_json(exclude_none=True))
            self.urls[name] = await self.stack.enter_async_context(FleetArm(file, name).serving())
        return self.urls[name]


@dataclass
class _StartedOnce:
    fleets: SideBySide
    path: Path
    name: str

    @asynccontextmanager
    async def serving(self):
        yield await self.fleets.url(self.path, self.name)


async def test_a_raised_batch_cap_is_predicted_tried_and_measured(home, monkeypatch):
    monkeypatch.setattr(validity, "_shown", lambda *lags: "")  # other tests may keep the machine busy
    file = home / "fleet.yaml"
    file.write_text(
        "pools: [{levers: {max_num_seqs: 1, kv_cache_memory_bytes: 256MiB, max_model_len: 1024}}]\n"
    )
    written = file.read_bytes()
    ledger = LedgerFile(home / "ledger.jsonl")
    fix = make_fix(LeverChange("max_num_seqs", 8), make_effect(0.01, 0.9))
    seen = []

    async def diagnose(url):
        admin_key = find_admin_key(url, home)
        target = await identify(url, admin_key)
        async with observed(target, admin_key) as watch:
            evidence = await watch.evidence(await measure(url, SPEC))
        seen.append(evidence)
        return Diagnosed(make_verdict(fix), evidence)

    async def measured(url, spec, label):
        assert len(ledger.read().entries) == 1, "predicted before it is measured"
        return await measure(url, spec)

    async with AsyncExitStack() as stack:
        fleets = SideBySide(stack, home, {})
        tools = FixTrialTools(
            arm=fleets.arm,
            diagnose=diagnose,
            measure=measured,
            ledger=ledger,
            clock=lambda: 1.0,
            show=lambda diagnosed: None,
            announce=lambda fix, change, predictions: None,
            say=lambda words: None,
            forgives=lambda: False,
        )
        compare = ComparePlan(SPEC, Rules(DEFAULT_SLO, 0), control_pairs=0, pairs=FEWEST_PAIRS)
        setting = Setting("this machine", "smollm2-135m", "vllm", "0")
        done = await try_top_fix(FixTrialPlan(file, load_fleet(file), setting, compare), tools)
        running = [await most_running(url, home) for url in fleets.urls.values()]
    (evidence,) = seen
    assert {it.serving_attempt.worker.name for it in evidence.timelines} == set(evidence.logs) == {"main-0"}
    assert running[0] == 1 < running[1], "the copy's engine runs with the changed lever"
    assert done.change == ("pools.main.levers.max_num_seqs: 1 -> 8",)
    (entry,) = ledger.read().entries
    assert entry.outcome.ratio < 1, entry.outcome
    assert entry.outcome.pairs == FEWEST_PAIRS
    assert file.read_bytes() == written
    assert fleet_names(home) == []


async def most_running(url, home):
    (engine,) = (await identify(url, find_admin_key(url, home))).engines
    feed = StepFeed(engine.steps_url)
    try:
        return max(step.running for step in (await feed.poll()).steps)
    finally:
        feed.close()
