"""One lever from start to end on real engines: fleets, blocks, answers, the table."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from phasewise.bench import validity
from phasewise.bench.session import measure
from phasewise.config import phasewise_home
from phasewise.fleet.run_file import fleet_names
from phasewise.levers.agenda import QUICK
from phasewise.levers.cases import PREFIX_CACHE
from phasewise.levers.engine_facts import read_facts
from phasewise.levers.engines import running_engines
from phasewise.levers.launch import FleetLauncher, restrained
from phasewise.levers.outputs import OutputReader
from phasewise.levers.procedure import Procedure, Tools
from phasewise.levers.results import open_results
from tests.levers.builders import make_circumstances

ROOT = Path(__file__).parents[2]
EFFORT = replace(QUICK, block_s=0.1, most_floors=0, answer_prompts=2, answer_tokens=8)
pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


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
    case = replace(PREFIX_CACHE, rows=PREFIX_CACHE.rows[:1])
    file = open_results(home, make_circumstances(), again=False)

    async def measured(url, spec, label):
        return await measure(url, spec)

    async def demo_model(spec):
        return "smollm2-135m"

    said = []
    tools = Tools(measured, restrained, OutputReader(1).compare, read_facts, said.append)
    launcher = FleetLauncher(home, home, demo_model)
    async with running_engines(launcher.launch, 2, said.append) as engines:
        await Procedure((case,), EFFORT, file, engines, tools).run()
    assert file.results.not_measured == {}
    (row,) = file.results.rows.values()
    ttft = row.effects[0]
    assert ttft.on < ttft.off / 2, "960 of 1,024 prompt tokens are in the cache"
    facts = file.results.cases[case.engines_key]
    assert facts.kv_tokens_off == facts.kv_tokens_on > 10_000
    assert facts.outputs.equal == facts.outputs.answers == 2
    assert fleet_names(home) == []
