"""The counters of hand-overs under vLLM's names, beside those of metrics.py.

It is told what becomes of each one and keeps no opinion.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

_LABELS = ("engine", "model_name")
_TRANSFER_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
_KV_BYTES = tuple(2**power for power in range(11, 35, 2))
_DESCRIPTORS = (10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000)


class KvMetrics:
    """The hand-overs of one incarnation of one engine."""

    def __init__(self, model: str, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._values = {"engine": "0", "model_name": model}
        self._transfer_s = self._histogram("nixl_xfer_time_seconds", "Time of transfers.", _TRANSFER_S)
        self._bytes = self._histogram("nixl_bytes_transferred", "Bytes of transfers.", _KV_BYTES)
        self._descriptors = self._histogram("nixl_num_descriptors", "Pieces of transfers.", _DESCRIPTORS)
        self._failed = self._counter("nixl_num_failed_transfers", "Transfers that failed.")
        self._counter("nixl_num_failed_notifications", "Notifications that failed.")
        self._expired = self._counter("nixl_num_kv_expired_reqs", "Requests whose KV nobody fetched.")
        self._late = self._counter("nixl_num_notifications_after_expiry", "KV read after it was given up.")

    def on_transfer(self, seconds: float, kv_bytes: int, blocks: int) -> None:
        """KV has come."""
        self._transfer_s.observe(seconds)
        self._bytes.observe(kv_bytes)
        self._descriptors.observe(blocks)

    def on_failed_transfer(self) -> None:
        """KV did not come."""
        self._failed.inc()

    def on_expired(self) -> None:
        """Nobody fetched the KV within its lease."""
        self._expired.inc()

    def on_late_read(self) -> None:
        """KV was read that had been given up."""
        self._late.inc()

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"vllm:{name}", text, _LABELS, registry=self._registry).labels(**self._values)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(f"vllm:{name}", text, _LABELS, buckets=buckets, registry=self._registry)
        return histogram.labels(**self._values)
