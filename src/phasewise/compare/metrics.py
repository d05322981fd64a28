"""The figures that two servers are compared by, and how a block's timelines give them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from phasewise.bench.comparison import Block, Kind, Metric, Quotient
from phasewise.bench.run import CUT_SHORT, BenchRun
from phasewise.bench.statistics import summarise
from phasewise.bench.validity import punctuality, void_reasons
from phasewise.model import latency
from phasewise.model.slo import Slo
from phasewise.model.timeline import Timeline

NEVER_S = 3600.0
"""What a request that failed is taken to have waited: longer than any that was answered."""

METRICS = (
    Metric("ttft_p50", "TTFT p50", Kind.QUANTILE, False, share=0.5, censored_at=NEVER_S),
    Metric("ttft_p90", "TTFT p90", Kind.QUANTILE, False, share=0.9, decides=False, censored_at=NEVER_S),
    Metric("tpot_p50", "TPOT p50", Kind.QUANTILE, False, share=0.5),
    Metric("tpot_p90", "TPOT p90", Kind.QUANTILE, False, share=0.9, decides=False),
    Metric("itl_p50", "ITL p50", Kind.QUANTILE, False, share=0.5),
    Metric("itl_p99", "ITL p99", Kind.QUANTILE, False, share=0.99, decides=False),
    Metric("e2e_p50", "E2E p50", Kind.QUANTILE, False, share=0.5, censored_at=NEVER_S),
    Metric("throughput", "tokens/s", Kind.RATE, True, decides=False),
    Metric("goodput", "SLO met", Kind.SHARE, True, decides=False),
)


def readings(run: BenchRun, slo: Slo, warm_up_requests: int) -> Block:
    """What a block contributes to every metric; its first requests are left out."""
    counted = [timeline for timeline in run.timelines[warm_up_requests:] if timeline.reason != CUT_SHORT]
    ttfts_s = [_or_never(latency.ttft_s(timeline)) for timeline in counted]
    tpots_s = _known(map(latency.tpot_s, counted))
    gaps_s = [gap_s for timeline in counted for gap_s in latency.chunk_gaps_s(timeline)]
    met = sum(latency.meets(timeline, slo) for timeline in counted)
    return {
        "ttft_p50": ttfts_s,
        "ttft_p90": ttfts_s,
        "tpot_p50": tpots_s,
        "tpot_p90": tpots_s,
        "itl_p50": gaps_s,
        "itl_p99": gaps_s,
        "e2e_p50": [_or_never(latency.e2e_s(timeline)) for timeline in counted],
        "throughput": _throughput(counted),
        "goodput": Quotient(met, len(counted)),
    }


def void(run: BenchRun) -> tuple[str, ...]:
    """Why a block does not count, in words; empty where it does."""
    timelines = [timeline for timeline in run.timelines if timeline.reason != CUT_SHORT]
    gaps_s = (gap_s for timeline in timelines for gap_s in latency.chunk_gaps_s(timeline))
    return void_reasons(
        punctuality(run, timelines), summarise(map(latency.ttft_s, timelines)), summarise(gaps_s)
    )


def _throughput(counted: Sequence[Timeline]) -> Quotient:
    """Output tokens of the counted requests, over the time from their first arrival to their last end."""
    if not counted:
        return Quotient(0.0, 0.0)
    tokens = sum(timeline.output_tokens or 0 for timeline in counted)
    starts_s = min(timeline.started_unix_s for timeline in counted)
    ends_s = max(timeline.started_unix_s + timeline.ended_s for timeline in counted)
    return Quotient(tokens, ends_s - starts_s)


def _or_never(latency_s: float | None) -> float:
    # Leaving failures out would make a server look the quicker the more it sheds.
    return NEVER_S if latency_s is None else latency_s


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
