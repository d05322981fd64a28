"""Figures as people write them: three digits, a unit, and words where there is no figure."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log10

NONE = "–"


def duration(seconds: float | None) -> str:
    """Milliseconds up to a second, seconds from there on."""
    if seconds is None:
        return NONE
    # What rounds to a thousand milliseconds is a second.
    if abs(seconds) < 0.9995:
        return f"{three_digits(seconds * 1000)} ms"
    return f"{three_digits(seconds)} s"


def durations(bounds: tuple[float, float]) -> str:
    """Both ends of an interval, in the unit of the larger one."""
    scale = scale_for(bounds[1], seconds_from=0.9995)
    low, high = (three_digits(bound * scale.per_second) for bound in bounds)
    return f"{low} to {high} {scale.unit}"


def share(value: float | None) -> str:
    """A share in per cent; what is not quite all is not called 100%."""
    if value is None:
        return NONE
    if 0.99 < value < 1 or 0 < value < 0.01:
        return f"{min(max(value * 100, 0.1), 99.9):.1f}%"
    return f"{value:.0%}"


def bound(seconds: float) -> str:
    """A duration that somebody chose: as it was written, not measured to three digits."""
    return f"{seconds * 1000:.4g} ms" if seconds < 1 else f"{seconds:.4g} s"


def count(value: float | None) -> str:
    """How many; counters come as floats and are whole all the same."""
    return NONE if value is None else f"{value:,.0f}"


def number(value: float | None) -> str:
    """A rate or a mean."""
    return NONE if value is None else three_digits(value)


def three_digits(value: float) -> str:
    """A number with three digits that mean something; larger ones are not rounded to that."""
    if value == 0:
        return "0"
    # Rounding may add a digit: 0.9996 is 1.00.
    digits = max(2 - floor(log10(abs(float(f"{value:.2e}")))), 0)
    text = f"{value:,.{min(digits, 3)}f}"
    return text if float(text.replace(",", "")) else "0"


@dataclass(frozen=True, slots=True)
class Scale:
    """The unit that an axis is drawn in."""

    unit: str
    per_second: float

    def of(self, seconds: float) -> float:
        """A duration on the axis, rounded to what can be seen, which keeps the page small."""
        return round(seconds * self.per_second, 3)


def scale_for(largest_s: float, *, seconds_from: float = 5.0) -> Scale:
    """Milliseconds, unless their numbers would grow long."""
    return Scale("ms", 1000.0) if largest_s < seconds_from else Scale("s", 1.0)
