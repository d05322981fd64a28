"""The measured figures as the table that stands in docs/how-to/disaggregate-prefill-and-decode.md. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

ARMS = {
    "mixed": "both engines do both phases",
    "disaggregated": "every prompt transferred (`always`)",
    "deciding": "transferred where it pays (`auto`)",
}
CONTROL = "mixed_again"


def table(figures: Mapping[str, Any]) -> str:
    """A row for each arm on record, medians over the rounds; the mixed arm's are of both its blocks."""
    head = (
        "| | longest gap | to mixed | one gap in 100 is above | usual gap | long prompts' first token |",
        "|---|---|---|---|---|---|",
    )
    rows = (row(figures, arm, said) for arm, said in ARMS.items() if arm in figures["worst_gap_ms"])
    return "\n".join((*head, *rows))


def row(figures: Mapping[str, Any], arm: str, said: str) -> str:
    """One arm."""
    arms = (arm, CONTROL) if arm == "mixed" else (arm,)

    def middle(name: str) -> float:
        return float(median(value for each in arms for value in figures[name][each]))

    shares = "" if arm == "mixed" else to_mixed(figures[f"worst_gap_{arm}"])
    gaps = [f"{middle(name):,.0f} ms" for name in ("worst_gap_ms", "p99_gap_ms", "median_gap_ms")]
    return f"| {said} | {gaps[0]} | {shares} | {gaps[1]} | {gaps[2]} | {middle('long_ttft_s'):.1f} s |"


def to_mixed(ratio: Mapping[str, float | None]) -> str:
    """A ratio in per cent, with its bounds where there are any."""
    middle, low, high = (ratio[name] for name in ("ratio", "low", "high"))
    assert middle is not None
    reported = f"{100 * middle:.1f}%"
    return reported if low is None or high is None else f"{reported} ({100 * low:.1f} to {100 * high:.1f})"
