"""What is known of the cost of steps, from one fit or several: a calibration's, the window's own.

How wrong it may be in a replay is drawn_costs.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phasewise.costs.regimes import Regime, is_near, regime_of
from phasewise.costs.step_cost import StepCost
from phasewise.costs.step_fit import StepFit, error_span
from phasewise.costs.step_work import StepKind, StepWork


@dataclass(frozen=True, slots=True)
class KnownCost:
    """What is known of steps of one regime: their cost, its held-out errors, and if a fit has been near."""

    cost: StepCost
    errors: tuple[float, ...]
    seen: bool


class KnownCosts:
    """What several fits know together: of a step speaks the first that has seen any like it.

    One that has seen too few steps of a kind to tell its errors takes those of the others.
    """

    def __init__(self, fits: Sequence[StepFit]) -> None:
        if not fits:
            raise ValueError("costs are known from one fit at least")
        self._fits = tuple(fits)
        self._known: dict[Regime, KnownCost] = {}

    def of(self, work: StepWork) -> KnownCost:
        """What is known of a step; where no fit has been near, the first one's word."""
        regime = regime_of(work)
        if regime not in self._known:
            self._known[regime] = self._look_up(regime, work.kind)
        return self._known[regime]

    def _look_up(self, regime: Regime, kind: StepKind) -> KnownCost:
        near = [fit for fit in self._fits if is_near(regime, fit.seen)]
        best = next((fit for fit in near if _errors(fit, kind)), near[0] if near else self._fits[0])
        errors = next((found for fit in (best, *self._fits) if (found := _errors(fit, kind))), ())
        return KnownCost(best.cost, errors, bool(near and errors))


def _errors(fit: StepFit, kind: StepKind) -> tuple[float, ...]:
    """The held-out errors of a kind, where they are enough to bound anything."""
    errors = fit.errors.get(kind, ())
    return () if error_span(errors) is None else errors
