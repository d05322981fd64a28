"""Draws README's picture: one stream that stalls while its engine computes another request's prompt.

    python benchmarks/stall_picture.py [--record FILE] [--picture FILE]

The record is the one that `benchmarks/disaggregation.py --record` keeps of two real engines; the picture has
the first engine of its arm "mixed". The same record gives the same picture.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "benchmarks" / "records" / "disaggregation.json"
PICTURE = ROOT / "docs" / "images" / "stall.svg"
SHOWN_S = 12.0
WIDTH, HEIGHT, LEFT, RIGHT = 860, 176, 112, 16
STEPS_Y, TOKENS_Y, BAR = 62, 104, 24
PREFILL, DECODE, MUTED = "#d9822b", "#2b7bd9", "#808080"


def main() -> None:
    """Read the record and write the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    options = parser.parse_args()
    record = json.loads(options.record.read_text(encoding="utf-8"))
    options.picture.parent.mkdir(parents=True, exist_ok=True)
    options.picture.write_text(draw(record["traces"]["mixed"]), encoding="utf-8")
    print(json.dumps({"picture": str(options.picture)}))


def draw(trace: dict[str, Any]) -> str:
    """The engine's steps, the stream's tokens beneath them, and the longest gap between two tokens."""
    tokens_s = [at_s for at_s in trace["tokens_s"] if 0 <= at_s <= SHOWN_S]
    before_s, after_s = max(pairwise(tokens_s), key=lambda pair: pair[1] - pair[0])
    steps = next(iter(trace["lanes"].values()))
    return "\n".join(
        (*head(), *bars(steps), *marks(tokens_s), *stall(before_s, after_s), *axis(), "</svg>", "")
    )


def x(at_s: float) -> float:
    """Where a moment stands."""
    return round(LEFT + (WIDTH - LEFT - RIGHT) * min(at_s / SHOWN_S, 1.0), 1)


def head() -> Iterator[str]:
    """Size, title and legend."""
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="system-ui, sans-serif" font-size="13">'
    )
    yield "<title>A stream stalls while its engine computes the prompt of another request</title>"
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    for left_x, colour, words in (
        (LEFT, PREFILL, "steps with another request's prompt"),
        (LEFT + 290, DECODE, "decode steps, and the stream's tokens"),
    ):
        yield f'<rect x="{left_x}" y="14" width="12" height="12" fill="{colour}"/>'
        yield text(left_x + 18, 25, words)


def bars(steps: list[list[Any]]) -> Iterator[str]:
    """What the engine's steps held."""
    yield text(LEFT - 10, STEPS_Y + 17, "engine steps", "end")
    for start_s, end_s, kind in steps:
        if start_s < SHOWN_S:
            colour = PREFILL if kind == "prefill" else DECODE
            width = max(round(x(end_s) - x(start_s), 1), 1.0)
            yield f'<rect x="{x(start_s)}" y="{STEPS_Y}" width="{width}" height="{BAR}" fill="{colour}"/>'


def marks(tokens_s: list[float]) -> Iterator[str]:
    """When the stream's tokens reached its client."""
    yield text(LEFT - 10, TOKENS_Y + 17, "one stream", "end")
    lines = "".join(f"M{x(at_s)} {TOKENS_Y}v{BAR}" for at_s in tokens_s)
    yield f'<path d="{lines}" stroke="{DECODE}" stroke-width="1.5"/>'


def stall(before_s: float, after_s: float) -> Iterator[str]:
    """The longest gap, named."""
    middle_x, y = (x(before_s) + x(after_s)) / 2, TOKENS_Y + BAR / 2
    yield f'<path d="M{x(before_s) + 3} {y}H{x(after_s) - 3}" stroke="{MUTED}" stroke-dasharray="3 3"/>'
    yield f'<rect x="{middle_x - 70:.1f}" y="{y - 10}" width="140" height="20" fill="#ffffff"/>'
    yield text(middle_x, y + 5, f"no token for {after_s - before_s:.1f} s", "middle")


def axis() -> Iterator[str]:
    """Seconds."""
    for at_s in range(0, int(SHOWN_S) + 1, 2):
        yield text(x(at_s), HEIGHT - 18, f"{at_s} s", "middle", MUTED)


def text(at_x: float, y: float, words: str, anchor: str = "start", colour: str = "#1f1f1f") -> str:
    """Words at a place."""
    return f'<text x="{at_x:.1f}" y="{y}" text-anchor="{anchor}" fill="{colour}">{words}</text>'


if __name__ == "__main__":
    main()
