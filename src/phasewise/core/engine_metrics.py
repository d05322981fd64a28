"""What an engine counts, whatever its kind: its metrics at one moment, and what happened between two.

Adapters of engines (`phasewise.engines`) translate their own names into those of the fields and series here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from math import isinf
from typing import TypeVar

from phasewise.core.value import value

PROCESS_START = "process_start_time_seconds"

Labels = frozenset[tuple[str, str]]
SeriesKey = tuple[str, Labels]
_T = TypeVar("_T")


class EngineSeries(StrEnum):
    """What an engine may count, by our names; adapters translate theirs. Evidence files hold the values."""

    # at this moment
    RUNNING = "num_requests_running"
    WAITING = "num_requests_waiting"
    KV_USAGE = "kv_cache_usage_perc"
    # totals
    FINISHED = "request_success_total"
    PREEMPTIONS = "num_preemptions_total"
    REPLIES = "http_requests_total"
    PROMPT_TOKENS = "prompt_tokens_total"
    OUTPUT_TOKENS = "generation_tokens_total"
    PROMPT_TOKENS_BY_SOURCE = "prompt_tokens_by_source_total"
    PREFIX_QUERIES = "prefix_cache_queries_total"
    PREFIX_HITS = "prefix_cache_hits_total"
    DRAFTS = "spec_decode_num_drafts_total"
    DRAFT_TOKENS = "spec_decode_num_draft_tokens_total"
    ACCEPTED_TOKENS = "spec_decode_num_accepted_tokens_total"
    # histograms
    TTFT = "time_to_first_token_seconds"
    QUEUE_TIME = "request_queue_time_seconds"
    PREFILL_TIME = "request_prefill_time_seconds"
    ITL = "inter_token_latency_seconds"
    TPOT = "request_time_per_output_token_seconds"
    E2E = "e2e_request_latency_seconds"
    REQUEST_PROMPT_TOKENS = "request_prompt_tokens"
    REQUEST_OUTPUT_TOKENS = "request_generation_tokens"
    REQUEST_COMPUTED_TOKENS = "request_prefill_kv_computed_tokens"
    # settings
    CACHE_CONFIG = "cache_config_info"


@dataclass(frozen=True, slots=True)
class LoadReading:
    """An engine's gauges and counters at one moment; None for a counter that it does not have.

    Counters are totals since its start. `steps` are its forward passes, `step_tokens` the tokens in them;
    `gaps` are the times between tokens of one request. `rejected` and `failed` are HTTP replies with a 4xx
    and a 5xx status.
    """

    at_unix_s: float
    running: int
    waiting: int
    kv_usage: float | None
    steps: float | None = None
    step_tokens: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    first_tokens: float | None = None
    ttft_sum_s: float | None = None
    gaps: float | None = None
    gaps_sum_s: float | None = None
    finished: float | None = None
    aborted: float | None = None
    preemptions: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    rejected: float | None = None
    failed: float | None = None


@value
class Rank:
    """One data-parallel rank as its counters show it: `signs` change with every step."""

    signs: tuple[float, ...]
    running: bool
    asleep: bool
    kv_used: float


@dataclass(frozen=True, slots=True)
class KvCounters:
    """What an engine has counted so far, over all its cores; None where it has no such counter.

    Prompt tokens are `moved` if their KV was fetched, `hit` if the engine had it, else `computed`.
    `read_after_release` counts KV that was fetched from this engine after it had freed the blocks.
    """

    moved_tokens: float | None = None
    hit_tokens: float | None = None
    computed_tokens: float | None = None
    moved_bytes: float | None = None
    moving_s: float | None = None
    read_after_release: float | None = None
    has_connector: bool = False


@value
class MetricsPage:
    """What is read of an engine's metrics several times a second, from one reading of its page.

    `load` is None if the page does not hold it, `ranks` is empty if it is another server's.
    """

    load: LoadReading | None
    kv: KvCounters
    ranks: Mapping[str, Rank]


@dataclass(frozen=True, slots=True)
class QuantileEstimate:
    """A quantile read from buckets: it is between `low` and `high`, and `value` assumes an even spread.

    In the last, open bucket `high` is infinite and `value` is `low`: at least that much.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ScrapedHistogram:
    """Cumulative bucket counts by upper bound, ascending, with the number and the sum of all observations."""

    buckets: tuple[tuple[float, float], ...]
    count: float
    total: float

    @property
    def mean(self) -> float | None:
        """The mean of all observations, None without any."""
        return self.total / self.count if self.count > 0 else None

    def quantile(self, share: float) -> QuantileEstimate | None:
        """The value below which this share of the observations lies, None without any."""
        if self.count <= 0:
            return None
        rank = share * self.count
        for (low, below), (high, upto) in pairwise(((0.0, 0.0), *self.buckets)):
            if upto >= rank and upto > below:
                part = max(rank - below, 0.0) / (upto - below)
                return QuantileEstimate(low if isinf(high) else low + (high - low) * part, low, high)
        return None

    def plus(self, other: ScrapedHistogram) -> ScrapedHistogram:
        """The sum of both; a bound that only one of them has is left out."""
        return self._combine(other, 1.0)

    def minus(self, earlier: ScrapedHistogram) -> ScrapedHistogram:
        """What was observed since `earlier`."""
        return self._combine(earlier, -1.0)

    def _combine(self, other: ScrapedHistogram, sign: float) -> ScrapedHistogram:
        theirs = dict(other.buckets)
        return ScrapedHistogram(
            tuple((bound, upto + sign * theirs[bound]) for bound, upto in self.buckets if bound in theirs),
            self.count + sign * other.count,
            self.total + sign * other.total,
        )


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """One engine's metrics at one moment. A series the engine does not have is None, never 0.

    `process_start_unix_s` and `process_cpu_s` are those of the process that serves them: the front end.
    """

    taken_at_unix_s: float
    counters: Mapping[SeriesKey, float] = field(default_factory=dict)
    gauges: Mapping[SeriesKey, float] = field(default_factory=dict)
    histograms: Mapping[SeriesKey, ScrapedHistogram] = field(default_factory=dict)
    infos: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    process_start_unix_s: float | None = None
    process_cpu_s: float | None = None

    @property
    def kv_tokens(self) -> int | None:
        """How many tokens the KV cache holds, where the engine reports it."""
        blocks, block_tokens = self._cache_count("num_gpu_blocks"), self.block_tokens
        return None if blocks is None or block_tokens is None else blocks * block_tokens

    @property
    def block_tokens(self) -> int | None:
        """How many tokens a block of the KV cache holds, where the engine reports it."""
        return self._cache_count("block_size")

    def _cache_count(self, name: str) -> int | None:
        count = self.infos.get(EngineSeries.CACHE_CONFIG, {}).get(name, "")
        return int(count) if count.isdecimal() else None

    def counter(self, name: str, **labels: str) -> float | None:
        """The sum of a counter's series that carry these labels (`counter(EngineSeries.PROMPT_TOKENS)`)."""
        return _sum(_matching(self.counters, name, labels))

    def gauge(self, name: str, **labels: str) -> float | None:
        """A gauge, summed over engine cores; shares (`..._perc`) are averaged."""
        return _sum(_matching(self.gauges, name, labels))

    def histogram(self, name: str, **labels: str) -> ScrapedHistogram | None:
        """A histogram, summed over engine cores."""
        found = None
        for series in _matching(self.histograms, name, labels):
            found = series if found is None else found.plus(series)
        return found


@dataclass(frozen=True, slots=True)
class MetricsDelta:
    """What happened between two snapshots.

    `went_backwards` names the series that show a restart of the engine in between. The two snapshots are then
    of different incarnations and every difference is None.
    """

    before: MetricsSnapshot
    after: MetricsSnapshot
    went_backwards: tuple[str, ...] = ()

    @property
    def same_incarnation(self) -> bool:
        """Whether the engine did not restart between the snapshots."""
        return not self.went_backwards

    @property
    def window_s(self) -> float:
        """The time between the snapshots."""
        return self.after.taken_at_unix_s - self.before.taken_at_unix_s

    def counter(self, name: str, **labels: str) -> float | None:
        """By how much a counter grew.

        A counter that only the later snapshot has is unknown, unless its name existed with other labels: a
        labelled series appears when it is first counted.
        """
        after = self.after.counter(name, **labels)
        if not self.same_incarnation or after is None or self.before.counter(name) is None:
            return None
        return after - (self.before.counter(name, **labels) or 0.0)

    def histogram(self, name: str, **labels: str) -> ScrapedHistogram | None:
        """What a histogram observed in the window."""
        after, before = self.after.histogram(name, **labels), self.before.histogram(name, **labels)
        if not self.same_incarnation or after is None or before is None:
            return None
        return after.minus(before)


def delta(before: MetricsSnapshot, after: MetricsSnapshot) -> MetricsDelta:
    """Compare two snapshots of the same address, the earlier one first."""
    signs = [
        name
        for (name, labels), value in before.counters.items()
        if after.counters.get((name, labels), value) < value
    ]
    signs += [
        name
        for (name, labels), seen in before.histograms.items()
        if after.histograms.get((name, labels), seen).count < seen.count
    ]
    starts = (before.process_start_unix_s, after.process_start_unix_s)
    if None not in starts and starts[0] != starts[1]:
        signs.append(PROCESS_START)
    return MetricsDelta(before, after, tuple(sorted(set(signs))))


def merged(snapshots: Sequence[MetricsSnapshot]) -> MetricsSnapshot:
    """Several engines as one: counters and gauges are summed, shares averaged. A restart of any shows."""
    first, *others = snapshots
    if not others:
        return first
    counters: dict[SeriesKey, list[float]] = {}
    gauges: dict[SeriesKey, list[float]] = {}
    histograms: dict[SeriesKey, ScrapedHistogram] = {}
    for snapshot in snapshots:
        for target, series in ((counters, snapshot.counters), (gauges, snapshot.gauges)):
            for key, number in series.items():
                target.setdefault(key, []).append(number)
        for key, found in snapshot.histograms.items():
            histograms[key] = histograms[key].plus(found) if key in histograms else found
    starts_s = (snapshot.process_start_unix_s for snapshot in snapshots)
    return MetricsSnapshot(
        taken_at_unix_s=first.taken_at_unix_s,
        counters={key: sum(values) for key, values in counters.items()},
        gauges={key: over_cores(key[0], values) for key, values in gauges.items()},
        histograms=histograms,
        process_start_unix_s=max((start_s for start_s in starts_s if start_s is not None), default=None),
    )


def over_cores(name: str, values: list[float]) -> float:
    return sum(values) / len(values) if name.endswith("_perc") else sum(values)


def _matching(series: Mapping[SeriesKey, _T], name: str, labels: Mapping[str, str]) -> list[_T]:
    wanted = labels.items()
    return [value for (known, held), value in series.items() if known == name and wanted <= held]


def _sum(values: list[float]) -> float | None:
    return sum(values) if values else None
