"""Counts timelines into Prometheus metrics: per phase, per request, never per chunk.

The numbers are kept in plain lists and handed to prometheus_client when it asks: observing costs a bisection.
What TTFT and its parts are is defined in model/latency.py; who serves /metrics is the gateway's matter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from phasewise.errors import RefusalKind
from phasewise.model.latency import e2e_s, tpot_s, ttft_breakdown
from phasewise.model.timeline import Outcome, Timeline
from phasewise.state.cluster_view import ClusterView, Health
from phasewise.state.load_ledger import LoadLedger

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
NO_LABEL = "none"
"""The label of a request that reached no pool, or names a model that no worker serves."""

_Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric family; itself a key, so it is compared by identity."""

    name: str
    kind: str
    labels: Labels
    help: str


TTFT = Metric(
    "phasewise_ttft_seconds",
    "histogram",
    ("model", "pool"),
    "Time to first token of streamed requests: head read to first chunk with content.",
)
TTFT_PART = Metric(
    "phasewise_ttft_part_seconds",
    "histogram",
    ("model", "pool", "part"),
    "What time to first token was made of; part residual is what no clock saw (negative ones count as 0).",
)
TPOT = Metric(
    "phasewise_tpot_seconds",
    "histogram",
    ("model", "pool"),
    "Mean time per output token after the first, per streamed request.",
)
E2E = Metric(
    "phasewise_e2e_seconds",
    "histogram",
    ("model", "pool"),
    "Head read to last content of requests that were answered in full, streamed or not.",
)
REQUESTS = Metric(
    "phasewise_requests_total",
    "counter",
    ("model", "outcome", "reason"),
    "Requests that ended, by how they ended and, where it was not well, why.",
)
TOKENS = Metric(
    "phasewise_tokens_total",
    "counter",
    ("model", "kind"),
    "Tokens as the engines counted them: prompt, cached (a part of prompt) and output.",
)
RETRIES = Metric(
    "phasewise_retries_total",
    "counter",
    ("model",),
    "Attempts after a request's first.",
)
WORKER_UP = Metric(
    "phasewise_worker_up", "gauge", ("worker", "pool"), "Whether the worker answered when last asked."
)
WORKER_REQUESTS = Metric(
    "phasewise_worker_requests", "gauge", ("worker", "pool"), "Requests under way on the worker."
)

METRICS = (TTFT, TTFT_PART, TPOT, E2E, REQUESTS, TOKENS, RETRIES, WORKER_UP, WORKER_REQUESTS)

SECONDS_BOUNDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0,
)  # fmt: skip


class _Histogram:
    """Counts per bucket, not yet cumulative."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS_BOUNDS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS_BOUNDS, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        bounds = [*(repr(bound) for bound in SECONDS_BOUNDS), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self.counts)), strict=True))


class PrometheusMetrics(Collector):
    """A TimelineSink, and the text that Prometheus scrapes. Labels come from the configuration only."""

    def __init__(self, cluster: ClusterView, ledger: LoadLedger) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._models = frozenset(cluster.models)
        self._pools: Mapping[str, str] = {
            state.worker.name: state.worker.pool for state in cluster.snapshot()
        }
        self._histograms: dict[Metric, dict[Labels, _Histogram]] = {
            metric: {} for metric in METRICS if metric.kind == "histogram"
        }
        self._counters: dict[Metric, dict[Labels, int]] = {
            metric: {} for metric in METRICS if metric.kind == "counter"
        }
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    # --- counting ---------------------------------------------------------------------------------------

    def record(self, timeline: Timeline) -> None:
        """Count one request that has ended."""
        model = timeline.model if timeline.model in self._models else NO_LABEL
        serving = timeline.serving_attempt
        pool = self._pools.get(serving.worker.name, NO_LABEL) if serving is not None else NO_LABEL
        self._count(REQUESTS, (model, timeline.outcome, timeline.reason or NO_LABEL))
        if len(timeline.attempts) > 1:
            self._count(RETRIES, (model,), len(timeline.attempts) - 1)
        self._count_tokens(timeline, model)
        self._observe_phases(timeline, model, pool)

    def count_refusal(self, kind: RefusalKind) -> None:
        """Count a request that was refused before it had a timeline."""
        self._count(REQUESTS, (NO_LABEL, Outcome.REJECTED, kind))

    def _count_tokens(self, timeline: Timeline, model: str) -> None:
        if timeline.prompt_tokens is not None:
            self._count(TOKENS, (model, "prompt"), timeline.prompt_tokens)
        if timeline.cached_tokens is not None:
            self._count(TOKENS, (model, "cached"), timeline.cached_tokens)
        if timeline.output_tokens is not None:
            self._count(TOKENS, (model, "output"), timeline.output_tokens)

    def _observe_phases(self, timeline: Timeline, model: str, pool: str) -> None:
        breakdown = ttft_breakdown(timeline)
        if breakdown is not None:
            self._observe(TTFT, (model, pool), breakdown.ttft_s)
            for entry in breakdown.parts:
                self._observe(TTFT_PART, (model, pool, entry.part), entry.seconds)
            self._observe(TTFT_PART, (model, pool, "residual"), max(breakdown.residual_s, 0.0))
        if (per_token_s := tpot_s(timeline)) is not None:
            self._observe(TPOT, (model, pool), per_token_s)
        if (whole_s := e2e_s(timeline)) is not None:
            self._observe(E2E, (model, pool), whole_s)

    def _count(self, metric: Metric, labels: Labels, by: int = 1) -> None:
        series = self._counters[metric]
        series[labels] = series.get(labels, 0) + by

    def _observe(self, metric: Metric, labels: Labels, seconds: float) -> None:
        series = self._histograms[metric]
        histogram = series.get(labels)
        if histogram is None:
            histogram = series[labels] = _Histogram()
        histogram.observe(seconds)

    # --- telling ----------------------------------------------------------------------------------------

    def text(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[_Family]:
        """Every family, as prometheus_client wants them."""
        yield from self._histogram_families()
        yield from self._counter_families()
        yield from self._worker_families()

    def _histogram_families(self) -> Iterator[_Family]:
        for metric, series in self._histograms.items():
            histograms = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, histogram in series.items():
                histograms.add_metric(labels, histogram.buckets(), histogram.total)
            yield histograms

    def _counter_families(self) -> Iterator[_Family]:
        for metric, series in self._counters.items():
            counters = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, count in series.items():
                counters.add_metric(labels, count)
            yield counters

    def _worker_families(self) -> Iterator[_Family]:
        up = GaugeMetricFamily(WORKER_UP.name, WORKER_UP.help, labels=WORKER_UP.labels)
        requests = GaugeMetricFamily(
            WORKER_REQUESTS.name, WORKER_REQUESTS.help, labels=WORKER_REQUESTS.labels
        )
        for state in self._cluster.snapshot():
            labels = (state.worker.name, state.worker.pool)
            up.add_metric(labels, float(state.health is Health.UP))
            requests.add_metric(labels, self._ledger.load(state.worker.ref).requests)
        yield up
        yield requests
