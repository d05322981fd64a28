"""Costs as they might be: the fitted ones, wrong by as much as they were where they had not been fitted.

A fit's held-out errors hold three things that a replay must keep apart. The form misses a region of work, the
same way whatever lever is set; a run has its mood, which another run does not share; and steps differ. What
each of them has of the whole is not known, so each is given a third of the variance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, sqrt

import numpy as np

from phasewise.costs.regimes import Regime, regime_of
from phasewise.costs.step_fit import StepFit
from phasewise.costs.step_work import StepKind, StepSeconds, StepWork

_STEP_ERRORS = 509
"""So many errors of single steps are drawn and then repeated; a prime, so that no pattern of steps meets the
same ones."""
_THIRD = 1 / sqrt(3)


class KnownCosts:
    """What several fits know together: of a step speaks the first that has seen any like it."""

    def __init__(self, fits: Sequence[StepFit]) -> None:
        if not fits:
            raise ValueError("costs are known from one fit at least")
        self._fits = tuple(fits)
        self._speakers: dict[Regime, StepFit | None] = {}

    def fit_for(self, work: StepWork) -> StepFit:
        """The fit to be asked about a step; where none has been near, the first one."""
        return self._speaker(work) or self._fits[0]

    def knows(self, work: StepWork) -> bool:
        """Whether some fit has seen steps like this one."""
        return self._speaker(work) is not None

    def _speaker(self, work: StepWork) -> StepFit | None:
        regime = regime_of(work)
        if regime not in self._speakers:
            near = (fit for fit in self._fits if fit.predict(work) is not None)
            self._speakers[regime] = next(near, None)
        return self._speakers[regime]


class DrawnForm:
    """What the fitted forms might miss, region by region; costs of several runs share it."""

    def __init__(self, costs: KnownCosts, rng: np.random.Generator) -> None:
        self._costs = costs
        self._rng = rng
        self._misses: dict[tuple[StepKind, int], float] = {}

    def run_cost(self) -> StepSeconds:
        """The cost of steps in one run, with the run's own mood."""
        moods: dict[StepKind, float] = {}
        wobbles: dict[StepKind, list[float]] = {}
        factors: dict[Regime, tuple[Callable[[StepWork], float], float, list[float]]] = {}
        count = 0

        def known(work: StepWork) -> tuple[Callable[[StepWork], float], float, list[float]]:
            fit, kind = self._costs.fit_for(work), work.kind
            errors = fit.errors.get(kind, ())
            if kind not in moods:
                moods[kind] = float(self._errors(errors, 1)[0])
                wobbles[kind] = np.exp(self._errors(errors, _STEP_ERRORS)).tolist()
            region = (kind, work.tokens.bit_length())
            if region not in self._misses:
                self._misses[region] = float(self._errors(errors, 1)[0])
            return fit.cost, exp(self._misses[region] + moods[kind]), wobbles[kind]

        def seconds(work: StepWork) -> float:
            nonlocal count
            count += 1
            regime = regime_of(work)
            if regime not in factors:
                factors[regime] = known(work)
            cost, factor, own_wobbles = factors[regime]
            return cost(work) * factor * own_wobbles[count % _STEP_ERRORS]

        return seconds

    def _errors(self, errors: Sequence[float], count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """A third of the variance of single steps' errors."""
        if not errors:
            return np.zeros(count)
        return _THIRD * np.asarray(errors)[self._rng.integers(len(errors), size=count)]
