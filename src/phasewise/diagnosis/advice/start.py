"""Fixes for a slow start, by cause: queueing, long prompts, prompts computed again."""

from __future__ import annotations

from collections.abc import Callable

from phasewise.diagnosis.advice.fix import Figure, Fix, LeverChange
from phasewise.diagnosis.advice.levers import LITTLE_IN_COMMON, AvailableLevers
from phasewise.diagnosis.analysis.window_summary import WindowSummary
from phasewise.diagnosis.finding import Cause
from phasewise.engines.port import Ability

Remedy = Callable[[AvailableLevers], tuple[Fix | None, ...]]
"""Fixes for a cause, best first; None for a lever that does not apply."""

SPECULATION = "speculative decoding: it speeds up decode, but the time is lost before the first token"
WEIGHT_QUANTIZATION = (
    "weight-only quantization: it saves memory reads in decode, but prefill is compute-bound"
)
SMALLER_CHUNKS = "smaller prefill chunks: they only spread the same work over more steps"
HIGHER_CAP = "a higher max_num_seqs: requests do not wait for a free slot"
MORE_KV_CACHE = "more memory for the KV cache: requests do not wait for KV blocks"


def outside(what: str, price: str, verify: str = "") -> Fix:
    """A fix that no engine flag makes."""
    return Fix(what, price, Figure.TTFT_P50, verify=verify)


SEMANTIC_CACHE = Fix(
    "answer repeated questions from the gateway's semantic cache, in shadow mode first",
    "a wrong answer when two questions only look alike",
    Figure.TTFT_P50,
    fleet_line="gateway: {cache: {semantic: {}}}",
)
LESS_CONTEXT = outside("send less context, or retrieve less", "quality, where the context mattered")
MORE_DEVICES = Fix(
    "compute each prompt on two devices (tensor parallel)",
    "a second device; a slow link between the two loses the gain",
    Figure.TTFT_P50,
    setting=LeverChange("devices", 2),
    fleet_line="pools: [{gpus: 2}]",
)
SAME_ENGINE = Fix(
    "route requests with the same prefix to the engine that has it cached: one gateway with prefix affinity",
    "slightly less even load, by at most one prompt",
    Figure.TTFT_P50,
    fleet_line="gateway: {policy: prefix_affinity}",
)
SAME_SALT = Fix(
    "use one cache salt for all clients that may share a prefix: the gateway derives it from the key's "
    "tenant",
    "members of a tenant can infer from response times what other members have asked",
    Figure.TTFT_P50,
    needs=Ability.SALT_CACHE,
)
SHARED_FIRST = outside(
    "put the shared part of a prompt first, and varying parts (dates, ids, names) last",
    "a change in the application's prompts",
)
EVEN_LOAD = Fix(
    "put all engines behind one gateway that sends each request to the engine with the fewest tokens in "
    "progress",
    "none, except for prefixes that the uneven load kept on one engine",
    Figure.TTFT_P90,
    fleet_line="gateway: {policy: least_outstanding}",
)

KV_TRANSFER_CHECKED = outside(
    "check every pair of engines, which names what prevents the KV transfer",
    "seconds, and one small prompt per pair",
    "phasewise check FLEET.yaml",
)
FAILURES_SHOWN = Fix(
    "let decode engines report a failed KV transfer instead of computing the prompt again",
    "none: the gateway retries by itself",
    Figure.TTFT_P50,
    setting=LeverChange("failed_kv_transfers", "fail"),
    fleet_line="pools: [{role: decode}] (phasewise up then writes the flag)",
)

REMEDIES: dict[Cause, Remedy] = {
    Cause.OVERLOAD: lambda levers: (
        levers.another_engine(),
        outside(
            "send fewer requests, or reject some early (load shedding)", "some requests are not answered"
        ),
        SEMANTIC_CACHE,
    ),
    Cause.BURSTS: lambda levers: (
        outside("spread the requests over time in the client that sends them at once", "they end later"),
        levers.another_engine(),
        outside("give users who wait priority over jobs that do not", "the jobs end later"),
    ),
    Cause.BATCH_CAP_LOW: lambda levers: (levers.more_running(), levers.another_engine()),
    Cause.KV_EXHAUSTED: lambda levers: (
        levers.more_kv_cache(Figure.TTFT_P50),
        levers.kv_in_eight_bits(Figure.TTFT_P50),
        levers.as_many_as_fit(),
        levers.another_engine(),
    ),
    Cause.UNEVEN_LOAD: lambda levers: (EVEN_LOAD,),
    Cause.LONG_PROMPTS: lambda levers: (
        levers.prefix_cache_on_trial(),
        LESS_CONTEXT,
        MORE_DEVICES,
        SEMANTIC_CACHE,
    ),
    Cause.CHUNKS_SMALL: lambda levers: (levers.larger_chunks(), LESS_CONTEXT),
    Cause.PREFIX_CACHE_OFF: lambda levers: (levers.prefix_cache_on(), SHARED_FIRST),
    Cause.PREFIX_SALTED: lambda levers: (
        (SHARED_FIRST, SAME_SALT) if levers.heads_vary else (SAME_SALT, SHARED_FIRST)
    ),
    Cause.PREFIX_SCATTERED: lambda levers: (SAME_ENGINE,),
    Cause.PREFIX_EVICTED: lambda levers: (
        levers.more_kv_cache(Figure.TTFT_P50),
        levers.kv_in_eight_bits(Figure.TTFT_P50),
        SAME_ENGINE,
    ),
    Cause.KV_NOT_TRANSFERRED: lambda levers: (KV_TRANSFER_CHECKED, FAILURES_SHOWN),
}

USELESS: dict[Cause, tuple[str, ...]] = {
    Cause.OVERLOAD: (
        SPECULATION,
        SMALLER_CHUNKS,
        "a higher max_num_seqs: more requests at once do not make the engine faster",
    ),
    Cause.BURSTS: (
        SPECULATION,
        SMALLER_CHUNKS,
        "a larger engine for the mean load: between bursts it is idle",
    ),
    Cause.BATCH_CAP_LOW: (
        SPECULATION,
        SMALLER_CHUNKS,
        "prefix caching: prompts are computed quickly once they have a free slot",
    ),
    Cause.KV_EXHAUSTED: (
        "a higher max_num_seqs: the KV cache has no space for more requests",
        SMALLER_CHUNKS,
        "weight-only quantization, unless the KV cache gets the freed memory",
    ),
    Cause.UNEVEN_LOAD: ("another engine, as long as requests do not go to the idle one", SPECULATION),
    Cause.LONG_PROMPTS: (
        SPECULATION,
        WEIGHT_QUANTIZATION,
        HIGHER_CAP,
        "disaggregated prefill: the prompt takes as long on another engine",
    ),
    Cause.CHUNKS_SMALL: (SPECULATION, WEIGHT_QUANTIZATION, HIGHER_CAP),
    Cause.PREFIX_CACHE_OFF: (SPECULATION, WEIGHT_QUANTIZATION, MORE_KV_CACHE),
    Cause.PREFIX_SALTED: (
        SPECULATION,
        MORE_KV_CACHE,
        "routing by prefix: the prompts differ on every engine",
    ),
    Cause.PREFIX_SCATTERED: (
        SPECULATION,
        WEIGHT_QUANTIZATION,
        "another engine: its cache would hold even less",
    ),
    Cause.PREFIX_EVICTED: (SPECULATION, WEIGHT_QUANTIZATION, HIGHER_CAP),
    Cause.KV_NOT_TRANSFERRED: (
        SPECULATION,
        "another prefill engine: its KV would not arrive either",
        MORE_KV_CACHE,
    ),
}


def also_useless(cause: Cause, summary: WindowSummary) -> tuple[str, ...]:
    """What would not help with these prompts."""
    use = summary.prefix
    if (
        cause is not Cause.LONG_PROMPTS
        or use is None
        or max(use.shared, use.repeated or 0.0) >= LITTLE_IN_COMMON
    ):
        return ()
    return ("prefix caching: these prompts have little in common",)
