"""What blocks of the arms add up to: gaps, times to first token, and ratios with their bounds. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, exp, log, sqrt
from statistics import mean, median, stdev
from typing import Any

from phasewise.benchmark.statistics.bootstrap import t_quantile

from .fleets import Arm
from .load import Block

CONFIDENCE = 0.95
Round = Mapping[Arm, Block]
Figure = Callable[[Block], float]


def worst_gap_s(block: Block) -> float:
    """The longest that any stream stood still."""
    return max(block.gaps_s)


def p99_gap_s(block: Block) -> float:
    """The gap that one in a hundred exceeds, over all streams."""
    return quantile(block.gaps_s, 0.99)


def long_ttft_s(block: Block) -> float:
    """The middle of the long prompts' times to their first token."""
    return median(it.first_s - it.sent_s for it in block.longs)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that this share of all does not exceed."""
    return sorted(values)[max(ceil(share * len(values)) - 1, 0)]


def ratio(rounds: Sequence[Round], figure: Figure, arm: Arm, *to: Arm) -> dict[str, float | None]:
    """An arm's figure as a share of others', by rounds; bounds that 95% of such runs would keep."""
    logs = [log(figure(it[arm]) / mean(figure(it[other]) for other in to)) for it in rounds]
    middle = mean(logs)
    if len(logs) < 2:
        return {"ratio": round(exp(middle), 4), "low": None, "high": None}
    spread = t_quantile((1 + CONFIDENCE) / 2, len(logs) - 1) * stdev(logs) / sqrt(len(logs))
    bounds = {"ratio": middle, "low": middle - spread, "high": middle + spread}
    return {name: round(exp(value), 4) for name, value in bounds.items()}


def figures(rounds: Sequence[Round]) -> dict[str, Any]:
    """All that the rounds say."""
    plain = (Arm.MIXED, Arm.MIXED_AGAIN)
    arms = tuple(Arm)
    disaggregated = ratio(rounds, worst_gap_s, Arm.DISAGGREGATED, *plain)
    deciding = ratio(rounds, worst_gap_s, Arm.DECIDING, *plain)
    return {
        "worst_gap_ratio_disaggregated": disaggregated["ratio"],
        "worst_gap_ratio_deciding": deciding["ratio"],
        "worst_gap_disaggregated": disaggregated,
        "worst_gap_deciding": deciding,
        "worst_gap_aa": ratio(rounds, worst_gap_s, Arm.MIXED_AGAIN, Arm.MIXED),
        "p99_gap_disaggregated": ratio(rounds, p99_gap_s, Arm.DISAGGREGATED, *plain),
        "p99_gap_deciding": ratio(rounds, p99_gap_s, Arm.DECIDING, *plain),
        "long_ttft_disaggregated": ratio(rounds, long_ttft_s, Arm.DISAGGREGATED, *plain),
        "long_ttft_deciding": ratio(rounds, long_ttft_s, Arm.DECIDING, *plain),
        "worst_gap_ms": {arm: [in_ms(worst_gap_s(it[arm])) for it in rounds] for arm in arms},
        "p99_gap_ms": {arm: [in_ms(p99_gap_s(it[arm])) for it in rounds] for arm in arms},
        "median_gap_ms": {arm: [in_ms(median(it[arm].gaps_s)) for it in rounds] for arm in arms},
        "long_ttft_s": {arm: [round(long_ttft_s(it[arm]), 2) for it in rounds] for arm in arms},
    }


def in_ms(seconds: float) -> float:
    """Milliseconds, as precise as a client sees them."""
    return round(seconds * 1e3, 1)
