"""What to do about each cause, with the exact flag and its price, and which popular levers would not help."""

from __future__ import annotations

from dataclasses import dataclass, replace

from phasewise.diagnosis.findings import Cause
from phasewise.diagnosis.picture import WorkloadShape


@dataclass(frozen=True, slots=True)
class Fix:
    """A lever for a cause."""

    what: str
    engine_flag: str | None
    fleet_line: str | None
    price: str


@dataclass(frozen=True, slots=True)
class Advice:
    """What helps against a cause, best first, and what does not, with the reason."""

    fixes: tuple[Fix, ...]
    would_not_help: tuple[str, ...]


_SPECULATION = "speculative decoding: it shortens decode, and the time is lost before the first token"
_WEIGHT_QUANTISATION = (
    "weight-only quantisation: it saves memory reads in decode; prefill is bound by compute"
)
_PREFIX_CACHE = "the prefix cache: it shortens prefill, and the time is lost in decode"

_KEEP_TOGETHER = Fix(
    "send requests that share a prefix to the same engine, and leave its KV cache room to keep it",
    None,
    None,
    "engines may be loaded less evenly",
)

ADVICE: dict[Cause, Advice] = {
    Cause.QUEUEING: Advice(
        fixes=(
            Fix(
                "where they wait in the engine's queue: let more run at once, if KV memory allows",
                "--max-num-seqs N",
                "pools: [{levers: {max_running: N}}]",
                "each step serves more streams and takes longer: TPOT rises",
            ),
            Fix("add an engine", None, "pools: [{replicas: 2}]", "another device"),
        ),
        would_not_help=(_SPECULATION, "smaller prefill chunks: they spread the same work over more steps"),
    ),
    Cause.LONG_PROMPTS: Advice(
        fixes=(
            Fix("send less context, or retrieve less", None, None, "quality, where the context mattered"),
            Fix(
                "compute prompts in larger chunks",
                "--max-num-batched-tokens N",
                "pools: [{levers: {prefill_chunk_tokens: N}}]",
                "running streams stall for longer while a chunk is computed",
            ),
            Fix("use a faster device, or more of them, for prefill", None, None, "hardware"),
        ),
        would_not_help=(
            _SPECULATION,
            _WEIGHT_QUANTISATION,
            "a higher batch cap: requests are not waiting for a place",
        ),
    ),
    Cause.PREFIX_NOT_REUSED: Advice(
        fixes=(
            Fix(
                "turn the prefix cache on",
                "--enable-prefix-caching",
                "pools: [{levers: {prefix_cache: true}}]",
                "next to none; KV memory is shared with cached blocks",
            ),
            Fix(
                "put what is shared first and what varies (dates, ids, user names) last",
                None,
                None,
                "a change in the application's prompts",
            ),
        ),
        would_not_help=(_SPECULATION, _WEIGHT_QUANTISATION),
    ),
    Cause.CHUNKS_STALL_DECODES: Advice(
        fixes=(
            Fix(
                "compute prompts in smaller chunks",
                "--max-num-batched-tokens N",
                "pools: [{levers: {prefill_chunk_tokens: N}}]",
                "long prompts take more steps, so their TTFT rises",
            ),
            Fix(
                "prefill on engines of their own, which phasewise does not route to yet",
                "--kv-transfer-config JSON",
                None,
                "another engine, and the KV cache has to move",
            ),
        ),
        would_not_help=(
            "the prefix cache, unless the prompts that stall the others share their beginnings",
            "weight quantisation: the stall is a prompt's compute, not a decode step's reads",
            "a higher batch cap: more streams would stall",
        ),
    ),
    Cause.DECODE_STEP: Advice(
        fixes=(
            Fix(
                "let fewer requests share a step",
                "--max-num-seqs N",
                "pools: [{levers: {max_running: N}}]",
                "the others wait: TTFT and throughput suffer",
            ),
            Fix(
                "quantise the weights, so that a step reads less",
                "--quantization METHOD",
                "pools: [{levers: {weight_quantisation: METHOD}}]",
                "check the quality of answers",
            ),
            Fix(
                "guess tokens ahead, where the text repeats the prompt",
                '--speculative-config \'{"method":"ngram",...}\'',
                "pools: [{levers: {speculation: {method: ngram}}}]",
                "slower where the guesses are wrong",
            ),
        ),
        would_not_help=(_PREFIX_CACHE, "larger prefill chunks: no prompt is in the way"),
    ),
    Cause.PREEMPTIONS: Advice(
        fixes=(
            Fix(
                "give the KV cache more memory",
                "--kv-cache-memory-bytes N",
                "pools: [{levers: {kv_memory: 2GiB}}]",
                "memory; less is left for weights and activations",
            ),
            Fix(
                "let fewer requests run at once",
                "--max-num-seqs N",
                "pools: [{levers: {max_running: N}}]",
                "the others wait: TTFT rises",
            ),
            Fix(
                "store the KV cache in 8 bits",
                "--kv-cache-dtype fp8",
                "pools: [{levers: {kv_dtype: fp8}}]",
                "check the quality of answers",
            ),
        ),
        would_not_help=("smaller prefill chunks: the stall is lost work, not a long step",),
    ),
    Cause.OUTSIDE_ENGINE: Advice(
        fixes=(
            Fix("time the same request straight at the engine's port", None, None, "none"),
            Fix(
                "look at proxies, TLS, DNS and the engine host's CPU between here and there",
                None,
                None,
                "time",
            ),
        ),
        would_not_help=("any engine flag: the engine's own clocks do not see this time",),
    ),
}


def advise(cause: Cause, workload: WorkloadShape) -> Advice:
    """The advice for a cause, without what is done already."""
    advice = ADVICE[cause]
    if cause is Cause.PREFIX_NOT_REUSED and workload.prefix_cache_on:
        return replace(advice, fixes=(_KEEP_TOGETHER, *advice.fixes[1:]))
    return advice
