"""Counts timelines into Prometheus metrics: per phase, per request, never per chunk.

State of other objects (health, load, waiting requests) is read at each scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from math import inf
from time import monotonic

from phasewise.core.caching import CacheNote, CacheResult
from phasewise.core.decision import RejectReason
from phasewise.core.errors import RejectionKind
from phasewise.core.kv_transfer import KvTransferOutcome, KvTransferState
from phasewise.core.latency import e2e_s, tpot_s, ttft_part_seconds, ttft_s, within
from phasewise.core.slo import DEFAULT_SLO, Slo
from phasewise.core.timeline import TTFT_PARTS, AttemptKind, Outcome, Timeline
from phasewise.core.trace_context import TraceLoss
from phasewise.core.value import value
from phasewise.core.worker import WorkerRef
from phasewise.gateway.records.metric_families import (
    BODY_BYTES,
    CACHE_DEGRADED,
    CACHE_LOOK_UP,
    CACHE_REQUESTS,
    CACHE_SAVED_S,
    CACHE_SAVED_TOKENS,
    CLIENTS_OWN,
    DEFAULT_CLASS,
    E2E,
    ENGINES_NEEDED,
    KV_TRANSFER_BYTES,
    KV_TRANSFER_FAILING,
    KV_TRANSFER_PROOF_AGE,
    KV_TRANSFER_RECOMPUTED,
    KV_TRANSFERS,
    LOG_DROPPED,
    LOOP_LAG,
    MET,
    METRICS,
    MISSED,
    NO_LABEL,
    OBJECTIVES,
    OTHER_REASON,
    OVERLOAD_STAGE,
    PLACEMENTS,
    QUOTA_DEGRADED,
    REASONS,
    REQUESTS,
    RESUMES,
    RETRIES,
    SERVED,
    SHADOW,
    SPLIT,
    START,
    STREAM,
    TOKEN_KINDS,
    TOKENS,
    TPOT,
    TRACES_DROPPED,
    TTFT,
    TTFT_PART,
    UNEXPLAINED,
    WAITING,
    WHOLE,
    WORKER_BREAKER_OPEN,
    WORKER_REQUESTS,
    WORKER_STILL,
    WORKER_UP,
)
from phasewise.gateway.records.metric_series import (
    Counter,
    CounterFamily,
    Histogram,
    HistogramFamily,
    Labels,
    MetricFamily,
    value_lines,
)
from phasewise.scheduling.engines_needed import EnginesNeeded
from phasewise.scheduling.ledger import LoadLedger
from phasewise.scheduling.world import ClusterView, Health

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


@value
class OwnState:
    """The gateway's own state: requests that wait, by model, and engines that they need, by model and pool,
    which shared stores do not answer, lines missing in its log and traces that were dropped, the longest
    delay of its event loop since the last scrape, what it gives up, the bodies it holds.
    """

    waiting: Mapping[str, int] = field(default_factory=dict)
    engines_needed: Mapping[tuple[str, str], EnginesNeeded] = field(default_factory=dict)
    quota_degraded: bool = False
    cache_degraded: bool = False
    log_dropped: int = 0
    traces_dropped: Mapping[TraceLoss, int] = field(default_factory=dict)
    loop_lag_s: float = 0.0
    overload_stage: int = 0
    body_bytes: int = 0


class PrometheusMetrics:
    """A TimelineSink, and the text that Prometheus scrapes.

    Labels come from the configuration or from closed lists. `slos` are the objectives by class; `default` is
    that of every class which is not among them. `breaker_open`, `kv_transfers` and `own`
    are asked at each scrape. Within `kept_s` of a scrape the next one gets the same text: whoever scrapes
    without end costs little.
    """

    def __init__(
        self,
        cluster: ClusterView,
        ledger: LoadLedger,
        *,
        slos: Mapping[str, Slo] | None = None,
        breaker_open: Callable[[WorkerRef], bool] = lambda _worker: False,
        kv_transfers: Callable[[], Iterable[KvTransferState]] = tuple,
        own: Callable[[], OwnState] = OwnState,
        kept_s: float = 0.0,
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._breaker_open = breaker_open
        self._kv_transfers = kv_transfers
        self._own = own
        self._kept_s = kept_s
        self._text, self._made_s = b"", -inf
        self._models: frozenset[str] = frozenset()
        self._pools: dict[str, str] = {}
        self._histograms = {
            family: HistogramFamily(family) for family in METRICS if family.kind == "histogram"
        }
        self._counters = {family: CounterFamily(family) for family in METRICS if family.kind == "counter"}
        self._tallies: dict[tuple[str, str, Outcome, str | None], _Tally] = {}
        self._objectives: dict[tuple[str, str], _Objective] = {}
        self._cache = {
            result: _CacheTally(self._histograms, self._counters, result) for result in CacheResult
        }
        self.set_labels(slos or {})

    def set_labels(self, slos: Mapping[str, Slo]) -> None:
        """From now on these classes, and the models and pools of the cluster. What was counted stays."""
        self._slos = {DEFAULT_CLASS: DEFAULT_SLO, **slos}
        self._objectives.clear()
        self._models = frozenset(self._cluster.models)
        workers = [state.worker for state in self._cluster.snapshot()]
        # Requests may still be on workers that are gone.
        busy = {ref.name for ref in self._ledger.loads}
        self._pools = {name: pool for name, pool in self._pools.items() if name in busy}
        self._pools |= {worker.name: worker.pool for worker in workers}

    def slo_of(self, slo_class: str) -> Slo:
        """The objectives of a class."""
        return self._slos.get(slo_class, self._slos[DEFAULT_CLASS])

    # --- counting ---------------------------------------------------------------------------------------

    def record(self, timeline: Timeline) -> None:
        """Count one request that has ended."""
        serving = timeline.serving_attempt
        pool = NO_LABEL if serving is None else self._pools.get(serving.worker.name, NO_LABEL)
        tally = self._tallies.get((timeline.model, pool, timeline.outcome, timeline.reason))
        if tally is None:
            tally = self._known_tally(timeline.model, pool, timeline.outcome, timeline.reason)
        objective = self._objectives.get((tally.model, timeline.slo_class))
        if objective is None:
            objective = self._known_objective(tally.model, timeline.slo_class)
        tally.count(timeline, objective)
        if len(timeline.attempts) > 1:
            self._count_attempts(timeline, tally.model)
        if (way := _way(timeline)) is not None:
            self._counters[PLACEMENTS].series((way,)).add(1)
        if timeline.cache is not None:
            self._cache[timeline.cache.result].count(timeline.cache)

    def count_rejection(self, kind: RejectReason | RejectionKind) -> None:
        """Count a request that was rejected and has no timeline."""
        self._counters[REQUESTS].series((NO_LABEL, Outcome.REJECTED, kind)).add(1)

    def count_kv_transfer(self, outcome: KvTransferOutcome) -> None:
        """Count a KV transfer that was tried."""
        self._counters[KV_TRANSFERS].series((outcome,)).add(1)

    def _known_tally(self, model: str, pool: str, outcome: Outcome, reason: str | None) -> _Tally:
        model = model if model in self._models else NO_LABEL
        reason = reason if reason is None or reason in REASONS else OTHER_REASON
        key = (model, pool, outcome, reason)
        if key not in self._tallies:
            self._tallies[key] = _Tally(self._histograms, self._counters, key)
        return self._tallies[key]

    def _known_objective(self, model: str, slo_class: str) -> _Objective:
        key = (model, slo_class if slo_class in self._slos else DEFAULT_CLASS)
        if key not in self._objectives:
            self._objectives[key] = _Objective(self._slos[key[1]], self._counters[OBJECTIVES], key)
        return self._objectives[key]

    def _count_attempts(self, timeline: Timeline, model: str) -> None:
        resumed = [attempt.outcome for attempt in timeline.attempts if attempt.kind is AttemptKind.RESUMED]
        for outcome in resumed:
            self._counters[RESUMES].series((model, outcome)).add(1)
        self._counters[RETRIES].series((model,)).add(max(0, timeline.tries - len(resumed) - 1))

    # --- scraping ---------------------------------------------------------------------------------------

    def text(self, *, afresh: bool = False) -> bytes:
        """The metrics in Prometheus' text format."""
        now_s = monotonic()
        if afresh or now_s >= self._made_s + self._kept_s:
            self._text, self._made_s = "".join(self._lines()).encode(), now_s
        return self._text

    def _lines(self) -> Iterator[str]:
        for histograms in self._histograms.values():
            yield from histograms.lines()
        kv_transfers, own = tuple(self._kv_transfers()), self._own()
        # Counts of other objects. An engine's own reset when it restarts, as counters may.
        for state in kv_transfers:
            self._take_over(KV_TRANSFER_RECOMPUTED, (state.worker,), state.recomputed_tokens)
            self._take_over(KV_TRANSFER_BYTES, (state.worker,), state.moved_bytes)
        self._take_over(LOG_DROPPED, (), own.log_dropped)
        for reason in TraceLoss:
            self._take_over(TRACES_DROPPED, (reason,), own.traces_dropped.get(reason, 0))
        for counters in self._counters.values():
            yield from counters.lines()
        for metric, values in self._gauges(kv_transfers, own).items():
            yield from value_lines(metric, values.items())

    def _take_over(self, metric: MetricFamily, labels: Labels, count: float) -> None:
        counter = self._counters[metric].series(labels)
        counter.add(count - counter.value)

    def _gauges(
        self, kv_transfers: Sequence[KvTransferState], own: OwnState
    ) -> dict[MetricFamily, dict[Labels, float]]:
        workers = {(state.worker.name, state.worker.pool): state for state in self._cluster.snapshot()}
        refs = {labels: state.worker.ref for labels, state in workers.items()}
        return {
            WORKER_UP: {labels: int(state.health is Health.UP) for labels, state in workers.items()},
            WORKER_STILL: {labels: int(state.health.stands_still) for labels, state in workers.items()},
            WORKER_REQUESTS: {labels: self._ledger.load(ref).requests for labels, ref in refs.items()},
            WORKER_BREAKER_OPEN: {labels: int(self._breaker_open(ref)) for labels, ref in refs.items()},
            KV_TRANSFER_FAILING: {(state.worker,): state.failing for state in kv_transfers},
            KV_TRANSFER_PROOF_AGE: {
                (state.worker,): round(state.proven_ago_s)
                for state in kv_transfers
                if state.proven_ago_s is not None
            },
            WAITING: {(model,): count for model, count in own.waiting.items()},
            ENGINES_NEEDED: {
                (*pool, phase): round(engines, 4)
                for pool, need in own.engines_needed.items()
                for phase, engines in (("prefill", need.prefill), ("decode", need.decode))
            },
            LOOP_LAG: {(): round(own.loop_lag_s, 6)},
            OVERLOAD_STAGE: {(): own.overload_stage},
            BODY_BYTES: {(): own.body_bytes},
            QUOTA_DEGRADED: {(): int(own.quota_degraded)},
            CACHE_DEGRADED: {(): int(own.cache_degraded)},
        }


def _way(timeline: Timeline) -> str | None:
    """Whether the request was disaggregated; None if that was not considered."""
    if timeline.attempts and timeline.attempts[0].kind is AttemptKind.PREFILL_SIDE:
        return SPLIT
    placement = timeline.placement
    weighed = placement is not None and any(option.prefill is not None for option in placement.options)
    return WHOLE if weighed and timeline.attempts else None


class _Tally:
    """The cached series of requests of one model, pool and ending."""

    def __init__(
        self,
        histograms: Mapping[MetricFamily, HistogramFamily],
        counters: Mapping[MetricFamily, CounterFamily],
        ending: tuple[str, str, Outcome, str | None],
    ) -> None:
        self.model, pool, outcome, reason = ending
        self._offered = reason not in CLIENTS_OWN
        phase: Labels = (self.model, pool, outcome)
        self._ttft = histograms[TTFT].series(phase)
        self._tpot = histograms[TPOT].series(phase)
        self._e2e = histograms[E2E].series(phase)
        self._parts: dict[str, Histogram] = {
            part: histograms[TTFT_PART].series((*phase, part)) for part in TTFT_PARTS
        }
        self._unexplained = histograms[TTFT_PART].series((*phase, UNEXPLAINED))
        self._requests = counters[REQUESTS].series((self.model, outcome, reason or NO_LABEL))
        self._tokens = [counters[TOKENS].series((self.model, kind)) for kind in TOKEN_KINDS]
        # A rate is the difference of two scrapes, so the first retry shows only after a 0.
        counters[RETRIES].series((self.model,)).add(0)
        for ended in (Outcome.SUCCEEDED, Outcome.FAILED):
            counters[RESUMES].series((self.model, ended)).add(0)

    def count(self, timeline: Timeline, objective: _Objective) -> None:
        """Count one request."""
        self._requests.add(1)
        self._count_tokens(timeline)
        if not timeline.generates:
            return
        first_s, whole_s, per_token_s = ttft_s(timeline), e2e_s(timeline), tpot_s(timeline)
        if first_s is not None:
            self._observe_start(timeline, first_s)
        if whole_s is not None:
            self._e2e.observe(whole_s)
        if per_token_s is not None:
            self._tpot.observe(per_token_s)
        if self._offered:
            met = within(objective.slo, first_s, per_token_s, whole_s, timeline.output_tokens)
            (objective.met if met else objective.missed).add(1)

    def _count_tokens(self, timeline: Timeline) -> None:
        if timeline.from_cache:
            return  # no engine computed any
        counts = (timeline.prompt_tokens, timeline.cached_tokens, timeline.output_tokens)
        for counter, count in zip(self._tokens, counts, strict=True):
            if count is not None:
                counter.add(count)

    def _observe_start(self, timeline: Timeline, first_s: float) -> None:
        self._ttft.observe(first_s)
        explained_s = 0.0
        for (part, _), seconds in ttft_part_seconds(timeline, first_s).items():
            self._parts[part].observe(seconds)
            explained_s += seconds
        self._unexplained.observe(max(0.0, first_s - explained_s))


class _Objective:
    """The objectives of one model and class, and how many requests met them."""

    def __init__(self, slo: Slo, counters: CounterFamily, of: tuple[str, str]) -> None:
        self.slo = slo
        self.met = counters.series((*of, MET))
        self.missed = counters.series((*of, MISSED))
        for counter in (self.met, self.missed):
            counter.add(0)


class _CacheTally:
    """The cached series of requests with one cache result. Only some results have savings."""

    def __init__(
        self,
        histograms: Mapping[MetricFamily, HistogramFamily],
        counters: Mapping[MetricFamily, CounterFamily],
        result: CacheResult,
    ) -> None:
        self._requests = counters[CACHE_REQUESTS].series((result,))
        self._look_up = histograms[CACHE_LOOK_UP].series((result,))
        shadowed = result in {CacheResult.SHADOW_EXACT, CacheResult.SHADOW_SEMANTIC}
        mode = SERVED if result.served else SHADOW if shadowed else None
        self._saved: tuple[Counter, Counter, Counter] | None = None
        if mode is not None:
            start, stream = (counters[CACHE_SAVED_S].series((phase, mode)) for phase in (START, STREAM))
            self._saved = start, stream, counters[CACHE_SAVED_TOKENS].series((mode,))

    def count(self, note: CacheNote) -> None:
        """Count one request."""
        self._requests.add(1)
        if note.look_up_s:
            self._look_up.observe(note.look_up_s)
        if self._saved is not None:
            start, stream, tokens = self._saved
            start.add(note.saved_start_s or 0.0)
            stream.add(note.saved_stream_s or 0.0)
            tokens.add(note.saved_tokens or 0)
