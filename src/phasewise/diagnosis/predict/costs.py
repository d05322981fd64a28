"""The costs of steps, from one or several fits: a calibration's, the window's own.

A fitted cost is a sum of parts. A step that was not observed may consist of observed parts: a short chunk
after a long context has the tokens of a short prompt and the attention of a long one. Such a sum is less
certain.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, sqrt
from typing import Protocol

import numpy as np

from phasewise.core.errors import MeasurementError
from phasewise.core.steps import EngineStep, StepLog
from phasewise.costs.fit.observation import (
    Observation,
    Regime,
    is_near,
    latest_of_each_regime,
    observed_steps,
    regime_of,
)
from phasewise.costs.fit.step import StepCost, StepKind, StepWork
from phasewise.costs.fit.step_fit import StepFit, error_span, fit_steps
from phasewise.diagnosis.analysis.attribution import Logs

APART_ERRORS = 2.0
"""Errors are multiplied by this if a step's parts were only observed separately."""


@dataclass(frozen=True, slots=True)
class KnownCost:
    """The cost of steps of one kind, its errors, and whether similar steps were observed."""

    cost: StepCost
    errors: tuple[float, ...]
    seen: bool


class Costs(Protocol):
    """The costs of steps, whatever they come from."""

    def of(self, work: StepWork) -> KnownCost:
        """The cost of a step."""
        ...


class KnownCosts:
    """Several fits together: the first one that observed similar steps gives a step's cost.

    A fit with too few steps of a kind takes the errors of the others.
    """

    def __init__(self, fits: Sequence[StepFit]) -> None:
        if not fits:
            raise ValueError("at least one fit is required")
        self._fits = tuple(fits)
        self._known: dict[Regime, KnownCost] = {}

    def of(self, work: StepWork) -> KnownCost:
        """The cost of a step; if no fit observed similar steps, the first fit's."""
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
    """Whether steps with about as many tokens, and steps with about as much attention, were observed."""
    prompts, decodes, _ = regime
    sizes = frozenset((each[0], each[1], 0) for each in seen)
    furthest = max(map(_looked_at, seen), default=0)
    return is_near((prompts, decodes, 0), sizes) and _looked_at(regime) <= furthest


def _looked_at(regime: Regime) -> int:
    """The magnitude of all tokens that a step attends to."""
    prompts, decodes, reach = regime
    return max(prompts, decodes) + reach


def _errors(fit: StepFit, kind: StepKind) -> tuple[float, ...]:
    """The held-out errors of a kind, if there are enough of them."""
    errors = fit.errors.get(kind, ())
    return () if error_span(errors) is None else errors


# --- Costs drawn at random: the fitted ones, with errors like those on held-out steps.
#
# Held-out errors have three sources that a replay must separate. The model misses a region of work,
# the same way for every lever; a run differs from another run as a whole; and single steps
# differ. Their shares are unknown, so each gets about a third of the variance.
# A lasting error is drawn as the median of a few: a single delayed step must not be taken for a
# whole run.

_STEP_ERRORS = 509
"""The number of single-step errors that are drawn and then repeated; a prime, so that no pattern of steps
always gets the same ones."""
_THIRD = 1 / sqrt(3)
LASTING_OF = 5
"""The median of five errors has 0.29 of the variance of one, if they are spread as most errors are."""


class DrawnForm:
    """The error of the cost model by region of work; all runs of a draw share it."""

    def __init__(self, costs: KnownCosts, rng: np.random.Generator) -> None:
        self.costs = costs
        self._rng = rng
        self._misses: dict[tuple[StepKind, int], float] = {}

    def miss(self, work: StepWork, errors: Sequence[float]) -> float:
        """The error of steps of this kind and size, as a logarithm."""
        region = (work.kind, work.tokens.bit_length())
        if region not in self._misses:
            self._misses[region] = self.lasting(errors)
        return self._misses[region]

    def lasting(self, errors: Sequence[float]) -> float:
        """An error that many steps have in common."""
        return float(np.median(self._drawn(errors, LASTING_OF)))

    def passing(self, errors: Sequence[float], count: int) -> list[float]:
        return [_THIRD * error for error in self._drawn(errors, count)]

    def _drawn(self, errors: Sequence[float], count: int) -> list[float]:
        chosen = self._rng.integers(len(errors), size=count) if errors else ()
        return [errors[at] for at in chosen] or [0.0] * count


@dataclass(frozen=True, slots=True)
class _Region:
    cost: StepCost
    factor: float
    wobbles: list[float]


class RunCost:
    """The cost of steps in one run, with an error per run and per step."""

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


# --- Step costs fitted to the window's own step records. Too few kinds of steps give no fit.

FIT_STEPS = 10_000
"""The most steps used for a fit; more take seconds and add nothing."""
KEPT_PER_REGIME = 24
DRAWS = 24
"""Fewer than in a calibration, because a user waits for the verdict."""


def fit_window(
    logs: Logs, rng: np.random.Generator, setups: Mapping[str, Hashable] | None = None
) -> StepFit | None:
    """The step costs of the busiest engines; None without enough steps.

    Engines with another set-up than the busiest, by `setups`, are left out.
    """
    counts = {name: sum(map(len, ranks)) for name, ranks in logs.items()}
    if not counts:
        return None
    busiest = max(counts, key=lambda name: counts[name])
    setups = setups or {}
    alike = [name for name in logs if setups.get(name) == setups.get(busiest)]
    observations: list[Observation] = []
    left = FIT_STEPS
    for name in sorted(alike, key=lambda each: -counts[each]):
        steps = _in_order(logs[name])[-left:]
        observations += observed_steps(steps).observations
        left -= len(steps)
        if left <= 0:
            break
    try:
        found = fit_steps(latest_of_each_regime(observations, KEPT_PER_REGIME), rng, draws=DRAWS)
    except MeasurementError:
        return None
    return replace(found, engines=frozenset(alike))


def steps_by_engine(logs: Logs) -> list[tuple[Observation, ...]]:
    """The steps of each engine with their work, as far as it is known."""
    return [observed_steps(_in_order(ranks)).observations for ranks in logs.values()]


def _in_order(ranks: Iterable[StepLog]) -> list[EngineStep]:
    return sorted((timed.step for log in ranks for timed in log.steps), key=lambda step: step.seq)
