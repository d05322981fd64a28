"""Every lever that is measured, as a readable table: off, on, its traffic, and what physics predicts.

The arithmetic behind the expectations is in docs/explanation/which-lever-when.md.
"""

from __future__ import annotations

from dataclasses import replace

from phasewise.experiments.levers import workloads as traffic
from phasewise.experiments.levers.catalogue import (
    STALLS,
    THROUGHPUT,
    TPOT,
    TTFT,
    Case,
    EngineSpec,
    Recompute,
    Row,
    Sign,
    StaticBatches,
)
from phasewise.fleet.config import Levers, Speculation
from phasewise.fleet.engines.lever_flags import LeverPhase

LOWER, SAME, HIGHER = Sign

BASE = EngineSpec("base", "the engine's defaults without the prefix cache", Levers(prefix_cache=False))
"""One side of every case, so that it is started once. Its prefix cache is off, as that is a lever itself."""

BASE_AGAIN = replace(BASE, name="base-again", about="the same engine, started once more")
"""Two processes of one engine may differ, and a lever's two engines are always two processes."""
RESTARTED = f"restarted/{traffic.ONE_STREAM.key}"
"""The key of this pair among the noise floors."""

UNCHANGED = {TTFT: SAME, TPOT: SAME, THROUGHPUT: SAME}
NOISE = "this machine's noise floor is wider than the margin"


def _engine(name: str, about: str, **levers: object) -> EngineSpec:
    """The base engine with some levers changed."""
    return EngineSpec(name, about, BASE.levers.model_copy(update=levers))


PREFIX_CACHE = Case(
    name="prefix_cache",
    lever="prefix_cache",
    phase=LeverPhase.PREFILL,
    title="prefix caching",
    off=BASE,
    on=_engine("prefix-cache", "prefix cache on", prefix_cache=True),
    rows=(
        Row(
            traffic.SHARED_PROMPTS,
            can_show=True,
            expected={TTFT: LOWER, TPOT: SAME, THROUGHPUT: HIGHER},
            why="the shared part is in the KV cache already, so only the rest is prefilled; decode reads as "
            "much KV as before",
            unless="whole blocks are shared, not tokens: a part shorter than a block saves nothing",
        ),
        Row(
            traffic.UNSHARED_PROMPTS,
            can_show=False,
            expected=UNCHANGED,
            why="nothing is found, and the look-up costs a hash per block",
            unless=NOISE,
            quick=False,
        ),
    ),
)

KV_CACHE = Case(
    name="kv_cache",
    lever="kv_cache",
    phase=LeverPhase.DECODE,
    title="KV cache",
    off=replace(BASE, handicap=Recompute()),
    on=BASE,
    rows=(
        Row(
            traffic.RECOMPUTED_STREAM,
            can_show=True,
            expected={TTFT: SAME, TPOT: LOWER, THROUGHPUT: HIGHER},
            why="without it every token costs a prefill of all earlier ones; the first one costs that anyway",
            unless="a step for a few hundred tokens takes as long as for one where overhead or weights bind",
        ),
        Row(
            traffic.PROMPTS_ONLY,
            can_show=False,
            expected={TTFT: SAME},
            why="an answer of one token never reads the cached KV",
            unless=NOISE,
            quick=False,
        ),
    ),
)

ONE_AT_A_TIME = Case(
    name="batching_against_one",
    lever="continuous_batching",
    phase=LeverPhase.DECODE,
    title="continuous batching, against one at a time",
    off=_engine("one-at-a-time", "one request at a time", max_num_seqs=1),
    on=BASE,
    rows=(
        Row(
            traffic.SIX_AT_ONCE,
            can_show=True,
            expected={TTFT: LOWER, TPOT: SAME, THROUGHPUT: HIGHER},
            why="no request waits for other answers, and one read of the weights serves all streams",
            unless="a step that carries other requests' prefill, or more streams than are free, takes "
            "longer; one that overhead binds may even be shorter",
        ),
        Row(
            traffic.ONE_STREAM,
            can_show=False,
            expected=UNCHANGED,
            why="a single stream shares its steps with no other request",
            unless=NOISE,
            quick=False,
        ),
    ),
)

STATIC_BATCHES = Case(
    name="batching_against_static",
    lever="continuous_batching",
    phase=LeverPhase.DECODE,
    title="continuous batching, against closed batches of 8",
    off=replace(BASE, handicap=StaticBatches(8)),
    on=BASE,
    rows=(
        Row(
            traffic.UNEVEN_ANSWERS,
            can_show=True,
            expected={TTFT: LOWER, THROUGHPUT: HIGHER},
            why="a slot is filled as soon as its answer ends, not when the longest answer of the batch does; "
            "running streams pay for it with the new requests' prefills",
            unless="answers were so alike, or prefills so long, that waiting cost no more than sharing",
        ),
        Row(
            traffic.EVEN_ANSWERS,
            can_show=False,
            expected=UNCHANGED,
            why="answers of one length end together: a closed batch wastes nothing",
            unless="requests that begin apart share steps with other prefills, in a closed batch never",
            quick=False,
        ),
    ),
    quick=False,
)

BATCH_CAP = Case(
    name="batch_cap",
    lever="max_num_seqs",
    phase=LeverPhase.DECODE,
    title="batch cap of 4, against the engine's own",
    off=BASE,
    on=_engine("four-running", "at most 4 running", max_num_seqs=4),
    rows=(
        Row(
            traffic.SIXTEEN_AT_ONCE,
            can_show=True,
            expected={TTFT: HIGHER, THROUGHPUT: LOWER},
            why="twelve of sixteen wait for a free slot, and fewer streams share each read of the weights; "
            "how much shorter a step of four is depends on what binds it",
            unless="steps for sixteen streams take four times as long as steps for four",
        ),
        Row(
            traffic.ONE_STREAM,
            can_show=False,
            expected=UNCHANGED,
            why="a limit that is not reached changes nothing",
            unless=NOISE,
        ),
    ),
    quick=False,
)


def _chunk(tokens: int, *, quick: bool) -> Case:
    return Case(
        name=f"chunk_{tokens}",
        lever="max_num_batched_tokens",
        phase=LeverPhase.PREFILL,
        title=f"prefill chunks of {tokens}, against the engine's own",
        off=BASE,
        on=_engine(f"chunk-{tokens}", f"prefill chunks of {tokens} tokens", max_num_batched_tokens=tokens),
        rows=(
            Row(
                traffic.PROMPTS_AMID_STREAMS,
                can_show=True,
                expected={STALLS: LOWER},
                why="running streams wait for a chunk of a new prompt, not for all of it; its own "
                "first token comes later when it is alone, earlier when prompts would share one long step",
                unless="the engine's own chunk is no longer than these prompts, or gaps have other causes",
            ),
            Row(
                traffic.ONE_STREAM,
                can_show=False,
                expected=UNCHANGED,
                why="a prompt shorter than a chunk is not split",
                unless=NOISE,
                quick=False,
            ),
        ),
        quick=quick,
    )


SPECULATION = Case(
    name="speculation",
    lever="speculation",
    phase=LeverPhase.DECODE,
    title="speculation by n-gram",
    off=BASE,
    on=_engine("speculation", "five tokens guessed by n-gram", speculation=Speculation()),
    rows=(
        Row(
            traffic.COPIES,
            can_show=True,
            expected={TTFT: SAME, TPOT: LOWER, THROUGHPUT: HIGHER},
            why="the prompt contains the answer, so most guesses are right and a step yields "
            "several tokens, six at most",
            unless="the model does not copy, or a step for six tokens costs as much as six steps",
        ),
        Row(
            traffic.STORIES,
            can_show=False,
            expected={TTFT: SAME, TPOT: SAME},
            why="the text does not appear before, so few guesses are made, fewer are right, and a step "
            "yields hardly more than one token",
            unless="a model that repeats itself can be guessed; wrong guesses lengthen steps",
            quick=False,
        ),
        Row(
            traffic.FEW_WORDS,
            can_show=False,
            expected={TTFT: SAME, TPOT: SAME},
            why="an answer of a few tokens ends before several tokens per step could save many steps",
            unless="an answer that repeats the question's words is guessed all the same",
            quick=False,
        ),
    ),
)

OVERHEAD = "where overhead binds, as with a small model on few cores, saved bytes are not saved time"

W8A8 = Case(
    name="w8a8",
    lever="weight_quantization",
    phase=LeverPhase.BOTH,
    title="weights and activations in 8 bits (W8A8)",
    off=BASE,
    on=replace(BASE, name="w8a8", about="8-bit weights and activations", scheme="w8a8"),
    rows=(
        Row(
            traffic.ONE_STREAM,
            can_show=True,
            expected={TPOT: LOWER},
            why="a decode step reads half the bytes of the layers' weights; the output head stays in 16 bits",
            unless=f"{OVERHEAD}; rounding every activation costs an extra pass",
        ),
        Row(
            traffic.PROMPTS_ONLY,
            can_show=True,
            expected={TTFT: LOWER},
            why="8-bit arithmetic is twice as fast, if the processor supports it",
            unless="without fast 8-bit arithmetic, prefill is as long or longer",
            quick=False,
        ),
    ),
    quality=True,
    quick=False,
)

W4A16 = Case(
    name="w4a16",
    lever="weight_quantization",
    phase=LeverPhase.DECODE,
    title="weights in 4 bits (W4A16)",
    off=BASE,
    on=replace(BASE, name="w4a16", about="4-bit weights", scheme="w4a16"),
    rows=(
        Row(
            traffic.ONE_STREAM,
            can_show=True,
            expected={TPOT: LOWER},
            why="a decode step reads about a quarter of the bytes of the layers' weights; the output head "
            "stays in 16 bits",
            unless=OVERHEAD,
        ),
        Row(
            traffic.PROMPTS_ONLY,
            can_show=False,
            expected={TTFT: SAME},
            why="arithmetic stays in 16 bits, and a long prompt is bound by arithmetic",
            unless="unpacking weights costs time; or other, possibly faster, kernels are used",
            quick=False,
        ),
    ),
    quality=True,
)

KV_DTYPE = Case(
    name="kv_fp8",
    lever="kv_dtype",
    phase=LeverPhase.KV,
    title="KV cache in 8 bits (fp8)",
    off=BASE,
    on=_engine("kv-fp8", "KV cache in fp8", kv_dtype="fp8"),
    rows=(
        Row(
            traffic.LONG_PROMPT_STREAM,
            can_show=True,
            expected={TPOT: SAME},
            why="one stream's KV is a small part of what a step reads, even at this length; the benefit is "
            "capacity: twice the tokens fit",
            unless="every value is converted if the processor does not compute in fp8; or the weights are "
            "so small that KV is a large part",
        ),
        Row(
            traffic.ONE_STREAM,
            can_show=False,
            expected={TPOT: SAME},
            why="a short context has little KV to read",
            unless="converting costs more than the bytes it saves",
            quick=False,
        ),
    ),
    quality=True,
    quick=False,
)

PAGED_KV = Case(
    name="paged_kv",
    lever="paged_kv",
    phase=LeverPhase.KV,
    title="paged KV, against reserving the longest context",
    off=BASE,
    on=BASE,
    rows=(),
    by_counters=True,
)

ATTENTION = Case(
    name="attention_backend",
    lever="attention_backend",
    phase=LeverPhase.BOTH,
    title="attention back end, Triton against the engine's own",
    off=BASE,
    on=_engine("triton-attention", "attention by Triton kernels", attention_backend="TRITON_ATTN"),
    rows=(
        Row(
            traffic.LONG_PROMPT_STREAM,
            can_show=True,
            expected={},
            why="both keep the score matrix out of memory, so only their tuning differs",
            unless="",
        ),
    ),
    device="cuda",
)

CASES = (
    PREFIX_CACHE,
    KV_CACHE,
    PAGED_KV,
    ONE_AT_A_TIME,
    STATIC_BATCHES,
    BATCH_CAP,
    _chunk(512, quick=True),
    _chunk(128, quick=False),
    SPECULATION,
    W8A8,
    W4A16,
    KV_DTYPE,
    ATTENTION,
)
