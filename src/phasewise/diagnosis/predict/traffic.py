"""A window's requests as a replay needs them: arrivals, lengths and shared prefixes.

Prompts are unknown here; their marks show which prefixes they share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from phasewise.core.latency import TtftBreakdown, chunk_gaps_s, tpot_s, ttft_breakdown, ttft_s
from phasewise.core.statistics import quantile
from phasewise.core.timeline import Outcome, Part, Source, Timeline
from phasewise.diagnosis.advice.fix import Figure

# --- The figures of a measurement and of a replay, by the same definitions.

Figures = Mapping[Figure, float]
"""Seconds, or tokens per second for throughput; unknown figures are left out."""


def figures_of(
    ttfts_s: Sequence[float], tpots_s: Sequence[float], gaps_s: Sequence[float], tokens: int, took_s: float
) -> Figures:
    found = {
        **_quantiles(ttfts_s, {Figure.TTFT_P50: 0.5, Figure.TTFT_P90: 0.9}),
        **_quantiles(tpots_s, {Figure.TPOT_P50: 0.5}),
        **_quantiles(gaps_s, {Figure.ITL_P99: 0.99}),
    }
    if tokens and took_s > 0:
        found[Figure.THROUGHPUT] = tokens / took_s
    # A figure of zero has no ratio.
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


BETWEEN_STEPS = 0.1
"""Without a step record, the unexplained time includes the wait for the running step. At least this share of
requests arrived when none was running."""
_OUTSIDE = frozenset(
    {Part.CLIENT_LAG, Part.GATEWAY_WAIT, Part.CACHE_LOOK_UP, Part.EARLIER_ATTEMPTS, Part.KV_TRANSFER}
)


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request of the window: `came_s` and `went_s` count from the window's first arrival."""

    request_id: str
    came_s: float
    went_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    prompt_bytes: int = 0
    marks: tuple[str, ...] = ()
    engine: str = ""


@dataclass(frozen=True, slots=True)
class RecordedTraffic:
    """The window's traffic, oldest first, and its measured figures.

    `outside_s` is the time of a first token outside the engine's steps. A closed loop of `concurrency`
    clients sends a request when another ends, whatever the recorded times; None is an open loop. The first
    `warm_up` requests of a block were measured but do not count. `unusable` requests have too little data to
    be replayed.
    """

    requests: tuple[RecordedRequest, ...]
    measured: Figures
    outside_s: float = 0.0
    concurrency: int | None = None
    warm_up: int = 0
    unusable: int = 0

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines that served it, in the order of their first request."""
        return tuple(dict.fromkeys(request.engine for request in self.requests))

    @property
    def longest_tokens(self) -> int:
        """The tokens of the longest prompt with its answer."""
        return max((each.prompt_tokens + each.output_tokens for each in self.requests), default=0)


def recorded_traffic(
    timelines: Iterable[Timeline], *, concurrency: int | None = None, warm_up: int = 0
) -> RecordedTraffic:
    """The traffic of these timelines. Requests without lengths, or without an answer, cannot be replayed."""
    ordered = sorted(timelines, key=lambda each: each.started_unix_s)
    usable = [each for each in ordered if each.prompt_tokens and each.output_tokens]
    began_s = usable[0].started_unix_s if usable else 0.0
    counted = [each for each in usable[warm_up:] if each.outcome is Outcome.SUCCEEDED]
    return RecordedTraffic(
        requests=tuple(_recorded(each, began_s, index) for index, each in enumerate(usable)),
        measured=measured_figures(counted),
        outside_s=_outside_s(counted),
        concurrency=concurrency,
        warm_up=warm_up,
        unusable=len(ordered) - len(usable),
    )


def _recorded(timeline: Timeline, began_s: float, index: int) -> RecordedRequest:
    came_s = timeline.started_unix_s - began_s
    serving = timeline.serving_attempt
    return RecordedRequest(
        # Clients may repeat their ids, and two gateways theirs.
        request_id=f"{index}-{timeline.request_id}",
        came_s=came_s,
        went_s=came_s + timeline.ended_s,
        prompt_tokens=timeline.prompt_tokens or 1,
        output_tokens=timeline.output_tokens or 1,
        cached_tokens=timeline.cached_tokens or 0,
        prompt_bytes=timeline.prompt_bytes or 0,
        marks=timeline.prefix_marks if timeline.prompt_bytes else (),
        engine="" if serving is None else serving.worker.name,
    )


def _outside_s(timelines: Sequence[Timeline]) -> float:
    """The part of a typical TTFT outside the engine's queue and steps."""
    reported = [
        found for each in timelines if (found := ttft_breakdown(each)) is not None and _engine_reported(found)
    ]
    by_steps = [each for each in reported if any(entry.source is Source.STEP_RECORD for entry in each.parts)]
    outside = [
        each.unexplained_s + sum(entry.seconds for entry in each.parts if entry.part in _OUTSIDE)
        for each in by_steps or reported
    ]
    return max(0.0, quantile(outside, 0.5 if by_steps else BETWEEN_STEPS)) if outside else 0.0


def _engine_reported(found: TtftBreakdown) -> bool:
    return any(entry.part in {Part.ENGINE_QUEUE, Part.PREFILL} for entry in found.parts)


# --- Samples of a window, so that many replays of a long one stay fast, each with other requests.
#
# They also show how much a measurement depends on its requests.

TOKENS_OF_STRETCH = 3_000
"""Output tokens of one replay: each costs some ten microseconds, and a prediction is some sixty replays."""
TURNS_OF_CLIENT = 3
"""A closed loop has at least this many requests per client, because its first and last ones run with less
concurrency."""


def drawn_stretch(traffic: RecordedTraffic, rng: np.random.Generator) -> RecordedTraffic:
    """Consecutive requests, enough for a replay; all of them if they are not too many.

    Those that are open when the sample begins come first and do not count, so that the engine is not idle. In
    a closed loop the order of requests is shuffled.
    """
    if traffic.concurrency is not None:
        order = rng.permutation(len(traffic.requests))
        traffic = replace(traffic, requests=tuple(traffic.requests[at] for at in order))
    requests = traffic.requests
    tokens = np.cumsum([request.output_tokens for request in requests])
    if tokens[-1] <= TOKENS_OF_STRETCH:
        return traffic
    latest = int(np.searchsorted(tokens, tokens[-1] - TOKENS_OF_STRETCH))
    fewest = TURNS_OF_CLIENT * (traffic.concurrency or 0) + traffic.warm_up
    latest = max(min(latest, len(requests) - fewest), 0)
    first = int(rng.integers(latest + 1))
    beyond = TOKENS_OF_STRETCH + (tokens[first - 1] if first else 0)
    after = int(np.searchsorted(tokens, beyond)) + 1
    if traffic.concurrency is not None:
        return replace(traffic, requests=requests[first : max(after, first + fewest)])
    began_s = requests[first].came_s
    still_open = tuple(each for each in requests[:first] if each.went_s > began_s)
    return replace(traffic, requests=still_open + requests[first:after], warm_up=len(still_open))
