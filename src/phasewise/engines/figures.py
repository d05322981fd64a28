"""Reads single figures of a reply, which may hold anything."""

from __future__ import annotations

from math import isfinite


def count_of(value: object) -> int | None:
    """A count; None if it is none."""
    return value if type(value) is int and value >= 0 else None  # a bool is an int too


def seconds_of(milliseconds: object) -> float | None:
    """A duration; None if it is none."""
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float):
        return None
    return milliseconds / 1000 if isfinite(milliseconds) and milliseconds >= 0 else None
