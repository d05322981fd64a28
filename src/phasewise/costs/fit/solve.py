"""Fits a step's cost to observations: robust, never negative, with its uncertainty.

It minimises the weighted sum of absolute errors of the logarithm, so it follows the median of each regime:
even if neighbours slow down a third of the steps, it hardly moves. A regime weighs as much as the square
root of its number of readings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from phasewise.costs.fit.observation import Observation, regime_of
from phasewise.costs.fit.step import StepCost

# --- Least squares with non-negative coefficients, by the active-set method of Lawson and Hanson.
#
# More work never takes less time: a negative part would fit noise, and be absurd beyond the observed range.

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

_TOLERANCE = 1e-9
"""For columns and targets that are scaled to length 1."""


def non_negative_least_squares(rows: Matrix, targets: Vector, guess: Vector | None = None) -> Vector:
    """The non-negative coefficients of least squared error; a guess near them saves most of the work."""
    # Columns differ by eight orders of magnitude: without scaling the normal equations lose precision.
    scale = np.sqrt(np.square(rows).sum(axis=0))
    scale[scale == 0] = 1.0
    size = float(np.sqrt(np.square(targets).sum())) or 1.0
    scaled = rows / scale
    begin = np.zeros(rows.shape[1]) if guess is None else guess * scale / size
    solution: Vector = _active_set(scaled.T @ scaled, scaled.T @ (targets / size), begin) * size / scale
    return solution


def _active_set(gram: Matrix, moment: Vector, begin: Vector) -> Vector:
    free = begin > 0
    solution = _free_until_feasible(gram, moment, begin, free)
    for _ in range(6 * len(moment)):
        gain = np.where(free, -np.inf, moment - gram @ solution)
        best = int(np.argmax(gain))
        if gain[best] <= _TOLERANCE:
            break
        free[best] = True
        solution = _free_until_feasible(gram, moment, solution, free)
    return solution


def _free_until_feasible(gram: Matrix, moment: Vector, solution: Vector, free: NDArray[np.bool_]) -> Vector:
    """Move towards the unconstrained minimum; hold what would turn negative at zero (in `free`)."""
    while free.any():
        wanted = np.zeros_like(solution)
        wanted[free] = np.linalg.lstsq(gram[np.ix_(free, free)], moment[free], rcond=None)[0]
        negative = free & (wanted <= 0)
        if not negative.any():
            return wanted
        step = np.min(solution[negative] / (solution[negative] - wanted[negative] + 1e-300))
        solution = solution + step * (wanted - solution)
        free &= ~(negative & (solution <= _TOLERANCE))
        solution[~free] = 0.0
    return np.zeros_like(solution)


KNEES_TOKENS = (16, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 512, 768, 1024, 1536, 2048, 4096)
"""The knees that are tried, closer together than one machine's noise can distinguish."""
ROUNDS = 10
LEAST_SECONDS = 1e-9
"""The shortest step: if all parts were zero, a step would take no time."""
_LEAST_ERROR = 0.01
"""Smaller errors count the same: without a bound, a reading that is met exactly would dominate."""


@dataclass(frozen=True, slots=True)
class FittedCost:
    """A cost, and what a client waits beyond the engine's steps, in the front end and on the network."""

    step: StepCost
    front_end_s: float

    def times(self, factor: float) -> FittedCost:
        """Everything takes so many times as long."""
        parts = {
            field.name: getattr(self.step, field.name) * factor
            for field in fields(StepCost)
            if field.name != "knee_tokens"
        }
        return FittedCost(replace(self.step, **parts), self.front_end_s * factor)

    def seconds(self, observation: Observation) -> float:
        """The predicted duration of the observation."""
        steps_s = sum(map(self.step, observation.works))
        return max(steps_s + self.front_end_s * observation.through_front_end, LEAST_SECONDS)


@dataclass(frozen=True, slots=True)
class Readings:
    """Observations as arrays, one row each; the column beyond the knee is made for each knee tried."""

    linear: Matrix
    tokens: Matrix
    """Tokens of every step; rows of several steps are padded with zeros."""
    front_end: Vector
    seconds: Vector
    weights: Vector

    @classmethod
    def of(cls, observations: Sequence[Observation]) -> Self:
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
        """A sample of the rows, with repetition."""
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
        # Not the error relative to the prediction: it is below 1 for any prediction that is too long, and so
        # prefers the longest.
        errors = np.abs(np.log(readings.seconds / np.maximum(rows @ coefficients, LEAST_SECONDS)))
        fits.append((float(errors @ readings.weights), knee_tokens, coefficients))
    _, knee_tokens, best = min(fits, key=lambda each: each[0])
    floor, tokens, attention, kv_read, requests, beyond, front_end = map(float, best)
    cost = StepCost(floor, knee_tokens, beyond, attention, kv_read, requests, per_token_s=tokens)
    return FittedCost(cost, front_end)


def _least_absolute(rows: Matrix, seconds: Vector, weights: Vector) -> Vector:
    """Iteratively reweighted least squares: each reading is weighted down by its last error."""
    predicted, errors, coefficients = seconds, np.ones_like(seconds), np.zeros(rows.shape[1])
    for _ in range(ROUNDS):
        by_row = np.sqrt(weights / np.maximum(errors, _LEAST_ERROR)) / predicted
        coefficients = non_negative_least_squares(rows * by_row[:, None], seconds * by_row, coefficients)
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
