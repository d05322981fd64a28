"""An observed duration with the work that was done in it, the input of a fit; how a step record gives it."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product

from phasewise.core.steps import CLOCK_SLACK_S, EngineStep, FinishedRequest, TimedStep, moments, time_steps
from phasewise.costs.fit.step import StepKind, StepWork, chunk_pairs


@dataclass(frozen=True, slots=True)
class Observation:
    """How long these steps took.

    A step record gives one step at a time. A client sees a prompt's steps only as a sum, including the
    time in the engine's front end: `through_front_end`. `at_s` is when they ended, on any clock.
    """

    works: tuple[StepWork, ...]
    seconds: float
    through_front_end: bool = False
    at_s: float = 0.0

    @property
    def kind(self) -> StepKind:
        """Which phases the steps served."""
        kinds = {work.kind for work in self.works}
        return kinds.pop() if len(kinds) == 1 else StepKind.MIXED

    @property
    def typical(self) -> StepWork:
        """The mean step."""
        count = len(self.works)
        return StepWork(
            prompt_tokens=sum(work.prompt_tokens for work in self.works) // count,
            decode_tokens=sum(work.decode_tokens for work in self.works) // count,
            requests=sum(work.requests for work in self.works) // count,
            attention_token_pairs=sum(work.attention_token_pairs for work in self.works) // count,
            kv_read_tokens=sum(work.kv_read_tokens for work in self.works) // count,
        )


# --- Keeps observations of every regime, so that steady traffic does not push out those of other times.
#
# A regime is a range of work, each twice as wide as the one before.

KEPT_PER_REGIME = 48

Regime = tuple[int, int, int]
"""Magnitudes: prompt tokens, decode tokens, and the mean token's context."""


def regime_of(work: StepWork) -> Regime:
    """The regime of a step, in powers of two."""
    looks_back = (work.attention_token_pairs + work.kv_read_tokens) // max(work.tokens, 1)
    return (work.prompt_tokens.bit_length(), work.decode_tokens.bit_length(), looks_back.bit_length())


def latest_of_each_regime(
    observations: Iterable[Observation], kept: int = KEPT_PER_REGIME
) -> list[Observation]:
    """At most so many observations of each regime, those that come last."""
    regimes: dict[Regime, deque[Observation]] = {}
    for observation in observations:
        regimes.setdefault(regime_of(observation.typical), deque(maxlen=kept)).append(observation)
    return [observation for latest in regimes.values() for observation in latest]


def is_near(regime: Regime, seen: frozenset[Regime]) -> bool:
    """Whether this regime, or one next to it, was observed.

    A regime next to it differs by at most one magnitude and serves the same phases: a step with both prompt
    and decode tokens is not similar to a step with only one of them.
    """
    return any(neighbour in seen for neighbour in _neighbours(regime))


def _neighbours(regime: Regime) -> Iterator[Regime]:
    prompts, decodes, reach = regime
    for by_prompt, by_decode, by_reach in product((0, -1, 1), repeat=3):
        near = (prompts + by_prompt, decodes + by_decode, reach + by_reach)
        if (near[0] > 0) == (prompts > 0) and (near[1] > 0) == (decodes > 0):
            yield near


# --- Groups readings by time: those of one visit share whatever slowed down the machine at that moment.

VISIT_S = 1.0
"""Readings with a longer pause between them are different visits."""


def visits_of(indices: Iterable[int], observations: Sequence[Observation]) -> list[list[int]]:
    """Indices of observations in order of time, one group per visit."""
    visits: list[list[int]] = []
    for index in sorted(indices, key=lambda each: observations[each].at_s):
        began_s = observations[index].at_s - observations[index].seconds
        if not visits or began_s - observations[visits[-1][-1]].at_s > VISIT_S:
            visits.append([])
        visits[-1].append(index)
    return visits


# --- What each recorded step carried, derived from the requests that finished in the record.
#
# The record says how many tokens a step computed, but not the lengths of the sequences it attended to.
# Counting each finished request back from its last step gives those.

FIRST_TOKEN_SLACK_S = 0.03
"""A first token further than this from its step's end was not generated in it: the count back is wrong."""


@dataclass(frozen=True, slots=True)
class StepHistory:
    """The steps whose work is known, and how many are unknown.

    A step is left out if its start is unknown, or if it carried a request that did not finish within the
    record, was preempted or gained several tokens at once.
    """

    observations: tuple[Observation, ...]
    unreported: int


def observed_steps(steps: Sequence[EngineStep]) -> StepHistory:
    """Every step of a record with its work and its duration, where both are known."""
    histories = [_of_rank(timed) for unbroken in _unbroken(steps) for timed in _by_rank(unbroken)]
    return StepHistory(
        tuple(observation for history in histories for observation in history.observations),
        sum(history.unreported for history in histories),
    )


@dataclass(slots=True)
class _Prompt:
    """A prompt in prefill, from its first step to the one that generated its first token."""

    first_step: int
    last_step: int
    scheduled_unix_s: float
    prompt_tokens: int
    computed_tokens: int

    def take(self, tokens: int) -> int:
        """Compute this many more tokens; returns their attention pairs."""
        pairs = chunk_pairs(tokens, self.computed_tokens)
        self.computed_tokens += tokens
        return pairs


@dataclass(slots=True)
class _StepTally:
    """What is known so far about the work of one step."""

    prompt_tokens: int = 0
    prompt_requests: int = 0
    pairs: int = 0
    prompts_add_up: bool = False
    decode_requests: int = 0
    kv_read_tokens: int = 0
    arrivals: list[_Prompt] = field(default_factory=list)

    def prefill(self, prompt: _Prompt, tokens: int) -> None:
        """Count a chunk of a prompt."""
        self.prompt_tokens += tokens
        self.prompt_requests += 1
        self.pairs += prompt.take(tokens)

    @property
    def began_unix_s(self) -> float | None:
        """When the step began, if it carried only prompts that arrived with it."""
        if self.decode_requests or not 0 < len(self.arrivals) == self.prompt_requests:
            return None
        return min(prompt.scheduled_unix_s for prompt in self.arrivals)


def _unbroken(steps: Sequence[EngineStep]) -> Iterator[list[EngineStep]]:
    """The record in parts without gaps: requests cannot be counted back across a gap."""
    ordered = sorted(steps, key=lambda step: step.seq)
    cuts = [index for index, (a, b) in enumerate(pairwise(ordered), start=1) if b.seq > a.seq + 1]
    for start, end in pairwise([0, *cuts, len(ordered)]):
        yield ordered[start:end]


def _by_rank(steps: Sequence[EngineStep]) -> Iterator[list[TimedStep]]:
    """The steps of each data-parallel rank; ranks step concurrently."""
    timed = time_steps(steps)
    for rank in sorted({step.engine_index for step in steps}):
        yield [item for item in timed if item.step.engine_index == rank]


def _of_rank(timed: Sequence[TimedStep]) -> StepHistory:
    counted = [item for item in timed if item.step.prompt_tokens is not None]
    ends_s = [item.step.ended_unix_s for item in counted]
    tallies = [_StepTally() for _ in counted]
    for index, item in enumerate(counted):
        for ended in item.step.finished:
            _count_back(item.step, ended, index, ends_s, tallies)
    _share_out_prompts(counted, tallies)
    found = [_observation(item, tally) for item, tally in zip(counted, tallies, strict=True)]
    known = tuple(observation for observation in found if observation is not None)
    return StepHistory(known, len(found) - len(known))


def _count_back(
    step: EngineStep, ended: FinishedRequest, index: int, ends_s: list[float], tallies: list[_StepTally]
) -> None:
    """Count a finished request in the steps that generated its tokens, one each, and in its prefill steps."""
    seen = moments(step, ended)
    first_token = index - ended.output_tokens + 1
    if seen is None or ended.preemptions or not 0 <= first_token <= index:
        return
    if not _ended_at(seen.first_token_unix_s, first_token, ends_s):
        return
    for gained in range(1, ended.output_tokens):
        tally = tallies[first_token + gained]
        tally.decode_requests += 1
        tally.kv_read_tokens += ended.prompt_tokens + gained
    slack_s = min(CLOCK_SLACK_S, seen.prefill_s / 4)
    scheduled = min(bisect_right(ends_s, seen.scheduled_unix_s + slack_s), first_token)
    tallies[scheduled].arrivals.append(
        _Prompt(scheduled, first_token, seen.scheduled_unix_s, ended.prompt_tokens, ended.cached_tokens)
    )


def _ended_at(moment_s: float, index: int, ends_s: Sequence[float]) -> bool:
    """Whether exactly this step ended at this moment, and not the one before or after."""
    half_gaps_s = [(after - before) / 2 for before, after in pairwise(ends_s[max(index - 1, 0) : index + 2])]
    return abs(ends_s[index] - moment_s) <= min([FIRST_TOKEN_SLACK_S, *half_gaps_s])


def _share_out_prompts(counted: Sequence[TimedStep], tallies: list[_StepTally]) -> None:
    """Divide each step's prompt tokens among prompts: a prompt's last step computes all that is left of it.

    The rest belongs to the oldest prompt that continues, which is how the engine schedules them. A wrong
    share makes the next one wrong too, and shows only at a step where no prompt continues. Steps that are
    linked by continuing prompts are therefore accepted or rejected together.
    """
    underway: list[_Prompt] = []
    together: list[_StepTally] = []
    add_up = True
    for index, (item, tally) in enumerate(zip(counted, tallies, strict=True)):
        underway += tally.arrivals
        for prompt in underway:
            if prompt.last_step == index:
                tally.prefill(prompt, prompt.prompt_tokens - prompt.computed_tokens)
        underway = [prompt for prompt in underway if prompt.last_step > index]
        recorded = item.step.prompt_tokens or 0, item.step.prompt_requests or 0
        left_tokens = recorded[0] - tally.prompt_tokens
        if left_tokens > 0 and underway:
            tally.prefill(min(underway, key=lambda prompt: prompt.first_step), left_tokens)
        together.append(tally)
        add_up &= (tally.prompt_tokens, tally.prompt_requests) == recorded
        if not underway:
            for each in together:
                each.prompts_add_up = add_up
            together, add_up = [], True


def _observation(item: TimedStep, tally: _StepTally) -> Observation | None:
    """The step with its work, if that adds up to the engine's own counts and the step's start is known."""
    step = item.step
    began_s = tally.began_unix_s if item.started_unix_s is None else item.started_unix_s
    decodes_add_up = (step.decode_requests, step.decode_tokens) == (tally.decode_requests,) * 2
    requests = tally.prompt_requests + tally.decode_requests
    # A clock that was set back makes a step end before it began.
    if began_s is None or step.ended_unix_s <= began_s or not (requests and decodes_add_up):
        return None
    if not tally.prompts_add_up:
        return None
    work = StepWork(
        prompt_tokens=tally.prompt_tokens,
        decode_tokens=tally.decode_requests,
        requests=requests,
        attention_token_pairs=tally.pairs,
        kv_read_tokens=tally.kv_read_tokens,
    )
    return Observation((work,), step.ended_unix_s - began_s, at_s=step.ended_unix_s)
