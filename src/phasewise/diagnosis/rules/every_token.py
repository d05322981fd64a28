"""Tokens that are slow one and all: what a decode step spends its time on."""

from __future__ import annotations

from phasewise.costs.step_work import decoding
from phasewise.diagnosis.cause import Cause, Confidence
from phasewise.diagnosis.finding import Fact, FactSource
from phasewise.diagnosis.picture import Picture
from phasewise.diagnosis.rules.account import Taken
from phasewise.diagnosis.rules.case import STEP_PARTS, Claim, StreamCase, TokenPart
from phasewise.diagnosis.rules.engines import context_tokens, crowd_source, mean_of, running_mean
from phasewise.diagnosis.rules.words import ms, percent
from phasewise.diagnosis.seen_by import clock_source
from phasewise.diagnosis.surroundings import Drafts

POOR_ACCEPTANCE = 0.25
"""Where fewer guesses are right, drafting rarely pays on any machine."""
CAUTIOUS = 0.5
"""Of the tokens computed in vain, how much of the step they are taken to cost where no fit says it: beside
weights that must be read anyway, a token more costs less than its share."""
MANY_RUNNING = 8
"""With fewer streams a step costs about what it costs with one."""
NOTICED_CONTEXT = 0.05
"""A stream alone would not notice a context that takes less of its floor than this to read."""
MOSTLY = 0.5
"""Whatever takes at least this much of a step is what binds it."""


def speculation_unpaid(case: StreamCase) -> Claim | None:
    """Steps compute guesses that turn out wrong, and take longer for it."""
    drafts = _all_drafts(case.picture)
    if drafts is None:
        return None
    acceptance = drafts.accepted_tokens / drafts.drafted_tokens
    gain = 1.0 + drafts.accepted_tokens / drafts.drafts
    facts = [
        Fact(
            f"{percent(acceptance)} of the guessed tokens were right: {gain:.2f} tokens per step and stream",
            FactSource.COUNTERS,
        )
    ]
    plain_s = _plain_step_s(case.picture)
    if plain_s is not None:
        step_s = case.account.seconds(*STEP_PARTS)
        facts.append(Fact(f"a token should take {ms(plain_s)} without guessing", FactSource.FIT))
        facts.append(Fact(f"it takes {ms(step_s)} with it", _step_source(case)))
        taken, sure = case.account.take_seconds(max(0.0, step_s - plain_s), *STEP_PARTS), Confidence.HIGH
    elif acceptance < POOR_ACCEPTANCE:
        in_vain = (drafts.drafted_tokens - drafts.accepted_tokens) / (drafts.drafted_tokens + drafts.drafts)
        words = f"{percent(in_vain)} of the tokens that steps computed were thrown away"
        facts.append(Fact(f"{words}; what they cost is a cautious guess", FactSource.DERIVED))
        taken, sure = case.account.take(CAUTIOUS * in_vain, *STEP_PARTS), Confidence.LOW
    else:
        return None
    return Claim(
        Cause.SPECULATION_UNPAID, taken, tuple(facts), "tokens come no faster without speculation", sure
    )


def _all_drafts(picture: Picture) -> Drafts | None:
    known = [engine.drafts for engine in picture.engines if engine.drafts is not None]
    drafts = Drafts(
        sum(it.drafts for it in known),
        sum(it.drafted_tokens for it in known),
        sum(it.accepted_tokens for it in known),
    )
    return drafts if drafts.drafts > 0 and drafts.drafted_tokens > 0 else None


def _plain_step_s(picture: Picture) -> float | None:
    """What a decode step costs without drafts, by the fit, at as many streams as ran."""
    running = running_mean(picture)
    if picture.fit is None or running is None:
        return None
    return picture.fit.cost(decoding([context_tokens(picture)] * max(1, round(running))))


def batch_cap_high(case: StreamCase) -> Claim | None:
    """So many streams share a step that each waits for the others' tokens, and for the others' contexts."""
    running = running_mean(case.picture)
    if running is None or running < 2:
        return None
    batch_s, floor_s = _batch_and_floor_s(case)
    others_kv_s = _kv_of_others_s(case, running, floor_s)
    if batch_s + others_kv_s <= floor_s:
        return None
    taken = case.account.take(1.0, TokenPart.BATCH)
    taken += case.account.take_seconds(batch_s - taken.seconds, TokenPart.STEP)
    taken += case.account.take_seconds(others_kv_s, TokenPart.KV_READ)
    source = FactSource.FIT if _is_split(case) else _step_source(case)
    return Claim(
        Cause.BATCH_CAP_HIGH,
        taken,
        (
            Fact(f"{running:.1f} streams share a step on average", crowd_source(case.picture)),
            Fact(f"the others take {ms(taken.seconds)} of it; what it needs for one: {ms(floor_s)}", source),
        ),
        "a token takes as long with half as many running",
        Confidence.HIGH if _is_split(case) else Confidence.MEDIUM,
    )


def _kv_of_others_s(case: StreamCase, running: float, floor_s: float) -> float:
    """Reading the others' contexts, where each is short: then it is their number that makes it long."""
    kv_read_s = case.account.seconds(TokenPart.KV_READ)
    is_short = kv_read_s / running < NOTICED_CONTEXT * floor_s
    return kv_read_s * (1.0 - 1.0 / running) if is_short else 0.0


def _is_split(case: StreamCase) -> bool:
    return case.account.seconds(TokenPart.STEP) == 0


def _batch_and_floor_s(case: StreamCase) -> tuple[float, float]:
    """What a step spends on its batch and on being a step; by a lone step where no fit splits it."""
    if _is_split(case):
        return case.account.seconds(TokenPart.BATCH), case.account.seconds(TokenPart.FLOOR)
    step_s = case.account.seconds(TokenPart.STEP)
    lone_s = mean_of(case.picture.engines, lambda engine: engine.steps.lone_step_s if engine.steps else None)
    if lone_s is not None:
        return max(0.0, step_s - lone_s), min(step_s, lone_s)
    # Nothing tells them apart but how many run, and not even that where guesses fill the steps.
    many = (running_mean(case.picture) or 0.0) >= MANY_RUNNING and _all_drafts(case.picture) is None
    return (step_s, 0.0) if many else (0.0, step_s)


def kv_reads(case: StreamCase) -> Claim | None:
    """Steps read long contexts back, again for every token."""
    taken = case.account.take(1.0, TokenPart.KV_READ)
    context = context_tokens(case.picture)
    running = running_mean(case.picture)
    streams = f" of {running:.1f} streams" if running is not None else ""
    return Claim(
        Cause.DECODE_KV_READS,
        taken,
        (
            Fact(f"reading the context{streams} takes {ms(taken.seconds)} of a token", FactSource.FIT),
            Fact(f"a typical stream looks back on {context} tokens", FactSource.DERIVED),
        ),
        "a token takes as long with contexts half as long",
        Confidence.MEDIUM,
    )


def decode_floor(case: StreamCase) -> Claim | None:
    """What any step takes, however little is in it: reading the weights, and overhead."""
    guessed = case.account.seconds(TokenPart.STEP) > 0
    taken = case.account.take(1.0, TokenPart.FLOOR, TokenPart.STEP)
    weights_s = mean_of(case.picture.engines, lambda engine: engine.weights_read_s)
    cause, told_by = _floor_cause(taken, weights_s)
    facts = [
        _floor_fact(case, taken, guessed),
        told_by,
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
    """What a step takes anyway by the fit; without one, only what it took with whatever was in it."""
    if not guessed:
        return Fact(f"a decode step takes {ms(taken.seconds)} whatever is in it", FactSource.FIT)
    running = running_mean(case.picture)
    beside = f" with {running:.1f} streams in it" if running is not None else ""
    return Fact(f"a usual decode step takes {ms(taken.seconds)}{beside}", _step_source(case))


def _step_source(case: StreamCase) -> FactSource:
    """Who tells how long a step takes: the record, or gaps between tokens where there is none."""
    by_steps = bool(case.stream.step_timed) and not case.guessed_step
    return FactSource.STEP_RECORD if by_steps else clock_source(case.picture.seen_by)


def _floor_cause(taken: Taken, weights_s: float | None) -> tuple[Cause, Fact]:
    if weights_s is None or weights_s > taken.seconds:
        words = "how fast this machine reads the weights is not known: they or overhead take it"
        return Cause.DECODE_FLOOR, Fact(words, FactSource.DERIVED)
    fact = Fact(f"reading all weights once takes {ms(weights_s)} here", FactSource.DERIVED)
    by_weights = weights_s >= MOSTLY * taken.seconds
    return Cause.DECODE_WEIGHTS if by_weights else Cause.DECODE_OVERHEAD, fact
