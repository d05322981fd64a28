"""What measured pairs show: a verdict per metric, and remarks on what happened during the blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import orjson

from phasewise.benchmark.notes import STOLEN_WORTH_A_NOTE
from phasewise.benchmark.results import DEFINITIONS
from phasewise.benchmark.run import CUT_SHORT, BenchRun
from phasewise.benchmark.statistics.comparison import (
    Block,
    Comparison,
    Control,
    Kind,
    Metric,
    MetricVerdict,
    Pair,
    Quotient,
    Readings,
    compare,
    pairs_needed,
)
from phasewise.benchmark.statistics.stationarity import find_change
from phasewise.clients.host import stolen_share
from phasewise.core import latency
from phasewise.core.slo import Slo
from phasewise.core.statistics import quantile
from phasewise.core.timeline import Outcome, Timeline
from phasewise.core.units import share

FAILED_WORTH_A_REMARK = 0.01
COMPARISON_VERSION = 1


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


# --- The verdict.


@dataclass(frozen=True, slots=True)
class Rules:
    """How strict a comparison is.

    `alpha` is the chance of a false verdict on any metric of two equal servers, `margin` the relative change
    that does not matter. The first `warm_up_requests` of a block are left out. Intervals widen with the
    number of `metrics`, so compare only those that you read.
    """

    slo: Slo
    warm_up_requests: int
    alpha: float = 0.05
    margin: float = 0.05
    metrics: tuple[Metric, ...] = METRICS

    def control(self, pairs: Sequence[RunPair], rng: np.random.Generator) -> Control:
        """Compare A with itself."""
        return Control.of(self.compare(pairs, rng))

    def needed(self, control: Control) -> int | None:
        """How many pairs make it likely that equal servers are called equivalent; None if no number does."""
        return pairs_needed(control.comparisons, margin=self.margin, family_alpha=self.alpha)

    def compare(self, pairs: Sequence[RunPair], rng: np.random.Generator) -> tuple[Comparison, ...]:
        """Compare B with A."""
        return compare(self._readings(pairs), self.metrics, rng, family_alpha=self.alpha, margin=self.margin)

    def spreads(self, pairs: Sequence[RunPair]) -> tuple[LatencySpread, ...]:
        """The latencies of both arms over all pairs."""
        read = self._readings(pairs)
        return tuple(
            LatencySpread(
                label, of_what, _sorted(pair.a[name] for pair in read), _sorted(pair.b[name] for pair in read)
            )
            for name, label, of_what in SPREADS
        )

    def _readings(self, pairs: Sequence[RunPair]) -> list[Pair]:
        return [
            Pair(*(readings(run, self.slo, self.warm_up_requests) for run in (pair.a, pair.b)))
            for pair in pairs
        ]


SPREADS = (("ttft_p50", "TTFT", "requests"), ("tpot_p50", "TPOT", "requests"), ("itl_p50", "ITL", "gaps"))


@dataclass(frozen=True, slots=True)
class LatencySpread:
    """One latency of each arm over all pairs, sorted; a request without an answer has the longest one."""

    label: str
    of_what: str
    a_s: tuple[float, ...]
    b_s: tuple[float, ...]


def _sorted(blocks: Iterable[Readings]) -> tuple[float, ...]:
    return tuple(sorted(value for block in blocks if not isinstance(block, Quotient) for value in block))


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    """Everything a comparison found.

    `pairs_needed` is what the control requires, None if no practical number of pairs is enough. `seed`
    repeats the requests. `spreads` are for drawing, and not part of the record.
    """

    a_name: str
    b_name: str
    comparisons: tuple[Comparison, ...]
    pairs: int
    rules: Rules
    control: Control | None = None
    pairs_needed: int | None = None
    void_pairs: int = 0
    cut_short: bool = False
    gave_up: str = ""
    remarks: tuple[str, ...] = ()
    spreads: tuple[LatencySpread, ...] = ()
    seed: int = 0

    def of(self, metric: str) -> Comparison:
        """The comparison of one metric by its name, such as `ttft_p50`."""
        named = {each.metric.name: each for each in self.comparisons}
        if metric not in named:
            raise KeyError(f"{metric!r} is none of {', '.join(named)}")
        return named[metric]

    @property
    def failures(self) -> str:
        """How many requests of each arm failed, if that is worth a remark."""
        return next((remark for remark in self.remarks if remark.startswith(_FAILED)), "")

    @property
    def trusted(self) -> bool:
        """Whether figures were judged, and A did not differ from itself if that was tried."""
        judged = any(each.verdict is not MetricVerdict.UNKNOWN for each in self.comparisons)
        return judged and not self.gave_up and (self.control is None or self.control.alike)

    def to_dict(self) -> dict[str, Any]:
        """The result as plain JSON types."""
        record = asdict(replace(self, spreads=()))
        del record["spreads"]
        return (
            {"v": COMPARISON_VERSION}
            | record
            | {"verdicts": {each.metric.name: each.verdict for each in self.comparisons}}
            | {"definitions": DEFINITIONS}
        )

    def to_json(self) -> str:
        """What `phasewise compare --json` prints."""
        return orjson.dumps(self.to_dict(), option=orjson.OPT_INDENT_2).decode()


def remarks_on(pairs: Sequence[RunPair], rng: np.random.Generator) -> tuple[str, ...]:
    """What happened during the blocks that the verdicts alone do not show."""
    return tuple(remark for remark in (_stolen(pairs), _shift(pairs, rng), _failures(pairs)) if remark)


def _stolen(pairs: Sequence[RunPair]) -> str:
    shares = [
        stolen_share(run.cpu_samples[0], run.cpu_samples[-1])
        for pair in pairs
        for run in pair.in_order
        if len(run.cpu_samples) > 1
    ]
    worst = max(shares, default=0.0)
    if worst < STOLEN_WORTH_A_NOTE:
        return ""
    return (
        f"others on the same host took up to {share(worst)} of this machine's processor time in a block "
        f"({share(sum(shares) / len(shares))} on average)"
    )


def _shift(pairs: Sequence[RunPair], rng: np.random.Generator) -> str:
    """A jump in TTFT over the whole comparison, each arm relative to its own median."""
    series: list[tuple[float, float]] = []
    for runs in ([pair.a for pair in pairs], [pair.b for pair in pairs]):
        seen = [
            (timeline.started_unix_s, ttft_s)
            for run in runs
            for timeline in run.timelines
            if (ttft_s := latency.ttft_s(timeline)) is not None
        ]
        if seen:
            usual_s = quantile([ttft_s for _, ttft_s in seen], 0.5)
            series += [(at_s, ttft_s / usual_s) for at_s, ttft_s in seen if usual_s > 0]
    series.sort()
    change = find_change([value for _, value in series], rng)
    if change is None:
        return ""
    minutes = (series[change.index][0] - series[0][0]) / 60
    return (
        f"TTFT jumped {minutes:.1f} min after the first block, by {change.after / change.before - 1:+.0%}, "
        "each arm against its own median: something changed on the machine"
    )


_FAILED = "requests failed"


def _failures(pairs: Sequence[RunPair]) -> str:
    counts = []
    for side in ("a", "b"):
        timelines = [timeline for pair in pairs for timeline in getattr(pair, side).timelines]
        failed = sum(timeline.outcome is not Outcome.SUCCEEDED for timeline in timelines)
        counts.append((failed, len(timelines)))
    if all(failed <= FAILED_WORTH_A_REMARK * total for failed, total in counts):
        return ""
    reported = ", ".join(
        f"{side}: {failed} of {total}" for side, (failed, total) in zip("AB", counts, strict=True)
    )
    return f"{_FAILED} ({reported}); TTFT and E2E count them as never answered"
