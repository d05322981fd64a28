"""What is known of the cost of steps, from one fit or several: a calibration's, the window's own.

A fitted cost is a sum of parts. Where no step like one was seen, each of its parts may have been: a short
chunk behind a long context is like a short prompt in its tokens, and like a longer one in its attention. Such
a sum is believed less. How wrong costs may be in a replay is drawn_costs.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phasewise.costs.regimes import Regime, is_near, regime_of
from phasewise.costs.step_cost import StepCost
from phasewise.costs.step_fit import StepFit, error_span
from phasewise.costs.step_work import StepKind, StepWork

APART_ERRORS = 2.0
"""Errors count so many times where a step's parts were only seen apart: nobody has seen them add up."""


@dataclass(frozen=True, slots=True)
class KnownCost:
    """What is known of steps of one regime: their cost, its errors, and whether anything like it was seen."""

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
        apart = [fit for fit in self._fits if _parts_seen(regime, fit.seen)]
        speaker = next((fit for fit in near if _errors(fit, kind)), None)
        best = speaker or next(iter((*near, *apart)), self._fits[0])
        errors = next((found for fit in (best, *self._fits) if (found := _errors(fit, kind))), ())
        if not near:
            errors = tuple(APART_ERRORS * error for error in errors)
        return KnownCost(best.cost, errors, bool((near or apart) and errors))


def _parts_seen(regime: Regime, seen: frozenset[Regime]) -> bool:
    """Whether steps of about so many tokens were seen, and steps that looked at as many tokens in all."""
    prompts, decodes, _ = regime
    sizes = frozenset((each[0], each[1], 0) for each in seen)
    furthest = max(map(_looked_at, seen), default=0)
    return is_near((prompts, decodes, 0), sizes) and _looked_at(regime) <= furthest


def _looked_at(regime: Regime) -> int:
    """The magnitude of all tokens that a step attends to."""
    prompts, decodes, reach = regime
    return max(prompts, decodes) + reach


def _errors(fit: StepFit, kind: StepKind) -> tuple[float, ...]:
    """The held-out errors of a kind, where they are enough to bound anything."""
    errors = fit.errors.get(kind, ())
    return () if error_span(errors) is None else errors
