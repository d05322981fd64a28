"""What helps against slow streams, by cause: streams that stand still, and tokens that all take long."""

from __future__ import annotations

from phasewise.diagnosis.advice_start import LESS_CONTEXT, Remedy
from phasewise.diagnosis.cause import Cause
from phasewise.diagnosis.fix import Figure, Fix

PREFIX_CACHE = "the prefix cache: it shortens prefill, and the time is lost in decode"
LARGER_CHUNKS = "larger prefill chunks: no prompt is in the way"
DISAGGREGATION = "prefill on engines of its own: decode steps would take as long"


def _outside(what: str, price: str, aims_at: Figure = Figure.TPOT_P50, verify: str = "") -> Fix:
    return Fix(what, price, aims_at, verify=verify)


PREFILL_ELSEWHERE = Fix(
    "prefill on engines of its own, for the requests where that is worth it",
    "another engine, and the KV cache has to move; a lone prompt starts no sooner",
    Figure.ITL_P99,
    fleet_line="pools: [{name: prefill, role: prefill}, {name: decode, role: decode}]",
    verify="phasewise compare FLEET.yaml CHANGED.yaml",
)
QUANTISED_WEIGHTS = Fix(
    "quantise the weights to 4 bits, so that a step reads a quarter of them",
    "check the answers; the model has to be quantised once",
    Figure.TPOT_P50,
    fleet_line="model: the folder that `phasewise model quantise MODEL --scheme w4a16` prints",
)
COMPILED = Fix(
    "let the engine compile its steps, or record them as CUDA graphs",
    "minutes at every start",
    Figure.TPOT_P50,
    engine_flag="--no-enforce-eager",
    fleet_line="pools: [{engine_flags: [--no-enforce-eager]}]",
)
TWO_DEVICES = Fix(
    "spread the weights over two devices, which read them at once",
    "a second device, and talk between them in every step",
    Figure.TPOT_P50,
    engine_flag="--tensor-parallel-size 2",
    fleet_line="pools: [{gpus: 2}]",
)
TELL_APART = _outside(
    "find out which of the two it is: it takes a calibration and the model's size",
    "two minutes of the engine's time",
    verify="phasewise calibrate URL",
)

REMEDIES: dict[Cause, Remedy] = {
    Cause.CHUNKS_STALL: lambda levers: (levers.smaller_chunks(), PREFILL_ELSEWHERE, LESS_CONTEXT),
    Cause.ENGINE_PAUSES: lambda levers: (
        _outside(
            "look into the engine's log and its host at the times of the pauses: swapping, a debugger, a "
            "suspended machine",
            "time",
            Figure.ITL_P99,
        ),
    ),
    Cause.SLOW_CLIENT: lambda levers: (
        _outside("let the client read its stream as it comes, apart from what it does with it", "none"),
        Fix(
            "send several tokens in a chunk, so that there is less to read",
            "text appears in larger pieces",
            Figure.TPOT_P50,
            engine_flag="--stream-interval 4",
            fleet_line="pools: [{engine_flags: [--stream-interval, '4']}]",
        ),
    ),
    Cause.DECODE_WEIGHTS: lambda levers: (QUANTISED_WEIGHTS, levers.guesses_on(), TWO_DEVICES),
    Cause.DECODE_KV_READS: lambda levers: (
        levers.kv_in_eight_bits(Figure.TPOT_P50),
        levers.fewer_running(),
        LESS_CONTEXT,
    ),
    Cause.DECODE_OVERHEAD: lambda levers: (COMPILED, levers.guesses_on()),
    Cause.DECODE_FLOOR: lambda levers: (levers.guesses_on(), COMPILED, QUANTISED_WEIGHTS, TELL_APART),
    Cause.BATCH_CAP_HIGH: lambda levers: (levers.fewer_running(), levers.another_engine(Figure.TPOT_P50)),
    Cause.SPECULATION_UNPAID: lambda levers: (levers.guesses_off(),),
}

USELESS: dict[Cause, tuple[str, ...]] = {
    Cause.CHUNKS_STALL: (
        "the prefix cache, unless the prompts that stall the others share their beginnings",
        "weight quantisation: the stall is a prompt's compute, not a decode step's reads",
        "a higher batch cap: more streams would stall",
    ),
    Cause.ENGINE_PAUSES: ("any engine flag: no step was running",),
    Cause.SLOW_CLIENT: ("any lever of the engine's phases: the tokens were there",),
    Cause.DECODE_WEIGHTS: (
        PREFIX_CACHE,
        LARGER_CHUNKS,
        "fewer requests at once: a step reads all weights for one stream as for many",
    ),
    Cause.DECODE_KV_READS: (
        PREFIX_CACHE,
        LARGER_CHUNKS,
        "weight quantisation: the context is what is read, not the weights",
    ),
    Cause.DECODE_OVERHEAD: (
        PREFIX_CACHE,
        LARGER_CHUNKS,
        "weight quantisation: bytes saved are not time saved where overhead binds",
    ),
    Cause.DECODE_FLOOR: (
        PREFIX_CACHE,
        LARGER_CHUNKS,
        "fewer requests at once: a step takes as long for one stream as for many",
    ),
    Cause.BATCH_CAP_HIGH: (PREFIX_CACHE, LARGER_CHUNKS, DISAGGREGATION),
    Cause.SPECULATION_UNPAID: (PREFIX_CACHE, "more guesses per step: they are no better, and cost more"),
}
