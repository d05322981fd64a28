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
AT_NIGHT = pytest.mark.skipif(
    not os.environ.get("PHASEWISE_NIGHTLY"), reason="minutes of load: for .ci/nightly"
)
UNDER_README = (
    "bad_input",
    "ordinary",
    "drop_in",
    "faults",
    "disaggregation",
    "split_decision",
    "known_scenes",
    "real_scenes",
    "processes",
    "same_decisions",
)
"""What README promises rests on these."""
OTHERS = (
    "drain",
    "overload",
    "fairness",
    "hung_engine",
    "front_door",
    "shared_limits",
    "check_mistakes",
    "affinity",
    "affinity_cells",
    "sim_speed",
    "sim_fidelity",
    "internet_scale",
    "plan_regret",
    "cache_latency",
    "cache_faults",
    "trace_cost",
    "hot_restart",
    "endpoint_picker",
    "bench_lag",
    "bench_power",
    "predictions",
    "semantic_cache",
    "vector_lookup",
)


@IN_CI
@pytest.mark.parametrize("name", UNDER_README)
def test_a_benchmark_on_which_readme_rests_prints_one_object(name):
    assert isinstance(printed_by(name), dict)


@AT_NIGHT
@pytest.mark.parametrize("name", OTHERS)
def test_another_benchmark_prints_one_object(name):
    assert isinstance(printed_by(name), dict)


@pytest.mark.real
@IN_CI
def test_resume_exactness_runs_on_the_engine_that_is_there(real_engine):
    assert isinstance(printed_by("resume_exactness", "--url", real_engine.base_url), dict)


@pytest.mark.real
@IN_CI
def test_judge_bound_asks_the_engine_that_is_there(real_engine):
    asked = ("--url", real_engine.base_url, "--model", real_engine.model)
    assert printed_by("judge_bound", *asked)["trusted"] is False


def printed_by(name, *options):
    """What a benchmark's short form prints last."""
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--quick", "--json", *options]
    run = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout.splitlines()[-1])
