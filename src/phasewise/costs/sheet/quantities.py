"""How figures are written: short for reading, and with enough digits in a formula to get the figure again."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10

_DURATIONS = ((1.0, "s", 1.0), (1e-3, "ms", 1e3), (0.0, "us", 1e6))
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (0.0, "B"))


def lengths_up_to(most: int | None, usual: Sequence[int]) -> list[int]:
    """The usual lengths that a model is made for; its own where all of them are longer."""
    return [length for length in usual if most is None or length <= most] or [most or usual[0]]


def figures(value: float, digits: int = 3) -> str:
    """So many significant digits, with thousands set apart and no exponent."""
    if value == 0:
        return "0"
    places = digits - 1 - floor(log10(abs(value)))
    written = f"{round(value, places):,.{max(0, places)}f}"
    return written.rstrip("0").rstrip(".") if "." in written else written


def duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    _, unit, scale = next(row for row in _DURATIONS if seconds >= row[0])
    return f"{figures(seconds * scale)} {unit}"


def size(count: float) -> str:
    """Bytes in decimal units."""
    scale, unit = next(row for row in _SIZES if count >= row[0])
    return f"{figures(count / (scale or 1.0))} {unit}"


def power(value: float) -> str:
    """A number for a formula: whole and short as it is, else four digits and an exponent of thousands."""
    if value == 0 or (abs(value) < 1e7 and value == int(value)):
        return f"{int(value):,}"
    exponent = 3 * floor(log10(abs(value)) / 3)
    if exponent in {0, 3}:
        return figures(value, 4)
    return f"{figures(value / 10.0**exponent, 4)}e{exponent}"


def seconds(value: float) -> str:
    """A time for a formula, in seconds."""
    return figures(value, 4)


def dollars(amount: float) -> str:
    """Money: in cents, or two digits where that is less than ten of them."""
    return f"${amount:,.2f}" if amount >= 0.1 else f"${figures(amount, 2)}"
