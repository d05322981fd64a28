"""Parses an engine's Prometheus text into frozen snapshots, and computes what happened between two of them.

Names are vLLM's without their `vllm:` prefix. Of other series only replies of the API and the process's own
are read.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, isinf
from typing import TypeVar

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from phasewise.clients.http_client import HttpClient
from phasewise.core.errors import FailureKind, UpstreamError

PREFIX = "vllm:"
PROCESS_START = "process_start_time_seconds"
PROCESS_CPU = "process_cpu_seconds"
HTTP_REQUESTS = "http_requests"
API_PATH = "/v1/"
"""Requests to other paths, such as our own for /metrics, are not counted."""
_WHO = frozenset({"engine", "model_name"})
"""Labels that distinguish the engine cores of a process; everything is summed over them."""

Labels = frozenset[tuple[str, str]]
SeriesKey = tuple[str, Labels]
_T = TypeVar("_T")


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
                value = low if isinf(high) else low + (high - low) * max(rank - below, 0.0) / (upto - below)
                return QuantileEstimate(value, low, high)
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
        count = self.infos.get("cache_config_info", {}).get(name, "")
        return int(count) if count.isdecimal() else None

    def counter(self, name: str, **labels: str) -> float | None:
        """The sum of a counter's series that carry these labels (`counter("prompt_tokens_total")`)."""
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


async def fetch_metrics(client: HttpClient, clock: Callable[[], float] = time.time) -> MetricsSnapshot:
    """Take a snapshot of the engine behind a client, timed at the middle of the exchange."""
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
    """Parse Prometheus text."""
    counters: dict[SeriesKey, list[float]] = {}
    gauges: dict[SeriesKey, list[float]] = {}
    histograms: dict[SeriesKey, ScrapedHistogram] = {}
    infos: dict[str, Mapping[str, str]] = {}
    process: dict[str, float] = {}
    for family in _families(text):
        if family.name in {PROCESS_START, PROCESS_CPU}:
            process[family.name] = family.samples[0].value
        if family.name == HTTP_REQUESTS:
            counters |= _api_requests(family.samples)
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
            for key, value in series.items():
                target.setdefault(key, []).append(value)
        for key, found in snapshot.histograms.items():
            histograms[key] = histograms[key].plus(found) if key in histograms else found
    starts = [it.process_start_unix_s for it in snapshots if it.process_start_unix_s is not None]
    return MetricsSnapshot(
        taken_at_unix_s=first.taken_at_unix_s,
        counters={key: sum(values) for key, values in counters.items()},
        gauges={key: _over_cores(key[0], values) for key, values in gauges.items()},
        histograms=histograms,
        process_start_unix_s=max(starts, default=None),
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
            hint="check that this is the address of a vLLM engine",
        ) from error


def _key(sample: Sample, *without: str) -> SeriesKey:
    labels = frozenset(
        item for item in sample.labels.items() if item[0] not in _WHO and item[0] not in without
    )
    return sample.name.removeprefix(PREFIX), labels


def _read_histograms(name: str, samples: Iterable[Sample]) -> dict[SeriesKey, ScrapedHistogram]:
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
        (name, labels): ScrapedHistogram(tuple(sorted(series.items())), counts[labels], totals[labels])
        for labels, series in buckets.items()
        if labels in counts and labels in totals
    }


def _api_requests(samples: Iterable[Sample]) -> dict[SeriesKey, list[float]]:
    """Replies of the API by class of status, such as 4xx."""
    found: dict[SeriesKey, list[float]] = {}
    for sample in samples:
        status = sample.labels.get("status", "")
        if sample.name.endswith("_total") and sample.labels.get("handler", "").startswith(API_PATH):
            by_class = frozenset({("status", f"{status[:1]}xx")})
            found.setdefault((sample.name, by_class), []).append(sample.value)
    return found


def _over_cores(name: str, values: list[float]) -> float:
    return sum(values) / len(values) if name.endswith("_perc") else sum(values)


def _matching(series: Mapping[SeriesKey, _T], name: str, labels: Mapping[str, str]) -> list[_T]:
    wanted = labels.items()
    return [value for (known, held), value in series.items() if known == name and wanted <= held]


def _sum(values: list[float]) -> float | None:
    return sum(values) if values else None


# --- Where the KV of an engine's prompts came from, read from its /metrics.

_BY_SOURCE = b"vllm:prompt_tokens_by_source_total"
_SOURCE = re.compile(rb'source="([^"]*)"')
_CONNECTOR = b"\nvllm:nixl_"


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


async def fetch_kv_counters(client: HttpClient) -> KvCounters:
    """Ask an engine; UpstreamError if it does not report them."""
    reply = await client.fetch("GET", "/metrics")
    if reply.status != 200:
        raise UpstreamError(FailureKind.PROTOCOL, f"/metrics answered {reply.status}")
    return parse_kv_counters(reply.body)


def parse_kv_counters(text: bytes) -> KvCounters:
    """The counters in Prometheus text; lines without a valid number are skipped."""
    sums: dict[bytes, float] = {}
    for line in text.splitlines():
        if not line.startswith((_BY_SOURCE, b"vllm:nixl_")):
            continue
        name, _, value = line.rpartition(b" ")
        bare = name.partition(b"{")[0]
        if bare == _BY_SOURCE and (source := _SOURCE.search(name)):
            bare = source[1]
        try:
            sums[bare] = sums.get(bare, 0.0) + float(value)
        except ValueError:
            continue
    released = b"vllm:nixl_num_notifications_after_expiry"
    return KvCounters(
        moved_tokens=sums.get(b"external_kv_transfer"),
        hit_tokens=sums.get(b"local_cache_hit"),
        computed_tokens=sums.get(b"local_compute"),
        moved_bytes=sums.get(b"vllm:nixl_bytes_transferred_sum"),
        moving_s=sums.get(b"vllm:nixl_xfer_time_seconds_sum"),
        read_after_release=sums.get(released + b"_total", sums.get(released)),
        has_connector=_CONNECTOR in text,
    )
