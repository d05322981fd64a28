"""Costs as they might be: the fitted ones, wrong by as much as they were where they had not been fitted.

A fit's held-out errors hold three things that a replay must keep apart. The form misses a region of work, the
same way whatever lever is set; a run has its mood, which another run does not share; and steps differ. What
each of them has of the whole is not known, so each is given a third of the variance.
"""

from __future__ import annotations

from math import exp, sqrt

import numpy as np

from phasewise.costs.step_fit import StepFit
from phasewise.costs.step_work import StepKind, StepSeconds, StepWork

_STEP_ERRORS = 509
"""So many errors of single steps are drawn and then repeated; a prime, so that no pattern of steps meets the
same ones."""
_THIRD = 1 / sqrt(3)

_Region = tuple[StepKind, int]


class DrawnForm:
    """What the fitted form might miss, region by region; costs of several runs share it."""

    def __init__(self, fit: StepFit, rng: np.random.Generator) -> None:
        self._fit = fit
        self._rng = rng
        self._misses: dict[_Region, float] = {}

    def run_cost(self) -> StepSeconds:
        """The cost of steps in one run, with the run's own mood."""
        moods = {kind: self._error(kind) for kind in StepKind}
        wobbles = {kind: [exp(self._error(kind)) for _ in range(_STEP_ERRORS)] for kind in StepKind}
        cost, factors, count = self._fit.cost, dict[_Region, float](), 0

        def seconds(work: StepWork) -> float:
            nonlocal count
            count += 1
            kind = work.kind
            region = (kind, work.tokens.bit_length())
            factor = factors.get(region)
            if factor is None:
                factor = factors[region] = exp(self._miss(region) + moods[kind])
            return cost(work) * factor * wobbles[kind][count % _STEP_ERRORS]

        return seconds

    def _miss(self, region: _Region) -> float:
        if region not in self._misses:
            self._misses[region] = self._error(region[0])
        return self._misses[region]

    def _error(self, kind: StepKind) -> float:
        errors = self._fit.errors.get(kind, ())
        return _THIRD * errors[int(self._rng.integers(len(errors)))] if errors else 0.0
