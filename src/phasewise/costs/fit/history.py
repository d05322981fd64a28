"""What each recorded step carried, derived from the requests that finished in the record.

The record says how many tokens a step computed, but not the lengths of the sequences it attended to. Counting
each finished request back from its last step gives those.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from phasewise.core.steps import CLOCK_SLACK_S, EngineStep, FinishedRequest, TimedStep, moments, time_steps
from phasewise.costs.fit.observation import Observation
from phasewise.costs.fit.step import StepWork, chunk_pairs

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
