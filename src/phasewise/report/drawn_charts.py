"""Charts as SVG.

A drawing stretches to the width of its box, so it holds shapes only: lines keep their width, and ticks,
labels and legends are text beside it that stays readable on a phone. What a point says on hover is in
attributes of its series; assets/page.js shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phasewise.report.charts import TICKS, Axis, Chart, ChartSeries, Mark, Panel, Point
from phasewise.report.markup import Html, element, embedded_json

WIDE = 1000.0
"""The width and height of a panel in its own units."""
THIN = 3.0
"""The legend shows segments up to this width as lines, wider ones as boxes."""


def drawn(chart: Chart) -> Html:
    """A chart with its question, legend and caption."""
    gutter = max((len(name) for panel in chart.panels for _, name in panel.y.ticks), default=1)
    plot = element(
        "div",
        *(
            part
            for panel in chart.panels
            for part in (element("p", panel.y.title, class_="y-title"), _panel(panel, chart.x))
        ),
        _ticks(chart.x, "left", "x"),
        element("p", chart.x.title, class_="x-title"),
        class_="plot",
        role="img",
        aria_label=chart.question,
        style=f"--gutter:{0.62 * gutter + 0.9:.1f}em",
    )
    return element(
        "figure",
        element("h3", chart.question),
        _legend(chart),
        plot,
        element("figcaption", chart.caption),
    )


def _panel(panel: Panel, x: Axis) -> Html:
    labels = (
        element(
            "b",
            label.text,
            class_="boxed" if label.boxed else False,
            style=f"left:{100 * x.place(label.x):.2f}%;bottom:{100 * panel.y.place(label.y):.2f}%",
        )
        for label in panel.labels
    )
    lines = [(0.0, panel.y.place(at), 1.0, panel.y.place(at)) for at, _ in panel.y.ticks]
    grid = element("path", d="".join(_segments(_scaled(lines))), class_="grid-lines")
    svg = element(
        "svg",
        grid,
        *(path for series in panel.series for path in _paths(series, x, panel.y)),
        viewBox=f"0 0 {WIDE:g} {WIDE:g}",
        preserveAspectRatio="none",
        aria_hidden="true",
    )
    return element(
        "div",
        _ticks(panel.y, "bottom", "y"),
        element("div", svg, *labels, class_="area", data_x=_scale(x), data_y=_scale(panel.y)),
        class_="panel",
        style=f"height:{panel.height}px",
    )


def _scale(axis: Axis) -> str:
    return embedded_json([axis.low, axis.high, int(axis.log), int(axis.percent)])


def _ticks(axis: Axis, side: str, name: str) -> Html:
    spans = (
        element("span", text, style=f"{side}:{100 * axis.place(value):.2f}%") for value, text in axis.ticks
    )
    many = " many" if len(axis.ticks) > TICKS + 1 else ""
    return element("div", *spans, class_=f"ticks {name}{many}")


def _legend(chart: Chart) -> Html:
    listed = {series.name: series for panel in chart.panels for series in panel.series if series.listed}
    if not listed or (len(listed) == 1 and len(chart.series) == 1):
        return Html("")
    return element(
        "p", *(element("span", _key(series), series.name) for series in listed.values()), class_="parts"
    )


def _key(series: ChartSeries) -> Html:
    thin = series.mark is Mark.SEGMENTS and series.size <= THIN
    kinds = ["key", "line" if thin else series.mark.value]
    kinds += ["dashed"] * series.dashed + ["hollow"] * series.hollow
    return element("i", class_=" ".join(kinds), style=f"--c:var({series.colour})")


def _paths(series: ChartSeries, x: Axis, y: Axis) -> Iterator[Html]:
    scaled = _scaled([_placed(point, x, y) for point in series.points])
    path = "".join(_WRITERS[series.mark](scaled))
    if not path:
        return
    yield element(
        "path",
        d=path,
        class_=f"{series.mark.value} dashed" if series.dashed else series.mark.value,
        style=f"--c:var({series.colour});stroke-width:{series.size:g}",
        data_name=series.name if series.hover or series.texts else False,
        data_hover=series.hover or False,
        data_texts=embedded_json(series.texts) if series.texts else False,
    )
    if series.hollow:
        yield element(
            "path", d=path, class_="dots", style=f"--c:var(--surface);stroke-width:{series.size / 2:g}"
        )


def _placed(point: Point, x: Axis, y: Axis) -> Point:
    return tuple((y if place % 2 else x).place(value) for place, value in enumerate(point))


def _scaled(points: Sequence[Point]) -> list[list[str]]:
    """Places from 0 to 1 in the panel's units, whose origin is the top left corner."""
    return [
        [_short(WIDE * (1 - value if place % 2 else value)) for place, value in enumerate(point)]
        for point in points
    ]


def _short(value: float) -> str:
    """A coordinate with at most one digit after the point: a page has thousands of them."""
    return f"{value:.1f}".removesuffix(".0")


def _line(points: Sequence[Sequence[str]]) -> Iterator[str]:
    yield from (f"{'L' if place else 'M'}{x} {y}" for place, (x, y) in enumerate(points))


def _steps(points: Sequence[Sequence[str]]) -> Iterator[str]:
    yield from (f"H{x}V{y}" if place else f"M{x} {y}" for place, (x, y) in enumerate(points))


def _dots(points: Sequence[Sequence[str]]) -> Iterator[str]:
    yield from (f"M{x} {y}h0" for x, y in points)


def _segments(points: Sequence[Sequence[str]]) -> Iterator[str]:
    for x0, y0, x1, y1 in points:
        yield f"M{x0} {y0}" + (f"H{x1}" if y0 == y1 else f"V{y1}" if x0 == x1 else f"L{x1} {y1}")


def _boxes(points: Sequence[Sequence[str]]) -> Iterator[str]:
    yield from (f"M{x0} {y0}H{x1}V{y1}H{x0}z" for x0, y0, x1, y1 in points)


_WRITERS = {
    Mark.LINE: _line,
    Mark.STEPS: _steps,
    Mark.DOTS: _dots,
    Mark.SEGMENTS: _segments,
    Mark.BOXES: _boxes,
}


def chart_grid(charts: Sequence[Chart], *, columns: int = 2) -> Html:
    """Charts side by side if the screen is wide enough."""
    return element("div", *map(drawn, charts), class_=f"grid of-{min(columns, len(charts))}")
