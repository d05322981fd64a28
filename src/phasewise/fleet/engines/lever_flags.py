"""Which engine flag each lever of a fleet file sets, and which phase it is for: one table."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from phasewise.fleet.config import Levers, Speculation, byte_size


class LeverPhase(StrEnum):
    """What a lever acts on."""

    PREFILL = "prefill"
    DECODE = "decode"
    KV = "KV"
    BOTH = "both"


@dataclass(frozen=True)
class Lever:
    """One row: the lever, its phase, the flag that carries it and what it trades."""

    name: str
    phase: LeverPhase
    flag: str
    trade: str
    arguments: Callable[[Any], tuple[str, ...]]


def _value_of(flag: str) -> Callable[[Any], tuple[str, ...]]:
    return lambda value: (flag, str(value))


def _prefix_cache(on: bool) -> tuple[str, ...]:
    return ("--enable-prefix-caching" if on else "--no-enable-prefix-caching",)


def _speculation(speculation: Speculation) -> tuple[str, ...]:
    settings = {
        "method": speculation.method,
        "num_speculative_tokens": speculation.tokens,
        "prompt_lookup_max": speculation.lookup_max,
    }
    return ("--speculative-config", json.dumps(settings, separators=(",", ":")))


def _kv_cache_memory(size: str) -> tuple[str, ...]:
    # VLLM_CPU_KVCACHE_SPACE accepts only whole GiB; the flag accepts bytes and works on CPUs and GPUs.
    return ("--kv-cache-memory-bytes", str(byte_size(size)))


LEVERS: tuple[Lever, ...] = (
    Lever(
        "prefix_cache",
        LeverPhase.PREFILL,
        "--[no-]enable-prefix-caching",
        "a prompt that begins like an earlier one skips that part of its prefill",
        _prefix_cache,
    ),
    Lever(
        "max_num_batched_tokens",
        LeverPhase.PREFILL,
        "--max-num-batched-tokens",
        "smaller: shorter stalls for running streams; larger: sooner first tokens for long prompts",
        _value_of("--max-num-batched-tokens"),
    ),
    Lever(
        "max_num_seqs",
        LeverPhase.DECODE,
        "--max-num-seqs",
        "larger: more tokens per second over all streams; smaller: faster single streams, longer queue",
        _value_of("--max-num-seqs"),
    ),
    Lever(
        "speculation",
        LeverPhase.DECODE,
        "--speculative-config",
        "several tokens per step where the answer repeats the prompt; a little slower where it does not",
        _speculation,
    ),
    Lever(
        "kv_cache_memory_bytes",
        LeverPhase.KV,
        "--kv-cache-memory-bytes",
        "larger: more streams and more cached prefixes; the memory is allocated at start",
        _kv_cache_memory,
    ),
    Lever(
        "kv_dtype",
        LeverPhase.KV,
        "--kv-cache-dtype",
        "fp8 holds twice the tokens in the same memory, at some loss of precision",
        _value_of("--kv-cache-dtype"),
    ),
    Lever(
        "max_model_len",
        LeverPhase.KV,
        "--max-model-len",
        "the longest accepted prompt plus answer; one such request must fit the KV cache",
        _value_of("--max-model-len"),
    ),
    Lever(
        "weight_quantization",
        LeverPhase.BOTH,
        "--quantization",
        "fewer bytes per step help decode most; prefill gains only with fast low-precision arithmetic",
        _value_of("--quantization"),
    ),
    Lever(
        "attention_backend",
        LeverPhase.BOTH,
        "--attention-backend",
        "which kernels compute attention; the engine's own choice is usually right",
        _value_of("--attention-backend"),
    ),
)


def lever_arguments(levers: Levers) -> list[str]:
    """The engine's arguments for every lever that is set."""
    arguments: list[str] = []
    for lever in LEVERS:
        value = getattr(levers, lever.name)
        if value is not None:
            arguments += lever.arguments(value)
    return arguments
