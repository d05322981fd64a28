"""Prompts that take long to compute: in chunks that are too small, or because they are long."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from phasewise.costs.step_cost import StepCost
from phasewise.costs.step_work import prefilling
from phasewise.diagnosis.cause import Cause, Confidence
from phasewise.diagnosis.finding import Fact, FactSource
from phasewise.diagnosis.picture import Picture
from phasewise.diagnosis.rules.case import WAITING, Claim, StartCase
from phasewise.diagnosis.rules.engines import crowds, mean_of, prompt_work_share, running_mean
from phasewise.diagnosis.rules.places import grows
from phasewise.diagnosis.rules.words import ms, percent
from phasewise.model.timeline import Part, Source

LARGER_CHUNK = 4
"""Waste is judged against chunks this many times larger,"""
USUAL_CHUNK_TOKENS = 512
"""or of this many tokens, which any engine computes well beyond the flat part of a step."""
FLAT_TOKENS = 128
"""Up to about here a step costs the same however many tokens it has, on whatever machine."""
CUT_AT_BUDGET = 0.8
"""Steps that are this full of prompt tokens were cut by the budget, not by the prompt's end."""
WASTED_SHARE = 0.3
"""Less than this is the usual price of chunks."""
FEW_AHEAD = 2.0
"""Who waits behind so few waits because theirs are long, not because they are many."""
LONG_OF_OBJECTIVE = 0.5
"""A prompt is long when computing it alone takes this much of the objective."""


@dataclass(frozen=True, slots=True)
class _Chunking:
    """How a typical prompt was cut."""

    prompt_tokens: int
    chunk_tokens: int
    budget_tokens: int

    @property
    def chunks(self) -> int:
        return ceil(self.prompt_tokens / self.chunk_tokens)

    @property
    def larger_tokens(self) -> int:
        return max(LARGER_CHUNK * self.chunk_tokens, USUAL_CHUNK_TOKENS)


def chunks_small(case: StartCase) -> Claim | None:
    """Each chunk pays for a whole step, and there are too many of them."""
    cut = _chunking(case.picture)
    if cut is None or cut.chunks < LARGER_CHUNK / 2:
        return None
    waste, source = _wasted_share(case, cut)
    if waste < WASTED_SHARE:
        return None
    taken = case.account.take(waste, Part.PREFILL, Part.PREFILL_OTHERS)
    taken += case.account.take(waste * (prompt_work_share(case.picture) or 0.0), *WAITING)
    return Claim(
        Cause.CHUNKS_SMALL,
        taken,
        (
            Fact(
                f"steps hold at most {cut.budget_tokens} tokens, so a prompt of {cut.prompt_tokens} uncached "
                f"tokens takes about {cut.chunks} of them",
                FactSource.STEP_RECORD,
            ),
            Fact(f"chunks of {cut.larger_tokens} would save {percent(waste)} of its prefill", source),
            Fact(f"that is {ms(taken.seconds)} of TTFT", FactSource.DERIVED),
        ),
        f"prefill takes as long with chunks of {cut.larger_tokens} tokens",
        Confidence.HIGH if source is FactSource.FIT else Confidence.MEDIUM,
    )


def _chunking(picture: Picture) -> _Chunking | None:
    shapes = [engine.steps for engine in picture.engines if engine.steps is not None]
    cut = [
        (shape.budget_tokens, shape.chunk_p50_tokens)
        for shape in shapes
        if shape.budget_tokens is not None and shape.chunk_p50_tokens
    ]
    prompt_tokens = (picture.workload.prompt_p50_tokens or 0.0) * (1 - (picture.workload.cached_share or 0.0))
    if not cut or prompt_tokens < 1:
        return None
    budget, chunk = min(cut)
    # Streams that run beside a prompt take their tokens of the budget first.
    if chunk + (running_mean(picture) or 0.0) < CUT_AT_BUDGET * budget:
        return None
    return _Chunking(ceil(prompt_tokens), max(1, round(chunk)), budget)


def _wasted_share(case: StartCase, cut: _Chunking) -> tuple[float, FactSource]:
    """The share of a prompt's steps that larger chunks would save, and who says so."""
    fit = case.picture.fit
    if fit is not None:
        now_s = _prefill_s(fit.cost, cut.prompt_tokens, cut.chunk_tokens)
        then_s = _prefill_s(fit.cost, cut.prompt_tokens, cut.larger_tokens)
        return max(0.0, 1.0 - then_s / now_s), FactSource.FIT
    lone_s = mean_of(case.picture.engines, lambda engine: engine.steps.lone_step_s if engine.steps else None)
    prefill_s = case.start.seconds(Part.PREFILL, Part.PREFILL_OTHERS)
    if lone_s is None or prefill_s <= 0:
        return 0.0, FactSource.DERIVED
    spared = cut.chunks - ceil(cut.prompt_tokens / FLAT_TOKENS)
    return min(1.0, max(0.0, spared * lone_s / prefill_s)), FactSource.STEP_RECORD


def _prefill_s(cost: StepCost, prompt_tokens: int, chunk_tokens: int) -> float:
    """What a prompt's chunks cost, one after the other."""
    begins = range(0, prompt_tokens, chunk_tokens)
    return sum(
        cost(prefilling(min(chunk_tokens, prompt_tokens - begin), context_tokens=begin)) for begin in begins
    )


def long_prompts(case: StartCase) -> Claim | None:
    """The prompt's own tokens take the time, and those of the few before it."""
    start, workload = case.start, case.picture.workload
    own_s = case.account.seconds(Part.PREFILL)
    taken = case.account.take(1.0, Part.PREFILL)
    if own_s >= LONG_OF_OBJECTIVE * case.slo.ttft_s and _few_wait(case.picture):
        behind = prompt_work_share(case.picture) or 0.0
        taken += case.account.take(behind, *WAITING, Part.PREFILL_OTHERS)
    by_steps = any(it.part is Part.PREFILL and it.source is Source.STEP_RECORD for it in start.parts)
    whose = "the prompt's own tokens" if by_steps else "the prompt, others' tokens in its steps included,"
    source = FactSource.STEP_RECORD if by_steps else FactSource.ENGINE_REPORT
    facts = [Fact(f"computing {whose} takes {ms(own_s)} on average", source)]
    if taken.seconds > own_s:
        waited_s = taken.seconds - own_s
        facts.append(Fact(f"waiting for the prompts of a few others takes {ms(waited_s)}", source))
    if workload.prompt_p50_tokens is not None and workload.prompt_p90_tokens is not None:
        cached = "" if workload.cached_share is None else f", {percent(workload.cached_share)} cached"
        facts.append(
            Fact(
                f"prompts have p50 {workload.prompt_p50_tokens:.0f}, p90 {workload.prompt_p90_tokens:.0f} "
                f"tokens{cached}",
                FactSource.ENGINE_REPORT,
            )
        )
    return Claim(Cause.LONG_PROMPTS, taken, tuple(facts), "TTFT does not fall with a shorter prompt")


def _few_wait(picture: Picture) -> bool:
    """Whether the engine holds a few requests at a time and no more of them as time goes by."""
    known = crowds(picture)
    return bool(known) and all(crowd.waiting_mean <= FEW_AHEAD and not grows(crowd) for crowd in known)
