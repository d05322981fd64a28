"""One request's life in the engine's steps: those it waited for, those of its prompt, its decode steps."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from phasewise.core.latency import e2e_s, ttft_s
from phasewise.core.steps import EngineMoments, FinishedRequest, TimedStep
from phasewise.core.timeline import Attempt, AttemptKind, Timeline
from phasewise.diagnosis.analysis.attribution import (
    TAKEN_IN_S,
    Readings,
    attempt_reading,
    explained,
    unnamed_prompt_steps,
)
from phasewise.diagnosis.analysis.stall_causes import ExplainedStall, GuiltyPrompt, explain_stalls
from phasewise.diagnosis.analysis.step_reading import StepReading
from phasewise.diagnosis.analysis.token_ledger import StreamStretch, TokenLedger, stream_ledgers
from phasewise.diagnosis.analysis.unnamed_prompt import counted_tokens


class StepRole(StrEnum):
    """What a step was for the request: it arrived during it, waited in the queue, or took part."""

    IN_FLIGHT = "in_flight"
    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class LifeStep:
    """A step of the request's life, in seconds since its arrival.

    `own_tokens` are the request's tokens that the step computed, `cached_tokens` those in its KV cache
    afterwards. If the step computed other prompts too, they share its prompt tokens by length. `others` are
    the other requests whose prompts it computed, as far as they ended within the record.
    """

    role: StepRole
    timed: TimedStep
    start_s: float
    end_s: float
    own_tokens: int = 0
    cached_tokens: int = 0
    others: tuple[GuiltyPrompt, ...] = ()

    @property
    def other_prompt_tokens(self) -> int:
        own = self.own_tokens if self.role is StepRole.PREFILL else 0
        return max(0, (self.timed.step.prompt_tokens or 0) - own)

    @property
    def other_streams(self) -> int:
        """The streams of other requests that it gave a token."""
        streams = self.timed.step.decode_requests or self.timed.step.decode_tokens or 0
        return max(0, streams - (self.role is StepRole.DECODE))


@dataclass(frozen=True, slots=True)
class Fellow:
    """Another request, by its id in the engine, in the steps that computed the request's tokens."""

    request_id: str
    prompt_tokens: int
    output_tokens: int
    prefill_steps: int
    decode_steps: int

    @property
    def steps(self) -> int:
        return self.prefill_steps + self.decode_steps


@dataclass(frozen=True, slots=True)
class RequestLife:
    """A request with all that the step records add. `stream` splits the time after its first token.

    Without a record of it, `steps` and `fellows` are empty, and `stream` is what the engine reported; None if
    nothing was streamed. `prefill_tokens` are the prompt tokens that were computed; None if that is unknown.
    """

    timeline: Timeline
    steps: tuple[LifeStep, ...] = ()
    fellows: tuple[Fellow, ...] = ()
    stalls: tuple[ExplainedStall, ...] = ()
    stream: TokenLedger | None = None
    prefill_tokens: int | None = None

    def of(self, *roles: StepRole) -> tuple[LifeStep, ...]:
        return tuple(step for step in self.steps if step.role in roles)


def life_of(timeline: Timeline, readings: Readings) -> RequestLife:
    """The request, explained by the records of the engines that served it."""
    (known,) = explained((timeline,), readings)
    serving, prefill = known.serving_attempt, known.prefill_attempt
    reading = None if serving is None else attempt_reading(serving, readings)
    stalls = explain_stalls(known, reading)
    steps: list[LifeStep] = []
    fellows: tuple[Fellow, ...] = ()
    for attempt in (prefill, serving):
        found = None if attempt is None else attempt_reading(attempt, readings)
        seen = (
            None if attempt is None or found is None else found.log.finished(attempt.engine_request_id or "")
        )
        if attempt is None or found is None or seen is None:
            continue
        own = tuple(_steps(known, attempt, found, *seen))
        steps += own
        fellows += _fellows([step for step in own if step.own_tokens], found, seen[1].request_id)
    tokens = _prefill_tokens(known, reading)
    return RequestLife(known, tuple(steps), fellows, stalls, _stream(known, stalls, readings), tokens)


def _prefill_tokens(timeline: Timeline, reading: StepReading | None) -> int | None:
    """As the engine reported them; of an answer that was cut off, as its steps counted them."""
    if timeline.prompt_tokens is not None:
        return max(1, timeline.prompt_tokens - (timeline.cached_tokens or 0))
    serving = timeline.serving_attempt
    if serving is None or reading is None or not timeline.content_times_s:
        return None
    return counted_tokens(unnamed_prompt_steps(timeline, serving, reading))


def _steps(
    timeline: Timeline, attempt: Attempt, reading: StepReading, seen: EngineMoments, ended: FinishedRequest
) -> Iterator[LifeStep]:
    origin_s = timeline.started_unix_s
    prefill = () if attempt.kind is AttemptKind.DECODE_SIDE else reading.prefill_steps(seen)
    decode = () if attempt.kind is AttemptKind.PREFILL_SIDE else reading.decode_steps(seen)
    first_own_s = prefill[0].step.ended_unix_s if prefill else seen.first_token_unix_s
    before = [
        timed
        for timed in reading.log.ending_between(seen.arrived_unix_s, seen.scheduled_unix_s + TAKEN_IN_S)
        if timed.step.ended_unix_s < first_own_s and timed.started_unix_s is not None
    ]

    def step(role: StepRole, timed: TimedStep, own: int = 0, cached: int = 0) -> LifeStep:
        start_s = timed.started_unix_s
        if start_s is None:
            start_s = seen.scheduled_unix_s if role is StepRole.PREFILL else timed.step.ended_unix_s
        others = (record.ended for record in reading.prefilled_in(timed.step) if record.ended is not ended)
        return LifeStep(
            role,
            timed,
            start_s - origin_s,
            timed.step.ended_unix_s - origin_s,
            own,
            cached,
            tuple(
                GuiltyPrompt(other.request_id, other.prompt_tokens, other.cached_tokens) for other in others
            ),
        )

    for timed in before:
        waits = timed.step.ended_unix_s > seen.queued_unix_s + TAKEN_IN_S
        yield step(StepRole.QUEUED if waits else StepRole.IN_FLIGHT, timed)
    cached = ended.cached_tokens
    for timed, own in zip(prefill, _prompt_shares(prefill, ended), strict=True):
        cached += own
        yield step(StepRole.PREFILL, timed, own, cached)
    cached = ended.prompt_tokens
    for timed, own in zip(decode, even_shares(ended.output_tokens - 1, len(decode)), strict=True):
        cached += own
        yield step(StepRole.DECODE, timed, own, cached)


def _prompt_shares(steps: Sequence[TimedStep], ended: FinishedRequest) -> list[int]:
    """How many of the prompt's tokens each step computed: all of its prompt tokens, or its share of them."""
    own = max(0, ended.prompt_tokens - ended.cached_tokens)
    carried = [timed.step.prompt_tokens or 0 for timed in steps]
    if not sum(carried):
        return even_shares(own, len(steps))
    bounds = [round(own * min(1.0, sum(carried[:place]) / sum(carried))) for place in range(len(steps) + 1)]
    return [after - before for before, after in pairwise(bounds)]


def even_shares(tokens: int, steps: int) -> list[int]:
    """So many tokens over so many steps, as evenly as whole numbers allow; with speculation more than one."""
    bounds = [round(max(0, tokens) * place / steps) for place in range(steps + 1)] if steps else []
    return [after - before for before, after in pairwise(bounds)]


def _fellows(own: Sequence[LifeStep], reading: StepReading, engine_id: str) -> tuple[Fellow, ...]:
    """The other requests in these steps, those with most steps first; known are those that ended since."""
    ends = [step.timed.step.ended_unix_s for step in own]
    prefills = Counter(other.request_id for step in own for other in step.others)
    found = []
    for request_id in (each.request_id for timed in reading.log.steps for each in timed.step.finished):
        seen = reading.log.finished(request_id)
        if seen is None or request_id == engine_id:
            continue
        moments, ended = seen
        begun = bisect_right(ends, moments.scheduled_unix_s)
        common = bisect_right(ends, moments.last_token_unix_s) - begun
        prefill = min(prefills[request_id], common)
        if common:
            tokens = (ended.prompt_tokens, ended.output_tokens)
            found.append(Fellow(request_id, *tokens, prefill, common - prefill))
    return tuple(sorted(found, key=lambda fellow: -fellow.steps))


def _stream(timeline: Timeline, stalls: tuple[ExplainedStall, ...], readings: Readings) -> TokenLedger | None:
    """Where the time after the first token went, up to the end."""
    first_s = ttft_s(timeline)
    end_s = e2e_s(timeline) or timeline.ended_s
    if first_s is None or end_s <= first_s:
        return None
    stretch = StreamStretch(timeline, end_s - first_s, 1.0, stalls)
    split = stream_ledgers((stretch,), readings)
    return split[0] if split else TokenLedger(unexplained_s=stretch.seconds)
