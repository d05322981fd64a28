"""The figures a fix is judged by, of what was measured and of what was replayed, by the same definitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phasewise.diagnosis.fix import Figure
from phasewise.model.latency import chunk_gaps_s, tpot_s, ttft_s
from phasewise.model.quantiles import quantile
from phasewise.model.timeline import Timeline

Figures = Mapping[Figure, float]
"""Seconds, or tokens per second for throughput; a figure that cannot be told is left out."""


def figures_of(
    ttfts_s: Sequence[float], tpots_s: Sequence[float], gaps_s: Sequence[float], tokens: int, took_s: float
) -> Figures:
    """The figures of some requests."""
    found = {
        **_quantiles(ttfts_s, {Figure.TTFT_P50: 0.5, Figure.TTFT_P90: 0.9}),
        **_quantiles(tpots_s, {Figure.TPOT_P50: 0.5}),
        **_quantiles(gaps_s, {Figure.ITL_P99: 0.99}),
    }
    if tokens and took_s > 0:
        found[Figure.THROUGHPUT] = tokens / took_s
    # What takes no time has no ratio to anything.
    return {figure: value for figure, value in found.items() if value > 0}


def _quantiles(values: Sequence[float], shares: Mapping[Figure, float]) -> dict[Figure, float]:
    return {figure: quantile(values, share) for figure, share in shares.items()} if values else {}


def measured_figures(timelines: Sequence[Timeline]) -> Figures:
    """The figures of requests that were answered."""
    if not timelines:
        return {}
    began_s = min(each.started_unix_s for each in timelines)
    ended_s = max(each.started_unix_s + each.ended_s for each in timelines)
    return figures_of(
        [value for value in map(ttft_s, timelines) if value is not None],
        [value for value in map(tpot_s, timelines) if value is not None],
        [gap_s for each in timelines for gap_s in chunk_gaps_s(each)],
        sum(each.output_tokens or 0 for each in timelines),
        ended_s - began_s,
    )
