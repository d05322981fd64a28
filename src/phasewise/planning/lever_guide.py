"""The levers in one table: which phase each helps, why, and what a model of a device says. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from phasewise.core.units import duration, size
from phasewise.costs.roofline.accelerators import ACCELERATORS
from phasewise.costs.roofline.architecture import AttentionKind
from phasewise.costs.roofline.deployment import Deployment
from phasewise.costs.roofline.model_config import architecture_of
from phasewise.costs.roofline.precision import SIXTEEN_BIT, WEIGHT_SCHEMES
from phasewise.costs.roofline.step_demand import PrefillChunk, decodes

MODELLED_ON = "an 8B model with grouped-query attention on one H100"
_CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
CONTEXT_TOKENS, ANSWER_TOKENS, LONG_PROMPT_TOKENS = 1024, 256, 8192


def typical_deployment() -> Deployment:
    """What is modelled where nobody says which model and device."""
    return Deployment(architecture_of(_CONFIG), ACCELERATORS["H100"])


def _times(on: float, off: float) -> str:
    return f"{on / off:.2f}x"


def _capacity(on: Deployment, off: Deployment) -> str:
    if not on.fits:
        return "without space for a KV cache"
    if not off.fits:
        return f"a KV cache of {on.kv_capacity_tokens:,} tokens fits, without it none"
    return f"KV capacity {_times(on.kv_capacity_tokens, off.kv_capacity_tokens)}"


def _prefix_cache(base: Deployment) -> str:
    prefill = _times(base.ttft_s(1024, 960), base.ttft_s(1024))
    return f"TTFT of 1,024 tokens with 960 cached {prefill}, TPOT 1.00x"


def _batching(base: Deployment) -> str:
    one, six = (base.tpot_s(batch, CONTEXT_TOKENS) for batch in (1, 6))
    return f"six streams at once: tokens/s {_times(6 / six, 1 / one)}, TPOT {_times(six, one)}"


def _closed_batches(base: Deployment) -> str:
    waits_s = ANSWER_TOKENS / 2 * base.tpot_s(8, CONTEXT_TOKENS)
    return (
        f"without it a new request waits {duration(waits_s)} on average: half of a static batch, "
        f"8 answers of {ANSWER_TOKENS} tokens"
    )


def _small_chunks(base: Deployment) -> str:
    stall, prompt = base.step_seconds(PrefillChunk(8192), decodes(8, CONTEXT_TOKENS)), base.ttft_s(8192)
    cut = replace(base, chunk_tokens=512)
    short = cut.step_seconds(PrefillChunk(512, 8192 - 512), decodes(8, CONTEXT_TOKENS))
    return (
        f"a prompt of 8,192 tokens among 8 streams: worst gap {_times(short, stall)}, its own TTFT "
        f"{_times(cut.ttft_s(8192), prompt)}"
    )


def _speculation(base: Deployment) -> str:
    guesses = PrefillChunk(6, CONTEXT_TOKENS, sampled_tokens=6)
    alone, among = (
        base.step_seconds(*[guesses] * streams) / base.tpot_s(streams, CONTEXT_TOKENS) for streams in (1, 256)
    )
    return (
        f"5 guesses of a draft that costs nothing: one stream's TPOT {alone / 6:.2f}x when all are right, "
        f"{alone:.2f}x when none is; among 256 streams {among / 6:.2f}x and {among:.2f}x"
    )


def _weights(scheme: str) -> Callable[[Deployment], str]:
    def modelled(base: Deployment) -> str:
        if base.architecture.precision != SIXTEEN_BIT:
            return "its weights are quantized already"
        smaller = replace(base.architecture, precision=WEIGHT_SCHEMES[scheme])
        on = replace(base, architecture=smaller)
        decode = _times(on.tpot_s(1, CONTEXT_TOKENS), base.tpot_s(1, CONTEXT_TOKENS))
        batched = _times(on.tpot_s(256, CONTEXT_TOKENS), base.tpot_s(256, CONTEXT_TOKENS))
        prefill = _times(on.ttft_s(4096), base.ttft_s(4096))
        return (
            f"TPOT {decode} for one stream, {batched} for 256; TTFT of 4,096 tokens {prefill}; "
            f"{_capacity(on, base)}"
        )

    return modelled


def _kv_fp8(base: Deployment) -> str:
    on = replace(base, kv_element_bytes=1.0)
    one = _times(on.tpot_s(1, 2000), base.tpot_s(1, 2000))
    batched = _times(on.tpot_s(64, 8192), base.tpot_s(64, 8192))
    return f"{_capacity(on, base)}; TPOT {one} for one stream at 2,000 tokens, {batched} for 64 at 8,192"


def _attention(base: Deployment) -> str:
    demand = base.demand(PrefillChunk(8192))
    written_s = 2 * demand.score_bytes / base.rates.bytes_per_s
    return (
        f"a score matrix that was written and read would add {duration(written_s)} to the "
        f"{duration(base.ttft_s(8192))} of a prompt of 8,192 tokens; FlashAttention never writes it"
    )


def _shared_heads(base: Deployment) -> str:
    attention = base.architecture.attention
    if attention.kind is AttentionKind.MULTI_HEAD:
        return "every head of this model has a key and a value of its own"
    shrink = base.architecture.kv_shrink
    more_s = (shrink - 1) * base.step(decodes(64, CONTEXT_TOKENS)).kv_s
    now_s = base.tpot_s(64, CONTEXT_TOKENS)
    return (
        f"{attention.kind}: KV cache {1 / shrink:.2f}x; TPOT {_times(now_s, now_s + more_s)} for 64 streams "
        f"at {CONTEXT_TOKENS:,} tokens"
    )


def _apart(base: Deployment) -> str:
    beside_s = base.step_seconds(PrefillChunk(base.step_tokens), decodes(8, CONTEXT_TOKENS))
    apart_s = base.tpot_s(8, CONTEXT_TOKENS)
    moved = size(base.kv_bytes(LONG_PROMPT_TOKENS))
    return (
        f"worst gap of 8 streams {duration(beside_s)} -> {duration(apart_s)}; the KV cache of a prompt of "
        f"{LONG_PROMPT_TOKENS:,} tokens, {moved}, has to move"
    )


def _answer_cache(base: Deployment) -> str:
    prompt_s = base.ttft_s(CONTEXT_TOKENS)
    answer_s = ANSWER_TOKENS * base.tpot_s(8, CONTEXT_TOKENS)
    return (
        f"a hit saves the prefill of {CONTEXT_TOKENS:,} tokens, {duration(prompt_s)}, and an answer of "
        f"{ANSWER_TOKENS}, {duration(answer_s)}"
    )


class Helps(StrEnum):
    """What a lever does to a phase."""

    YES = "yes"
    LITTLE = "little"
    NO = "no"
    COSTS = "costs"


@dataclass(frozen=True, slots=True)
class GuideLever:
    """A lever, the phases that it helps, the reason, and what it would do to a deployment."""

    name: str
    prefill: Helps
    decode: Helps
    why: str
    modelled_on: Callable[[Deployment], str]


GUIDE = (
    GuideLever(
        "larger batch",
        Helps.NO,
        Helps.YES,
        "one read of the weights serves every stream; one prompt keeps the math busy by itself",
        _batching,
    ),
    GuideLever(
        "continuous batching",
        Helps.YES,
        Helps.YES,
        "a request joins at the next step and leaves when it ends, instead of waiting for a whole batch",
        _closed_batches,
    ),
    GuideLever(
        "FlashAttention",
        Helps.YES,
        Helps.LITTLE,
        "the score matrix, which grows with the square of a prompt, is never written to memory",
        _attention,
    ),
    GuideLever(
        "chunked prefill",
        Helps.COSTS,
        Helps.YES,
        "streams wait for a piece of a prompt instead of all of it; each piece reads the weights again",
        _small_chunks,
    ),
    GuideLever(
        "prefix caching",
        Helps.YES,
        Helps.NO,
        "a known beginning is not computed again; decoding reads as much KV cache as before",
        _prefix_cache,
    ),
    GuideLever(
        "weight quantization, W8A8",
        Helps.YES,
        Helps.YES,
        "half the bytes to read, and twice the arithmetic where the device multiplies 8 bits",
        _weights("w8a8"),
    ),
    GuideLever(
        "weight quantization, W4A16",
        Helps.NO,
        Helps.YES,
        "a quarter of the bytes to read; the arithmetic stays in 16 bits",
        _weights("w4a16"),
    ),
    GuideLever(
        "KV quantization",
        Helps.NO,
        Helps.YES,
        "half the KV cache to read and to keep, which shows with many streams or long contexts",
        _kv_fp8,
    ),
    GuideLever(
        "speculative decoding",
        Helps.NO,
        Helps.YES,
        "one read of the weights checks several guessed tokens; in a large batch wrong guesses cost",
        _speculation,
    ),
    GuideLever(
        "GQA, MQA",
        Helps.LITTLE,
        Helps.YES,
        "heads share keys and values, so that there is less KV cache to read; part of the model",
        _shared_heads,
    ),
    GuideLever(
        "disaggregation",
        Helps.COSTS,
        Helps.YES,
        "no prompt is computed among streams; the KV cache has to move before the second token",
        _apart,
    ),
    GuideLever(
        "semantic caching",
        Helps.YES,
        Helps.YES,
        "a question that was answered before is not computed at all",
        _answer_cache,
    ),
)


@dataclass(frozen=True, slots=True)
class GuideRow:
    """A lever with what is modelled."""

    lever: GuideLever
    modelled: str


def guide_rows(deployment: Deployment) -> tuple[GuideRow, ...]:
    return tuple(GuideRow(lever, lever.modelled_on(deployment)) for lever in GUIDE)
