"""Common parts of all charts: layout, axes and figures.

A figure is plotly's JSON. A string that begins with `--` names a colour: the page's script replaces it
with the value of that CSS variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import log10
from typing import Any, TypeVar

Trace = dict[str, Any]
Axis = dict[str, Any]
_T = TypeVar("_T")

LOG_FROM = 20.0
"""If the largest reading is this many times the smallest, the axis is logarithmic."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure with the question it answers and a line on how to read it."""

    question: str
    caption: str
    figure: dict[str, Any]


def figure(data: Sequence[Trace], x: Axis, y: Axis, *, height: int = 320, **layout: Any) -> dict[str, Any]:  # noqa: ANN401 - plotly's own JSON
    """Traces in the page's layout; the legend is above the chart, where it may wrap."""
    return {
        "data": list(data),
        "layout": {
            "height": height,
            "margin": {"l": 8, "r": 12, "t": 8, "b": 8},
            "paper_bgcolor": "--surface",
            "plot_bgcolor": "--surface",
            "font": {"family": "system-ui, sans-serif", "size": 12, "color": "--muted"},
            "hoverlabel": {"font": {"color": "--text"}, "bgcolor": "--surface", "bordercolor": "--line"},
            "legend": {
                "orientation": "h",
                "xref": "container",
                "x": 0,
                "yref": "container",
                "y": 1,
                "yanchor": "top",
                "itemsizing": "constant",
                "font": {"size": 11.5},
            },
            "showlegend": len([trace for trace in data if trace.get("showlegend", True)]) > 1,
            "xaxis": x,
            "yaxis": y,
            **layout,
        },
    }


def axis(title: str, **more: Any) -> Axis:  # noqa: ANN401 - plotly's own JSON
    """A linear axis from zero."""
    return {
        "title": {"text": title, "standoff": 8},
        "automargin": True,
        "gridcolor": "--grid",
        "linecolor": "--line",
        "zerolinecolor": "--line",
        "rangemode": "tozero",
        **more,
    }


def fitting_axis(title: str, values: Sequence[float]) -> Axis:
    """A linear axis, or a logarithmic one for readings of very different size."""
    positive = [value for value in values if value > 0]
    if not positive or max(positive) < LOG_FROM * min(positive):
        return axis(title)
    low, high = min(positive), max(positive)
    ticks = log_ticks(low, high)
    return axis(
        f"{title}, logarithmic",
        type="log",
        range=[log10(low) - 0.08, log10(high) + 0.12],
        tickvals=ticks,
        ticktext=[f"{tick:g}" for tick in ticks],
    )


def log_ticks(low: float, high: float) -> list[float]:
    """Ticks at 1, 2 and 5 of every decade; over many decades only at 1."""
    decades = range(int(log10(low)) - 1, int(log10(high)) + 2)
    steps = (1, 2, 5) if log10(high / low) < 2.2 else (1,)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    return [tick for tick in ticks if low / 1.2 <= tick <= high * 1.3]


def upright(at: float, colour: str) -> dict[str, Any]:
    """A dashed line across the whole height of a chart."""
    line = {"color": colour, "width": 1.5, "dash": "dash"}
    return {"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def level(at: float, colour: str) -> dict[str, Any]:
    """A dashed line across the whole width of a chart."""
    line = {"color": colour, "width": 1.5, "dash": "dash"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": at, "y1": at, "line": line}


def line_in_legend(name: str, colour: str) -> Trace:
    """A legend entry for a dashed line, because plotly shapes have none."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [None],
        "y": [None],
        "name": name,
        "line": {"color": colour, "width": 1.5, "dash": "dash"},
    }


def shade(until: float) -> list[dict[str, Any]]:
    """The warm-up as a shaded area; empty without a warm-up."""
    if until <= 0:
        return []
    area = {"type": "rect", "x0": 0, "x1": until, "yref": "paper", "y0": 0, "y1": 1}
    return [{**area, "fillcolor": "--shade", "line": {"width": 0}, "layer": "below"}]


def shade_in_legend(until: float) -> list[Trace]:
    """A legend entry for the warm-up; empty without a warm-up."""
    if until <= 0:
        return []
    marker = {"color": "--shade", "symbol": "square", "size": 12, "line": {"width": 1, "color": "--line"}}
    return [
        {"type": "scatter", "mode": "markers", "x": [None], "y": [None], "name": "warm-up", "marker": marker}
    ]


def even_sample(items: Sequence[_T], limit: int) -> list[_T]:
    """At most this many items, evenly spread, including the first and the last."""
    if len(items) <= limit:
        return list(items)
    return [items[round(place * (len(items) - 1) / (limit - 1))] for place in range(limit)]


def plain(text: str) -> str:
    """Text for a label or hover, escaped, because plotly interprets some HTML."""
    return escape(text)
