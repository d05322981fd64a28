"""Finds the steps that computed the prompt of a request whose end the record does not have.

A step counts its prompts and the first tokens that they gave, but it names only requests that end. One that
was cut off is found by when it was sent and by what became of the prompts that it shared its steps with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phasewise.core.steps import CLOCK_SLACK_S, EngineStep, TimedStep
from phasewise.diagnosis.analysis.step_reading import PrefillRecord, StepReading


@dataclass(frozen=True, slots=True)
class PromptStep:
    """A step with some of the request's prompt, and how many of the step's prompt tokens were its own.

    Where other requests without an end were in the step too, they share its tokens evenly, and `counted` is
    false: `tokens` is then an expectation.
    """

    timed: TimedStep
    tokens: float
    counted: bool


def prompt_steps(
    sent_unix_s: float, until_unix_s: float, reading: StepReading, *, answered: bool
) -> tuple[PromptStep, ...]:
    """The steps with a request's prompt: from when it was sent to its first token or, without one, its end.

    The last one may have ended after the request did. Empty if the record shows no such step.
    """
    chances = (
        _back(sent_unix_s, until_unix_s, reading) if answered else _on(sent_unix_s, until_unix_s, reading)
    )
    return tuple(_prompt_step(timed, chance, reading) for timed, chance in chances)


def _back(sent_s: float, until_s: float, reading: StepReading) -> list[tuple[TimedStep, float]]:
    """Back from the step of the first token, as long as a prompt went on from one step into the next.

    With how likely it was this one, if several may have.
    """
    steps = list(reading.log.ending_between(sent_s, until_s))
    gave_a_token = any(timed.step.prompt_tokens and timed.step.first_tokens for timed in steps)
    while steps and not (steps[-1].step.prompt_tokens and (steps[-1].step.first_tokens or not gave_a_token)):
        steps.pop()
    found = [(steps[-1], 1.0)] if steps else []
    for before, after in zip(reversed(steps[:-1]), reversed(steps), strict=False):
        if not before.step.prompt_tokens or not _may_hold(before, sent_s, reading):
            break
        named = {record.ended.request_id for record in reading.prefilled_in(after.step)}
        went_on = sum(record.ended.request_id in named for record in reading.prefilled_in(before.step))
        chance = found[-1][1] * min(1.0, (_unfinished(before.step) - went_on) / _unnamed(after.step, reading))
        if chance <= 0:
            break
        found.append((before, chance))
    return found[::-1]


def _on(sent_s: float, until_s: float, reading: StepReading) -> list[tuple[TimedStep, float]]:
    """On from the step that took it in: from the queue, in the order of arrival."""
    steps = reading.log.steps
    first = len(reading.log.ending_between(float("-inf"), sent_s))
    ahead = steps[first - 1].step.waiting if first else 0
    going_on = _unfinished(steps[first - 1].step) if first else 0
    found: list[tuple[TimedStep, float]] = []
    for timed in steps[first:]:
        if (reading.start_s(timed) or timed.step.ended_unix_s) >= until_s:
            break
        if timed.step.prompt_tokens and (found or _may_hold(timed, sent_s, reading)):
            ahead -= max(0, _prompts(timed.step) - going_on)
            if found or ahead < 0 or not timed.step.waiting:
                found.append((timed, 1.0))
        going_on = _unfinished(timed.step)
    return found


def _may_hold(timed: TimedStep, sent_s: float, reading: StepReading) -> bool:
    """Whether the step began after the request was sent; if that is not recorded, by what such steps take."""
    if timed.started_unix_s is not None:
        return timed.started_unix_s >= sent_s - CLOCK_SLACK_S
    ended_s = timed.step.ended_unix_s
    return ended_s - sent_s >= (ended_s - (reading.start_s(timed) or ended_s)) / 2


def _prompt_step(timed: TimedStep, chance: float, reading: StepReading) -> PromptStep:
    named = reading.prefilled_in(timed.step)
    shared = [_shared_steps(record, reading) for record in named]
    others = sum(
        _tokens_in(timed, record, steps, reading) for record, steps in zip(named, shared, strict=True)
    )
    unnamed = _unnamed(timed.step, reading)
    tokens = max(0.0, (timed.step.prompt_tokens or 0) - others) * chance / unnamed
    counted = chance == 1.0 and unnamed == 1 and all(len(steps) == 1 for steps in shared)
    return PromptStep(timed, tokens, counted)


def _shared_steps(other: PrefillRecord, reading: StepReading) -> list[TimedStep]:
    return [timed for timed in reading.prefill_steps(other.seen) if _prompts(timed.step) > 1]


def _tokens_in(
    timed: TimedStep, other: PrefillRecord, shared: Sequence[TimedStep], reading: StepReading
) -> float:
    """How many of the step's prompt tokens are another's: what its own steps leave for shared ones."""
    alone = (lone for lone in reading.prefill_steps(other.seen) if _prompts(lone.step) == 1)
    left = max(0, other.uncached_tokens - sum(lone.step.prompt_tokens or 0 for lone in alone))
    together = max(1, sum(joint.step.prompt_tokens or 0 for joint in shared))
    return left * (timed.step.prompt_tokens or 0) / together


def _prompts(step: EngineStep) -> int:
    return step.prompt_requests or int(bool(step.prompt_tokens))


def _unfinished(step: EngineStep) -> int:
    """How many of its prompts go on in the next step: those that gave no first token."""
    return max(0, min(_prompts(step) - step.first_tokens, step.running))


def _unnamed(step: EngineStep, reading: StepReading) -> int:
    """How many of its prompts are of requests whose end is not recorded, with the one that is looked for."""
    return max(1, _prompts(step) - len(reading.prefilled_in(step)))


def counted_tokens(steps: Sequence[PromptStep]) -> int | None:
    """How many tokens of its prompt they computed; None if that is not certain."""
    if not steps or not all(step.counted for step in steps):
        return None
    return round(sum(step.tokens for step in steps))
