"""A run or a sweep as one HTML file that opens anywhere, offline: figures, charts, definitions, the command.

plotly.js draws the charts and is embedded once; only its text is taken from
the plotly package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from importlib.util import find_spec
from string import Template

from phasewise.core.errors import ConfigError
from phasewise.core.units import duration, durations, number, share
from phasewise.loadgen.results import DEFINITIONS
from phasewise.loadgen.statistics.summary import Summary
from phasewise.report.bench.phases import Measured
from phasewise.report.bench.sections import chart_grid, notes, objective, run_sections, section, verdict
from phasewise.report.bench.sweep_charts import goodput_by_load, trade_offs
from phasewise.report.markup import Html, element, table, together

__all__ = ["Measured", "check_available", "definitions", "render_page", "repeat_section", "whole_page"]

_PAGE = files("phasewise.report.bench")


def check_available() -> None:
    """Raise before a run if its report could not be written."""
    if find_spec("plotly") is None:
        raise ConfigError(
            "an HTML report needs plotly", hint="pip install plotly, or phasewise with its extra: '.[report]'"
        )


def render_page(measured: Sequence[Measured], *, title: str, command: str, facts: Mapping[str, str]) -> str:
    """The page of one run, or of the runs of a sweep in their order.

    `command` repeats the measurement. `facts` are shown unchanged: the workload in words, the seed,
    the date, the machine, versions.
    """
    points = _sweep(measured) if len(measured) > 1 else together(map(run_sections, measured))
    parts = (_header(measured, title, facts), points, definitions(), repeat_section(command))
    return whole_page(title, together(parts))


def whole_page(title: str, content: Html, *, style: str = "", charts: bool = True) -> str:
    """A page around its content, with everything that it needs to open offline.

    `style` is added to the common one. A page without `charts` is small and needs no plotly.
    """
    return Template((_PAGE / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(title),
        style=(_PAGE / "style.css").read_text(encoding="utf-8") + style,
        content=content,
        plotly=_plotly() if charts else "",
        script=(_PAGE / "page.js").read_text(encoding="utf-8"),
    )


def _plotly() -> str:
    check_available()
    from plotly.offline import get_plotlyjs  # noqa: PLC0415 - an extra that only charts need

    text: str = get_plotlyjs()
    return text


def _header(measured: Sequence[Measured], title: str, facts: Mapping[str, str]) -> Html:
    button = element("button", "light / dark", id="scheme", type="button", hidden=True)
    where = dict.fromkeys(f"{point.report.model} at {point.report.url}" for point in measured)
    lines = [
        element("div", element("h1", title), button, class_="top"),
        *(element("p", place, class_="where") for place in where),
        *_banners(measured),
    ]
    if len(measured) == 1:
        lines.append(element("p", verdict(measured[0].report), class_="verdict"))
        lines.append(notes(measured[0].report))
    else:
        answered = sum(point.report.succeeded for point in measured)
        offered = sum(point.report.offered for point in measured)
        sentence = f"A sweep of {len(measured)} loads. Answered {answered:,} of {offered:,} requests."
        lines.append(element("p", sentence, class_="verdict"))
    pairs = (element("div", element("dt", name), element("dd", value)) for name, value in facts.items())
    lines += [
        element("noscript", element("p", "The charts need JavaScript; the figures do not.")),
        element("dl", *pairs, class_="facts"),
    ]
    return element("header", *lines)


def _banners(measured: Sequence[Measured]) -> list[Html]:
    several = len(measured) > 1
    void = [
        f"{point.label}: {reason}" if several else reason
        for point in measured
        for reason in point.report.void
    ]
    banners = []
    if void:
        headline = "This run is void: it measured the load generator, not the server."
        if several:
            headline = "Some of these runs are void: they measured the load generator, not the server."
        listed = element("ul", *(element("li", reason) for reason in void))
        banners.append(
            element("div", element("strong", headline), listed, class_="banner void", role="alert")
        )
    cut = [point.label for point in measured if point.report.cut_short]
    if cut:
        which = f" ({', '.join(cut)})" if several else ""
        headline = element("strong", f"The run was interrupted{which}.")
        described = element("span", "The figures cover what was measured until then.")
        banners.append(element("div", headline, described, class_="banner cut", role="alert"))
    return banners


def _sweep(measured: Sequence[Measured]) -> Html:
    goodput = goodput_by_load(measured)
    carried = [] if goodput is None else [chart_grid([goodput])]
    overview = section("Latency against load", chart_grid(trade_offs(measured)), *carried)
    rows = section("All loads", _points_table(measured))
    return together((overview, rows, section("Load by load", *_details(measured))))


def _points_table(measured: Sequence[Measured]) -> Html:
    head = (
        "load",
        "answered",
        "tokens/s",
        "TTFT p50",
        "TTFT p90",
        "TPOT p50",
        "ITL p99",
        "E2E p50",
        "within SLO",
    )
    return table(
        head,
        [
            (
                together((point.label, *([element("small", "void")] if point.report.void else []))),
                f"{point.report.succeeded:,} of {point.report.offered:,}",
                number(point.report.output_tokens_per_s),
                _estimated(point.report.ttft_s, "p50"),
                _estimated(point.report.ttft_s, "p90"),
                _estimated(point.report.tpot_s, "p50"),
                _estimated(point.report.itl_pooled_s, "p99"),
                duration(point.report.e2e_s.p50),
                share(point.report.goodput.share),
            )
            for point in measured
        ],
    )


def _estimated(summary: Summary, percentile: str) -> Html:
    value, bounds = getattr(summary, percentile), getattr(summary, f"{percentile}_interval")
    spread = () if bounds is None else (element("small", durations(bounds)),)
    return together((duration(value), *spread))


def _details(measured: Sequence[Measured]) -> list[Html]:
    last = measured[-1]
    return [
        element(
            "details",
            element(
                "summary",
                point.label,
                element("span", f"{share(point.report.goodput.share)} within {objective(point.report)}"),
            ),
            element("p", verdict(point.report)),
            notes(point.report),
            run_sections(point),
            class_="point",
            open=point is last,
        )
        for point in measured
    ]


def definitions() -> Html:
    """The definitions of the figures."""
    pairs = (
        part
        for name, meaning in DEFINITIONS.items()
        for part in (element("dt", name), element("dd", meaning))
    )
    return section("Definitions", element("dl", *pairs, class_="definitions"))


def repeat_section(command: str) -> Html:
    """The command that repeats the measurement."""
    return section("Repeat this run", element("pre", element("code", command)))
