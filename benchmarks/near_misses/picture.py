"""Draws what became of a stream by thousands of requests: hits, judged pairs and wrong answers, a lane a
judge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

WIDTH, LANE, LEFT, RIGHT, TOP = 860, 120, 140, 28, 56
HITS, JUDGED, WRONG, BEFORE, MUTED = "#2b7bd9", "#c9c9c9", "#c0392b", "#1f1f1f", "#808080"
FIRST_DAY = 20
"""Thousands of requests; then all answers have expired."""
MOST = 600
"""Requests of a thousand, at the top of a lane."""


def draw(rows: Sequence[Mapping[str, Any]]) -> str:
    """The picture of the first stream."""
    lanes = [row for row in rows if row["stream"] == rows[0]["stream"] and not row["by_change"]]
    height = TOP + LANE * len(lanes) + 32
    parts = [*_head(height, rows[0]["stream"])]
    for number, row in enumerate(lanes):
        parts += _lane(row, TOP + LANE * (number + 1) - 14)
    count = len(lanes[0]["hits_by_thousand"])
    for place in range(0, count + 1, 5):
        x = LEFT + place * (WIDTH - LEFT - RIGHT) / count
        parts.append(_text(x, height - 10, f"{place * 1_000:,}", "middle", MUTED))
    after = LEFT + FIRST_DAY * (WIDTH - LEFT - RIGHT) / count
    parts.append(f'<path d="M{after:.1f} {TOP - 14}V{height - 26}" stroke="{MUTED}" stroke-dasharray="3 3"/>')
    parts.append(_text(after + 6, TOP - 4, "the day after", colour=MUTED))
    return "\n".join([*parts, "</svg>", ""])


def _head(height: int, stream: str) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'font-family="system-ui, sans-serif" font-size="13">'
    )
    yield f"<title>Hits, judged pairs and wrong answers by thousand requests, stream {stream}</title>"
    yield f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    for x, colour, words in (
        (LEFT, HITS, "right answers of another question"),
        (LEFT + 260, JUDGED, "judged after the model answered"),
        (LEFT + 510, WRONG, "wrong answers"),
    ):
        yield f'<rect x="{x}" y="14" width="12" height="12" fill="{colour}"/>'
        yield _text(x + 18, 25, words)


def _lane(row: Mapping[str, Any], bottom: int) -> Iterator[str]:
    count = len(row["hits_by_thousand"])
    step = (WIDTH - LEFT - RIGHT) / count
    yield _text(LEFT - 10, bottom - 50, f"judge errs in {row['judge_errs']:.1%}", "end")
    yield _text(LEFT - 10, bottom - 32, "trusted" if row["trusted"] else "exact hits only", "end", MUTED)
    for number in range(count):
        x = LEFT + number * step
        stacked = 0.0
        for name, colour in (("wrong", WRONG), ("hits", HITS), ("judged", JUDGED)):
            tall = row[f"{name}_by_thousand"][number] * (LANE - 24) / MOST
            if name == "wrong" and tall:
                tall = max(tall, 2.0)
            stacked += tall
            yield (
                f'<rect x="{x + 1:.1f}" y="{bottom - stacked:.1f}" width="{step - 2:.1f}" '
                f'height="{tall:.1f}" fill="{colour}"/>'
            )
    yield f'<path d="M{LEFT} {bottom}H{WIDTH - RIGHT}" stroke="{MUTED}"/>'


def _text(x: float, y: float, words: str, anchor: str = "start", colour: str = BEFORE) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'
