"""A whole validation as it is typed; fake engines stand for fleets."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from phasewise.benchmark.statistics import window as validity
from phasewise.cli import engine_validate as command
from phasewise.cli.app import app
from phasewise.core.errors import ConfigError, FleetError, MeasurementError
from phasewise.costs.fit import step_fit
from phasewise.costs.fit.step import StepCost
from phasewise.experiments import validation
from phasewise.experiments.validation import planted_traffic, prefill_s
from phasewise.experiments.validation_claims import ClaimOutcome, read_judged
from phasewise.fake_engine.engine import FakeEngine, FakeEngineConfig
from phasewise.fleet.config import load_fleet
from phasewise.fleet.engines.environment import EngineEnvironment
from phasewise.simulator.engine import EngineShape
from phasewise.simulator.requests import PRESETS
from tests.real_engine import free_port

COST = StepCost(4e-3, 96, 54e-6, 8e-9, 0.1e-6, 0.05e-3)
RUNNING = []


class FakeFleetArm:
    """A fake engine with the levers of the file; its gateway is the engine itself."""

    broken = ""

    def __init__(self, path, fleet_name, say=None):
        self.path, self.fleet_name, self.name = path, fleet_name, path.name

    @asynccontextmanager
    async def serving(self):
        if self.fleet_name == self.broken:
            raise FleetError("`phasewise up /tmp/secret/x.yaml` failed: CUDA out of memory")
        levers = load_fleet(self.path).pools[0].levers
        given = {name: getattr(levers, name) for name in ("max_num_seqs", "max_num_batched_tokens")}
        shape = EngineShape(
            max_model_len=levers.max_model_len,
            prefix_cache=levers.prefix_cache,
            **{name: value for name, value in given.items() if value is not None},
        )
        while (port := free_port()) > 50_000:
            pass
        engine = FakeEngine(FakeEngineConfig(port=port, steps_port=port + 10_000, cost=COST, shape=shape))
        await engine.start()
        RUNNING.append((self.fleet_name, engine.base_url))
        try:
            yield engine.base_url
        finally:
            await engine.stop()


@pytest.fixture(autouse=True)
def fake_fleets(monkeypatch, tmp_path):
    RUNNING.clear()
    engine = EngineEnvironment(Path("python"), "0.32.0", "cpu", "0.3.0", False, "", "2.13.0", "3.11.7")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PHASEWISE_HOME", str(tmp_path))
    monkeypatch.setattr(command, "current_engine", lambda: engine)
    monkeypatch.setattr(command, "read_model_config", lambda *asked: {"max_position_embeddings": 8192})
    monkeypatch.setattr(command, "FleetArm", FakeFleetArm)
    state = lambda paths: SimpleNamespace(engines=[SimpleNamespace(url=RUNNING[-1][1])])  # noqa: E731
    monkeypatch.setattr(validation, "read_state", state)
    monkeypatch.setattr(validation, "CALIBRATION_S", 3.0)
    monkeypatch.setattr(validation, "PLANTED_S", 1.0)
    monkeypatch.setattr(step_fit, "DRAWS", 3)
    monkeypatch.setattr(validity, "_shown", lambda *lags: "")


def run(*options):
    return CliRunner().invoke(app, ["engine", "validate", *options])


def test_every_claim_is_tried_and_the_report_is_one_that_its_reader_accepts(tmp_path):
    result = run("--output", "mine.json", "--minutes", "5")
    assert result.exit_code == 0, result.output
    report = read_judged((tmp_path / "mine.json").read_bytes(), "mine.json")
    assert {step.step: step.why for step in report.steps} == dict.fromkeys(validation.STEPS, "")
    # How they end depends on how fast the machine is just now.
    assert ClaimOutcome.NOT_TRIED not in {claim.outcome for claim in report.claims}, report.claims
    names = [name for name, _ in RUNNING]
    assert names[0] == "validate-base"
    assert names.count("validate-max-num-seqs") == 1
    assert run("mine.json").stdout.startswith(f"| [{report.day}](validated/mine.json) |")


def test_an_engine_that_does_not_start_is_a_reason_without_paths(monkeypatch):
    monkeypatch.setattr(FakeFleetArm, "broken", "validate-base")
    result = run("--only", "calibration,healthy", "--json")
    assert result.exit_code == 1
    facts = json.loads(result.stdout)
    assert "CUDA out of memory" in facts["steps"][0]["why"]
    assert "secret" not in result.stdout
    assert "follow from the calibration" in facts["steps"][1]["why"]


def test_too_little_time_and_a_wrong_step_are_sentences(monkeypatch):
    monkeypatch.setattr(validation, "LEAST_S", 600.0)
    facts = json.loads(run("--only", "calibration", "--minutes", "1", "--json").stdout)
    assert "more --minutes" in facts["steps"][0]["why"]
    assert "accepted: calibration" in run("--only", "nothing").exception.hint


def test_a_fleet_with_several_engines_is_rejected(tmp_path):
    (tmp_path / "fleet.yaml").write_text("pools: [{replicas: 2}]\n")
    assert isinstance(run("fleet.yaml").exception, ConfigError)


@pytest.mark.parametrize("cost", [PRESETS["cpu-demo"], StepCost(0.027, 384, 8.0e-5, 1.5e-9, 3.0e-8, 2.2e-4)])
def test_a_long_prompt_misses_the_objective_that_short_ones_meet(cost):
    plan, slo = planted_traffic("prefix_cache_off", cost, 8192)
    tokens = plan.source.prompt.median_tokens
    assert 1.5 * slo.ttft_s < prefill_s(cost, tokens) <= 3.2 * slo.ttft_s
    assert 0.85 * tokens < plan.source.shared_prefix_tokens < tokens
    assert prefill_s(cost, 96) < slo.ttft_s / 2
    assert 9 <= planted_traffic("healthy", cost, 8192)[0].requests <= 400


def test_where_no_prompt_is_long_enough_the_error_says_what_to_change():
    fast = StepCost(0.003, 512, 1e-6, 1e-11, 1e-9, 1e-6)
    with pytest.raises(MeasurementError, match="too short") as error:
        planted_traffic("long_prompts", fast, 8192)
    assert "larger model" in error.value.hint
