"""An engine's Prometheus text as frozen snapshots, and what happened between two of them.

Names are vLLM's without their `vllm:` prefix. What the numbers mean for a request is left to diagnosis.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, isinf
from typing import TypeVar

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from phasewise.adapters.http_client import HttpClient
from phasewise.errors import FailureKind, UpstreamError

PREFIX = "vllm:"
PROCESS_START = "process_start_time_seconds"
PROCESS_CPU = "process_cpu_seconds"
_WHO = frozenset({"engine", "model_name"})
"""Labels that say which engine core of the process spoke; everything is summed over them."""

Labels = frozenset[tuple[str, str]]
SeriesKey = tuple[str, Labels]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class QuantileEstimate:
    """A quantile read from buckets: it lies between `low` and `high`, `value` assumes an even spread.

    In the last, open bucket `high` is infinite and `value` is `low`: at least that much.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """Cumulative bucket counts by upper bound, ascending, with the number and the sum of all observations."""

    buckets: tuple[tuple[float, float], ...]
    count: float
    total: float

    @property
    def mean(self) -> float | None:
        """The mean of all observations, None without any."""
        return self.total / self.count if self.count > 0 else None

    def quantile(self, share: float) -> QuantileEstimate | None:
        """Where this share of the observations lies below, None without any."""
        if self.count <= 0:
            return None
        rank = share * self.count
        for (low, below), (high, upto) in pairwise(((0.0, 0.0), *self.buckets)):
            if upto >= rank and upto > below:
                value = low if isinf(high) else low + (high - low) * max(rank - below, 0.0) / (upto - below)
                return QuantileEstimate(value, low, high)
        return None

    def plus(self, other: Histogram) -> Histogram:
        """Both together; a bound that only one of them has cannot be summed and is left out."""
        return self._combine(other, 1.0)

    def minus(self, earlier: Histogram) -> Histogram:
        """What was observed since `earlier`."""
        return self._combine(earlier, -1.0)

    def _combine(self, other: Histogram, sign: float) -> Histogram:
        theirs = dict(other.buckets)
        return Histogram(
            tuple((bound, upto + sign * theirs[bound]) for bound, upto in self.buckets if bound in theirs),
            self.count + sign * other.count,
            self.total + sign * other.total,
        )


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """One engine's metrics at one moment. A series the engine does not have is None, never 0.

    `process_start_unix_s` and `process_cpu_s` are of the process that serves them: the front end.
    """

    taken_at_unix_s: float
    counters: Mapping[SeriesKey, float] = field(default_factory=dict)
    gauges: Mapping[SeriesKey, float] = field(default_factory=dict)
    histograms: Mapping[SeriesKey, Histogram] = field(default_factory=dict)
    infos: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    process_start_unix_s: float | None = None
    process_cpu_s: float | None = None

    @property
    def kv_tokens(self) -> int | None:
        """How many tokens the KV cache holds, where the engine tells."""
        blocks, block_tokens = self._cache_count("num_gpu_blocks"), self.block_tokens
        return None if blocks is None or block_tokens is None else blocks * block_tokens

    @property
    def block_tokens(self) -> int | None:
        """How many tokens a block of the KV cache holds, where the engine tells."""
        return self._cache_count("block_size")

    def _cache_count(self, name: str) -> int | None:
        count = self.infos.get("cache_config_info", {}).get(name, "")
        return int(count) if count.isdecimal() else None

    def counter(self, name: str, **labels: str) -> float | None:
        """The sum of a counter's series that carry these labels (`counter("prompt_tokens_total")`)."""
        return _sum(_matching(self.counters, name, labels))

    def gauge(self, name: str, **labels: str) -> float | None:
        """A gauge, summed over engine cores; shares (`..._perc`) are averaged."""
        return _sum(_matching(self.gauges, name, labels))

    def histogram(self, name: str, **labels: str) -> Histogram | None:
        """A histogram, summed over engine cores."""
        found = None
        for series in _matching(self.histograms, name, labels):
            found = series if found is None else found.plus(series)
        return found


@dataclass(frozen=True, slots=True)
class MetricsDelta:
    """What happened between two snapshots.

    `went_backwards` names what shows that the engine was restarted in between. The two snapshots then tell
    of different incarnations and every difference is None.
    """

    before: MetricsSnapshot
    after: MetricsSnapshot
    went_backwards: tuple[str, ...] = ()

    @property
    def same_incarnation(self) -> bool:
        """Whether both snapshots are of the same life of the engine."""
        return not self.went_backwards

    @property
    def window_s(self) -> float:
        """The time between the snapshots."""
        return self.after.taken_at_unix_s - self.before.taken_at_unix_s

    def counter(self, name: str, **labels: str) -> float | None:
        """By how much a counter grew.

        One that only the later snapshot has is unknown, unless its name was there with other labels: a
        labelled series appears when it is first counted.
        """
        after = self.after.counter(name, **labels)
        if not self.same_incarnation or after is None or self.before.counter(name) is None:
            return None
        return after - (self.before.counter(name, **labels) or 0.0)

    def histogram(self, name: str, **labels: str) -> Histogram | None:
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


async def fetch_metrics(client: HttpClient, clock: Callable[[], float] = time.time) -> MetricsSnapshot:
    """Take a snapshot of the engine behind a client; its time is the middle of the exchange."""
    asked_s = clock()
    reply = await client.fetch("GET", "/metrics")
    taken_at_s = (asked_s + clock()) / 2
    if reply.status != 200:
        raise UpstreamError(
            FailureKind.PROTOCOL,
            f"{client.base_url}/metrics answered {reply.status}",
            hint="vLLM serves /metrics unless it was started with --disable-log-stats",
        )
    return parse_metrics(reply.body.decode(errors="replace"), taken_at_s)


def parse_metrics(text: str, taken_at_unix_s: float) -> MetricsSnapshot:
    """Read Prometheus text; of others' series (python_*, process_*) only the process's start and CPU time."""
    counters: dict[SeriesKey, list[float]] = {}
    gauges: dict[SeriesKey, list[float]] = {}
    histograms: dict[SeriesKey, Histogram] = {}
    infos: dict[str, Mapping[str, str]] = {}
    process: dict[str, float] = {}
    for family in _families(text):
        if family.name in {PROCESS_START, PROCESS_CPU}:
            process[family.name] = family.samples[0].value
        if not family.name.startswith(PREFIX) or family.name.endswith("_created"):
            continue
        if family.type == "histogram":
            histograms |= _read_histograms(family.name.removeprefix(PREFIX), family.samples)
        elif family.name.endswith("_info"):
            infos |= {family.name.removeprefix(PREFIX): dict(sample.labels) for sample in family.samples}
        else:
            target = counters if family.type == "counter" else gauges
            for sample in family.samples:
                target.setdefault(_key(sample), []).append(sample.value)
    return MetricsSnapshot(
        taken_at_unix_s=taken_at_unix_s,
        counters={key: sum(values) for key, values in counters.items()},
        gauges={key: _over_cores(key[0], values) for key, values in gauges.items()},
        histograms=histograms,
        infos=infos,
        process_start_unix_s=process.get(PROCESS_START),
        process_cpu_s=process.get(PROCESS_CPU),
    )


@dataclass(frozen=True, slots=True)
class _Family:
    name: str
    type: str
    samples: list[Sample]


def _families(text: str) -> list[_Family]:
    try:
        return [
            _Family(family.name, family.type, family.samples)
            for family in text_string_to_metric_families(text)
            if family.samples
        ]
    except ValueError as error:
        raise UpstreamError(
            FailureKind.PROTOCOL,
            "/metrics is not Prometheus text",
            hint="check that the address is that of a vLLM engine",
        ) from error


def _key(sample: Sample, *without: str) -> SeriesKey:
    labels = frozenset(
        item for item in sample.labels.items() if item[0] not in _WHO and item[0] not in without
    )
    return sample.name.removeprefix(PREFIX), labels


def _read_histograms(name: str, samples: Iterable[Sample]) -> dict[SeriesKey, Histogram]:
    buckets: dict[Labels, dict[float, float]] = {}
    counts: dict[Labels, float] = {}
    totals: dict[Labels, float] = {}
    for sample in samples:
        _, labels = _key(sample, "le")
        if sample.name.endswith("_bucket"):
            bound = float(sample.labels.get("le", inf))
            series = buckets.setdefault(labels, {})
            series[bound] = series.get(bound, 0.0) + sample.value
        elif sample.name.endswith("_count"):
            counts[labels] = counts.get(labels, 0.0) + sample.value
        elif sample.name.endswith("_sum"):
            totals[labels] = totals.get(labels, 0.0) + sample.value
    return {
        (name, labels): Histogram(tuple(sorted(series.items())), counts[labels], totals[labels])
        for labels, series in buckets.items()
        if labels in counts and labels in totals
    }


def _over_cores(name: str, values: list[float]) -> float:
    return sum(values) / len(values) if name.endswith("_perc") else sum(values)


def _matching(series: Mapping[SeriesKey, _T], name: str, labels: Mapping[str, str]) -> list[_T]:
    wanted = labels.items()
    return [value for (known, held), value in series.items() if known == name and wanted <= held]


def _sum(values: list[float]) -> float | None:
    return sum(values) if values else None
