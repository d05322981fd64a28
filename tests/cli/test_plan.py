"""`phasewise plan`: what it reads, prints, writes and rejects."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from phasewise.cli.app import app
from phasewise.core.errors import PhasewiseError
from phasewise.costs.fit.solve import FittedCost
from phasewise.diagnosis.gather.costs_file import save_fit
from phasewise.fleet.config import load_fleet
from tests.costs.fits import make_fit
from tests.paths import ROOT

LLAMA_70B = str(ROOT / "examples" / "models" / "llama-3-70b.json")
RUNNER = CliRunner()
SLO = ("--slo", "ttft=3s,tpot=100ms")
FEW = ("--costs", "cpu-demo", "--requests", "120", "--rate", "1.5", "--seed", "4", *SLO)


def run(*arguments):
    return RUNNER.invoke(app, ["plan", *arguments])


def facts(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.exception
    return json.loads(result.stdout)


def test_the_plan_is_a_fleet_file_that_simulates_as_planned(tmp_path):
    file = tmp_path / "fleet.yaml"
    plan = facts(*FEW, "--save", str(file))
    fleet = load_fleet(file)
    assert sum(it.replicas for it in fleet.pools) == plan["chosen"]["engines"]
    assert fleet.pools[0].levers.max_num_batched_tokens == plan["chosen"]["max_num_batched_tokens"]
    simulated = RUNNER.invoke(app, ["simulate", str(file), *FEW, "--json"])
    figures = json.loads(simulated.stdout)["fleets"][0]
    assert figures["attained"] >= 0.9
    assert plan["chosen"]["attained"] >= 0.95
    assert plan["engines_interval"] is None
    assert plan["priced_in"] == "engines"
    assert plan["disaggregation"]["pays"] in {"yes", "no", "undecided"}
    assert len(plan["disaggregation"]["compared"]) > 2
    assert plan["chosen"] == facts(*FEW, "--no-scan")["chosen"]
    # The same fleet says the same wherever it stands.
    assert plan["chosen"] in plan["fleets"]
    assert plan["one_more_engine"] in plan["fleets"]


def test_the_table_fits_a_terminal_and_says_where_the_step_times_are_from():
    page = run(*FEW, "--no-scan", "--price-per-hour", "2").stdout
    assert all(len(line) <= 80 for line in page.splitlines())
    assert page.startswith("Plan: ")
    assert "Step times are those of cpu-demo." in page
    assert "Disaggregation " in page
    assert "per hour: $" in page
    modelled = run(
        "--model", LLAMA_70B, "--gpus", "4", "--requests", "150", "--rate", "2", "--no-scan", *SLO
    ).stdout
    assert "modelled from the data sheet of 4 x H100, not measured" in modelled


def test_a_disaggregated_plan_splits_every_request(tmp_path):
    # Prompts that stall streams, and streams that may not stall.
    load = ("--costs", "cpu-demo", "--preset", "rag", "--rate", "0.8", "--requests", "150", "--seed", "4")
    file = tmp_path / "fleet.yaml"
    slo = ("--slo", "ttft=30s,tpot=85ms", "--attainment", "0.9", "--no-scan", "--save", str(file))
    plan = facts(*load, *slo)
    assert plan["chosen"]["prefill"] > 0
    assert plan["disaggregation"]["pays"] == "yes"
    fleet = load_fleet(file)
    assert [it.role for it in fleet.pools] == ["prefill", "decode"]
    assert fleet.gateway.kv_transfer.when == "always"


def test_recorded_timelines_are_traffic(tmp_path):
    file = tmp_path / "timelines.ndjson"
    simulate = ["simulate", "--costs", "cpu-demo", "--rate", "1.5", "--requests", "120", "--seed", "4"]
    assert RUNNER.invoke(app, [*simulate, "--timelines", str(file)]).exit_code == 0
    plan = facts("--costs", "cpu-demo", "--trace", str(file), "--no-scan", "--seed", "4", *SLO)
    assert plan["requests"] == 120
    # Without marks of what prompts share, all of them are computed.
    own = facts(*FEW, "--no-scan")["chosen"]["engines"]
    assert own <= plan["chosen"]["engines"] <= own + 1


def test_a_line_that_is_still_being_written_is_left_out(tmp_path):
    file = tmp_path / "timelines.ndjson"
    simulate = ["simulate", "--costs", "cpu-demo", "--rate", "1.5", "--requests", "120", "--seed", "4"]
    assert RUNNER.invoke(app, [*simulate, "--timelines", str(file)]).exit_code == 0
    file.write_bytes(file.read_bytes()[:-40])
    whole = run("--costs", "cpu-demo", "--trace", str(file), "--no-scan", *SLO)
    assert whole.exit_code == 0
    assert "the last line of" in whole.stderr
    again = RUNNER.invoke(app, ["simulate", "--costs", "cpu-demo", "--trace", str(file), "--json", *SLO])
    assert json.loads(again.stdout)["fleets"][0]["requests"] == 119
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([lines[0], b"no\n", *lines[1:]]))
    assert "line 2 is no timeline" in str(run("--costs", "cpu-demo", "--trace", str(file)).exception)


def test_one_engine_has_nothing_that_binds_fewer():
    plan = facts("--costs", "cpu-demo", "--rate", "0.01", "--requests", "100", "--no-scan", "--seed", "1")
    assert (plan["chosen"]["engines"], plan["binds"]) == (1, None)


INTERRUPTED = """
import os, signal
from phasewise.cli.simulate import ended_by_ctrl_c
def abandoned():
    try:
        yield
    finally:
        os.kill(os.getpid(), signal.SIGINT)
with ended_by_ctrl_c():
    flow = abandoned()
    next(flow)
    del flow
    print("went on")
"""


def test_ctrl_c_is_not_lost_while_an_abandoned_simulation_is_cleaned_up():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "interrupted: the simulation is not complete, nothing was written\n"


def test_measured_step_times_give_intervals(tmp_path):
    fit = make_fit()
    slower = FittedCost(replace(fit.cost, floor_s=fit.cost.floor_s * 1.5), 0.0)
    file = tmp_path / "costs.json"
    save_fit(file, replace(fit, draws=(slower,) * 3))
    load = ("--costs", str(file), "--requests", "120", "--rate", "1", "--seed", "4", "--no-scan")
    plan = facts(*load, "--slo", "ttft=5s,tpot=200ms")
    low, high = plan["engines_interval"]
    assert low <= plan["chosen"]["engines"] <= high
    assert "tpot_p90_s" in plan["chosen"]["intervals"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rate", "1"), "how fast an engine is"),
        (("--costs", "cpu-demo"), "how much traffic"),
        ((*FEW, "--attainment", "1.5"), "--attainment 1.5"),
        ((*FEW, "--slo", "tpot=10ms"), "a stream alone on an engine is slower"),
        ((*FEW, "--slo", "ttft=3s,tpot=75ms", "--most-engines", "2"), "2 engines do not meet"),
        ((*FEW, "--trace", "no-such-file"), "cannot be read"),
        ((*FEW, "--gpu", "H100"), "do nothing with --costs"),
        (("--model", LLAMA_70B, "--gpu", "B52", "--rate", "1"), "unknown device"),
    ],
)
def test_what_cannot_be_planned_is_rejected_with_a_hint(arguments, words):
    result = run(*arguments)
    assert isinstance(result.exception, PhasewiseError)
    assert result.exception.hint
    assert words in str(result.exception)
