"""The engine's counters under vLLM's names, as Prometheus text; only those that are in use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from phasewise.core.steps import FinishedRequest
from phasewise.simulator.engine import EngineShape, StepReport
from phasewise.simulator.kv import KvObserver

_Kind = TypeVar("_Kind", Counter, Gauge)

# --- KV transfers.

_TRANSFER_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
_KV_BYTES = tuple(2**power for power in range(11, 35, 2))
_DESCRIPTORS = (10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000)


class KvMetrics(KvObserver):
    """The KV transfers of one incarnation of one engine."""

    def __init__(self, metrics: EngineMetrics) -> None:
        self._transfer_s = metrics.histogram("nixl_xfer_time_seconds", "Time of transfers.", _TRANSFER_S)
        self._bytes = metrics.histogram("nixl_bytes_transferred", "Bytes of transfers.", _KV_BYTES)
        self._descriptors = metrics.histogram("nixl_num_descriptors", "Pieces of transfers.", _DESCRIPTORS)
        self._failed = metrics.counter("nixl_num_failed_transfers", "Transfers that failed.")
        metrics.counter("nixl_num_failed_notifications", "Notifications that failed.")
        self._expired = metrics.counter("nixl_num_kv_expired_reqs", "Requests whose KV nobody fetched.")
        self._late = metrics.counter("nixl_num_notifications_after_expiry", "KV read after it was given up.")

    def on_transfer(self, seconds: float, kv_bytes: int, blocks: int) -> None:
        """KV has arrived."""
        self._transfer_s.observe(seconds)
        self._bytes.observe(kv_bytes)
        self._descriptors.observe(blocks)

    def on_failed_transfer(self) -> None:
        """KV did not arrive."""
        self._failed.inc()

    def on_expired(self) -> None:
        """The lease ended before the KV was fetched."""
        self._expired.inc()

    def on_late_read(self) -> None:
        """KV was read after it was released."""
        self._late.inc()


_ENGINE_LABELS = ("engine", "model_name")
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
_CACHE_TIERS = ("device", "host", "disk", "p2p", "external_unspecified")
_PROMPT_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")


class EngineMetrics:
    """The counters of one incarnation of one engine."""

    def __init__(self, model: str, shape: EngineShape) -> None:
        self._registry = CollectorRegistry()
        self._labels = {"engine": "0", "model_name": model}
        self._running = self._gauge("num_requests_running", "Number of requests in model execution batches.")
        self._waiting = self._gauge("num_requests_waiting", "Number of requests waiting to be processed.")
        self._waiting_by_reason = self._by_label(
            Gauge,
            "num_requests_waiting_by_reason",
            "Waiting requests by reason.",
            "reason",
            ("capacity", "deferred"),
        )
        self._kv_usage = self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.")
        self._prefix_queries = self.counter("prefix_cache_queries", "Prefix cache queries, in tokens.")
        self._prefix_hits = self.counter("prefix_cache_hits", "Prefix cache hits, in tokens.")
        self._external_queries = self.counter(
            "external_prefix_cache_queries", "Queries of a cache outside the engine, in tokens."
        )
        self._external_hits = self.counter(
            "external_prefix_cache_hits", "Hits in a cache outside the engine, in tokens."
        )
        self._preemptions = self.counter("num_preemptions", "Cumulative number of preemptions.")
        self._prompt_tokens = self.counter("prompt_tokens", "Number of prefill tokens processed.")
        self._prompt_by_source = self._by_label(
            Counter,
            "prompt_tokens_by_source",
            "Number of prompt tokens by source.",
            "source",
            _PROMPT_SOURCES,
        )
        self._prompt_cached = self.counter("prompt_tokens_cached", "Number of cached prompt tokens.")
        self._cached_by_tier = self._by_label(
            Counter, "prompt_tokens_cached_by_source", "Cached prompt tokens by tier.", "source", _CACHE_TIERS
        )
        self._generation_tokens = self.counter("generation_tokens", "Number of generation tokens processed.")
        self._finished = self._by_label(
            Counter,
            "request_success",
            "Count of successfully processed requests.",
            "finished_reason",
            _FINISH_REASONS,
        )
        self._step_tokens = self.histogram("iteration_tokens_total", "Tokens per engine step.", _STEP_TOKENS)
        self._make_request_histograms()
        self._describe_cache(shape)

    def _make_request_histograms(self) -> None:
        self._request_prompt = self.histogram("request_prompt_tokens", "Prompt tokens.", _TOKENS)
        self._request_output = self.histogram("request_generation_tokens", "Output tokens.", _TOKENS)
        self._first_token_s = self.histogram("time_to_first_token_seconds", "TTFT.", _FIRST_TOKEN_S)
        self._token_gap_s = self.histogram("inter_token_latency_seconds", "Gaps between tokens.", _TOKEN_S)
        self._per_token_s = self.histogram(
            "request_time_per_output_token_seconds", "Mean time per output token, per request.", _TOKEN_S
        )
        self._e2e_s = self.histogram("e2e_request_latency_seconds", "End to end.", _REQUEST_S)
        self._queue_s = self.histogram("request_queue_time_seconds", "Time in the queue.", _REQUEST_S)
        self._inference_s = self.histogram("request_inference_time_seconds", "Time running.", _REQUEST_S)
        self._prefill_s = self.histogram("request_prefill_time_seconds", "Time in prefill.", _REQUEST_S)
        self._decode_s = self.histogram("request_decode_time_seconds", "Time in decode.", _REQUEST_S)

    def record(self, report: StepReport) -> None:
        """Count a step that has ended."""
        step = report.step
        self.observe_load(step.running, step.waiting, step.kv_usage, report.deferred)
        self._record_look_ups(report)
        self._preemptions.inc(step.preempted)
        self._generation_tokens.inc(len(report.emitted))
        self._record_begun(report)
        for token in report.emitted:
            (self._token_gap_s if token.index else self._first_token_s).observe(token.gap_s)
        for request in step.finished:
            self._record_finished(request)

    def observe_load(self, running: int, waiting: int, kv_usage: float, deferred: int = 0) -> None:
        """Set the load as it is now; an abort may end the last work without a step.

        `deferred` of the waiting requests wait for KV from another engine.
        """
        self._running.set(running)
        self._waiting.set(waiting)
        self._waiting_by_reason["capacity"].set(waiting - deferred)
        self._waiting_by_reason["deferred"].set(deferred)
        self._kv_usage.set(kv_usage)

    def kv_transfers(self) -> KvMetrics:
        """The counters that only an engine with a connector has."""
        return KvMetrics(self)

    def text(self) -> bytes:
        """Everything, as Prometheus reads it."""
        return generate_latest(self._registry)

    def _record_look_ups(self, report: StepReport) -> None:
        self._prefix_queries.inc(report.queried_tokens)
        self._prefix_hits.inc(report.hit_tokens)
        self._external_queries.inc(report.fetched_tokens)
        self._external_hits.inc(report.fetched_tokens)
        self._cached_by_tier["device"].inc(report.hit_tokens)
        self._cached_by_tier["p2p"].inc(report.fetched_tokens)

    def _record_begun(self, report: StepReport) -> None:
        # As in vLLM, a whole prompt counts in the step that generated its first token, whatever earlier steps
        # computed of it, and steps without a token are not counted.
        found_tokens = report.begun_cached_tokens + report.begun_fetched_tokens
        computed_tokens = report.begun_prompt_tokens - found_tokens
        self._prompt_tokens.inc(report.begun_prompt_tokens)
        self._prompt_cached.inc(found_tokens)
        self._prompt_by_source["local_cache_hit"].inc(report.begun_cached_tokens)
        self._prompt_by_source["external_kv_transfer"].inc(report.begun_fetched_tokens)
        self._prompt_by_source["local_compute"].inc(computed_tokens)
        if report.emitted:
            self._step_tokens.observe(computed_tokens + len(report.emitted))

    def _record_finished(self, request: FinishedRequest) -> None:
        self._finished[request.reason].inc()
        self._request_prompt.observe(request.prompt_tokens)
        self._request_output.observe(request.output_tokens)
        self._e2e_s.observe(request.e2e_s)
        self._queue_s.observe(request.queue_s)
        self._inference_s.observe(request.prefill_s + request.decode_s)
        self._prefill_s.observe(request.prefill_s)
        self._decode_s.observe(request.decode_s)
        # vLLM records 0 for an answer of one token, which has no time per output token.
        self._per_token_s.observe(request.decode_s / max(1, request.output_tokens - 1))

    def _describe_cache(self, shape: EngineShape) -> None:
        facts = {
            "block_size": str(shape.block_size),
            "enable_prefix_caching": str(shape.prefix_cache),
            "engine": "0",
            "num_gpu_blocks": str(shape.total_blocks),
        }
        Gauge(
            "vllm:cache_config_info",
            "Information of the LLMEngine CacheConfig",
            tuple(facts),
            registry=self._registry,
        ).labels(**facts).set(1)

    # --- one metric with vLLM's labels --------------------------------------------------------------------

    def _gauge(self, name: str, text: str) -> Gauge:
        gauge = Gauge(f"vllm:{name}", text, _ENGINE_LABELS, registry=self._registry)
        return gauge.labels(**self._labels)

    def counter(self, name: str, text: str) -> Counter:
        """A counter of this engine."""
        counter = Counter(f"vllm:{name}", text, _ENGINE_LABELS, registry=self._registry)
        return counter.labels(**self._labels)

    def _by_label(
        self, kind: type[_Kind], name: str, text: str, label: str, values: Iterable[str]
    ) -> dict[str, _Kind]:
        family = kind(f"vllm:{name}", text, (*_ENGINE_LABELS, label), registry=self._registry)
        return {value: family.labels(**self._labels, **{label: value}) for value in values}

    def histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        """A histogram of this engine."""
        histogram = Histogram(f"vllm:{name}", text, _ENGINE_LABELS, buckets=buckets, registry=self._registry)
        return histogram.labels(**self._labels)
