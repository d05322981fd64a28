"""One lever from start to end on real engines: fleets, blocks, answers, the table."""

import os
from dataclasses import replace

import pytest

from phasewise.experiments.lever_runs.engine_facts import read_facts
from phasewise.experiments.lever_runs.engines import running_engines
from phasewise.experiments.lever_runs.launch import FleetLauncher, handicapped
from phasewise.experiments.lever_runs.measure import LeverRun, LeverTools
from phasewise.experiments.lever_runs.outputs import OutputReader
from phasewise.experiments.levers.agenda import QUICK
from phasewise.experiments.levers.cases import PREFIX_CACHE
from phasewise.experiments.levers.results import open_results
from phasewise.experiments.levers.workloads import SHARED_PROMPTS, _plan
from phasewise.fleet.config import phasewise_home
from phasewise.fleet.local.run_files import fleet_names
from phasewise.loadgen.session import measure
from phasewise.loadgen.statistics import window as validity
from tests.experiments.levers.builders import make_circumstances
from tests.paths import ROOT

EFFORT = replace(QUICK, block_s=0.1, most_floors=0, answer_prompts=2, answer_tokens=8)
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


async def test_the_prefix_cache_is_seen_to_save_prefill_and_to_leave_the_answers_alone(home, monkeypatch):
    monkeypatch.setattr(validity, "_shown", lambda *lags: "")  # other tests may keep the machine busy
    # Prompts of two shared blocks and one of their own: longer ones take a slow machine minutes.
    shorter = replace(SHARED_PROMPTS, plan=_plan(384, 8, shared_prefix_tokens=320))
    case = replace(PREFIX_CACHE, rows=(replace(PREFIX_CACHE.rows[0], workload=shorter),))
    file = open_results(home, make_circumstances(), again=False)

    async def measured(url, spec, label):
        return await measure(url, spec)

    async def demo_model(spec):
        return "smollm2-135m"

    said = []
    tools = LeverTools(measured, handicapped, OutputReader(1).compare, read_facts, said.append)
    launcher = FleetLauncher(home, home, demo_model)
    async with running_engines(launcher.launch, 2, said.append) as engines:
        await LeverRun((case,), EFFORT, file, engines, tools).run()
    assert file.results.not_measured == {}
    (row,) = file.results.rows.values()
    ttft = row.effects[0]
    assert ttft.on < 0.7 * ttft.off, "256 of 384 prompt tokens are in the cache"
    facts = file.results.cases[case.engines_key]
    assert facts.kv_tokens_off == facts.kv_tokens_on > 10_000
    assert facts.outputs.equal == facts.outputs.answers == 2
    assert fleet_names(home) == []
