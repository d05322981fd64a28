"""Costs as they might be: the fitted ones, wrong by as much as they were where they had not been fitted.

A fit's held-out errors hold three things that a replay must keep apart. The form misses a region of work, the
same way whatever lever is set; a run has its mood, which another run does not share; and steps differ. What
each of them has of the whole is not known, so each is given about a third of the variance. What lasts is
drawn as the median of a few errors: a step that somebody held up must not be taken for a whole run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, sqrt

import numpy as np

from phasewise.costs.regimes import Regime, regime_of
from phasewise.costs.step_cost import StepCost
from phasewise.costs.step_work import StepKind, StepWork
from phasewise.predict.known_costs import KnownCosts

_STEP_ERRORS = 509
"""So many errors of single steps are drawn and then repeated; a prime, so that no pattern of steps meets the
same ones."""
_THIRD = 1 / sqrt(3)
LASTING_OF = 5
"""The median of five errors has 0.29 of the variance of one, if they are spread as most errors are."""


class DrawnForm:
    """What the fitted forms might miss, region by region; the costs of several runs share it."""

    def __init__(self, costs: KnownCosts, rng: np.random.Generator) -> None:
        self.costs = costs
        self._rng = rng
        self._misses: dict[tuple[StepKind, int], float] = {}

    def miss(self, work: StepWork, errors: Sequence[float]) -> float:
        """How far off steps of this kind and size are, as a logarithm."""
        region = (work.kind, work.tokens.bit_length())
        if region not in self._misses:
            self._misses[region] = self.lasting(errors)
        return self._misses[region]

    def lasting(self, errors: Sequence[float]) -> float:
        """An error that many steps have in common."""
        return float(np.median(self._drawn(errors, LASTING_OF)))

    def passing(self, errors: Sequence[float], count: int) -> list[float]:
        """Errors of single steps."""
        return [_THIRD * error for error in self._drawn(errors, count)]

    def _drawn(self, errors: Sequence[float], count: int) -> list[float]:
        chosen = self._rng.integers(len(errors), size=count) if errors else ()
        return [errors[at] for at in chosen] or [0.0] * count

    def run_cost(self) -> RunCost:
        """The cost of steps in one run."""
        return RunCost(self)


@dataclass(frozen=True, slots=True)
class _Region:
    cost: StepCost
    factor: float
    wobbles: list[float]


class RunCost:
    """The cost of steps in one run, with a mood of its own; no two steps take quite the same."""

    def __init__(self, form: DrawnForm) -> None:
        self._form = form
        self._moods: dict[StepKind, tuple[float, list[float]]] = {}
        self._regions: dict[Regime, _Region] = {}
        self._steps = 0

    def __call__(self, work: StepWork) -> float:
        """Seconds of the next step."""
        self._steps += 1
        regime = regime_of(work)
        region = self._regions.get(regime)
        if region is None:
            region = self._regions[regime] = self._enter(work)
        return region.cost(work) * region.factor * region.wobbles[self._steps % _STEP_ERRORS]

    def _enter(self, work: StepWork) -> _Region:
        known = self._form.costs.of(work)
        if work.kind not in self._moods:
            wobbles = [exp(error) for error in self._form.passing(known.errors, _STEP_ERRORS)]
            self._moods[work.kind] = (self._form.lasting(known.errors), wobbles)
        mood, wobbles = self._moods[work.kind]
        return _Region(known.cost, exp(self._form.miss(work, known.errors) + mood), wobbles)
