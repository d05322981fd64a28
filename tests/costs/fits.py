"""A fit as a calibration would have left it, without the seconds that one takes."""

from __future__ import annotations

from phasewise.core.statistics import Interval
from phasewise.costs.fit.observation import regime_of
from phasewise.costs.fit.solve import FittedCost
from phasewise.costs.fit.step import CostPart, StepKind
from phasewise.costs.fit.step_fit import StepFit
from tests.costs.step_builders import COST, WORKS

ERRORS = tuple(step / 100 for step in range(-12, 13))


def make_fit(cost=COST, **fields):
    return StepFit(
        **{
            "fitted": FittedCost(cost, 0.004),
            "intervals": {part: Interval(0.0, 1 / 3, 0.9) for part in CostPart},
            "knee_tokens": Interval(64.0, 128.0, 0.9),
            "front_end_s": Interval(0.001, 0.007, 0.9),
            "errors": {StepKind.DECODE: ERRORS, StepKind.PREFILL: ERRORS[:3]},
            "seen": frozenset(map(regime_of, WORKS[::2])),
            "observations": 400,
            **fields,
        }
    )
