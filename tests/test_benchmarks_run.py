"""Benchmarks of the gateway run to their end in their short form and print a result.

Here and not one after the other in CI's script: they mostly wait, and tests have time for them.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.paths import ROOT

BENCHMARKS = ROOT / "benchmarks"


IN_CI = pytest.mark.skipif(not os.environ.get("CI"), reason="minutes of load: for CI, or by hand")


@IN_CI
@pytest.mark.parametrize(
    "name",
    [
        "bad_input",
        "drain",
        "drop_in",
        "faults",
        "overload",
        "fairness",
        "hung_engine",
        "front_door",
        "soak",
        "reload",
        "shared_limits",
        "disaggregation",
        "check_mistakes",
        "kv_transfer_faults",
        "split_decision",
        "affinity",
        "affinity_cells",
        "sim_speed",
        "sim_fidelity",
        "internet_scale",
        "scaling_rules",
        "plan_regret",
        "cache_latency",
        "live_cost",
        "cache_faults",
        "known_scenes",
        "real_scenes",
        "advice_applied",
        "diagnosis_truth",
        "trace_cost",
        "processes",
        "hot_restart",
        "ordinary",
        "endpoint_picker",
        "same_decisions",
    ],
)
def test_a_benchmark_runs_to_its_end_and_prints_one_object(name):
    assert isinstance(printed_by(name), dict)


@pytest.mark.real
@IN_CI
def test_resume_exactness_runs_on_the_engine_that_is_there(real_engine):
    assert isinstance(printed_by("resume_exactness", "--url", real_engine.base_url), dict)


def printed_by(name, *options):
    """What a benchmark's short form prints last."""
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--quick", "--json", *options]
    run = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout.splitlines()[-1])
