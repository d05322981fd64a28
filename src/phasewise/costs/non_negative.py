"""Least squares with coefficients that cannot be negative, by the active-set method of Lawson and Hanson.

Time is never won by doing more work: a negative part would be noise fitted, and absurd beyond what was seen.
Which rows and weights go in is fit.py's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

_TOLERANCE = 1e-9
"""Of columns and targets that are scaled to length 1."""


def non_negative_least_squares(rows: Matrix, targets: Vector) -> Vector:
    """The coefficients of least squared error among those that are all zero or more."""
    # Columns differ by eight orders of magnitude: without scaling the normal equations lose their digits.
    scale = np.sqrt(np.square(rows).sum(axis=0))
    scale[scale == 0] = 1.0
    size = float(np.sqrt(np.square(targets).sum())) or 1.0
    scaled = rows / scale
    solution: Vector = _active_set(scaled.T @ scaled, scaled.T @ (targets / size)) * size / scale
    return solution


def _active_set(gram: Matrix, moment: Vector) -> Vector:
    solution = np.zeros(len(moment))
    free = np.zeros(len(moment), dtype=bool)
    for _ in range(6 * len(moment)):
        gain = np.where(free, -np.inf, moment - gram @ solution)
        best = int(np.argmax(gain))
        if gain[best] <= _TOLERANCE:
            break
        free[best] = True
        solution = _free_until_feasible(gram, moment, solution, free)
    return solution


def _free_until_feasible(gram: Matrix, moment: Vector, solution: Vector, free: NDArray[np.bool_]) -> Vector:
    """Move towards the free minimum; whatever would turn negative on the way is held at zero (in `free`)."""
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
