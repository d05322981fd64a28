"""One summary of a window of traffic: how requests started, how they streamed, what they looked like.

The rules read only the summary. A figure that was not observed is None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

import numpy as np

from phasewise.core.latency import tpot_s, ttft_s
from phasewise.core.own_rejections import OWN_REJECTIONS
from phasewise.core.statistics import quantile
from phasewise.core.steps import EngineStep
from phasewise.core.timeline import Outcome, Part, Timeline
from phasewise.costs.fit.step_fit import StepFit
from phasewise.diagnosis.analysis.engine_load import EngineSurroundings, SeenBy
from phasewise.diagnosis.analysis.kv_transfer_use import KvTransferUse
from phasewise.diagnosis.analysis.prefix_use import PrefixUse, warm_share
from phasewise.diagnosis.analysis.probe_reading import ProbeReading
from phasewise.diagnosis.analysis.standstill import Standstill
from phasewise.diagnosis.analysis.streams import StreamSummary
from phasewise.diagnosis.analysis.ttft import StartSummary
from phasewise.diagnosis.analysis.workload_profile import WorkloadProfile

# --- Whether a measurement can be trusted: a late generator, a cache that was warm before, a drifting server.

FEWEST_PER_THIRD = 8
"""With fewer requests in a third, a difference may be chance."""
CHANCE_Z = 3.29
"""Ranks of the thirds this many standard errors apart happen by chance once in a thousand windows. Requests
that queue behind each other are alike, so a laxer bar would call bursts a drift."""

LEAST_CHANGE = 0.1
"""A smaller change does not affect a verdict."""


@dataclass(frozen=True, slots=True)
class Trust:
    """Whether the measurement itself can be trusted.

    `lag_mean_s` and `lag_p90_s` are how late the load generator sent. `warm_share` is the share of prompt
    tokens that came from the cache though no request of this window had sent them. `ttft_drift` and
    `tpot_drift` are the median of the last third over that of the first, None if the change is small or may
    be chance.
    """

    lag_mean_s: float | None = None
    lag_p90_s: float | None = None
    warm_share: float | None = None
    ttft_drift: float | None = None
    tpot_drift: float | None = None


def trust_of(timelines: Sequence[Timeline], *, are_ours: bool = True) -> Trust:
    """Signs that these timelines cannot be trusted.

    For a load that is not ours, requests before the window are unknown, so that a warm cache is expected.
    """
    lags = [
        span.duration_s for timeline in timelines for span in timeline.spans if span.part is Part.CLIENT_LAG
    ]
    in_order = sorted(timelines, key=lambda timeline: timeline.started_unix_s)
    return Trust(
        lag_mean_s=fmean(lags) if lags else None,
        lag_p90_s=quantile(lags, 0.9) if lags else None,
        warm_share=warm_share(timelines) if are_ours else None,
        ttft_drift=drift(_compared_to_their_like(in_order)),
        tpot_drift=drift([value for value in map(tpot_s, in_order) if value is not None]),
    )


def drift(values: Sequence[float]) -> float | None:
    """The median of the last third over that of the first, if their ranks differ by more than chance."""
    third = len(values) // 3
    if third < FEWEST_PER_THIRD:
        return None
    first, last = values[:third], values[-third:]
    before, after = median(first), median(last)
    if before <= 0 or after <= 0 or abs(_rank_z(first, last)) < CHANCE_Z:
        return None
    return after / before if max(after / before, before / after) >= 1.0 + LEAST_CHANGE else None


def _compared_to_their_like(timelines: Sequence[Timeline]) -> list[float]:
    """Each TTFT over the median of similar prompts, so that longer prompts are no drift; in order."""
    groups: dict[int, list[float]] = {}
    for magnitude, first_s in _starts(timelines):
        groups.setdefault(magnitude, []).append(first_s)
    usual = {magnitude: median(values) for magnitude, values in groups.items()}
    return [first_s / usual[magnitude] for magnitude, first_s in _starts(timelines) if usual[magnitude] > 0]


def _starts(timelines: Sequence[Timeline]) -> Iterator[tuple[int, float]]:
    """TTFTs with the magnitude of their uncached tokens, in powers of two."""
    for timeline in timelines:
        first_s = ttft_s(timeline)
        if first_s is not None:
            uncached = (timeline.prompt_tokens or 0) - (timeline.cached_tokens or 0)
            yield max(0, uncached).bit_length(), first_s


def _rank_z(first: Sequence[float], last: Sequence[float]) -> float:
    """By how many standard errors the ranks of two samples differ (Mann and Whitney), ties shared."""
    values = np.array([*first, *last])
    _, groups, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(counts) - (counts - 1) / 2
    n, m = len(first), len(last)
    rank_sum = float(mean_ranks[groups][n:].sum())
    expected = m * (n + m + 1) / 2
    ties = float((counts**3 - counts).sum()) / ((n + m) * (n + m - 1))
    variance = n * m / 12 * (n + m + 1 - ties)
    return (rank_sum - expected) / variance**0.5 if variance > 0 else 0.0


@dataclass(frozen=True, slots=True)
class WorkloadShape:
    """What the traffic looked like."""

    requests: int
    rate_per_s: float | None
    prompt_p50_tokens: float | None
    prompt_p90_tokens: float | None
    output_p50_tokens: float | None
    output_p90_tokens: float | None
    cached_share: float | None
    shared_share: float | None
    running_mean: float | None = None
    waiting_max: int | None = None
    kv_usage_max: float | None = None
    preemptions: int | None = None
    prefix_cache_on: bool | None = None


@dataclass(frozen=True, slots=True)
class Unnamed:
    """Steps of one size took `slower` times as long in the last third of the window as in the first; each
    prompt takes `per_prompt_s` whatever its length; of the time of steps, `in_stretches` is what they took
    longer for a while. 1 and 0 if that may be chance.
    """

    slower: float = 1.0
    per_prompt_s: float = 0.0
    in_stretches: float = 0.0


@dataclass(frozen=True, slots=True)
class WindowSummary:
    """Everything that the rules may read.

    `synthetic` says that this is a window of `diagnose --probe`, not of live traffic; `probe_cut_short` that
    the probe was interrupted; `probe` is what it measured. `stolen_share` is the share of this machine's
    processor time that its hypervisor gave to others. `rejections` are the reasons for which requests were
    rejected, with their numbers. `unnamed` is what steps have that no rule has a name for.
    """

    window_s: float
    seen_by: SeenBy
    start: StartSummary | None
    stream: StreamSummary | None
    workload: WorkloadShape
    outcomes: tuple[tuple[str, int], ...]
    not_observed: tuple[str, ...] = ()
    engines: tuple[EngineSurroundings, ...] = ()
    prefix: PrefixUse | None = None
    trust: Trust = field(default_factory=Trust)
    fit: StepFit | None = None
    profile: WorkloadProfile | None = None
    kv_transfer: KvTransferUse | None = None
    synthetic: bool = False
    probe_cut_short: bool = False
    probe: ProbeReading | None = None
    stolen_share: float | None = None
    standstills: tuple[Standstill, ...] = ()
    rejections: tuple[tuple[str, int], ...] = ()
    streamed_tokens: int = 0
    prompts_share: float | None = None
    unnamed: Unnamed = Unnamed()


def workload_shape(profile: WorkloadProfile, steps: Sequence[EngineStep]) -> WorkloadShape:
    """What the traffic looked like, from its profile and the steps of the window."""
    prompts, outputs = profile.prompt_tokens, profile.output_tokens
    return WorkloadShape(
        requests=profile.requests,
        rate_per_s=profile.rate_per_s,
        prompt_p50_tokens=None if prompts is None else prompts.p50,
        prompt_p90_tokens=None if prompts is None else prompts.p90,
        output_p50_tokens=None if outputs is None else outputs.p50,
        output_p90_tokens=None if outputs is None else outputs.p90,
        cached_share=profile.cached_share,
        shared_share=profile.shared_share,
        running_mean=fmean(step.running for step in steps) if steps else None,
        waiting_max=max((step.waiting for step in steps), default=None),
        kv_usage_max=max((step.kv_usage for step in steps), default=None),
        preemptions=sum(step.preempted for step in steps) if steps else None,
    )


def rejections(timelines: Sequence[Timeline]) -> tuple[tuple[str, int], ...]:
    """Why requests were rejected, the most frequent reason first."""
    reasons = Counter(
        _why_rejected(timeline) for timeline in timelines if timeline.outcome is Outcome.REJECTED
    )
    return tuple(reasons.most_common())


def _why_rejected(timeline: Timeline) -> str:
    """The engine's status if it rejected the request, else the gateway's reason.

    A request that the gateway rejected may have attempts: those at engines that took no connection.
    """
    if timeline.reason is not None and timeline.reason in OWN_REJECTIONS:
        return timeline.reason
    notes = [attempt.note for attempt in timeline.attempts if attempt.note]
    return notes[-1] if notes else timeline.reason or "unknown"


def outcome_counts(timelines: Sequence[Timeline]) -> tuple[tuple[str, int], ...]:
    counts = {outcome: sum(timeline.outcome is outcome for timeline in timelines) for outcome in Outcome}
    return tuple((outcome.value, count) for outcome, count in counts.items() if count)
