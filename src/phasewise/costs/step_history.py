"""What each recorded step carried, worked out from the requests that finished in the record.

The record tells how many tokens a step computed, not how long the sequences were that it attended to. Each
finished request, counted back from its last step, tells the rest. How costs follow from it is fit.py's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from phasewise.costs.observation import Observation
from phasewise.costs.step_work import StepWork, chunk_pairs
from phasewise.model.step_log import CLOCK_SLACK_S, logs_by_rank, moments
from phasewise.model.steps import EngineStep, FinishedRequest, TimedStep

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
    histories = [_of_rank(log.steps) for log in logs_by_rank(steps)]
    return StepHistory(
        tuple(observation for history in histories for observation in history.observations),
        sum(history.untold for history in histories),
    )


@dataclass(slots=True)
class _Prompt:
    """A prompt on its way through prefill: from its first step to the one that gave its first token."""

    first_step: int
    last_step: int
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
    pairs: int = 0
    decode_requests: int = 0
    kv_read_tokens: int = 0
    arrivals: list[_Prompt] = field(default_factory=list)

    def prefill(self, prompt: _Prompt, tokens: int) -> None:
        """Count a chunk of a prompt."""
        self.prompt_tokens += tokens
        self.pairs += prompt.take(tokens)


def _of_rank(timed: Sequence[TimedStep]) -> StepHistory:
    counted = [item for item in timed if item.step.prompt_tokens is not None]
    ends_s = [item.step.ended_unix_s for item in counted]
    tallies = [_Tally() for _ in counted]
    for index, item in enumerate(counted):
        for ended in item.step.finished:
            _count_back(item.step, ended, index, ends_s, tallies)
    _share_out_prompts(counted, tallies)
    known = [
        Observation((work,), item.duration_s, at_s=item.step.ended_unix_s)
        for item, tally in zip(counted, tallies, strict=True)
        if (work := _work(item.step, tally)) is not None and item.duration_s is not None
    ]
    return StepHistory(tuple(known), len(counted) - len(known))


def _count_back(
    step: EngineStep, ended: FinishedRequest, index: int, ends_s: list[float], tallies: list[_Tally]
) -> None:
    """Book a finished request on the steps that gave its tokens, one each, and on those of its prefill."""
    seen = moments(step, ended)
    first_token = index - ended.output_tokens + 1
    if seen is None or ended.preemptions or first_token < 0:
        return
    if abs(ends_s[first_token] - seen.first_token_unix_s) > FIRST_TOKEN_SLACK_S:
        return
    for gained in range(1, ended.output_tokens):
        tally = tallies[first_token + gained]
        tally.decode_requests += 1
        tally.kv_read_tokens += ended.prompt_tokens + gained
    slack_s = min(CLOCK_SLACK_S, seen.prefill_s / 4)
    scheduled = min(bisect_right(ends_s, seen.scheduled_unix_s + slack_s), first_token)
    tallies[scheduled].arrivals.append(
        _Prompt(scheduled, first_token, ended.prompt_tokens, ended.cached_tokens)
    )


def _share_out_prompts(counted: Sequence[TimedStep], tallies: list[_Tally]) -> None:
    """Tell whose tokens filled each step: a prompt's last step computes all its rest.

    What is left belongs to the prompt that goes on, the oldest first, as the engine schedules them.
    """
    underway: list[_Prompt] = []
    for index, (item, tally) in enumerate(zip(counted, tallies, strict=True)):
        underway += tally.arrivals
        for prompt in underway:
            if prompt.last_step == index:
                tally.prefill(prompt, prompt.prompt_tokens - prompt.computed_tokens)
        underway = [prompt for prompt in underway if prompt.last_step > index]
        left_tokens = (item.step.prompt_tokens or 0) - tally.prompt_tokens
        if left_tokens > 0 and underway:
            tally.prefill(min(underway, key=lambda prompt: prompt.first_step), left_tokens)


def _work(step: EngineStep, tally: _Tally) -> StepWork | None:
    """The step's work, if what was told adds up to what the engine counted."""
    prompt_tokens, decode_tokens = step.prompt_tokens or 0, step.decode_tokens or 0
    told = (tally.prompt_tokens, tally.decode_requests, tally.decode_requests)
    if told != (prompt_tokens, step.decode_requests, decode_tokens) or not (prompt_tokens or decode_tokens):
        return None
    return StepWork(
        prompt_tokens=prompt_tokens,
        decode_tokens=decode_tokens,
        requests=(step.prompt_requests or 0) + decode_tokens,
        attention_token_pairs=tally.pairs,
        kv_read_tokens=tally.kv_read_tokens,
    )
