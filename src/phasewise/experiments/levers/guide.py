"""The levers in one table: which phase each helps and why, modelled on a model. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from phasewise.costs.roofline.deployment import Deployment
from phasewise.experiments.levers.modelled import modelled_on


class Helps(StrEnum):
    """What a lever does to a phase."""

    YES = "yes"
    LITTLE = "little"
    NO = "no"
    COSTS = "costs"


@dataclass(frozen=True, slots=True)
class GuideLever:
    """A lever, the phases that it helps, the reason, and the case as which it is modelled."""

    name: str
    prefill: Helps
    decode: Helps
    why: str
    case: str


GUIDE = (
    GuideLever(
        "larger batch",
        Helps.NO,
        Helps.YES,
        "one read of the weights serves every stream; one prompt keeps the math busy by itself",
        "batching_against_one",
    ),
    GuideLever(
        "continuous batching",
        Helps.YES,
        Helps.YES,
        "a request joins at the next step and leaves when it ends, instead of waiting for a whole batch",
        "batching_against_static",
    ),
    GuideLever(
        "FlashAttention",
        Helps.YES,
        Helps.LITTLE,
        "the score matrix, which grows with the square of a prompt, is never written to memory",
        "attention_backend",
    ),
    GuideLever(
        "chunked prefill",
        Helps.COSTS,
        Helps.YES,
        "streams wait for a piece of a prompt instead of all of it; each piece reads the weights again",
        "chunk_512",
    ),
    GuideLever(
        "prefix caching",
        Helps.YES,
        Helps.NO,
        "a known beginning is not computed again; decoding reads as much KV cache as before",
        "prefix_cache",
    ),
    GuideLever(
        "weight quantization, W8A8",
        Helps.YES,
        Helps.YES,
        "half the bytes to read, and twice the arithmetic where the device multiplies 8 bits",
        "w8a8",
    ),
    GuideLever(
        "weight quantization, W4A16",
        Helps.NO,
        Helps.YES,
        "a quarter of the bytes to read; the arithmetic stays in 16 bits",
        "w4a16",
    ),
    GuideLever(
        "KV quantization",
        Helps.NO,
        Helps.YES,
        "half the KV cache to read and to keep, which shows with many streams or long contexts",
        "kv_fp8",
    ),
    GuideLever(
        "speculative decoding",
        Helps.NO,
        Helps.YES,
        "one read of the weights checks several guessed tokens; in a large batch wrong guesses cost",
        "speculation",
    ),
    GuideLever(
        "GQA, MQA",
        Helps.LITTLE,
        Helps.YES,
        "heads share keys and values, so that there is less KV cache to read; part of the model",
        "grouped_queries",
    ),
    GuideLever(
        "disaggregation",
        Helps.COSTS,
        Helps.YES,
        "no prompt is computed among streams; the KV cache has to move before the second token",
        "disaggregation",
    ),
    GuideLever(
        "semantic caching",
        Helps.YES,
        Helps.YES,
        "a question that was answered before is not computed at all",
        "semantic_cache",
    ),
)


@dataclass(frozen=True, slots=True)
class GuideRow:
    """A lever with what is modelled."""

    lever: GuideLever
    modelled: str


def guide_rows(deployment: Deployment) -> tuple[GuideRow, ...]:
    """Every lever on this model and device."""
    return tuple(GuideRow(lever, modelled_on(lever.case, deployment)) for lever in GUIDE)
