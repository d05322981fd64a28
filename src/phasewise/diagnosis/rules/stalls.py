"""Rules for stalls: a client that does not read, a preemption, a pause, other requests' prefill."""

from __future__ import annotations

from phasewise.core.units import counted
from phasewise.diagnosis.analysis.stall_causes import ExplainedStall, StallCause
from phasewise.diagnosis.finding import Cause, Confidence, Fact, FactSource
from phasewise.diagnosis.rules.case import UNEXPLAINED, Claim, StreamCase, TokenPart, ms, stall_part
from phasewise.diagnosis.rules.prompts import with_uncached_rival
from phasewise.diagnosis.rules.queueing import kv_facts, preemptions

NAMED_STEPS = 3
"""The most stalls named as evidence."""
NAMED_PROMPTS = 2
NOTICED_PROMPT_TOKENS = 128
"""A smaller step is mostly weight reads and overhead on every device: shorter prompts do not stall streams.
"""


def slow_client(case: StreamCase) -> Claim | None:
    """The gateway had tokens that its client did not read."""
    client_s = case.account.seconds(TokenPart.CLIENT)
    taken = case.account.take(1.0, TokenPart.CLIENT, stall_part(StallCause.CLIENT))
    stalls = case.stalls(StallCause.CLIENT)
    facts = [Fact(f"the gateway waited {ms(client_s)} per token for clients to read", FactSource.GATEWAY)]
    if stalls:
        facts.append(Fact(f"{counted(len(stalls), 'stall')} while it waited", FactSource.GATEWAY))
    return Claim(
        Cause.SLOW_CLIENT,
        taken,
        tuple(facts),
        "a client that reads at once gets the tokens of the same requests as slowly",
    )


def kv_exhausted_stream(case: StreamCase) -> Claim | None:
    """Running streams are preempted because the KV cache is full, and computed again."""
    preempted_s = case.account.seconds(TokenPart.PREEMPTED)
    taken = case.account.take(1.0, TokenPart.PREEMPTED, stall_part(StallCause.PREEMPTION))
    facts = [Fact(f"preemptions cost {ms(preempted_s)} per token of slow streams", FactSource.STEP_RECORD)]
    guessed = 0.0 if case.stream.step_timed else _lost_places_per_slow_stream(case)
    if guessed:
        taken += case.account.take(guessed, stall_part(StallCause.UNKNOWN), UNEXPLAINED)
        facts = [Fact(_LOST_PLACES, FactSource.DERIVED)]
    stalls = case.stalls(StallCause.PREEMPTION, *([StallCause.UNKNOWN] if guessed else []))
    return Claim(
        Cause.KV_EXHAUSTED,
        taken,
        (*facts, *kv_facts(case.summary), *stall_facts(case, stalls)),
        "stalls continue with a larger KV cache or fewer running requests",
        Confidence.LOW if guessed else Confidence.HIGH,
    )


def _lost_places_per_slow_stream(case: StreamCase) -> float:
    """The stalls by preemption, at most one per preempted request."""
    preempted = preemptions(case.summary) or 0.0
    return min(1.0, preempted / max(1, case.stream.slow)) if case.stalls(StallCause.UNKNOWN) else 0.0


def chunks_stall(case: StreamCase) -> Claim | None:
    """Running streams wait while prompts are computed in their steps."""
    prompts_s = case.account.seconds(TokenPart.PROMPTS)
    found, unknown = case.stalls(StallCause.PREFILL_CHUNK), case.stalls(StallCause.UNKNOWN)
    taken = case.account.take(1.0, TokenPart.PROMPTS, stall_part(StallCause.PREFILL_CHUNK))
    source = FactSource.STEP_RECORD if case.stream.step_timed else FactSource.COUNTERS
    facts = [Fact(f"other requests' prefill adds {ms(prompts_s)} to a slow stream's token", source)]
    guesses = bool(unknown) and not found and _prompts_can_stall(case)
    if not found and not prompts_s:
        facts = [Fact(_GUESS, FactSource.DERIVED)] if guesses else []
        taken += case.account.take(1.0 if guesses else 0.0, UNEXPLAINED)
    if guesses:
        taken += case.account.take(1.0, stall_part(StallCause.UNKNOWN))
    facts += stall_facts(case, unknown if guesses else found)
    sure = Confidence.LOW if guesses else Confidence.HIGH
    claim = Claim(
        Cause.CHUNKS_STALL, taken, tuple(facts), "stalls continue while no prompt is computed", sure
    )
    return with_uncached_rival(claim, case.summary)


def _prompts_can_stall(case: StreamCase) -> bool:
    """Whether prompts are long enough to make a step longer, if known."""
    long_tokens = case.summary.workload.prompt_p90_tokens
    return long_tokens is None or long_tokens >= NOTICED_PROMPT_TOKENS


_LOST_PLACES = "no step record: preemptions are the likely cause, by their number"
_GUESS = "no step record: prefill chunks are the likely cause, by their size"


def stall_facts(case: StreamCase, guilty: tuple[ExplainedStall, ...]) -> list[Fact]:
    """The number and length of the stalls, and the costliest steps."""
    if not guilty:
        return []
    stream = case.stream
    longest = f"worst gap {ms(stream.gap_max_s)} " if stream.gap_max_s is not None else ""
    stalls = sum(found.count for found in guilty)
    words = f"{counted(stalls, 'stall')} in {counted(stream.streams, 'stream')}; "
    facts = [Fact(f"{words}{longest}against a median of {ms(stream.gap_p50_s)}", case.summary.seen_by.clock)]
    by_steps: dict[tuple[object, ...], list[ExplainedStall]] = {}
    for found in guilty:
        if found.steps:
            key = (found.engine, *(timed.step.seq for timed in found.steps))
            by_steps.setdefault(key, []).append(found)
    worst = sorted(by_steps.values(), key=lambda group: -sum(found.stall.excess_s for found in group))
    several = len(case.summary.engines) > 1
    named = [_name_steps(group, several) for group in worst[:NAMED_STEPS]]
    return facts + [Fact(words, FactSource.STEP_RECORD) for words in named]


def _name_steps(group: list[ExplainedStall], several_engines: bool) -> str:
    """Stalls of the same steps in one fact, with the engine's name if there are several."""
    engine = group[0].engine
    where = f" of {engine}" if several_engines and engine is not None else ""
    steps = ", ".join(
        f"step {timed.step.seq} ({timed.step.prompt_tokens} prompt + {timed.step.decode_tokens} decode tokens"
        + (f", {ms(timed.duration_s)})" if timed.duration_s is not None else ")")
        for timed in group[0].steps
    )
    longest_s = max(found.stall.duration_s for found in group)
    still = f"{counted(len(group), 'stream')} stalled for up to {ms(longest_s)} in {steps}{where}"
    return f"{still}{_whose(group[0])}"


def _whose(found: ExplainedStall) -> str:
    """The requests whose prompts were computed there, the largest first."""
    largest = sorted(found.guilty, key=lambda prompt: prompt.cached_tokens - prompt.prompt_tokens)
    named = [f"{prompt.request_id} ({prompt.prompt_tokens} tokens)" for prompt in largest[:NAMED_PROMPTS]]
    more = len(largest) - len(named)
    others = f" and {more} more" if more else ""
    return f": the prompt of {', '.join(named)}{others}" if named else ""
