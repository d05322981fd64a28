"""Figures as people write them: three significant digits and a unit."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log10

NONE = "–"
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (0.0, "B"))


def duration(seconds: float | None) -> str:
    """Milliseconds up to a second, then seconds; microseconds below 0.1 ms."""
    if seconds is None:
        return NONE
    if 0 < abs(seconds) < 0.0001:
        return f"{three_digits(seconds * 1e6)} µs"
    # What rounds to a thousand milliseconds is a second.
    if abs(seconds) < 0.9995:
        return f"{three_digits(seconds * 1000)} ms"
    return f"{three_digits(seconds)} s"


def durations(bounds: tuple[float, float]) -> str:
    """Both ends of an interval, in the unit of the larger one."""
    scale = scale_for(bounds[1], seconds_from=0.9995)
    low, high = (three_digits(bound * scale.per_second) for bound in bounds)
    return f"{low} to {high} {scale.unit}"


def milliseconds(seconds: float | None) -> str:
    """A duration in a column that is headed by its unit."""
    return number(None if seconds is None else seconds * 1000)


def elapsed(seconds: float) -> str:
    """A time that passes while somebody watches, or that a whole run took."""
    return f"{max(seconds, 0.0):,.0f} s"


def long_duration(seconds: float) -> str:
    """A time that somebody waits, in the unit one would say."""
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{significant(round(seconds / size, 1 if seconds < 10 * size else 0))} {unit}"
    return f"{max(seconds, 0):.0f} seconds"


def share(value: float | None) -> str:
    """A share in per cent; 100% only if it is all."""
    if value is None:
        return NONE
    if 0.99 < value < 1 or 0 < value < 0.01:
        return f"{min(max(value * 100, 0.1), 99.9):.1f}%"
    return f"{value:.0%}"


def change(ratio: float | None, digits: int = 0) -> str:
    """By how much a ratio is above or below one."""
    return NONE if ratio is None else f"{(ratio - 1) * 100:+.{digits}f}%"


def bound(seconds: float) -> str:
    """A duration that a user chose, as written: not rounded to three digits."""
    return f"{seconds * 1000:.4g} ms" if seconds < 1 else f"{seconds:.4g} s"


def count(value: float | None) -> str:
    """A count; counters come as floats, though they are whole."""
    return NONE if value is None else f"{value:,.0f}"


def counted(value: float, noun: str) -> str:
    """A number of things: `1 stream`, `2.5 streams`."""
    text = f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"
    return f"{text} {noun}" if text == "1" else f"{text} {noun}s"


def size(byte_count: float | None) -> str:
    """Bytes in decimal units, as links and devices are sold."""
    if byte_count is None:
        return NONE
    scale, unit = next(row for row in _SIZES if byte_count >= row[0])
    return f"{significant(byte_count / (scale or 1.0))} {unit}"


def gib(byte_count: float) -> str:
    """Memory of a machine, in the unit that its settings are written in."""
    return f"{byte_count / 2**30:.1f} GiB"


def dollars(amount: float) -> str:
    """Money: in cents, or with two digits where it is less than ten cents."""
    return f"${amount:,.2f}" if amount >= 0.1 else f"${significant(amount, 2)}"


def number(value: float | None) -> str:
    """A rate or a mean."""
    return NONE if value is None else three_digits(value)


def three_digits(value: float) -> str:
    """A number with three significant digits; numbers above 1000 are not rounded to that."""
    if value == 0:
        return "0"
    # Rounding may add a digit: 0.9996 is 1.00.
    digits = max(2 - floor(log10(abs(float(f"{value:.2e}")))), 0)
    text = f"{value:,.{min(digits, 3)}f}"
    return text if float(text.replace(",", "")) else "0"


def significant(value: float, digits: int = 3) -> str:
    """At most so many digits, without zeros at the end: for what was computed, not measured."""
    if value == 0:
        return "0"
    places = digits - 1 - floor(log10(abs(value)))
    written = f"{round(value, places):,.{max(0, places)}f}"
    return written.rstrip("0").rstrip(".") if "." in written else written


@dataclass(frozen=True, slots=True)
class AxisScale:
    """The unit that an axis is drawn in."""

    unit: str
    per_second: float

    def of(self, seconds: float) -> float:
        """A duration on the axis, rounded to visible precision to keep the page small."""
        return round(seconds * self.per_second, 3)


def scale_for(largest_s: float, *, seconds_from: float = 5.0) -> AxisScale:
    """Milliseconds, unless their numbers would grow long."""
    return AxisScale("ms", 1000.0) if largest_s < seconds_from else AxisScale("s", 1.0)
