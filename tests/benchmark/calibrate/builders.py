"""Plain builders for calibrations whose fit is chosen, not made."""

from __future__ import annotations

import json

from phasewise.benchmark.calibrate.result import (
    CalibratedMachine,
    Calibration,
    Seen,
    decode_works,
    prefill_works,
)
from phasewise.core.statistics import Interval
from phasewise.costs.fit.misfit import Cell, FormCheck
from phasewise.costs.fit.observation import regime_of
from phasewise.costs.fit.solve import FittedCost
from phasewise.costs.fit.step import CostPart, StepCost, StepKind, StepWork, decoding
from phasewise.costs.fit.step_fit import CONFIDENCE, StepFit
from phasewise.costs.roofline.model_config import architecture_of
from tests.paths import ROOT

COST = StepCost(
    floor_s=56e-3,
    knee_tokens=96,
    beyond_knee_s_per_token=0.76e-3,
    attention_s_per_token_pair=0.25e-6,
    kv_read_s_per_token=2.2e-6,
    per_request_s=1.1e-3,
)
SEEN = (*prefill_works()[:3], *decode_works()[:2])
ERRORS = tuple(number / 100 for number in range(-20, 21))
MISSED = Cell(StepKind.MIXED, StepWork(600, 12, 13, 180_300, 900), visits=4, off_by=-0.31, certain=True)
MET = Cell(StepKind.DECODE, decoding([64]), visits=5, off_by=0.02, certain=False)
MACHINE = CalibratedMachine(
    architecture=architecture_of(json.loads((ROOT / "examples/models/smollm2-135m.json").read_text())),
    element_bytes=2.0,
    read_bytes_per_s=9e9,
    source="one core of this machine reads 9 GB/s, measured",
    flops_per_s=80e9,
    math_source="one core of this machine multiplies 80 GFLOP/s in float32, measured",
)


def make_fit(cost=COST, seen=SEEN, errors=None):
    interval = Interval(0.9e-3, 1.1e-3, CONFIDENCE)
    return StepFit(
        fitted=FittedCost(cost, front_end_s=0.006),
        intervals=dict.fromkeys(CostPart, interval),
        knee_tokens=Interval(64.0, 128.0, CONFIDENCE),
        front_end_s=interval,
        errors={StepKind.PREFILL: ERRORS, StepKind.DECODE: ERRORS} if errors is None else errors,
        seen=frozenset(map(regime_of, seen)),
        observations=480,
    )


def make_calibration(fit=None, cells=(MET,), **fields):
    return Calibration(
        **{
            "url": "http://127.0.0.1:8000",
            "model": "smollm2-135m",
            "model_root": "/models/smollm2-135m",
            "seen": Seen.STEPS,
            "fit": fit or make_fit(),
            "form": FormCheck(tuple(cells)),
            "rounds": 4.2,
            "unreported": 0,
            "took_s": 121.0,
            "stolen": 0.0,
            "seed": 7,
            **fields,
        }
    )
