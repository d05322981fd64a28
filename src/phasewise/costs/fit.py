"""Fits a step's cost to what was observed: robust, never negative, with its uncertainty.

It minimises the weighted sum of absolute errors of the logarithm, so that it follows the median of each
regime: a third of the steps may have been slowed down by neighbours and hardly move it. Regimes weigh by the
root of their readings. What the fit then says of other steps is step_fit.py's; whether its form is right is
misfit.py's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from phasewise.costs.non_negative import Matrix, Vector, non_negative_least_squares
from phasewise.costs.observation import Observation
from phasewise.costs.regimes import regime_of
from phasewise.costs.step_cost import StepCost

KNEES_TOKENS = (16, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 512, 768, 1024, 1536, 2048, 4096)
"""The knees that are tried. They stand closer than one machine's noise lets tell them apart."""
ROUNDS = 10
LEAST_SECONDS = 1e-9
"""Nothing takes less: parts that are all zero would say that a step takes no time."""
_LEAST_ERROR = 0.01
"""Errors below this count the same: without a bound, a reading that is met exactly would decide alone."""


@dataclass(frozen=True, slots=True)
class FittedCost:
    """A cost, and what a client waits beyond the engine's steps, in its front end and on the way."""

    step: StepCost
    front_end_s: float

    def seconds(self, observation: Observation) -> float:
        """What the observation should have taken."""
        steps_s = sum(map(self.step, observation.works))
        return max(steps_s + self.front_end_s * observation.through_front_end, LEAST_SECONDS)


@dataclass(frozen=True, slots=True)
class Readings:
    """Observations as arrays, one row each; the hinge's column is made for each knee that is tried."""

    linear: Matrix
    tokens: Matrix
    """Of every step; rows of several steps are padded with zeros."""
    front_end: Vector
    seconds: Vector
    weights: Vector

    @classmethod
    def of(cls, observations: Sequence[Observation]) -> Self:
        """The rows of these observations."""
        regimes = [regime_of(observation.typical) for observation in observations]
        readings = Counter(regimes)
        most_steps = max(len(observation.works) for observation in observations)
        return cls(
            linear=np.array([_linear_row(observation) for observation in observations]),
            tokens=np.array([_tokens_row(observation, most_steps) for observation in observations]),
            front_end=np.array([float(observation.through_front_end) for observation in observations]),
            seconds=np.array([observation.seconds for observation in observations]),
            weights=np.array([readings[regime] ** -0.5 for regime in regimes]),
        )

    def drawn(self, indices: NDArray[np.intp]) -> Readings:
        """Some of the rows, as often as they are drawn."""
        return Readings(
            self.linear[indices],
            self.tokens[indices],
            self.front_end[indices],
            self.seconds[indices],
            self.weights[indices],
        )

    def rows(self, knee_tokens: int) -> Matrix:
        """All columns: the linear parts, tokens beyond the knee, the front end."""
        beyond = np.maximum(self.tokens - knee_tokens, 0.0).sum(axis=1)
        return np.column_stack([self.linear, beyond, self.front_end])


def fit_cost(readings: Readings, knees_tokens: Sequence[int] = KNEES_TOKENS) -> FittedCost:
    """The cost of least absolute error of the logarithm, over all knees."""
    fits = []
    for knee_tokens in knees_tokens:
        rows = readings.rows(knee_tokens)
        coefficients = _least_absolute(rows, readings.seconds, readings.weights)
        # Not the relative error: that is below 1 for any prediction too long, and so prefers the longest.
        errors = np.abs(np.log(readings.seconds / np.maximum(rows @ coefficients, LEAST_SECONDS)))
        fits.append((float(errors @ readings.weights), knee_tokens, coefficients))
    _, knee_tokens, best = min(fits, key=lambda each: each[0])
    floor, tokens, attention, kv_read, requests, beyond, front_end = map(float, best)
    cost = StepCost(floor, knee_tokens, beyond, attention, kv_read, requests, per_token_s=tokens)
    return FittedCost(cost, front_end)


def _least_absolute(rows: Matrix, seconds: Vector, weights: Vector) -> Vector:
    """Least squares again and again, each reading weighed down by its last error."""
    predicted, errors = seconds, np.ones_like(seconds)
    for _ in range(ROUNDS):
        by_row = np.sqrt(weights / np.maximum(errors, _LEAST_ERROR)) / predicted
        coefficients = non_negative_least_squares(rows * by_row[:, None], seconds * by_row)
        predicted = np.maximum(rows @ coefficients, LEAST_SECONDS)
        errors = np.abs(seconds / predicted - 1.0)
    return coefficients


def _linear_row(observation: Observation) -> list[float]:
    works = observation.works
    return [
        float(len(works)),
        float(sum(work.tokens for work in works)),
        float(sum(work.attention_token_pairs for work in works)),
        float(sum(work.kv_read_tokens for work in works)),
        float(sum(work.requests for work in works)),
    ]


def _tokens_row(observation: Observation, length: int) -> list[float]:
    tokens = [float(work.tokens) for work in observation.works]
    return tokens + [0.0] * (length - len(tokens))
