"""Reads the Prometheus text of any engine: all of it as a snapshot, or a few series fast."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from math import inf

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from phasewise.core.engine_metrics import (
    PROCESS_START,
    Labels,
    MetricsSnapshot,
    ScrapedHistogram,
    SeriesKey,
    over_cores,
)
from phasewise.core.errors import FailureKind, UpstreamError

PROCESS_CPU = "process_cpu_seconds"
HTTP_REQUESTS = "http_requests"
API_PATH = "/v1/"
"""Requests to other paths, such as our own for /metrics, are not counted."""
_WHO = frozenset({"engine", "model_name"})
"""Labels that distinguish the engine cores of a process; everything is summed over them."""

Translate = Callable[[str], str | None]
"""A metric's name in our words; None for one that is not an engine's own."""


def read_snapshot(text: str, taken_at_unix_s: float, translate: Translate) -> MetricsSnapshot:
    """The metrics in a text. Replies of the API and the process's own are read besides the engine's."""
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
        name = translate(family.name)
        if name is None or name.endswith("_created"):
            continue
        if family.type == "histogram":
            histograms |= _read_histograms(name, family.samples)
        elif name.endswith("_info"):
            infos[name] = dict(family.samples[-1].labels)
        else:
            target = counters if family.type == "counter" else gauges
            for sample in family.samples:
                key = translate(sample.name) or sample.name, _labels(sample)
                target.setdefault(key, []).append(sample.value)
    return MetricsSnapshot(
        taken_at_unix_s=taken_at_unix_s,
        counters={key: sum(values) for key, values in counters.items()},
        gauges={key: over_cores(key[0], values) for key, values in gauges.items()},
        histograms=histograms,
        infos=infos,
        process_start_unix_s=process.get(PROCESS_START),
        process_cpu_s=process.get(PROCESS_CPU),
    )


Samples = Mapping[bytes, Sequence[tuple[bytes, float]]]
"""The labels, as they are written, and the value of each sample, by the name of its series."""


def scan(page: bytes, names: Container[bytes]) -> Samples:
    """The samples of a few series, in one pass without the full parser.

    A series with a value that is no number is left out: a sum without it would be wrong.
    """
    found: dict[bytes, list[tuple[bytes, float]]] = {}
    unreadable = set()
    for line in page.splitlines():
        # Most lines are buckets of histograms: this comes first, because it is done for every one of them.
        name = line.partition(b"{")[0].partition(b" ")[0]
        if name not in names:
            continue
        series, _, number = line.rpartition(b" ")
        try:
            found.setdefault(name, []).append((series[len(name) :], float(number)))
        except ValueError:
            unreadable.add(name)
    return {name: samples for name, samples in found.items() if name not in unreadable}


def summed(samples: Samples, name: bytes, label: bytes = b"") -> float | None:
    """The sum of a series over the engine's cores, or of those samples that have this label."""
    values = [value for labels, value in samples.get(name, ()) if label in labels]
    return sum(values) if values else None


def _families(text: str) -> list[Metric]:
    try:
        return [family for family in text_string_to_metric_families(text) if family.samples]
    except ValueError as error:
        raise UpstreamError(
            FailureKind.PROTOCOL,
            "/metrics is not Prometheus text",
            hint="check that this is the address of an engine",
        ) from error


def _labels(sample: Sample, *without: str) -> Labels:
    return frozenset(item for item in sample.labels.items() if item[0] not in _WHO and item[0] not in without)


def _read_histograms(name: str, samples: Iterable[Sample]) -> dict[SeriesKey, ScrapedHistogram]:
    buckets = defaultdict[Labels, dict[float, float]](lambda: defaultdict(float))
    counts, totals = defaultdict[Labels, float](float), defaultdict[Labels, float](float)
    for sample in samples:
        labels = _labels(sample, "le")
        if sample.name.endswith("_bucket"):
            buckets[labels][float(sample.labels.get("le", inf))] += sample.value
        elif sample.name.endswith("_count"):
            counts[labels] += sample.value
        elif sample.name.endswith("_sum"):
            totals[labels] += sample.value
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
