"""Draws a stream's token gaps under two arms, over what the engines did in the meantime, as an SVG. Pure.

Colours are those of the reports: report/assets/style.css says them for light and for dark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

STYLE = Path(__file__).parents[2] / "src" / "phasewise" / "report" / "assets" / "style.css"
COLOURS = ("surface", "text", "muted", "grid", "shade", "prefill", "decode", "kv-transfer")
PANELS = {
    "mixed": "Both engines do both phases",
    "disaggregated": "One engine reads prompts, the other writes answers",
}
WIDTH, LEFT, RIGHT = 860, 92, 16
TOP, TITLE, CHART, LANE, LANE_GAP, PANEL_GAP, BOTTOM = 62, 22, 130, 16, 5, 30, 46
LANES = 2
PANEL = TITLE + CHART + LANES * (LANE + LANE_GAP) + PANEL_GAP
HEIGHT = TOP + PANEL * len(PANELS) - PANEL_GAP + BOTTOM
SHOWN_S = 30.0
MOST_LINES = 5
STALL_TIMES = 5.0
"""A gap so many times the stream's usual one is a stall, and has the colour of what caused it."""


def draw(traces: Mapping[str, Mapping[str, Any]]) -> str:
    """The picture of these arms, each as trace.py tells it; the same traces give the same picture."""
    shown_s = min(SHOWN_S, max(traces[arm]["ended_s"] for arm in PANELS))
    worst_s = max(gap_s for arm in PANELS for _, gap_s in gaps(traces[arm], shown_s))
    scale = Scale(shown_s, float(ceil(worst_s)))
    body = [line for number, arm in enumerate(PANELS) for line in panel(number, arm, traces[arm], scale)]
    return "\n".join((*head(), *legend(), *body, *time_axis(scale), "</svg>", ""))


class Scale:
    """Where seconds stand: the time across, and a gap's length upwards."""

    def __init__(self, shown_s: float, highest_s: float) -> None:
        self.shown_s = shown_s
        self.highest_s = highest_s

    def x(self, at_s: float) -> float:
        """Across, within what is shown."""
        return round(LEFT + (WIDTH - LEFT - RIGHT) * min(max(at_s / self.shown_s, 0.0), 1.0), 1)

    def y(self, gap_s: float, floor_y: float) -> float:
        """Up from the floor."""
        return round(floor_y - CHART * gap_s / self.highest_s, 1)


def gaps(trace: Mapping[str, Any], shown_s: float) -> list[tuple[float, float]]:
    """When each token came, and how long after the one before it."""
    return [(after, after - before) for before, after in pairwise(trace["tokens_s"]) if after <= shown_s]


def head() -> Iterator[str]:
    """The picture's size, words for those who do not see it, and its colours."""
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'role="img" font-family="system-ui, sans-serif" font-size="12">'
    )
    yield "<title>Token gaps of a stream while long prompts are read, with and without KV transfer</title>"
    light, dark = colours()
    yield "<style>"
    yield f"svg {{ {light} }}"
    yield f"@media (prefers-color-scheme: dark) {{ svg {{ {dark} }} }}"
    yield "text { fill: var(--text) } .muted { fill: var(--muted) } .prefill { fill: var(--prefill) }"
    yield ".decode { fill: var(--decode) } .kv-transfer { fill: var(--kv-transfer) }"
    yield ".shade { fill: var(--shade) } .grid { stroke: var(--grid) }"
    yield "</style>"
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" style="fill:var(--surface)"/>'


def colours() -> tuple[str, str]:
    """The reports' colours as declarations, for light and for dark."""
    found = dict(re.findall(r"--([a-z-]+): light-dark\(([^)]+)\)", STYLE.read_text()))
    pairs = {name: [each.strip() for each in found[name].split(",")] for name in COLOURS}
    light, dark = ("; ".join(f"--{name}: {pair[index]}" for name, pair in pairs.items()) for index in (0, 1))
    return light, dark


def legend() -> Iterator[str]:
    """What the colours mean."""
    entries = (
        ("prefill", "prefill: an engine reads prompts"),
        ("decode", "decode: an engine writes tokens; teeth: time since the stream's last one"),
        ("kv-transfer", "KV arrives on the decode engine"),
        ("shade", "a long prompt waits for its first token"),
    )
    for number, (name, meaning) in enumerate(entries):
        x, y = LEFT + 260 * (number % 2), 14 + 20 * (number // 2)
        yield f'<rect class="{name}" x="{x}" y="{y}" width="11" height="11"/>'
        yield f'<text x="{x + 16}" y="{y + 10}">{meaning}</text>'


def panel(number: int, arm: str, trace: Mapping[str, Any], scale: Scale) -> Iterator[str]:
    """One arm: the stream's gaps, and beneath them what the engines did."""
    top_y = TOP + number * PANEL
    floor_y = top_y + TITLE + CHART
    found = gaps(trace, scale.shown_s)
    longest_s = max(gap_s for _, gap_s in found)
    yield f'<text x="{LEFT}" y="{top_y + 14}" font-weight="600">{PANELS[arm]}: '
    yield f"longest gap {longest_s * 1e3:,.0f} ms</text>"
    for sent_s, first_s in trace["longs_s"]:
        x, end_x = scale.x(sent_s), scale.x(first_s)
        if end_x > x:
            yield rect("shade", x, floor_y - CHART, end_x - x, CHART)
    for gap_s in range(0, int(scale.highest_s) + 1, ceil(scale.highest_s / MOST_LINES)):
        y = scale.y(gap_s, floor_y)
        yield f'<path class="grid" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>'
        yield f'<text class="muted" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{gap_s} s</text>'
    usual_s = median(gap_s for _, gap_s in found)
    stalls = [(at_s, gap_s) for at_s, gap_s in found if gap_s > STALL_TIMES * usual_s]
    flowing = [pair for pair in found if pair not in stalls]
    for kind, these in (("decode", flowing), ("prefill", stalls)):
        yield f'<path class="{kind}" d="{teeth(these, floor_y, scale)}"/>'
    yield from lanes(trace, floor_y + LANE_GAP, scale)


def teeth(found: list[tuple[float, float]], floor_y: float, scale: Scale) -> str:
    """The time since the last token, which rises until the next one comes."""
    return "".join(
        f"M{scale.x(at_s - gap_s)} {floor_y}L{scale.x(at_s)} {scale.y(gap_s, floor_y)}V{floor_y}z"
        for at_s, gap_s in found
    )


def lanes(trace: Mapping[str, Any], top_y: float, scale: Scale) -> Iterator[str]:
    """A strip for each engine, coloured by what it did, and marks where KV came in."""
    for number, (name, stretches) in enumerate(trace["lanes"].items()):
        y = top_y + number * (LANE + LANE_GAP)
        yield f'<text class="muted" x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{name}</text>'
        for start_s, end_s, kind in stretches:
            x, end_x = scale.x(start_s), scale.x(end_s)
            if end_x > x:
                yield rect(kind, x, y, end_x - x, LANE)
    y = top_y + LANES * (LANE + LANE_GAP) - LANE_GAP
    for at_s in trace["kv_transfers_s"]:
        if at_s <= scale.shown_s:
            x = scale.x(at_s)
            yield f'<path class="kv-transfer" d="M{x} {y - LANE}l5 -7h-10z"/>'


def rect(kind: str, x: float, y: float, width: float, height: float) -> str:
    """A filled stretch."""
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{round(width, 1)}" height="{height}"/>'


def time_axis(scale: Scale) -> Iterator[str]:
    """Seconds, for all panels."""
    y = HEIGHT - BOTTOM + 16
    for at_s in range(0, int(scale.shown_s) + 1, 5):
        yield f'<text class="muted" x="{scale.x(at_s)}" y="{y}" text-anchor="middle">{at_s} s</text>'
