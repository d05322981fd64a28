"""The short form of a validation on the real engine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from phasewise.experiments.validation_claims import read_judged
from tests.paths import ROOT

pytestmark = pytest.mark.real


def test_the_short_form_calibrates_the_real_engine(tmp_path):
    command = [sys.executable, "-m", "phasewise.cli", "engine", "validate", "--only", "calibration"]
    home = os.environ.get("PHASEWISE_HOME") or str(ROOT / ".phasewise")
    done = subprocess.run(
        [*command, "--minutes", "4", "--output", str(tmp_path / "r.json")],
        env={**os.environ, "PHASEWISE_HOME": home},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in {0, 1}, done.stderr
    report = read_judged((tmp_path / "r.json").read_bytes(), "r.json")
    assert report.versions["step_recorder"]
    (step,) = report.steps
    # A machine that is too slow for the short form says so, and nothing else may fail.
    assert step.figures or "more --minutes" in step.why
