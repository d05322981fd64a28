"""What a fit predicts for a step: its seconds with an interval, or nothing for a regime it has not observed.

Intervals come from errors on regimes that were left out of the fit, so they cover both what the form misses
and how much the machine varies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp, floor, log, sqrt
from statistics import median

import numpy as np
from numpy.typing import NDArray

from phasewise.core.errors import MeasurementError
from phasewise.core.statistics import Interval
from phasewise.costs.fit.observation import Observation, Regime, is_near, regime_of, visits_of
from phasewise.costs.fit.solve import KNEES_TOKENS, FittedCost, Readings, fit_cost
from phasewise.costs.fit.step import CostPart, StepCost, StepKind, StepWork

CONFIDENCE = 0.9
FEWEST_OBSERVATIONS = 24
FEWEST_REGIMES = 4
FEWEST_ERRORS = ceil(round(2 / (1 - CONFIDENCE), 6)) - 1
"""Fewer errors of a kind than this cannot bound an interval of that confidence."""
FEWEST_REGIMES_OF_KIND = 3
MAGNITUDES_APART = 2
"""Batch sizes differ when some are about four times as large as others."""
FOLDS = 6
DRAWS = 60
MOMENT_S = 2.0
"""A shared machine is faster or slower for seconds at a time: longer moments would hide that."""
FEWEST_IN_MOMENT = 4
"""The median of fewer observations says more about a single step than about the machine."""
DRAWN_KNEES = KNEES_TOKENS[::2]
"""Resampled fits try every second knee, to finish in seconds."""


@dataclass(frozen=True, slots=True)
class StepPrediction:
    """How long a step should take, and the interval that holds it in `CONFIDENCE` of all steps."""

    seconds: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class StepFit:
    """A fitted cost with its uncertainty.

    `intervals` are of the cost's coefficients. `errors` are the held-out errors by kind of step, in order, as
    logarithms of seen over predicted. `seen` are the regimes it was fitted to. `weights_read_s` is how long
    the machine needs to read the weights once, where known: steps do not show it. `engines` are the names of
    the engines with these costs, None if they apply to all. `draws` are fits to resampled observations, each
    as fast as the machine was in one of the measurement's moments: a run of some seconds has such costs.
    """

    fitted: FittedCost
    intervals: Mapping[CostPart, Interval]
    knee_tokens: Interval
    front_end_s: Interval
    errors: Mapping[StepKind, tuple[float, ...]]
    seen: frozenset[Regime]
    observations: int
    weights_read_s: float | None = None
    engines: frozenset[str] | None = None
    draws: tuple[FittedCost, ...] = ()

    @property
    def cost(self) -> StepCost:
        return self.fitted.step

    def is_of(self, engine: str) -> bool:
        return self.engines is None or engine in self.engines

    @property
    def separates_batches(self) -> bool:
        """Whether several batch sizes were observed: with one, floor and tokens cannot be separated."""
        sizes = [decodes for prompts, decodes, _ in self.seen if decodes and not prompts]
        return bool(sizes) and max(sizes) - min(sizes) >= MAGNITUDES_APART

    def predict(self, work: StepWork) -> StepPrediction | None:
        """The seconds of a step; None where no similar step was observed."""
        if not is_near(regime_of(work), self.seen):
            return None
        span = error_span(self.errors.get(work.kind, ()))
        if span is None:
            return None
        seconds = self.cost(work)
        return StepPrediction(seconds, Interval(seconds * exp(span[0]), seconds * exp(span[1]), CONFIDENCE))

    def held_out_error(self, kind: StepKind) -> float | None:
        """The median relative error on regimes that were held out; None where there are too few."""
        errors = self.errors.get(kind, ())
        return median(abs(exp(error) - 1) for error in errors) if len(errors) >= FEWEST_ERRORS else None


def fit_steps(
    observations: Sequence[Observation], rng: np.random.Generator, *, draws: int = DRAWS
) -> StepFit:
    """Fit, test the fit on held-out regimes, and estimate the intervals of its coefficients.

    Resampling for the intervals takes most of the time: fewer draws give rougher intervals, sooner.
    """
    # A fixed order, so that the draws do not depend on the order in which steps were read.
    observations = sorted(observations, key=lambda each: (each.at_s, each.seconds))
    regimes = [regime_of(observation.typical) for observation in observations]
    seen = frozenset(regimes)
    if len(observations) < FEWEST_OBSERVATIONS or len(seen) < FEWEST_REGIMES:
        raise MeasurementError(
            f"{len(observations)} steps in {len(seen)} regimes are too few for a fit",
            hint=f"at least {FEWEST_OBSERVATIONS} in {FEWEST_REGIMES} are needed: measure for longer",
        )
    readings = Readings.of(observations)
    fitted = fit_cost(readings)
    redrawn = _redrawn(readings, regimes, observations, rng, draws)
    return StepFit(
        fitted=fitted,
        intervals={part: _interval([draw.step.coefficients[part] for draw in redrawn]) for part in CostPart},
        knee_tokens=_interval([float(draw.step.knee_tokens) for draw in redrawn]),
        front_end_s=_interval([draw.front_end_s for draw in redrawn]),
        errors=_held_out_errors(observations, readings, regimes, rng),
        seen=seen,
        observations=len(observations),
        draws=_at_some_moment(redrawn, fitted, observations, rng),
    )


def error_span(errors: Sequence[float]) -> tuple[float, float] | None:
    """The bounds of a new error with probability `CONFIDENCE`; it may lie outside all that were observed."""
    count = len(errors)
    if count < FEWEST_ERRORS:
        return None
    # Rounded, because 0.9 is not exactly nine tenths and the last error would be lost.
    outside = max(floor(round((1 - CONFIDENCE) / 2 * (count + 1), 6)), 1)
    ordered = sorted(errors)
    return ordered[outside - 1], ordered[count - outside]


def _held_out_errors(
    observations: Sequence[Observation],
    readings: Readings,
    regimes: Sequence[Regime],
    rng: np.random.Generator,
) -> dict[StepKind, tuple[float, ...]]:
    """Leave out whole regimes, fit the rest, and measure the error on what was left out.

    Errors of one regime are correlated: a kind of step that was observed in few regimes has none. A sum of
    steps varies less than a single step, so its error is scaled up to a single step's.
    """
    names = sorted(set(regimes))
    fold_of = dict(zip(names, rng.permutation(len(names)) % FOLDS, strict=True))
    folds = np.array([fold_of[regime] for regime in regimes])
    errors: dict[StepKind, list[float]] = {}
    seen_in: dict[StepKind, set[Regime]] = {}
    for fold in range(FOLDS):
        left_out = np.flatnonzero(folds == fold)
        if not 0 < len(left_out) < len(observations):
            continue
        fitted = fit_cost(readings.drawn(np.flatnonzero(folds != fold)))
        for index in left_out.tolist():
            observation = observations[index]
            error = log(observation.seconds / fitted.seconds(observation)) * sqrt(len(observation.works))
            errors.setdefault(observation.kind, []).append(error)
            seen_in.setdefault(observation.kind, set()).add(regimes[index])
    return {
        kind: tuple(sorted(found))
        for kind, found in errors.items()
        if len(seen_in[kind]) >= FEWEST_REGIMES_OF_KIND
    }


def _redrawn(
    readings: Readings,
    regimes: Sequence[Regime],
    observations: Sequence[Observation],
    rng: np.random.Generator,
    draws: int,
) -> list[FittedCost]:
    """Fits to visits that are resampled within each regime: readings of one visit are correlated."""
    members: dict[Regime, list[int]] = {}
    for index, regime in enumerate(regimes):
        members.setdefault(regime, []).append(index)
    visits = [visits_of(own, observations) for own in members.values()]
    return [fit_cost(readings.drawn(_drawn_visits(visits, rng)), DRAWN_KNEES) for _ in range(draws)]


def _drawn_visits(regimes: Sequence[Sequence[Sequence[int]]], rng: np.random.Generator) -> NDArray[np.intp]:
    drawn = [
        index
        for visits in regimes
        for chosen in rng.integers(len(visits), size=len(visits))
        for index in visits[chosen]
    ]
    return np.array(drawn, dtype=np.intp)


def _at_some_moment(
    redrawn: Sequence[FittedCost],
    fitted: FittedCost,
    observations: Sequence[Observation],
    rng: np.random.Generator,
) -> tuple[FittedCost, ...]:
    """Each fit at another moment's pace: the median over what was observed within `MOMENT_S`."""
    moments: dict[int, list[float]] = {}
    for observation in observations:
        moments.setdefault(int(observation.at_s // MOMENT_S), []).append(
            observation.seconds / fitted.seconds(observation)
        )
    paces = [median(own) for own in moments.values() if len(own) >= FEWEST_IN_MOMENT] or [1.0]
    return tuple(
        each.times(paces[number])
        for each, number in zip(redrawn, rng.integers(len(paces), size=len(redrawn)), strict=True)
    )


def _interval(values: Sequence[float]) -> Interval:
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(low), float(high), CONFIDENCE)
