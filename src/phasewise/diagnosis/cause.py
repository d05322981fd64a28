"""The words of a verdict: which phase, which cause, how sure. A closed vocabulary, so that programs can rely
on it; what makes a cause true stands in rules/, what helps against it in advice.py.
"""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """Where the time is lost."""

    START = "slow_to_start"
    STREAM = "slow_to_stream"
    # Nowhere: what was measured cannot be trusted.
    MEASUREMENT = "measurement"


class Cause(StrEnum):
    """Why it is lost."""

    # requests wait for a place
    OVERLOAD = "overload"
    BATCH_CAP_LOW = "batch_cap_too_low"
    KV_EXHAUSTED = "kv_memory_exhausted"
    UNEVEN_LOAD = "uneven_load"
    # prompts take long to compute
    LONG_PROMPTS = "long_prompts"
    CHUNKS_SMALL = "chunks_too_small"
    # prompts are computed again
    PREFIX_CACHE_OFF = "prefix_cache_off"
    PREFIX_SALTED = "prefix_salted"
    PREFIX_SCATTERED = "prefix_scattered"
    PREFIX_EVICTED = "prefix_evicted"
    KV_NOT_HANDED_OVER = "kv_not_handed_over"
    # streams stand still
    CHUNKS_STALL = "prefill_chunks_stall_decodes"
    ENGINE_PAUSES = "engine_pauses"
    SLOW_CLIENT = "slow_client"
    # every token takes long
    DECODE_WEIGHTS = "decode_bound_by_weights"
    DECODE_KV_READS = "decode_bound_by_kv_reads"
    DECODE_OVERHEAD = "decode_bound_by_overhead"
    DECODE_FLOOR = "decode_bound_by_weights_or_overhead"
    BATCH_CAP_HIGH = "batch_cap_too_high"
    SPECULATION_UNPAID = "speculation_does_not_pay"
    # the machine, in either phase
    ENGINE_STARVED = "engine_starved_of_cpu"
    COLD_START = "cold_start"
    FRONT_END_BUSY = "front_end_cpu_bound"
    # on the way
    NETWORK_OR_PROXY = "network_or_proxy"
    GATEWAY = "gateway_wait"
    # not the server
    GENERATOR_LAG = "generator_lag"
    WARM_CACHE = "warm_cache"
    DRIFT = "drift"


class Confidence(StrEnum):
    """How far the evidence carries."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
