"""Quantiles of Student's t, for intervals from a handful of pairs.

What is measured, and how its spread is estimated, is left to comparison.py.
"""

from __future__ import annotations

from functools import lru_cache
from math import atan, cos, pi, sin, sqrt, tan

HALVINGS = 200
"""More than a double can tell apart: the bisection ends because its bracket cannot be halved again."""


@lru_cache(maxsize=4096)
def t_quantile(probability: float, degrees: int) -> float:
    """The value below which Student's t with so many degrees of freedom lies with this probability.

    The angle atan(t / sqrt(degrees)) is bounded, so the bisection runs over it and needs no first guess.
    """
    if degrees < 1:
        raise ValueError(f"Student's t needs at least one degree of freedom, not {degrees}")
    if not 0 < probability < 1:
        raise ValueError(f"a probability lies between 0 and 1, and {probability} does not")
    if probability < 0.5:
        return -t_quantile(1 - probability, degrees)
    wanted = 2 * probability - 1
    low, high = 0.0, pi / 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if _within(middle, degrees) < wanted:
            low = middle
        else:
            high = middle
    return sqrt(degrees) * tan(low) if low else 0.0


def t_cdf(value: float, degrees: int) -> float:
    """How probable a value at or below this one is."""
    share = _within(atan(abs(value) / sqrt(degrees)), degrees)
    return 0.5 + share / 2 if value >= 0 else 0.5 - share / 2


def _within(angle: float, degrees: int) -> float:
    """The probability that |t| stays below sqrt(degrees) * tan(angle).

    For whole degrees the integral of the density is a finite sum in the angle's sine and cosine, one for odd
    and one for even degrees; nothing is approximated.
    """
    sine, cosine = sin(angle), cos(angle)
    odd = degrees % 2
    if degrees == 1:
        return 2 * angle / pi
    term = cosine if odd else 1.0
    total = term
    for step in range(2 + odd, degrees - 1, 2):
        term *= cosine * cosine * (step - 1) / step
        total += term
    return 2 / pi * (angle + sine * total) if odd else sine * total
