"""Reads a step record: the work of each step, how long similar steps take, and where its time went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import dropwhile, pairwise
from statistics import fmean, median

from phasewise.core.steps import (
    CLOCK_SLACK_S,
    FIRST_SEQ,
    EngineMoments,
    EngineStep,
    FinishedRequest,
    StepLog,
    TimedStep,
)
from phasewise.costs.fit.observation import FIRST_TOKEN_SLACK_S, observed_steps
from phasewise.costs.fit.step import CostPart, StepCost, StepWork

COLD_FACTOR = 3.0
"""A first step of its kind is cold if it took this many times as long as later ones: compiling, loading
and allocating take seconds, and the spread within a kind is smaller."""
COLD_STEPS = 8
"""At most this many steps of a kind are cold: an engine warms up a shape in few steps."""
FEWEST_LIKE = 3
"""With fewer steps of a kind than this, their median is not used."""
COLD_LOG_STEPS = 16
"""Within this many steps of a record's beginning, a step without a later one of its kind is compared with the
costs.
"""
FIRST_OF_LIFE = 64
"""Within this many steps, an engine runs most kinds of steps for the first time."""
MOST_DRAFTED = 64
"""No draft is longer: a stream with more tokens in a step is computed again after a preemption, which vLLM
counts as decode tokens."""
TOKENS_AGAIN = 2
"""In a step that reports a preempted stream's return, streams with this many tokens are computed again."""
PAUSE_FACTOR = 4.0
"""A step that took this many times its expected time paused for the rest of it."""
PAUSE_FLOOR_S = 0.05
"""A shorter rest is no pause: nobody would notice it."""

Kind = tuple[int, int]
"""The kind of a step: the magnitudes of its prompt tokens and its streams, in powers of two."""


@dataclass(frozen=True, slots=True)
class StepSplit:
    """The parts of a step's time; they add up to its duration.

    `decode_s` is the time of its streams, `recomputed_s` the time to compute preempted streams again.
    `floor_s`, `batch_s` and `kv_read_s` add up to `decode_s` if costs are known, else they are None.
    """

    decode_s: float
    prompts_s: float = 0.0
    recomputed_s: float = 0.0
    paused_s: float = 0.0
    cold_s: float = 0.0
    floor_s: float | None = None
    batch_s: float | None = None
    kv_read_s: float | None = None


@dataclass(frozen=True, slots=True)
class PrefillRecord:
    """A request that the record covers from its scheduling to its end."""

    ended: FinishedRequest
    seen: EngineMoments

    @property
    def uncached_tokens(self) -> int:
        return max(0, self.ended.prompt_tokens - self.ended.cached_tokens)


class StepReading:
    """One rank's record, read with the engine's costs if they are known.

    `separates_parts` is false if the costs are accurate only for whole steps, not for their parts.
    """

    def __init__(self, log: StepLog, cost: StepCost | None = None, *, separates_parts: bool = True) -> None:
        self.log = log
        self.cost = cost
        self._separates_parts = separates_parts
        self._splits: dict[int, StepSplit] = {}

    def split(self, timed: TimedStep, since_s: float) -> StepSplit:
        """The parts of a step that ended after `since_s`; the caller has counted the time before.

        The begin of a step after idleness is not recorded: it is taken as its end less its expected time.
        """
        duration_s = timed.duration_s
        if duration_s is None:
            before_s = self._ends_before.get(timed.step.seq, timed.step.ended_unix_s)
            whole_s = max(0.0, timed.step.ended_unix_s - max(since_s, before_s))
            needed_s = min(whole_s, self._needed_s(timed, whole_s))
            return self._made(timed, needed_s, paused_s=whole_s - needed_s, cold_s=0.0)
        if timed.step.seq not in self._splits:
            self._splits[timed.step.seq] = self._known(timed, max(0.0, duration_s))
        return self._splits[timed.step.seq]

    def work(self, timed: TimedStep) -> StepWork | None:
        """The work of the step, if the record has all of it."""
        return self._works.get(timed.step.ended_unix_s)

    def expected_s(self, timed: TimedStep) -> float | None:
        """The expected time of this work, by the costs and by steps of its kind; None without either.

        The longer of both, because costs may have been measured under better conditions.
        """
        work = self.work(timed)
        cost_s = None if self.cost is None or work is None else self.cost(work)
        like_s = self._usual_s.get(_kind(timed.step))
        return max((seconds for seconds in (cost_s, like_s) if seconds is not None), default=None)

    def start_s(self, timed: TimedStep) -> float | None:
        """When the step began; after idleness, by the time of any step of its kind; None without one."""
        if timed.started_unix_s is not None:
            return timed.started_unix_s
        like_s = [like.duration_s or 0.0 for like in self._kinds.get(_kind(timed.step), ())]
        usual_s = self.expected_s(timed) or (median(like_s) if like_s else None)
        return None if usual_s is None else timed.step.ended_unix_s - usual_s

    def paused_s(self, timed: TimedStep) -> float:
        """How long the engine paused in the step, with work to do."""
        return self.split(timed, timed.step.ended_unix_s).paused_s

    def cold_s(self, timed: TimedStep) -> float:
        """The time that a cold step took beyond later ones."""
        return self._cold.get(timed.step.seq, 0.0)

    @cached_property
    def cold_steps(self) -> tuple[TimedStep, ...]:
        return tuple(timed for timed in self.log.steps if self.cold_s(timed) > 0)

    @property
    def cold_from_its_start(self) -> bool:
        """Whether cold steps were the first since the engine's start, not just in the record."""
        return any(timed.step.seq < FIRST_SEQ + FIRST_OF_LIFE for timed in self.cold_steps)

    def prefilled_in(self, step: EngineStep) -> tuple[PrefillRecord, ...]:
        """The requests whose prompts the step computed, if they ended within the record."""
        return self._prefilled.get(step.seq, ()) if step.prompt_tokens else ()

    def prefill_steps(self, seen: EngineMoments) -> tuple[TimedStep, ...]:
        """The steps that computed a request's prompt: from its scheduling to its first token.

        A request's times are counted back from its end and may be off by the delay of the engine's front end,
        so the last one is the step with prompt tokens that ended nearest to the first token.
        """
        first_s = seen.first_token_unix_s
        near = self.log.ending_between(
            max(first_s - FIRST_TOKEN_SLACK_S, seen.scheduled_unix_s), first_s + FIRST_TOKEN_SLACK_S
        )
        last = min(
            (timed for timed in near if timed.step.prompt_tokens),
            key=lambda timed: abs(timed.step.ended_unix_s - first_s),
            default=None,
        )
        slack_s = min(CLOCK_SLACK_S, seen.prefill_s / 4)
        until_s = first_s + slack_s if last is None else last.step.ended_unix_s
        steps = self.log.ending_between(seen.scheduled_unix_s + slack_s, until_s)
        return tuple(dropwhile(lambda timed: not _began_with(timed, seen.scheduled_unix_s), steps))

    def decode_steps(self, seen: EngineMoments) -> tuple[TimedStep, ...]:
        """The steps that gave the tokens after a request's first."""
        prefill = self.prefill_steps(seen)
        slack_s = min(CLOCK_SLACK_S, seen.prefill_s / 4)
        since_s = prefill[-1].step.ended_unix_s if prefill else seen.first_token_unix_s + slack_s
        return self.log.ending_between(since_s, seen.last_token_unix_s)

    def _needed_s(self, timed: TimedStep, whole_s: float) -> float:
        """What a step after idleness needed; all of its time, for a prompt unlike any other in the record."""
        start_s = self.start_s(timed)
        if start_s is not None:
            return timed.step.ended_unix_s - start_s
        return whole_s if timed.step.prompt_tokens else self.log.usual_decode_step_s or 0.0

    def _known(self, timed: TimedStep, duration_s: float) -> StepSplit:
        cold_s = min(self.cold_s(timed), duration_s)
        left_s = duration_s - cold_s
        expected_s = self.expected_s(timed)
        over_s = 0.0 if expected_s is None else left_s - expected_s
        paused = expected_s is not None and left_s > PAUSE_FACTOR * expected_s and over_s > PAUSE_FLOOR_S
        paused_s = over_s if paused else 0.0
        return self._made(timed, left_s - paused_s, paused_s, cold_s)

    def _made(self, timed: TimedStep, work_s: float, paused_s: float, cold_s: float) -> StepSplit:
        """The step's working time, split between its prompts and its streams."""
        prompts, again = timed.step.prompt_tokens or 0, recomputed_tokens(timed.step)
        decode_s, again_s = work_s, 0.0
        if prompts + again:
            decode_s = min(work_s, self._without_prompts_s(timed, work_s))
            again_s = (work_s - decode_s) * again / (prompts + again)
        parts = self._decode_parts(timed.step, decode_s)
        return StepSplit(decode_s, work_s - decode_s - again_s, again_s, paused_s, cold_s, *parts)

    def _without_prompts_s(self, timed: TimedStep, work_s: float) -> float:
        """What the step would have taken without its prompts."""
        if not timed.step.decode_tokens:
            return 0.0
        work = self.work(timed)
        if self.cost is None:
            return self.log.usual_decode_step_s or work_s
        if work is not None and (whole_s := self.cost(work)) > 0:
            return work_s * self.cost(work.without_prompts()) / whole_s
        return self.cost(self._decode_work(timed.step))

    def _decode_parts(self, step: EngineStep, decode_s: float) -> tuple[float, float, float] | tuple[()]:
        """Floor, batch and KV reads, scaled to the measured time of the step's streams."""
        if self.cost is None or not self._separates_parts or self._mean_context_tokens is None:
            return ()
        seconds = self.cost.parts_s(self._decode_work(step))
        whole_s = sum(seconds.values())
        if whole_s <= 0:
            return ()
        scale = decode_s / whole_s
        kv_read_s, floor_s = seconds[CostPart.KV_READ] * scale, seconds[CostPart.FLOOR] * scale
        return floor_s, max(0.0, decode_s - floor_s - kv_read_s), kv_read_s

    def _decode_work(self, step: EngineStep) -> StepWork:
        """The step's streams: as recorded, or with typical context lengths."""
        work = self._works.get(step.ended_unix_s)
        if work is not None:
            return work.without_prompts()
        streams = step.decode_requests or step.decode_tokens or 0
        return StepWork(
            decode_tokens=max(streams, (step.decode_tokens or 0) - recomputed_tokens(step)),
            requests=streams,
            kv_read_tokens=round(streams * (self._mean_context_tokens or 0.0)),
        )

    @cached_property
    def _works(self) -> dict[float, StepWork]:
        if self.cost is None:
            return {}
        history = observed_steps([timed.step for timed in self.log.steps])
        return {observation.at_s: observation.works[0] for observation in history.observations}

    @cached_property
    def _mean_context_tokens(self) -> float | None:
        """The mean length of the sequences over their lifetime; None if none ended in the record."""
        lengths = [
            ended.prompt_tokens + ended.output_tokens / 2
            for timed in self.log.steps
            for ended in timed.step.finished
        ]
        return fmean(lengths) if lengths else None

    @cached_property
    def _prefilled(self) -> dict[int, tuple[PrefillRecord, ...]]:
        """The requests in prefill at the end of each step."""
        by_step: dict[int, list[PrefillRecord]] = {}
        ids = [ended.request_id for timed in self.log.steps for ended in timed.step.finished]
        for found in (self.log.finished(request_id) for request_id in ids):
            if found is None:
                continue
            seen, ended = found
            for timed in self.prefill_steps(seen):
                by_step.setdefault(timed.step.seq, []).append(PrefillRecord(ended, seen))
        return {seq: tuple(who) for seq, who in by_step.items()}

    @cached_property
    def _ends_before(self) -> dict[int, float]:
        return {later.step.seq: earlier.step.ended_unix_s for earlier, later in pairwise(self.log.steps)}

    @cached_property
    def _usual_s(self) -> dict[Kind, float]:
        return {
            kind: median(timed.duration_s or 0.0 for timed in steps)
            for kind, steps in self._kinds.items()
            if len(steps) > FEWEST_LIKE
        }

    @cached_property
    def _kinds(self) -> dict[Kind, list[TimedStep]]:
        """The steps of each kind whose durations are known."""
        kinds: dict[Kind, list[TimedStep]] = {}
        for timed in self.log.steps:
            if timed.duration_s is not None and timed.step.prompt_tokens is not None:
                kinds.setdefault(_kind(timed.step), []).append(timed)
        return kinds

    @cached_property
    def _cold(self) -> dict[int, float]:
        excess: dict[int, float] = {}
        for steps in self._kinds.values():
            excess.update(_cold_excess_s(steps))
        for timed in self.log.steps[:COLD_LOG_STEPS]:
            duration_s, work = timed.duration_s, self.work(timed)
            if self.cost is None or work is None or duration_s is None or _kind(timed.step) in self._usual_s:
                continue
            if duration_s >= COLD_FACTOR * self.cost(work):
                excess[timed.step.seq] = duration_s - self.cost(work)
        return excess


def recomputed_tokens(step: EngineStep) -> int:
    """The tokens that a preemption lost and the step computed again."""
    tokens, streams = step.decode_tokens or 0, step.decode_requests
    if not streams:
        return 0
    return tokens - streams if tokens >= (TOKENS_AGAIN if step.preempted else MOST_DRAFTED) * streams else 0


def _kind(step: EngineStep) -> Kind:
    streams = step.decode_requests or step.decode_tokens or 0
    return ((step.prompt_tokens or 0) + recomputed_tokens(step)).bit_length(), streams.bit_length()


def _cold_excess_s(steps: Sequence[TimedStep]) -> dict[int, float]:
    """The excess of the first steps of a kind over later ones."""
    excess: dict[int, float] = {}
    for index, timed in enumerate(steps[:COLD_STEPS]):
        later = [
            later_step.duration_s
            for later_step in steps[max(index + 1, len(steps) // 2) :]
            if later_step.duration_s is not None
        ]
        if len(later) < FEWEST_LIKE or timed.duration_s is None:
            break
        usual_s = median(later)
        if timed.duration_s < COLD_FACTOR * usual_s:
            break
        excess[timed.step.seq] = timed.duration_s - usual_s
    return excess


def _began_with(timed: TimedStep, scheduled_unix_s: float) -> bool:
    """Whether a step may be the first of a request scheduled at that time: it has prompts and began about
    then.
    """
    if timed.step.prompt_tokens == 0:
        return False
    if timed.duration_s is None:
        return True
    return timed.step.ended_unix_s - scheduled_unix_s >= timed.duration_s / 2
