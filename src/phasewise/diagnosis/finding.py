"""A finding: a cause with its cost, its evidence and what would refute it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

# --- The closed vocabulary of a verdict: phase, cause, confidence.


class Phase(StrEnum):
    """Where the time is lost."""

    START = "slow_to_start"
    STREAM = "slow_to_stream"
    # In neither: requests are not answered, or nobody waits for the answer.
    FAILING = "failing"
    # In neither: the measurement cannot be trusted.
    MEASUREMENT = "measurement"


class Cause(StrEnum):
    """Why it is lost."""

    # requests wait for a free slot
    OVERLOAD = "overload"
    BATCH_CAP_LOW = "batch_cap_too_low"
    KV_EXHAUSTED = "kv_memory_exhausted"
    UNEVEN_LOAD = "uneven_load"
    BURSTS = "bursts"
    # prompts take long to compute
    LONG_PROMPTS = "long_prompts"
    CHUNKS_SMALL = "chunks_too_small"
    # prompts are computed again
    PREFIX_CACHE_OFF = "prefix_cache_off"
    PREFIX_SALTED = "prefix_salted"
    PREFIX_SCATTERED = "prefix_scattered"
    PREFIX_EVICTED = "prefix_evicted"
    KV_NOT_TRANSFERRED = "kv_not_transferred"
    # streams stall
    CHUNKS_STALL = "prefill_chunks_stall_decodes"
    SLOW_CLIENT = "slow_client"
    # every token takes long
    DECODE_WEIGHTS = "decode_bound_by_weights"
    DECODE_KV_READS = "decode_bound_by_kv_reads"
    DECODE_OVERHEAD = "decode_bound_by_overhead"
    DECODE_FLOOR = "decode_bound_by_weights_or_overhead"
    BATCH_CAP_HIGH = "batch_cap_too_high"
    SPECULATION_UNPAID = "speculation_does_not_pay"
    # the machine, in either phase
    ENGINE_PAUSES = "engine_pauses"
    ENGINE_HUNG = "engine_hung"
    ENGINE_DOWN = "engine_down"
    NUMBER_FORMAT = "slow_number_format"
    ENGINE_STARVED = "engine_starved_of_cpu"
    THREADS_HIGH = "too_many_threads"
    COLD_START = "cold_start"
    FRONT_END_BUSY = "front_end_cpu_bound"
    # network and gateway
    NETWORK_OR_PROXY = "network_or_proxy"
    GATEWAY = "gateway_wait"
    # requests without an answer
    REQUESTS_REJECTED = "requests_rejected"
    GATEWAY_REJECTS = "gateway_rejects"
    CLIENTS_CANCEL = "clients_cancel"
    # not the server
    GENERATOR_LAG = "generator_lag"
    WARM_CACHE = "warm_cache"
    DRIFT = "drift"


class Confidence(StrEnum):
    """How strong the evidence is."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


_ORDER = (Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH)


def least(*confidences: Confidence) -> Confidence:
    return min(confidences, key=_ORDER.index)


class FactSource(StrEnum):
    """The source of a fact."""

    CLIENT = "client"
    GATEWAY = "gateway"
    STEP_RECORD = "step record"
    ENGINE_REPORT = "engine report"
    COUNTERS = "engine counters"
    HOST = "host"
    FIT = "fitted costs"
    DERIVED = "derived"


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact in words, and its source."""

    words: str
    source: FactSource


@dataclass(frozen=True, slots=True)
class Finding:
    """Why time is lost in a phase.

    `share` is the cause's part of the phase's latency: of the mean TTFT for a start, of the mean time per
    output token for a stream. `lost_s` are the seconds beyond the objective, over all requests of the window,
    that it accounts for; findings are ranked by it. A `rival` would look the same in this evidence:
    `refuted_by` decides between them.
    """

    phase: Phase
    cause: Cause
    share: float
    lost_s: float
    facts: tuple[Fact, ...]
    confidence: Confidence
    refuted_by: str
    rival: Cause | None = None
