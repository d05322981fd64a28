"""What each recorded step carried, worked out from the requests that finished in the record.

The record tells how many tokens a step computed, not how long the sequences were that it attended to. Each
finished request, counted back from its last step, tells the rest. How costs follow from it is fit.py's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from phasewise.costs.observation import Observation
from phasewise.costs.step_work import StepWork, chunk_pairs
from phasewise.model.step_log import CLOCK_SLACK_S, moments
from phasewise.model.steps import EngineStep, FinishedRequest, TimedStep, time_steps

FIRST_TOKEN_SLACK_S = 0.03
"""A first token further from its step's end than this was not made in it: the count back went wrong."""


@dataclass(frozen=True, slots=True)
class StepHistory:
    """The steps whose work is known, and how many could not be told.

    A step is left out where it carried a request that did not finish within the record, was preempted or
    gained several tokens at once, and where nothing tells when it began.
    """

    observations: tuple[Observation, ...]
    untold: int


def observed_steps(steps: Sequence[EngineStep]) -> StepHistory:
    """Every step of a record with its work and its duration, where both are known."""
    histories = [_of_rank(timed) for unbroken in _unbroken(steps) for timed in _by_rank(unbroken)]
    return StepHistory(
        tuple(observation for history in histories for observation in history.observations),
        sum(history.untold for history in histories),
    )


@dataclass(slots=True)
class _Prompt:
    """A prompt on its way through prefill: from its first step to the one that gave its first token."""

    first_step: int
    last_step: int
    scheduled_unix_s: float
    prompt_tokens: int
    computed_tokens: int

    def take(self, tokens: int) -> int:
        """Compute so many tokens more; the pairs that takes."""
        pairs = chunk_pairs(tokens, self.computed_tokens)
        self.computed_tokens += tokens
        return pairs


@dataclass(slots=True)
class _Tally:
    """What is known so far of the work of one step."""

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
        """When the step began, if it carried nothing but prompts that came in with it."""
        if self.decode_requests or not 0 < len(self.arrivals) == self.prompt_requests:
            return None
        return min(prompt.scheduled_unix_s for prompt in self.arrivals)


def _unbroken(steps: Sequence[EngineStep]) -> Iterator[list[EngineStep]]:
    """The record in parts that miss no step: nobody can be counted back across a gap."""
    ordered = sorted(steps, key=lambda step: step.seq)
    cuts = [index for index, (a, b) in enumerate(pairwise(ordered), start=1) if b.seq > a.seq + 1]
    for start, end in pairwise([0, *cuts, len(ordered)]):
        yield ordered[start:end]


def _by_rank(steps: Sequence[EngineStep]) -> Iterator[list[TimedStep]]:
    """The steps of each data-parallel rank: ranks step at the same time, each for itself."""
    timed = time_steps(steps)
    for rank in sorted({step.engine_index for step in steps}):
        yield [item for item in timed if item.step.engine_index == rank]


def _of_rank(timed: Sequence[TimedStep]) -> StepHistory:
    counted = [item for item in timed if item.step.prompt_tokens is not None]
    ends_s = [item.step.ended_unix_s for item in counted]
    tallies = [_Tally() for _ in counted]
    for index, item in enumerate(counted):
        for ended in item.step.finished:
            _count_back(item.step, ended, index, ends_s, tallies)
    _share_out_prompts(counted, tallies)
    found = [_observation(item, tally) for item, tally in zip(counted, tallies, strict=True)]
    known = tuple(observation for observation in found if observation is not None)
    return StepHistory(known, len(found) - len(known))


def _count_back(
    step: EngineStep, ended: FinishedRequest, index: int, ends_s: list[float], tallies: list[_Tally]
) -> None:
    """Book a finished request on the steps that gave its tokens, one each, and on those of its prefill."""
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
    """Whether a step ended at this moment, and neither the one before it nor the one after."""
    half_gaps_s = [(after - before) / 2 for before, after in pairwise(ends_s[max(index - 1, 0) : index + 2])]
    return abs(ends_s[index] - moment_s) <= min([FIRST_TOKEN_SLACK_S, *half_gaps_s])


def _share_out_prompts(counted: Sequence[TimedStep], tallies: list[_Tally]) -> None:
    """Tell whose tokens filled each step: a prompt's last step computes all its rest.

    What is left belongs to the prompt that goes on, the oldest first, as the engine schedules them. A share
    that is wrong makes the next one wrong, and shows only where no prompt goes on: steps that hang together
    by such prompts add up all, or none of them is believed.
    """
    underway: list[_Prompt] = []
    together: list[_Tally] = []
    add_up = True
    for index, (item, tally) in enumerate(zip(counted, tallies, strict=True)):
        underway += tally.arrivals
        for prompt in underway:
            if prompt.last_step == index:
                tally.prefill(prompt, prompt.prompt_tokens - prompt.computed_tokens)
        underway = [prompt for prompt in underway if prompt.last_step > index]
        left_tokens = (item.step.prompt_tokens or 0) - tally.prompt_tokens
        if left_tokens > 0 and underway:
            tally.prefill(min(underway, key=lambda prompt: prompt.first_step), left_tokens)
        together.append(tally)
        add_up &= (tally.prompt_tokens, tally.prompt_requests) == _prompts(item.step)
        if not underway:
            for each in together:
                each.prompts_add_up = add_up
            together, add_up = [], True


def _prompts(step: EngineStep) -> tuple[int, int]:
    return step.prompt_tokens or 0, step.prompt_requests or 0


def _observation(item: TimedStep, tally: _Tally) -> Observation | None:
    """The step with its work, if what was told adds up to what the engine counted, and with its beginning."""
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
