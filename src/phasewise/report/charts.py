"""Charts as data: axes, series and panels.

Colours are the names of CSS variables in assets/style.css.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, floor, log, log10
from typing import TypeVar

from phasewise.core.units import significant

LOG_FROM = 20.0
"""If the largest reading is this many times the smallest, the axis is logarithmic."""
TICKS = 5
"""About so many ticks fit under a chart on a phone."""
_T = TypeVar("_T")
Point = tuple[float, ...]


class Mark(StrEnum):
    """What a series draws at its points: (x, y), or (x0, y0, x1, y1) for segments and boxes."""

    LINE = "line"
    STEPS = "steps"
    """A line that keeps each height until the next point."""
    DOTS = "dots"
    SEGMENTS = "segments"
    BOXES = "boxes"


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale from `low` at the left or bottom to `high`, with the places and names of its ticks."""

    title: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False
    percent: bool = False

    def place(self, value: float) -> float:
        """Where a value lies, from 0 to 1; what is beyond an end is drawn at it."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = log10(low), log10(high), log10(max(value, low))
        return min(max((value - low) / (high - low), 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """Points of one kind. A `hover` says {x}, {y} and {width} of a point; `texts` have one for each instead.

    `size` is the width of lines and dots in pixels.
    """

    name: str
    colour: str
    mark: Mark
    points: tuple[Point, ...]
    hover: str = ""
    texts: tuple[str, ...] = ()
    size: float = 2.0
    dashed: bool = False
    hollow: bool = False
    listed: bool = True
    """Whether the legend has it."""


@dataclass(frozen=True, slots=True)
class Label:
    """A short text at a point."""

    x: float
    y: float
    text: str
    boxed: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """Series over one vertical axis."""

    y: Axis
    series: tuple[ChartSeries, ...]
    height: int = 240
    labels: tuple[Label, ...] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """Panels over a common horizontal axis, the question they answer, and a line on how to read them."""

    question: str
    caption: str
    x: Axis
    panels: tuple[Panel, ...]

    @property
    def series(self) -> dict[str, ChartSeries]:
        return {series.name: series for panel in self.panels for series in panel.series}


# --- Axes.


def axis(title: str, values: Sequence[float], *, from_zero: bool = True, whole: bool = False) -> Axis:
    """A linear axis that holds all values, by default from zero."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    low = min(low, 0.0) if from_zero else low - 0.04 * (high - low)
    high = high + 0.04 * (high - low) if high > low else low + 1.0
    step = nice_step(high - low)
    if whole:
        step = max(1.0, round(step))
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    ticks = (place * step for place in range(first, last + 1))
    return Axis(title, low, high, tuple((tick, significant(tick, 6)) for tick in ticks))


def nice_step(span: float) -> float:
    """The one of 1, 2, 5, 10, 20 and so on that divides a span into about as many parts as fit."""
    decade = 10.0 ** floor(log10(span / TICKS))
    return min((decade * step for step in (1, 2, 5, 10)), key=lambda step: abs(log(span / step / TICKS)))


def fitting_axis(title: str, values: Sequence[float]) -> Axis:
    """A linear axis, or a logarithmic one for readings of very different size."""
    positive = [value for value in values if value > 0]
    if not positive or max(positive) < LOG_FROM * min(positive):
        return axis(title, values)
    low, high = min(positive), max(positive)
    ticks = tuple((tick, significant(tick, 6)) for tick in log_ticks(low, high))
    return Axis(
        f"{title}, logarithmic", 10 ** (log10(low) - 0.08), 10 ** (log10(high) + 0.12), ticks, log=True
    )


def log_ticks(low: float, high: float) -> list[float]:
    """Ticks at 1, 2 and 5 of every decade; over many decades only at 1."""
    decades = range(int(log10(low)) - 1, int(log10(high)) + 2)
    steps = (1, 2, 5) if log10(high / low) < 2.2 else (1,)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    return [tick for tick in ticks if low / 1.2 <= tick <= high * 1.3]


def share_axis(title: str, largest: float = 1.0) -> Axis:
    """Shares in per cent, up to all of them or up to a smaller largest one."""
    base = axis(title, [0.0, largest])
    ticks = tuple((tick, f"{tick * 100:g}%") for tick, _ in base.ticks if tick <= 1.0)
    return Axis(title, 0.0, base.high, ticks, percent=True)


def rows_axis(title: str, names: Sequence[tuple[float, str]], rows: float) -> Axis:
    """Rows from top to bottom, counted from 1."""
    return Axis(title, rows + 0.6, 0.4, tuple(names))


def even_sample(items: Sequence[_T], limit: int) -> list[_T]:
    """At most this many items, evenly spread, including the first and the last."""
    if len(items) <= limit:
        return list(items)
    return [items[round(place * (len(items) - 1) / (limit - 1))] for place in range(limit)]


# --- Series that several charts have.


def shade(until: float, y: Axis) -> tuple[ChartSeries, ...]:
    """The warm-up as a shaded area; empty without a warm-up."""
    if until <= 0:
        return ()
    return (ChartSeries("warm-up", "--shade", Mark.BOXES, ((0.0, y.low, until, y.high),)),)


def level(name: str, at: float, x: Axis) -> ChartSeries:
    """A dashed line across the whole width of a chart."""
    return ChartSeries(name, "--objective", Mark.SEGMENTS, ((x.low, at, x.high, at),), size=1.5, dashed=True)


def upright(name: str, at: float, y: Axis) -> ChartSeries:
    """A dashed line across the whole height of a chart."""
    return ChartSeries(name, "--objective", Mark.SEGMENTS, ((at, y.low, at, y.high),), size=1.5, dashed=True)
