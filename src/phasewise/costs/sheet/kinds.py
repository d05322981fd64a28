"""Facts by the kind of their figure, so that a time is written like every other time."""

from __future__ import annotations

from phasewise.costs.sheet.facts import Fact
from phasewise.costs.sheet.quantities import dollars, duration, figures, size

NEVER = "never"


def time_fact(key: str, label: str, value_s: float, formula: str = "") -> Fact:
    """A time; none at all has no formula."""
    return Fact(key, label, value_s, duration(value_s), formula) if value_s else Fact(key, label, 0.0, "none")


def size_fact(key: str, label: str, count: float, formula: str) -> Fact:
    """Bytes."""
    return Fact(key, label, count, size(count), formula)


def figure_fact(key: str, label: str, value: float, formula: str = "", unit: str = "") -> Fact:
    """A number that is no time, no size and no count."""
    return Fact(key, label, value, f"{figures(value)} {unit}".rstrip(), formula)


def count_fact(key: str, label: str, count: int | None, formula: str = "", unit: str = "") -> Fact:
    """A whole number; None is "never"."""
    if count is None:
        return Fact(key, label, None, NEVER)
    return Fact(key, label, count, f"{count:,} {unit}".rstrip(), formula)


def money_fact(key: str, label: str, amount: float, formula: str) -> Fact:
    """Dollars."""
    return Fact(key, label, amount, dollars(amount), formula)
