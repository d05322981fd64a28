"""What helps against a slow start, by cause: waiting for a place, long prompts, prompts computed again."""

from __future__ import annotations

from collections.abc import Callable

from phasewise.diagnosis.advice_levers import Levers
from phasewise.diagnosis.cause import Cause
from phasewise.diagnosis.fix import Figure, Fix
from phasewise.diagnosis.picture import Picture

Remedy = Callable[[Levers], tuple[Fix | None, ...]]
"""Fixes for a cause, best first; None where a lever has nothing to give."""

SPECULATION = "speculative decoding: it shortens decode, and the time is lost before the first token"
WEIGHT_QUANTISATION = "weight-only quantisation: it saves reads in decode; prefill is bound by compute"
SMALLER_CHUNKS = "smaller prefill chunks: they spread the same work over more steps"
HIGHER_CAP = "a higher batch cap: requests are not waiting for a place"
KV_MEMORY = "more KV memory: requests are not waiting for room in it"


def _outside(what: str, price: str, verify: str = "") -> Fix:
    return Fix(what, price, Figure.TTFT_P50, verify=verify)


SEMANTIC_CACHE = _outside(
    "answer questions that were asked before from a semantic cache, which phasewise does not have yet",
    "an answer to a question that only looked alike",
)
LESS_CONTEXT = _outside("send less context, or retrieve less", "quality, where the context mattered")
MORE_DEVICES = Fix(
    "compute each prompt on two devices at once",
    "a second device; its gain is lost where the link between them is slow",
    Figure.TTFT_P50,
    engine_flag="--tensor-parallel-size 2",
    fleet_line="pools: [{gpus: 2}]",
)
SAME_ENGINE = Fix(
    "send requests that share a beginning to the engine that holds it: one gateway that places by prefix",
    "engines are loaded less evenly, by as much as a prompt at most",
    Figure.TTFT_P50,
    fleet_line="gateway: {policy: prefix_affinity}",
)
SAME_SALT = _outside(
    "give one cache salt to all who may share a prefix: the gateway derives it from the key's tenant",
    "members of a tenant can tell by the time of an answer what others of it have asked",
)
SHARED_FIRST = _outside(
    "put what is shared first in a prompt, and what varies (dates, ids, names) last",
    "a change in the application's prompts",
)
EVEN_LOAD = Fix(
    "put all engines behind one gateway that sends each request where the fewest tokens are under way",
    "none, but for prefixes that were kept together by an uneven load",
    Figure.TTFT_P90,
    fleet_line="gateway: {policy: least_outstanding}",
)

HAND_OVER_CHECKED = _outside(
    "have every pair of engines proved, which names what keeps KV from moving",
    "seconds, and one small prompt per pair",
    "phasewise check FLEET.yaml",
)
FAILURES_SHOWN = Fix(
    "let decode engines say that KV did not come instead of computing it again: the gateway then decides",
    "none: the gateway tries another way by itself",
    Figure.TTFT_P50,
    engine_flag='--kv-transfer-config \'{"kv_connector":"NixlConnector","kv_role":"kv_consumer",'
    '"kv_load_failure_policy":"fail"}\'',
    fleet_line="pools: [{role: decode}] (phasewise up then writes the flag)",
)

REMEDIES: dict[Cause, Remedy] = {
    Cause.OVERLOAD: lambda levers: (
        levers.another_engine(),
        _outside("send fewer requests, or refuse some early", "somebody goes without an answer"),
        SEMANTIC_CACHE,
    ),
    Cause.BATCH_CAP_LOW: lambda levers: (levers.more_running(), levers.another_engine()),
    Cause.KV_EXHAUSTED: lambda levers: (
        levers.more_kv_memory(Figure.TTFT_P50),
        levers.kv_in_eight_bits(Figure.TTFT_P50),
        levers.as_many_as_fit(),
        levers.another_engine(),
    ),
    Cause.UNEVEN_LOAD: lambda levers: (EVEN_LOAD,),
    Cause.LONG_PROMPTS: lambda levers: (LESS_CONTEXT, MORE_DEVICES, SEMANTIC_CACHE),
    Cause.CHUNKS_SMALL: lambda levers: (levers.larger_chunks(), LESS_CONTEXT),
    Cause.PREFIX_CACHE_OFF: lambda levers: (levers.prefix_cache_on(), SHARED_FIRST),
    Cause.PREFIX_SALTED: lambda levers: (
        (SHARED_FIRST, SAME_SALT) if levers.heads_vary else (SAME_SALT, SHARED_FIRST)
    ),
    Cause.PREFIX_SCATTERED: lambda levers: (SAME_ENGINE,),
    Cause.PREFIX_EVICTED: lambda levers: (
        levers.more_kv_memory(Figure.TTFT_P50),
        levers.kv_in_eight_bits(Figure.TTFT_P50),
        SAME_ENGINE,
    ),
    Cause.KV_NOT_HANDED_OVER: lambda levers: (HAND_OVER_CHECKED, FAILURES_SHOWN),
}

LITTLE_IN_COMMON = 0.2
"""What prompts share less than this saves no start, kept or not."""

USELESS: dict[Cause, tuple[str, ...]] = {
    Cause.OVERLOAD: (
        SPECULATION,
        SMALLER_CHUNKS,
        "a higher batch cap: the engine computes as fast as it can, and more at once does not make it faster",
    ),
    Cause.BATCH_CAP_LOW: (
        SPECULATION,
        SMALLER_CHUNKS,
        "the prefix cache: prompts are quickly computed once they have a place",
    ),
    Cause.KV_EXHAUSTED: (
        "a higher batch cap: there is no room for more",
        SMALLER_CHUNKS,
        "weight-only quantisation, unless the memory that it frees is given to the KV cache",
    ),
    Cause.UNEVEN_LOAD: ("another engine, while requests do not go to the one that is idle", SPECULATION),
    Cause.LONG_PROMPTS: (
        SPECULATION,
        WEIGHT_QUANTISATION,
        HIGHER_CAP,
        "prefill on engines of its own: the prompt takes as long there",
    ),
    Cause.CHUNKS_SMALL: (SPECULATION, WEIGHT_QUANTISATION, HIGHER_CAP),
    Cause.PREFIX_CACHE_OFF: (SPECULATION, WEIGHT_QUANTISATION, KV_MEMORY),
    Cause.PREFIX_SALTED: (
        SPECULATION,
        KV_MEMORY,
        "routing by prefix: what parts them does so on every engine",
    ),
    Cause.PREFIX_SCATTERED: (SPECULATION, WEIGHT_QUANTISATION, "another engine: it would know even less"),
    Cause.PREFIX_EVICTED: (SPECULATION, WEIGHT_QUANTISATION, HIGHER_CAP),
    Cause.KV_NOT_HANDED_OVER: (
        SPECULATION,
        "another prefill engine: what it computes does not arrive either",
        KV_MEMORY,
    ),
}


def also_useless(cause: Cause, picture: Picture) -> tuple[str, ...]:
    """What would not help either, as far as these prompts are known."""
    use = picture.prefix
    if (
        cause is not Cause.LONG_PROMPTS
        or use is None
        or max(use.shared, use.repeated or 0.0) >= LITTLE_IN_COMMON
    ):
        return ()
    return ("the prefix cache: these prompts have little in common",)
