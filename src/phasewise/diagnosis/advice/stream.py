"""Fixes for slow streams, by cause: stalls, and tokens that are all slow."""

from __future__ import annotations

from phasewise.diagnosis.advice.fix import Figure, Fix, LeverChange
from phasewise.diagnosis.advice.start import LESS_CONTEXT, Remedy
from phasewise.diagnosis.finding import Cause
from phasewise.engines.port import Ability

PREFIX_CACHE = "prefix caching: it shortens prefill, but the time is lost in decode"
LARGER_CHUNKS = "larger prefill chunks: no prompt delays these steps"
DISAGGREGATION = "disaggregated prefill: decode steps would take as long"


def _outside(what: str, price: str, aims_at: Figure = Figure.TPOT_P50) -> Fix:
    return Fix(what, price, aims_at)


PREFILL_ELSEWHERE = Fix(
    "disaggregate prefill and decode, for the requests where it pays off",
    "another engine, and a KV transfer per request; TTFT does not improve",
    Figure.ITL_P99,
    fleet_line="pools: [{name: prefill, role: prefill}, {name: decode, role: decode}]",
    verify="phasewise compare FLEET.yaml CHANGED.yaml",
    needs=Ability.TRANSFER_KV,
)
QUANTIZED_WEIGHTS = Fix(
    "quantize the weights to 4 bits, so that a step reads a quarter of them",
    "check the answers; the model has to be quantized once",
    Figure.TPOT_P50,
    fleet_line="model: a w4a16 form of it, from its publisher or by llm-compressor",
    needs=Ability.QUANTIZE,
)
COMPILED = Fix(
    "let the engine compile its steps or use CUDA graphs",
    "minutes at every startup",
    Figure.TPOT_P50,
    setting=LeverChange("compiled", True),
)
TWO_DEVICES = Fix(
    "split the weights over two devices (tensor parallel)",
    "a second device, and communication between the two in every step",
    Figure.TPOT_P50,
    setting=LeverChange("devices", 2),
    fleet_line="pools: [{gpus: 2}]",
)
DRAFT_MODEL = Fix(
    "draft tokens with a small model of the same family (speculative decoding)",
    "its memory; wasted where drafts are rejected",
    Figure.TPOT_P50,
    setting=LeverChange("draft_model", "DRAFT.gguf"),
)
FIND_WHICH = Fix(
    "calibrate the engine to find out which of the two it is",
    "two minutes of the engine's time",
    Figure.TPOT_P50,
    verify="phasewise engine calibrate URL",
    needs=Ability.BE_CALIBRATED,
)

REMEDIES: dict[Cause, Remedy] = {
    Cause.CHUNKS_STALL: lambda levers: (
        levers.prefix_cache_on_trial(),
        # More steps for the same prompts: where prompts start late already, streams do not get the time back.
        *(
            (PREFILL_ELSEWHERE, LESS_CONTEXT, levers.smaller_chunks())
            if levers.prompts_start_late
            else (levers.smaller_chunks(), PREFILL_ELSEWHERE, LESS_CONTEXT)
        ),
    ),
    Cause.ENGINE_PAUSES: lambda levers: (
        _outside(
            "check the engine's log and its host at the times of the pauses: swapping, a debugger, a "
            "suspended machine",
            "time",
            Figure.ITL_P99,
        ),
    ),
    Cause.SLOW_CLIENT: lambda levers: (
        _outside("let the client read its stream at once, and process the text separately", "none"),
        Fix(
            "send several tokens in a chunk, so that there is less to read",
            "text appears in larger pieces",
            Figure.TPOT_P50,
            setting=LeverChange("tokens_per_chunk", 4),
        ),
    ),
    Cause.DECODE_WEIGHTS: lambda levers: (QUANTIZED_WEIGHTS, levers.guesses_on(), DRAFT_MODEL, TWO_DEVICES),
    Cause.DECODE_KV_READS: lambda levers: (
        levers.kv_in_eight_bits(Figure.TPOT_P50),
        levers.fewer_running(),
        LESS_CONTEXT,
    ),
    Cause.DECODE_OVERHEAD: lambda levers: (COMPILED, levers.guesses_on()),
    Cause.DECODE_FLOOR: lambda levers: (
        levers.guesses_on(),
        DRAFT_MODEL,
        COMPILED,
        QUANTIZED_WEIGHTS,
        FIND_WHICH,
    ),
    Cause.BATCH_CAP_HIGH: lambda levers: (levers.fewer_running(), levers.another_engine(Figure.TPOT_P50)),
    Cause.SPECULATION_UNPAID: lambda levers: (levers.guesses_off(),),
}

USELESS: dict[Cause, tuple[str, ...]] = {
    Cause.CHUNKS_STALL: (
        "prefix caching, unless the stalling prompts share a prefix",
        "weight quantization: the stall is the compute of a prompt, not the memory reads of decode",
        "a higher max_num_seqs: more streams would stall",
    ),
    Cause.ENGINE_PAUSES: ("any engine flag: no step was running",),
    Cause.SLOW_CLIENT: ("any lever of prefill or decode: the tokens were ready",),
    Cause.DECODE_WEIGHTS: (
        PREFIX_CACHE,
        LARGER_CHUNKS,
        "fewer requests at once: a step reads all weights even for one stream",
    ),
    Cause.DECODE_KV_READS: (
        PREFIX_CACHE,
        LARGER_CHUNKS,
        "weight quantization: the steps read contexts, not weights",
    ),
    Cause.DECODE_OVERHEAD: (
        PREFIX_CACHE,
        LARGER_CHUNKS,
        "weight quantization: the bottleneck is overhead, not memory reads",
    ),
    Cause.DECODE_FLOOR: (
        PREFIX_CACHE,
        LARGER_CHUNKS,
        "fewer requests at once: a step takes as long for one stream",
    ),
    Cause.BATCH_CAP_HIGH: (PREFIX_CACHE, LARGER_CHUNKS, DISAGGREGATION),
    Cause.SPECULATION_UNPAID: (
        PREFIX_CACHE,
        "more draft tokens per step: they cost more and are accepted no more often",
    ),
}
