"""Streams that stand still: a client that does not read, a place that was lost, a pause, others' prompts."""

from __future__ import annotations

from phasewise.diagnosis.cause import Cause, Confidence
from phasewise.diagnosis.finding import Fact, FactSource
from phasewise.diagnosis.rules.case import RESIDUAL, Claim, StreamCase, TokenPart, stall_part
from phasewise.diagnosis.rules.places import kv_facts, preemptions
from phasewise.diagnosis.rules.words import count, ms
from phasewise.diagnosis.seen_by import clock_source
from phasewise.diagnosis.stall_causes import ExplainedStall, StallCause

NAMED_STEPS = 3
"""More would be a list, not evidence."""
NAMED_PROMPTS = 2
NOTICED_PROMPT_TOKENS = 128
"""A step of fewer tokens is mostly weights and overhead on every device: such prompts stall nobody."""


def slow_client(case: StreamCase) -> Claim | None:
    """The gateway had tokens and its client did not take them."""
    client_s = case.account.seconds(TokenPart.CLIENT)
    taken = case.account.take(1.0, TokenPart.CLIENT, stall_part(StallCause.CLIENT))
    stalls = case.stalls(StallCause.CLIENT)
    facts = [Fact(f"the gateway waited {ms(client_s)} per token for clients to read", FactSource.GATEWAY)]
    if stalls:
        facts.append(Fact(f"{count(len(stalls), 'stall')} while it waited", FactSource.GATEWAY))
    return Claim(
        Cause.SLOW_CLIENT,
        taken,
        tuple(facts),
        "a client that reads at once, with the same requests, gets its tokens as slowly",
    )


def kv_exhausted_stream(case: StreamCase) -> Claim | None:
    """Running streams lose their place because KV memory runs out, and are computed again."""
    preempted_s = case.account.seconds(TokenPart.PREEMPTED)
    taken = case.account.take(1.0, TokenPart.PREEMPTED, stall_part(StallCause.PREEMPTION))
    facts = [Fact(f"lost places cost {ms(preempted_s)} per token on average", FactSource.STEP_RECORD)]
    guessed = 0.0 if case.stream.step_timed else _lost_places_per_slow_stream(case)
    if guessed:
        taken += case.account.take(guessed, stall_part(StallCause.UNKNOWN), RESIDUAL)
        facts = [Fact(_LOST_PLACES, FactSource.DERIVED)]
    stalls = case.stalls(StallCause.PREEMPTION, *([StallCause.UNKNOWN] if guessed else []))
    return Claim(
        Cause.KV_EXHAUSTED,
        taken,
        (*facts, *kv_facts(case.picture), *_stall_facts(case, stalls)),
        "stalls go on with more KV memory or fewer running requests",
        Confidence.LOW if guessed else Confidence.HIGH,
    )


def _lost_places_per_slow_stream(case: StreamCase) -> float:
    """At most one: whoever loses a place stands still at least once."""
    preempted = preemptions(case.picture) or 0.0
    return min(1.0, preempted / max(1, case.stream.slow)) if case.stalls(StallCause.UNKNOWN) else 0.0


def engine_pauses(case: StreamCase) -> Claim | None:
    """The engine had streams to serve and no step ended, or one took long for no visible reason."""
    paused_s = case.account.seconds(TokenPart.PAUSED)
    causes = (StallCause.PAUSE, StallCause.ENGINE_IDLE, StallCause.SLOW_STEP)
    taken = case.account.take(1.0, TokenPart.PAUSED, *map(stall_part, causes))
    facts = [
        Fact(f"the engine stood still for {ms(paused_s)} per token on average", FactSource.STEP_RECORD),
        *_stall_facts(case, case.stalls(*causes)),
    ]
    return Claim(
        Cause.ENGINE_PAUSES,
        taken,
        tuple(facts),
        "the engine's steps follow each other without a gap while streams stand still",
        Confidence.MEDIUM,
    )


def chunks_stall(case: StreamCase) -> Claim | None:
    """Running streams wait while prompts are computed in their steps."""
    prompts_s = case.account.seconds(TokenPart.PROMPTS)
    known, unknown = case.stalls(StallCause.PREFILL_CHUNK), case.stalls(StallCause.UNKNOWN)
    taken = case.account.take(1.0, TokenPart.PROMPTS, stall_part(StallCause.PREFILL_CHUNK))
    facts = [Fact(f"others' prompts add {ms(prompts_s)} to a token on average", FactSource.STEP_RECORD)]
    guesses = bool(unknown) and not known and _prompts_can_stall(case)
    if not known and not prompts_s:
        facts = [Fact(_GUESS, FactSource.DERIVED)] if guesses else []
        taken += case.account.take(1.0 if guesses else 0.0, RESIDUAL)
    if guesses:
        taken += case.account.take(1.0, stall_part(StallCause.UNKNOWN))
    facts += _stall_facts(case, unknown if guesses else known)
    return Claim(
        Cause.CHUNKS_STALL,
        taken,
        tuple(facts),
        "stalls go on while no prompt is being computed",
        Confidence.LOW if guesses else Confidence.HIGH,
    )


def _prompts_can_stall(case: StreamCase) -> bool:
    """Whether prompts are long enough to make a step longer, as far as is known."""
    long_tokens = case.picture.workload.prompt_p90_tokens
    return long_tokens is None or long_tokens >= NOTICED_PROMPT_TOKENS


_LOST_PLACES = "no step record: that lost places caused the stalls is a guess from how many were lost"
_GUESS = "no step record: that prompt chunks caused the stalls is a guess from their size"


def _stall_facts(case: StreamCase, guilty: tuple[ExplainedStall, ...]) -> list[Fact]:
    """How many, how long, and the steps that cost most."""
    if not guilty:
        return []
    stream = case.stream
    longest = f"worst gap {ms(stream.gap_max_s)} " if stream.gap_max_s is not None else ""
    words = f"{count(sum(found.count for found in guilty), 'stall')} in {count(stream.streams, 'stream')}; "
    facts = [
        Fact(f"{words}{longest}against a usual {ms(stream.gap_p50_s)}", clock_source(case.picture.seen_by))
    ]
    by_steps: dict[tuple[object, ...], list[ExplainedStall]] = {}
    for found in guilty:
        if found.steps:
            key = (found.engine, *(timed.step.seq for timed in found.steps))
            by_steps.setdefault(key, []).append(found)
    worst = sorted(by_steps.values(), key=lambda group: -sum(found.stall.excess_s for found in group))
    several = len(case.picture.engines) > 1
    named = [_name_steps(group, several) for group in worst[:NAMED_STEPS]]
    return facts + [Fact(words, FactSource.STEP_RECORD) for words in named]


def _name_steps(group: list[ExplainedStall], several_engines: bool) -> str:
    """Streams that stood still in the same steps are told of together, and of several engines in whose."""
    engine = group[0].engine
    where = f" of {engine}" if several_engines and engine is not None else ""
    steps = ", ".join(
        f"step {timed.step.seq} ({timed.step.prompt_tokens} prompt + {timed.step.decode_tokens} decode tokens"
        + (f", {ms(timed.duration_s)})" if timed.duration_s is not None else ")")
        for timed in group[0].steps
    )
    longest_s = max(found.stall.duration_s for found in group)
    still = f"{count(len(group), 'stream')} stood still for up to {ms(longest_s)} in {steps}{where}"
    return f"{still}{_whose(group[0])}"


def _whose(found: ExplainedStall) -> str:
    """Whose prompts were computed there, the largest first."""
    largest = sorted(found.guilty, key=lambda prompt: prompt.cached_tokens - prompt.prompt_tokens)
    named = [f"{it.request_id} ({it.prompt_tokens} tokens)" for it in largest[:NAMED_PROMPTS]]
    more = len(largest) - len(named)
    others = f" and {more} more" if more else ""
    return f": the prompt of {', '.join(named)}{others}" if named else ""
