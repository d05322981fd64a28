"""A range with its confidence, for everyone who estimates."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interval:
    """A range that holds the true value in `confidence` of all repetitions."""

    low: float
    high: float
    confidence: float
