"""Which engine flag each lever of a fleet file sets, and which phase it is for: one table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from phasewise.engines.vllm import FLAGS, flags
from phasewise.fleet.config import Levers, Speculation, byte_size


class LeverPhase(StrEnum):
    """What a lever acts on."""

    PREFILL = "prefill"
    DECODE = "decode"
    KV = "KV"
    BOTH = "both"


@dataclass(frozen=True)
class Lever:
    """One row: the lever, its phase and what it trades."""

    name: str
    phase: LeverPhase
    trade: str

    @property
    def flag(self) -> str:
        """The engine's flag that carries it."""
        return FLAGS[self.name]


LEVERS: tuple[Lever, ...] = (
    Lever(
        "prefix_cache",
        LeverPhase.PREFILL,
        "a prompt that begins like an earlier one skips that part of its prefill",
    ),
    Lever(
        "max_num_batched_tokens",
        LeverPhase.PREFILL,
        "smaller: shorter stalls for running streams; larger: sooner first tokens for long prompts",
    ),
    Lever(
        "max_num_seqs",
        LeverPhase.DECODE,
        "larger: more tokens per second over all streams; smaller: faster single streams, longer queue",
    ),
    Lever(
        "speculation",
        LeverPhase.DECODE,
        "several tokens per step where the answer repeats the prompt; a little slower where it does not",
    ),
    Lever(
        "kv_cache_memory_bytes",
        LeverPhase.KV,
        "larger: more streams and more cached prefixes; the memory is allocated at start",
    ),
    Lever(
        "kv_dtype",
        LeverPhase.KV,
        "fp8 holds twice the tokens in the same memory, at some loss of precision",
    ),
    Lever(
        "max_model_len",
        LeverPhase.KV,
        "the longest accepted prompt plus answer; one such request must fit the KV cache",
    ),
    Lever(
        "weight_quantization",
        LeverPhase.BOTH,
        "fewer bytes per step help decode most; prefill gains only with fast low-precision arithmetic",
    ),
    Lever(
        "attention_backend",
        LeverPhase.BOTH,
        "which kernels compute attention; the engine's own choice is usually right",
    ),
)


def lever_arguments(levers: Levers) -> list[str]:
    """The engine's arguments for every lever that is set."""
    arguments: list[str] = []
    for lever in LEVERS:
        value = getattr(levers, lever.name)
        if value is not None:
            arguments += flags(lever.name, _plain(lever.name, value)) or ()
    return arguments


def _plain(name: str, value: Any) -> Any:  # noqa: ANN401 - each lever has its own type
    """A lever's value as flags are made of it: sizes in bytes, without a model of our own."""
    if name == "kv_cache_memory_bytes":
        return byte_size(value)
    return value.model_dump() if isinstance(value, Speculation) else value
