"""The levers in one table: which phase each helps and why, modelled on a model and measured here. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from phasewise.costs.roofline.deployment import Deployment
from phasewise.experiments.levers.cases import CASES
from phasewise.experiments.levers.catalogue import STALLS, THROUGHPUT, TPOT, TTFT
from phasewise.experiments.levers.findings import WORDS, LeverFinding, change_in_words, findings
from phasewise.experiments.levers.modelled import modelled_on
from phasewise.experiments.levers.results import Results
from phasewise.loadgen.statistics.comparison import MetricVerdict


class Helps(StrEnum):
    """What a lever does to a phase."""

    YES = "yes"
    LITTLE = "little"
    NO = "no"
    COSTS = "costs"


@dataclass(frozen=True, slots=True)
class GuideLever:
    """A lever, the phases that it helps, and the reason. It is modelled as the first of `cases`; all of them
    are measured, as far as they can be.
    """

    name: str
    prefill: Helps
    decode: Helps
    why: str
    cases: tuple[str, ...]


GUIDE = (
    GuideLever(
        "larger batch",
        Helps.NO,
        Helps.YES,
        "one read of the weights serves every stream; one prompt keeps the math busy by itself",
        ("batching_against_one",),
    ),
    GuideLever(
        "continuous batching",
        Helps.YES,
        Helps.YES,
        "a request joins at the next step and leaves when it ends, instead of waiting for a whole batch",
        ("batching_against_static",),
    ),
    GuideLever(
        "FlashAttention",
        Helps.YES,
        Helps.LITTLE,
        "the score matrix, which grows with the square of a prompt, is never written to memory",
        ("attention_backend",),
    ),
    GuideLever(
        "chunked prefill",
        Helps.COSTS,
        Helps.YES,
        "streams wait for a piece of a prompt instead of all of it; each piece reads the weights again",
        ("chunk_512", "chunk_128"),
    ),
    GuideLever(
        "prefix caching",
        Helps.YES,
        Helps.NO,
        "a known beginning is not computed again; decoding reads as much KV cache as before",
        ("prefix_cache",),
    ),
    GuideLever(
        "weight quantization, W8A8",
        Helps.YES,
        Helps.YES,
        "half the bytes to read, and twice the arithmetic where the device multiplies 8 bits",
        ("w8a8",),
    ),
    GuideLever(
        "weight quantization, W4A16",
        Helps.NO,
        Helps.YES,
        "a quarter of the bytes to read; the arithmetic stays in 16 bits",
        ("w4a16",),
    ),
    GuideLever(
        "KV quantization",
        Helps.NO,
        Helps.YES,
        "half the KV cache to read and to keep, which shows with many streams or long contexts",
        ("kv_fp8",),
    ),
    GuideLever(
        "speculative decoding",
        Helps.NO,
        Helps.YES,
        "one read of the weights checks several guessed tokens; in a large batch wrong guesses cost",
        ("speculation",),
    ),
    GuideLever(
        "GQA, MQA",
        Helps.LITTLE,
        Helps.YES,
        "heads share keys and values, so that there is less KV cache to read; part of the model",
        ("grouped_queries",),
    ),
    GuideLever(
        "disaggregation",
        Helps.COSTS,
        Helps.YES,
        "no prompt is computed among streams; the KV cache has to move before the second token",
        ("disaggregation",),
    ),
    GuideLever(
        "semantic caching",
        Helps.YES,
        Helps.YES,
        "a question that was answered before is not computed at all",
        ("semantic_cache",),
    ),
)


@dataclass(frozen=True, slots=True)
class GuideRow:
    """A lever with what is modelled, and what was measured; empty if it was not."""

    lever: GuideLever
    modelled: str
    measured: str


def guide_rows(deployment: Deployment, results: Results | None) -> tuple[GuideRow, ...]:
    """Every lever on this model and device."""
    found = () if results is None else findings(CASES, results)
    return tuple(
        GuideRow(lever, modelled_on(lever.cases[0], deployment), _measured(lever, found)) for lever in GUIDE
    )


def _measured(lever: GuideLever, found: Iterable[LeverFinding]) -> str:
    """The figures that changed, with the traffic that can show the lever."""
    shown = [it for it in found if it.case.name in lever.cases and it.row.can_show and it.effects]
    return "; ".join(f"{it.row.workload.about}: {_changes(it)}" for it in shown)


def _changes(finding: LeverFinding) -> str:
    changed = [
        f"{name} {change_in_words(effect)}"
        for metric, name in ((TTFT, "TTFT"), (TPOT, "TPOT"), (STALLS, "ITL p99"), (THROUGHPUT, "tokens/s"))
        if (effect := finding.effects.get(metric)) is not None and _is_sure(effect.verdict)
    ]
    return ", ".join(changed) or WORDS[MetricVerdict.INCONCLUSIVE]


def _is_sure(verdict: MetricVerdict) -> bool:
    return verdict in {MetricVerdict.BETTER, MetricVerdict.WORSE}
