"""Fast counters and histograms, and their lines in Prometheus' text format.

A scrape blocks the event loop, and every stream with it; prometheus_client takes ten times as long.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class MetricFamily:
    """One metric family. It is used as a key and compared by identity. `bounds` are a histogram's."""

    name: str
    kind: str
    labels: Labels
    help: str
    bounds: tuple[float, ...] = ()


class Counter:
    """A number that only grows. `begun` distinguishes 0 from a counter that was never used."""

    __slots__ = ("begun", "value")

    def __init__(self) -> None:
        self.begun = False
        self.value: float = 0

    def add(self, count: float) -> None:
        """Add a count; 0 makes the counter appear."""
        self.begun = True
        self.value += count


class Histogram:
    """Counts per bucket, not yet cumulative."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value. A value equal to a bound belongs to the bucket below it."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value


class CounterFamily:
    """The counters of one metric by their labels; unused ones are not exported."""

    def __init__(self, metric: MetricFamily) -> None:
        self._metric = metric
        self._series: dict[Labels, Counter] = {}

    def series(self, labels: Labels) -> Counter:
        """The counter of these labels."""
        return self._series.setdefault(labels, Counter())

    def lines(self) -> Iterator[str]:
        """The family in text format."""
        values = ((labels, counter.value) for labels, counter in self._series.items() if counter.begun)
        return value_lines(self._metric, values)


class HistogramFamily:
    """The histograms of one metric by their labels; empty ones are not exported."""

    def __init__(self, metric: MetricFamily) -> None:
        self._metric = metric
        self._series: dict[Labels, Histogram] = {}

    def series(self, labels: Labels) -> Histogram:
        """The histogram of these labels."""
        return self._series.setdefault(labels, Histogram(self._metric.bounds))

    def lines(self) -> Iterator[str]:
        """The family in text format, its buckets cumulative."""
        yield from _head(self._metric)
        bounds = [*(repr(bound) for bound in self._metric.bounds), "+Inf"]
        for labels, histogram in self._series.items():
            if not any(histogram.counts):
                continue
            inner = _inner(self._metric, labels)
            bucket = f'{self._metric.name}_bucket{{{inner},le="'
            sums = list(accumulate(histogram.counts))
            for bound, count in zip(bounds, sums, strict=True):
                yield f'{bucket}{bound}"}} {count}\n'
            yield f"{self._metric.name}_sum{{{inner}}} {histogram.total!r}\n"
            yield f"{self._metric.name}_count{{{inner}}} {sums[-1]}\n"


def value_lines(metric: MetricFamily, values: Iterable[tuple[Labels, float]]) -> Iterator[str]:
    """A family of single values in text format."""
    yield from _head(metric)
    for labels, value in values:
        inner = _inner(metric, labels)
        yield f"{metric.name}{{{inner}}} {value}\n" if inner else f"{metric.name} {value}\n"


def _head(metric: MetricFamily) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.help}\n"
    yield f"# TYPE {metric.name} {metric.kind}\n"


def _inner(metric: MetricFamily, labels: Labels) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(metric.labels, labels, strict=True))


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
