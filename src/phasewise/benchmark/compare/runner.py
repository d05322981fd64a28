"""Measures two arms alternately, A B B A, with the same requests in each pair of blocks.

Slow drift (heat, neighbours, a growing log) affects both arms equally.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from phasewise.benchmark.compare.arms import Arm
from phasewise.benchmark.run import CUT_SHORT, BenchRun
from phasewise.benchmark.session import RunSpec
from phasewise.benchmark.statistics.comparison import Block, Kind, Metric, Quotient
from phasewise.benchmark.statistics.summary import summarise
from phasewise.benchmark.statistics.window import punctuality, void_reasons
from phasewise.core import latency
from phasewise.core.slo import Slo
from phasewise.core.timeline import Timeline

# --- The metrics that two servers are compared by, and how they follow from a block's timelines.

NEVER_S = 3600.0
"""The latency of a failed request: longer than any that was answered."""

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
    """What a block contributes to every metric, without its warm-up requests."""
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
    """Why a block does not count; empty if it does."""
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
    # Leaving failures out would make a server look faster the more it sheds.
    return NEVER_S if latency_s is None else latency_s


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


Measure = Callable[[str, RunSpec, str], Awaitable[BenchRun]]
"""Runs a specification against an address; the last argument labels the block for progress messages."""


FEWEST_VOID = 8
"""Fewer void pairs than this are bad luck."""


@dataclass(frozen=True, slots=True)
class RunPair:
    """The same requests on each arm, one after the other."""

    a: BenchRun
    b: BenchRun

    @property
    def in_order(self) -> tuple[BenchRun, BenchRun]:
        """The two runs as they were measured."""
        first, second = sorted((self.a, self.b), key=lambda run: run.started_unix_s)
        return first, second


@dataclass(frozen=True, slots=True)
class PairsMeasured:
    """The result of measuring: the pairs that count, and how many were repeated because a block was void.

    `gave_up` says why, if too many were void to go on.
    """

    pairs: tuple[RunPair, ...] = ()
    void_pairs: int = 0
    cut_short: bool = False
    gave_up: str = ""


def never() -> bool:
    """Treat no cancellation as a normal end."""
    return False


async def measure_pairs(
    arms: tuple[Arm, Arm],
    pairs: int,
    spec: RunSpec,
    measure: Measure,
    title: str,
    forgives: Callable[[], bool] = never,
) -> PairsMeasured:
    """Measure `pairs` pairs, each with its own seed; a pair with a void block is measured again.

    A machine on which two of three pairs are void cannot compare anything: that ends it. So does a
    cancellation for which `forgives` returns true, as a normal end.
    """
    done: list[RunPair] = []
    void_pairs = 0
    gave_up = ""
    try:
        while len(done) < pairs and not gave_up:
            seeded = replace(spec, seed=spec.seed + len(done) + void_pairs)
            label = f"{title} {len(done) + 1}/{pairs}"
            pair = await _measure_pair(arms, seeded, measure, label, b_first=len(done) % 2 == 1)
            if pair is None:
                return PairsMeasured(tuple(done), void_pairs, cut_short=True)
            reasons = (*void(pair.a), *void(pair.b))
            if not reasons:
                done.append(pair)
                continue
            void_pairs += 1
            if void_pairs > max(2 * pairs, FEWEST_VOID):
                gave_up = f"{void_pairs} of {void_pairs + len(done)} pairs were void: {reasons[0]}"
    except asyncio.CancelledError:
        if not forgives():
            raise
        return PairsMeasured(tuple(done), void_pairs, cut_short=True)
    return PairsMeasured(tuple(done), void_pairs, gave_up=gave_up)


async def _measure_pair(
    arms: tuple[Arm, Arm], spec: RunSpec, measure: Measure, label: str, *, b_first: bool
) -> RunPair | None:
    """Both runs of a pair; None if one was cut short."""
    runs: dict[str, BenchRun] = {}
    for side in "BA" if b_first else "AB":
        async with arms["AB".index(side)].serving() as url:
            runs[side] = await measure(url, spec, f"{label}, {side}")
        if runs[side].cut_short:
            return None
    return RunPair(runs["A"], runs["B"])
