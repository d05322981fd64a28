"""The short form of a validation on the real engine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from phasewise.experiments.validate.record import Outcome, read_report
from tests.paths import ROOT

pytestmark = pytest.mark.real


def test_the_short_form_compares_both_tools_on_the_real_engine(tmp_path):
    command = [sys.executable, "-m", "phasewise.cli", "engine", "validate", "--only", "environment,bench"]
    home = os.environ.get("PHASEWISE_HOME") or str(ROOT / ".phasewise")
    done = subprocess.run(
        [*command, "--minutes", "3", "--output", str(tmp_path / "r")],
        env={**os.environ, "PHASEWISE_HOME": home},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in {0, 1}, done.stderr
    report = read_report((tmp_path / "r.json").read_bytes(), "r.json")
    assert report.software.step_recorder
    assert report.hardware.processor
    environment, bench = report.steps
    assert environment.done
    if not bench.done:
        # A machine that is too slow for the short form says so, and nothing else may fail.
        assert "more --minutes" in bench.why
        return
    figures = report.measured.bench
    assert set(figures.ratio) == {"ttft", "tpot", "itl", "e2e"}
    assert figures.runs_per_tool in {2, 4}
    agrees = {it.claim: it.outcome for it in report.claims if it.claim.endswith("_agrees")}
    assert Outcome.NOT_TRIED not in agrees.values()
