"""Rules for tokens that are all slow: what a decode step spends its time on."""

from __future__ import annotations

from phasewise.costs.fit.step import decoding
from phasewise.diagnosis.analysis.engine_load import Drafts
from phasewise.diagnosis.analysis.window_summary import WindowSummary
from phasewise.diagnosis.finding import Cause, Confidence, Fact, FactSource
from phasewise.diagnosis.rules.case import (
    STEP_PARTS,
    Claim,
    StreamCase,
    Taken,
    TokenPart,
    context_tokens,
    engine_load_source,
    mean_of,
    ms,
    percent,
    running_mean,
)

POOR_ACCEPTANCE = 0.25
"""With a lower acceptance rate, speculative decoding rarely pays off."""
CAUTIOUS = 0.5
"""The assumed cost of a rejected draft token without a fit, as a share of a step's cost per token: weights
are read anyway, so an extra token costs less than its share."""
MANY_RUNNING = 8
"""With fewer streams a step costs about what it costs with one."""
NOTICED_CONTEXT = 0.2
"""If reading one context takes a smaller share of the floor than this, the number of streams is the cause."""
MOSTLY = 0.5
"""A part that takes at least this share of a step is its bottleneck."""


def speculation_unpaid(case: StreamCase) -> Claim | None:
    """Steps compute draft tokens that are rejected, and take longer."""
    drafts = _all_drafts(case.summary)
    if drafts is None:
        return None
    acceptance = drafts.accepted_tokens / drafts.drafted_tokens
    gain = 1.0 + drafts.accepted_tokens / drafts.drafts
    facts = [
        Fact(
            f"{percent(acceptance)} of the draft tokens were accepted: {gain:.2f} tokens per step and stream",
            FactSource.COUNTERS,
        )
    ]
    plain_s = _plain_step_s(case.summary)
    if plain_s is not None:
        step_s = case.account.seconds(*STEP_PARTS)
        facts.append(Fact(f"a token should take {ms(plain_s)} without speculative decoding", FactSource.FIT))
        facts.append(Fact(f"it takes {ms(step_s)} with it", _step_source(case)))
        taken, sure = case.account.take_seconds(max(0.0, step_s - plain_s), *STEP_PARTS), Confidence.HIGH
    elif acceptance < POOR_ACCEPTANCE:
        in_vain = (drafts.drafted_tokens - drafts.accepted_tokens) / (drafts.drafted_tokens + drafts.drafts)
        words = f"{percent(in_vain)} of the tokens that steps computed were discarded"
        facts.append(Fact(f"{words}; their cost is a conservative estimate", FactSource.DERIVED))
        taken, sure = case.account.take(CAUTIOUS * in_vain, *STEP_PARTS), Confidence.LOW
    else:
        return None
    return Claim(
        Cause.SPECULATION_UNPAID,
        taken,
        tuple(facts),
        "tokens are no faster without speculative decoding",
        sure,
    )


def _all_drafts(summary: WindowSummary) -> Drafts | None:
    known = [engine.drafts for engine in summary.engines if engine.drafts is not None]
    drafts = Drafts(
        sum(own.drafts for own in known),
        sum(own.drafted_tokens for own in known),
        sum(own.accepted_tokens for own in known),
    )
    return drafts if drafts.drafts > 0 and drafts.drafted_tokens > 0 else None


def _plain_step_s(summary: WindowSummary) -> float | None:
    """The cost of a decode step without drafts, by the fit, at the mean number of streams."""
    running = running_mean(summary)
    if summary.fit is None or running is None:
        return None
    return summary.fit.cost(decoding([context_tokens(summary)] * max(1, round(running))))


def batch_cap_high(case: StreamCase) -> Claim | None:
    """Many streams share a step, so that each waits for the tokens and contexts of the others."""
    running = running_mean(case.summary)
    if running is None or running < 2:
        return None
    batch_s, floor_s = _batch_and_floor_s(case)
    others_kv_s = _kv_of_others_s(case, running, floor_s)
    if batch_s + others_kv_s <= floor_s and (floor_s >= case.slo.tpot_s or not _is_split(case)):
        return None
    taken = case.account.take(1.0, TokenPart.BATCH)
    taken += case.account.take_seconds(batch_s - taken.seconds, TokenPart.STEP)
    taken += case.account.take_seconds(others_kv_s, TokenPart.KV_READ)
    source = FactSource.FIT if _is_split(case) else _step_source(case)
    adds = f"batching adds {ms(taken.seconds)}; a decode step at batch 1 takes {ms(floor_s)}"
    if not floor_s:
        adds = f"a decode step takes {ms(taken.seconds)}; no stream ran alone, to compare it with"
    return Claim(
        Cause.BATCH_CAP_HIGH,
        taken,
        (
            Fact(f"{running:.1f} streams share a step on average", engine_load_source(case.summary)),
            Fact(adds, source),
        ),
        "a token takes as long with half as many running",
        Confidence.HIGH if _is_split(case) else Confidence.MEDIUM,
    )


def _kv_of_others_s(case: StreamCase, running: float, floor_s: float) -> float:
    """Reading many short contexts: then the number of streams is the cause."""
    kv_read_s = case.account.seconds(TokenPart.KV_READ)
    is_short = kv_read_s / running < NOTICED_CONTEXT * floor_s
    return kv_read_s * (1.0 - 1.0 / running) if is_short else 0.0


def _is_split(case: StreamCase) -> bool:
    return case.account.seconds(TokenPart.STEP) == 0


def _batch_and_floor_s(case: StreamCase) -> tuple[float, float]:
    """A step's batch part and fixed part; from a nearly empty step if no fit splits them."""
    if _is_split(case):
        return case.account.seconds(TokenPart.BATCH), case.account.seconds(TokenPart.FLOOR)
    step_s = case.account.seconds(TokenPart.STEP)
    lone_s = mean_of(case.summary.engines, lambda engine: engine.steps.lone_step_s if engine.steps else None)
    if lone_s is not None:
        return max(0.0, step_s - lone_s), min(step_s, lone_s)
    # Without a fit, only the number of streams separates them, and not with speculative decoding.
    many = (running_mean(case.summary) or 0.0) >= MANY_RUNNING and _all_drafts(case.summary) is None
    return (step_s, 0.0) if many else (0.0, step_s)


def kv_reads(case: StreamCase) -> Claim | None:
    """Steps read long contexts for every token."""
    taken = case.account.take(1.0, TokenPart.KV_READ)
    context = context_tokens(case.summary)
    running = running_mean(case.summary)
    streams = f" of {running:.1f} streams" if running is not None else ""
    return Claim(
        Cause.DECODE_KV_READS,
        taken,
        (
            Fact(f"reading the context{streams} takes {ms(taken.seconds)} of a token", FactSource.FIT),
            Fact(f"a typical stream has a context of {context} tokens", FactSource.DERIVED),
        ),
        "a token takes as long with contexts half as long",
        Confidence.MEDIUM,
    )


def decode_floor(case: StreamCase) -> Claim | None:
    """The fixed part of any step: reading the weights, and overhead."""
    guessed = case.account.seconds(TokenPart.STEP) > 0
    taken = case.account.take(1.0, TokenPart.FLOOR, TokenPart.STEP)
    weights_s = mean_of(case.summary.engines, lambda engine: engine.weights_read_s)
    cause, reported_by = _floor_cause(taken, weights_s)
    facts = [
        _floor_fact(case, taken, guessed),
        reported_by,
    ]
    sure = Confidence.HIGH if not guessed else Confidence.MEDIUM
    return Claim(
        cause,
        taken,
        tuple(facts),
        "a single stream on the idle engine is much faster per token",
        Confidence.LOW if case.guessed_step else sure,
    )


def _floor_fact(case: StreamCase, taken: Taken, guessed: bool) -> Fact:
    """The fixed part of a step by the fit; without a fit, the median decode step."""
    if not guessed:
        return Fact(f"a decode step takes at least {ms(taken.seconds)}, even at batch 1", FactSource.FIT)
    running = running_mean(case.summary)
    beside = f" with {running:.1f} streams in it" if running is not None else ""
    return Fact(f"the median decode step takes {ms(taken.seconds)}{beside}", _step_source(case))


def _step_source(case: StreamCase) -> FactSource:
    """The source of a step's time: the step record, or the gaps between tokens."""
    by_steps = bool(case.stream.step_timed) and not case.guessed_step
    return FactSource.STEP_RECORD if by_steps else case.summary.seen_by.clock


def _floor_cause(taken: Taken, weights_s: float | None) -> tuple[Cause, Fact]:
    if weights_s is None or weights_s > taken.seconds:
        words = "the machine's time to read the weights is unknown: the time is weight reads or overhead"
        return Cause.DECODE_FLOOR, Fact(words, FactSource.DERIVED)
    fact = Fact(f"reading all weights once takes {ms(weights_s)}", FactSource.DERIVED)
    by_weights = weights_s >= MOSTLY * taken.seconds
    return Cause.DECODE_WEIGHTS if by_weights else Cause.DECODE_OVERHEAD, fact
