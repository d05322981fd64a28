"""The distributions of a window's traffic, and what they imply for an engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, pstdev

from phasewise.core.statistics import quantile
from phasewise.core.timeline import Timeline
from phasewise.diagnosis.analysis.prefix_use import PrefixUse, cached_share

PREFILL_HEAVY = 8.0
"""Uncached prompt tokens per output token from which prefill is most of an engine's work."""
DECODE_HEAVY = 1.0
"""Below this, decode is most of the work."""
LONG_TAIL = 8.0
"""A p99 prompt is long compared with the others from this many times the median."""
LONG_PROMPT_TOKENS = 1024
"""A shorter prompt does not fill a step, so it stalls no stream."""
BURSTY_CV = 1.5
"""Poisson arrivals have a variation of 1.0; this is clearly more."""
EVEN_CV = 0.3
FEWEST_GAPS = 8
"""With fewer gaps than this, their variation is not used."""
MOSTLY_SHARED = 0.3


@dataclass(frozen=True, slots=True)
class Distribution:
    """The distribution of token counts. `histogram` counts values by magnitude: (upper bound, count), in
    powers of two; empty if only quantiles are known."""

    count: int
    mean: float
    p10: float | None
    p50: float
    p90: float
    p99: float
    largest: float | None
    histogram: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class WorkloadProfile:
    """The traffic; a figure is None if it was not observed.

    `burstiness` is the coefficient of variation of the gaps between arrivals: 0 for even spacing, 1 for
    Poisson, more for bursts. Concurrency counts requests from their arrival to their end. `implications` say
    in words what to expect of such traffic.
    """

    requests: int
    prompt_tokens: Distribution | None
    uncached_tokens: Distribution | None
    output_tokens: Distribution | None
    rate_per_s: float | None
    burstiness: float | None
    concurrency_mean: float | None
    concurrency_max: int | None
    shared_share: float | None
    cached_share: float | None
    implications: tuple[str, ...] = ()


def workload_profile(
    timelines: Sequence[Timeline],
    window_s: float,
    prefix: PrefixUse | None = None,
    began_unix_s: float | None = None,
) -> WorkloadProfile:
    """The profile of these requests, every one of them, answered or not.

    Arrivals are counted within the window if its begin is known: of earlier requests only the long ones are
    still visible.
    """
    came = arrivals(timelines, began_unix_s)
    prompts = distribution(
        [timeline.prompt_tokens for timeline in timelines if timeline.prompt_tokens is not None]
    )
    uncached = distribution(
        [
            max(0, timeline.prompt_tokens - timeline.cached_tokens)
            for timeline in timelines
            if timeline.prompt_tokens is not None and timeline.cached_tokens is not None
        ]
    )
    outputs = distribution(
        [timeline.output_tokens for timeline in timelines if timeline.output_tokens is not None]
    )
    mean, most = _concurrency(timelines, window_s, began_unix_s)
    return finished_profile(
        WorkloadProfile(
            requests=len(timelines),
            prompt_tokens=prompts,
            uncached_tokens=uncached,
            output_tokens=outputs,
            rate_per_s=len(came) / window_s if window_s > 0 else None,
            burstiness=_burstiness(came),
            concurrency_mean=mean,
            concurrency_max=most,
            shared_share=None if prefix is None else prefix.shared,
            cached_share=cached_share(timelines),
        )
    )


def finished_profile(profile: WorkloadProfile) -> WorkloadProfile:
    return replace(profile, implications=tuple(_implications(profile)))


def distribution(values: Sequence[int]) -> Distribution | None:
    if not values:
        return None
    p10, p50, p90, p99 = (quantile(values, share) for share in (0.1, 0.5, 0.9, 0.99))
    magnitudes = Counter(value.bit_length() for value in values)
    histogram = tuple((2**magnitude - 1, magnitudes[magnitude]) for magnitude in sorted(magnitudes))
    return Distribution(len(values), fmean(values), p10, p50, p90, p99, float(max(values)), histogram)


def arrivals(timelines: Sequence[Timeline], began_unix_s: float | None) -> tuple[float, ...]:
    """Arrival times in order; only those within the window if its begin is known."""
    came = sorted(timeline.started_unix_s for timeline in timelines)
    return tuple(at_s for at_s in came if began_unix_s is None or at_s >= began_unix_s)


def _burstiness(came: Sequence[float]) -> float | None:
    gaps = [later - earlier for earlier, later in pairwise(came)]
    if len(gaps) < FEWEST_GAPS or fmean(gaps) <= 0:
        return None
    return pstdev(gaps) / fmean(gaps)


def _concurrency(
    timelines: Sequence[Timeline], window_s: float, began_unix_s: float | None
) -> tuple[float | None, int | None]:
    """The mean and the largest number of open requests over the window."""
    if not timelines or window_s <= 0:
        return None, None
    ends = [timeline.started_unix_s + timeline.ended_s for timeline in timelines]
    # A request may have begun before the window.
    window_began_s = max(ends) - window_s if began_unix_s is None else began_unix_s
    within_s = sum(
        max(0.0, end_s - max(timeline.started_unix_s, window_began_s))
        for timeline, end_s in zip(timelines, ends, strict=True)
    )
    changes = sorted(
        [(timeline.started_unix_s, 1) for timeline in timelines] + [(end_s, -1) for end_s in ends]
    )
    under_way = most = 0
    for _, change in changes:
        under_way += change
        most = max(most, under_way)
    return within_s / window_s, most


def _implications(profile: WorkloadProfile) -> Iterator[str]:
    prompts, outputs = profile.prompt_tokens, profile.output_tokens
    if outputs is not None and outputs.p90 <= 1:
        yield "outputs of one token: there is no stream"
    elif prompts is not None and outputs is not None and outputs.mean > 0:
        yield from _balance(profile.uncached_tokens or prompts, outputs)
    if prompts is not None:
        yield from _tail(prompts)
    yield from _arrivals(profile.burstiness)
    yield from _sharing(profile.shared_share, profile.cached_share)


def _balance(computed: Distribution, outputs: Distribution) -> Iterator[str]:
    ratio = computed.mean / outputs.mean
    if ratio >= PREFILL_HEAVY:
        yield f"prefill-heavy: {ratio:.0f} uncached prompt tokens per output token"
    elif ratio <= DECODE_HEAVY:
        yield f"decode-heavy: {1 / max(ratio, 0.01):.0f} output tokens per uncached prompt token"


def _tail(prompts: Distribution) -> Iterator[str]:
    longest = prompts.p99
    if prompts.p50 > 0 and longest >= LONG_TAIL * prompts.p50 and longest >= LONG_PROMPT_TOKENS:
        times = longest / prompts.p50
        yield f"long tail: the p99 prompt is {times:.0f}x the median; long prompts will stall running streams"


def _arrivals(burstiness: float | None) -> Iterator[str]:
    if burstiness is None:
        return
    if burstiness >= BURSTY_CV:
        yield (
            f"bursts: gaps between arrivals vary {burstiness:.1f}x their mean; "
            "queues form even below the mean capacity"
        )
    elif burstiness <= EVEN_CV:
        yield "evenly spaced arrivals: real traffic comes in bursts and would queue more"


def _sharing(shared: float | None, cached: float | None) -> Iterator[str]:
    if shared is not None and shared >= MOSTLY_SHARED:
        rest = "" if cached is None else f", {cached:.0%} came from the cache"
        yield f"shared prefixes: {shared:.0%} of prompt tokens had been sent before{rest}"
