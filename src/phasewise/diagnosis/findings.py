"""The rules: each looks at the picture and says whether its cause is there, how much it costs, and why.

A finding counts the seconds that users lost beyond their objective, so that causes in different phases can
be ranked. What to do about a finding stands in fixes.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from phasewise.diagnosis.attribution import ExplainedStall, StallCause
from phasewise.diagnosis.picture import Picture, StartPicture, StreamPicture
from phasewise.model.slo import Slo
from phasewise.model.timeline import Part, Source

AFFECTED_SHARE = 0.1
"""A phase is slow when at least this share of its requests missed the objective."""
MIN_SHARE = 0.25
"""A cause that makes up less of the phase's time than this is not reported."""
REUSE_GAP = 0.3
"""Prefixes count as not reused when this much more of the prompts was shared than was cached."""
NAMED_STEPS = 4
ENOUGH_REQUESTS = 8
MOST = 0.7


class Phase(StrEnum):
    """Where the time is lost."""

    START = "slow_to_start"
    STREAM = "slow_to_stream"


class Cause(StrEnum):
    """Why it is lost."""

    QUEUEING = "queueing"
    LONG_PROMPTS = "long_prompt_prefill"
    PREFIX_NOT_REUSED = "prefix_reuse_missing"
    CHUNKS_STALL_DECODES = "prefill_chunks_stall_decodes"
    DECODE_STEP = "decode_step"
    PREEMPTIONS = "kv_memory_preemptions"
    OUTSIDE_ENGINE = "outside_the_engine"


class Confidence(StrEnum):
    """How far the evidence carries."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause with its cost, its evidence and what would refute it."""

    phase: Phase
    cause: Cause
    share: float
    lost_s: float
    evidence: tuple[str, ...]
    confidence: Confidence
    refuted_by: str


Rule = Callable[[Picture, Slo], Finding | None]


def starts_late(picture: Picture) -> bool:
    """Whether enough requests missed the TTFT objective to speak of a slow start."""
    start = picture.start
    return start is not None and start.late >= max(1, AFFECTED_SHARE * start.requests)


def streams_slowly(picture: Picture) -> bool:
    """Whether enough streams missed the TPOT objective, or stalled, to speak of slow streaming."""
    stream = picture.stream
    return stream is not None and stream.slow >= max(1, AFFECTED_SHARE * stream.streams)


def _start_finding(
    picture: Picture, cause: Cause, part_s: float, evidence: tuple[str, ...], refuted_by: str
) -> Finding | None:
    start = picture.start
    if start is None or not starts_late(picture) or not start.timed or start.parts_mean_s <= 0:
        return None
    share = part_s / start.parts_mean_s
    if share < MIN_SHARE:
        return None
    facts = (_ttft_fact(start), *evidence)
    confidence = _confidence(start.requests, start.timed, start.step_timed)
    lost_s = start.lost_s * min(1.0, share)
    return Finding(Phase.START, cause, share, lost_s, facts, confidence, refuted_by)


def _ttft_fact(start: StartPicture) -> str:
    silent = f", {start.unanswered} of them never answered" if start.unanswered else ""
    return (
        f"TTFT p50 {_ms(start.ttft_p50_s)}, p90 {_ms(start.ttft_p90_s)}; "
        f"{start.late} of {start.requests} requests over the objective{silent}"
    )


def _confidence(requests: int, timed: int, step_timed: int) -> Confidence:
    """High needs enough requests, most of them matched to steps; engine timings alone carry half as far."""
    if step_timed >= MOST * requests:
        return Confidence.HIGH if requests >= ENOUGH_REQUESTS else Confidence.MEDIUM
    return Confidence.MEDIUM if timed >= MOST * requests and requests >= ENOUGH_REQUESTS else Confidence.LOW


def queueing(picture: Picture, slo: Slo) -> Finding | None:
    """Requests wait behind others: in the engine's queue, for a running step, or in steps full of others."""
    if picture.start is None:
        return None
    queue_s = picture.start.seconds(Part.ENGINE_QUEUE)
    in_flight_s = picture.start.seconds(Part.STEP_IN_FLIGHT)
    others_s = picture.start.seconds(Part.PREFILL_OTHERS)
    workload = picture.workload
    facts = [
        f"of it, waiting behind other requests: {_ms(queue_s)} in the engine's queue, "
        f"{_ms(in_flight_s)} for the running step, {_ms(others_s)} in steps shared with others"
    ]
    if workload.waiting_max is not None and workload.running_mean is not None:
        facts.append(f"up to {workload.waiting_max} waiting, {workload.running_mean:.1f} running on average")
    return _start_finding(
        picture,
        Cause.QUEUEING,
        queue_s + in_flight_s + others_s,
        tuple(facts),
        "TTFT stays as high when one request is sent alone",
    )


def _missing_reuse(picture: Picture) -> float:
    """The share of prompt tokens that had been seen before and was computed again."""
    shared, cached = picture.workload.shared_share, picture.workload.cached_share
    if shared is None or cached is None:
        return 0.0
    missing = shared - cached
    return missing if missing >= REUSE_GAP else 0.0


def prefix_not_reused(picture: Picture, slo: Slo) -> Finding | None:
    """Prompts share their beginnings, and the engine computes them again."""
    missing = _missing_reuse(picture)
    if picture.start is None or not missing:
        return None
    workload = picture.workload
    facts = [
        f"at least {_percent(workload.shared_share)} of the prompt tokens had been seen before, "
        f"{_percent(workload.cached_share)} came from the prefix cache"
    ]
    if workload.prefix_cache_on is False:
        facts.append("the engine says that its prefix cache is off")
    prefill_s = picture.start.seconds(Part.PREFILL, Part.PREFILL_OTHERS)
    facts.append(f"prefill takes {_ms(prefill_s)} of TTFT on average")
    return _start_finding(
        picture,
        Cause.PREFIX_NOT_REUSED,
        prefill_s * missing,
        tuple(facts),
        "the second of two equal long prompts starts no sooner with the prefix cache on",
    )


def long_prompts(picture: Picture, slo: Slo) -> Finding | None:
    """The prompt's own tokens take the time."""
    if picture.start is None:
        return None
    own_s = picture.start.seconds(Part.PREFILL) * (1.0 - _missing_reuse(picture))
    workload = picture.workload
    by_steps = any(it.part is Part.PREFILL and it.source is Source.STEP_RECORD for it in picture.start.parts)
    whose = "the prompt's own tokens" if by_steps else "the prompt, others' tokens in its steps included,"
    facts = [f"computing {whose} takes {_ms(own_s)} of it on average"]
    if workload.prompt_p50_tokens is not None:
        facts.append(
            f"prompts are long: p50 {workload.prompt_p50_tokens:.0f}, p90 {workload.prompt_p90_tokens:.0f} "
            f"tokens, {_percent(workload.cached_share)} cached"
        )
    return _start_finding(
        picture, Cause.LONG_PROMPTS, own_s, tuple(facts), "TTFT does not fall with a shorter prompt"
    )


def outside_engine(picture: Picture, slo: Slo) -> Finding | None:
    """Time that no engine clock saw: before it, after it, or in its front end."""
    start = picture.start
    if start is None:
        return None
    outside_s = start.residual_s + start.seconds(Part.GATEWAY_WAIT, Part.CLIENT_LAG, Part.EARLIER_ATTEMPTS)
    facts = (
        f"unexplained by any engine clock: {_ms(start.residual_s)}; "
        f"in the gateway {_ms(start.seconds(Part.GATEWAY_WAIT))}, "
        f"generator lag {_ms(start.seconds(Part.CLIENT_LAG))}",
    )
    return _start_finding(
        picture,
        Cause.OUTSIDE_ENGINE,
        outside_s,
        facts,
        "the same request sent straight to the engine's port is as slow",
    )


def chunks_stall_decodes(picture: Picture, slo: Slo) -> Finding | None:
    """Running streams stand still while a prompt is computed in the same steps."""
    return _stall_finding(
        picture,
        Cause.CHUNKS_STALL_DECODES,
        frozenset({StallCause.PREFILL_CHUNK, StallCause.UNKNOWN}),
        "stalls go on while no prompt is being computed",
    )


def preemptions(picture: Picture, slo: Slo) -> Finding | None:
    """Running streams lose their place because KV memory runs out, and are computed again."""
    return _stall_finding(
        picture,
        Cause.PREEMPTIONS,
        frozenset({StallCause.PREEMPTION}),
        "stalls go on with more KV memory or fewer running requests",
    )


def _stall_finding(
    picture: Picture, cause: Cause, causes: frozenset[StallCause], refuted_by: str
) -> Finding | None:
    stream = picture.stream
    if stream is None or not streams_slowly(picture) or stream.lost_s <= 0:
        return None
    guilty = tuple(found for found in stream.stalls if found.cause in causes)
    lost_s = min(stream.lost_s, sum(found.stall.excess_s for found in guilty))
    share = lost_s / stream.lost_s
    if share < MIN_SHARE:
        return None
    guessed = all(found.cause is StallCause.UNKNOWN for found in guilty)
    confidence = Confidence.LOW if guessed else _confidence(stream.streams, stream.streams, stream.step_timed)
    return Finding(
        Phase.STREAM, cause, share, lost_s, _stall_facts(stream, guilty, guessed), confidence, refuted_by
    )


def _stall_facts(stream: StreamPicture, guilty: tuple[ExplainedStall, ...], guessed: bool) -> tuple[str, ...]:
    longest = f"worst gap {_ms(stream.gap_max_s)} " if stream.gap_max_s is not None else ""
    usual = f"{longest}against a usual {_ms(stream.gap_p50_s)}"
    facts = [f"{len(guilty)} stalls in {stream.streams} streams; {usual}"]
    if guessed:
        facts.append("no step record: that prompt chunks caused them is a guess from their size")
    by_steps: dict[tuple[int, ...], list[ExplainedStall]] = {}
    for found in guilty if not guessed else ():
        by_steps.setdefault(tuple(timed.step.seq for timed in found.steps), []).append(found)
    worst = sorted(by_steps.values(), key=lambda group: -sum(found.stall.excess_s for found in group))
    facts += [_name_steps(group) for group in worst[:NAMED_STEPS]]
    return tuple(facts)


def _name_steps(group: list[ExplainedStall]) -> str:
    """Streams that stood still in the same steps are told of together."""
    steps = ", ".join(
        f"step {timed.step.seq} ({timed.step.prompt_tokens} prompt + {timed.step.decode_tokens} decode tokens"
        + (f", {_ms(timed.duration_s)})" if timed.duration_s is not None else ")")
        for timed in group[0].steps
    )
    longest_s = max(found.stall.duration_s for found in group)
    streams = "1 stream" if len(group) == 1 else f"{len(group)} streams"
    return f"{streams} stood still for up to {_ms(longest_s)} in {steps}"


def decode_step(picture: Picture, slo: Slo) -> Finding | None:
    """Every token is slow: the decode step itself takes longer than the objective allows."""
    stream = picture.stream
    if stream is None or not streams_slowly(picture) or stream.tpot_p50_s <= slo.tpot_s:
        return None
    stalled_s = min(stream.stall_lost_s, stream.lost_s)
    share = 1.0 - stalled_s / stream.lost_s if stream.lost_s else 0.0
    if share < MIN_SHARE:
        return None
    facts = [
        f"TPOT p50 {_ms(stream.tpot_p50_s)}, p90 {_ms(stream.tpot_p90_s)}; "
        f"{stream.slow} of {stream.streams} streams over the objective"
    ]
    if stream.step_s is not None:
        facts.append(f"ordinary decode steps alone take {_ms(stream.step_s)} per token")
    if picture.workload.running_mean is not None:
        facts.append(f"{picture.workload.running_mean:.1f} requests share a step on average")
    return Finding(
        Phase.STREAM,
        Cause.DECODE_STEP,
        share,
        stream.lost_s - stalled_s,
        tuple(facts),
        _confidence(stream.streams, stream.streams if stream.step_s is not None else 0, stream.step_timed),
        "a single stream on the idle engine is much faster per token"
        if (picture.workload.running_mean or 1.0) < 2
        else "TPOT stays as high with fewer requests running",
    )


RULES: tuple[Rule, ...] = (
    queueing,
    prefix_not_reused,
    long_prompts,
    outside_engine,
    chunks_stall_decodes,
    preemptions,
    decode_step,
)


def find(picture: Picture, slo: Slo) -> tuple[Finding, ...]:
    """Every cause that is there, the most costly first."""
    found = [finding for rule in RULES if (finding := rule(picture, slo)) is not None]
    return tuple(sorted(found, key=lambda finding: -finding.lost_s))


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    return f"{seconds * 1000:.0f} ms" if abs(seconds) < 10 else f"{seconds:.1f} s"


def _percent(share: float | None) -> str:
    return "an unknown share" if share is None else f"{share:.0%}"
