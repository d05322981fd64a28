"""Requests and steps of a stock engine, put together from counters that were read several times a second.

Nobody sees single requests there. But requests start in the order of their arrival, so the n-th that came has
the n-th first token, and its prompt is among those that were ready by then. Between two readings an engine
made so many steps, with so many tokens of prompts and of answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from phasewise.core.engine_metrics import LoadReading
from phasewise.core.timeline import Attempt, AttemptKind, Outcome, Timeline
from phasewise.core.worker import WorkerRef
from phasewise.costs.fit.observation import Observation
from phasewise.costs.fit.step import StepWork
from phasewise.diagnosis.analysis.open_requests import InEngine, arrivals
from phasewise.diagnosis.analysis.standstill import Progress, progress_of


@dataclass(frozen=True, slots=True)
class Typical:
    """A typical request: its tokens, the share of the prompt that is cached, and the time between tokens."""

    prompt_tokens: float
    cached_share: float
    output_tokens: float
    token_s: float

    @property
    def context_tokens(self) -> float:
        """Half-way through its answer."""
        return self.prompt_tokens + self.output_tokens / 2


SLOW_STEP = 2.5
"""Steps without prompts that take so many times as long as usual may compute one that is ready later: engines
count a prompt's tokens when it is."""


def counted_steps(loads: Sequence[LoadReading], typical: Typical) -> tuple[Observation, ...]:
    """What an engine did between readings, and how long it took."""
    return tuple(
        Observation(
            tuple(work for it in group for work in _works(it, typical.context_tokens)),
            sum(it.seconds for it in group),
            at_s=group[-1].later.at_unix_s,
        )
        for group in _with_their_prompts([it for it in progress_of(loads) if round(it.steps)])
    )


def _with_their_prompts(marks: Sequence[Progress]) -> Iterator[list[Progress]]:
    """One by one, but slow steps together with the prompts that were ready right after them."""
    plain = [it.seconds / it.steps for it in marks if not it.prompt_tokens]
    usual_s = median(plain) if plain else 0.0
    slow: list[Progress] = []
    for it in marks:
        if slow and it.last is not slow[-1].later:
            yield from ([each] for each in slow)
            slow = []
        if it.prompt_tokens:
            yield [*slow, it]
            slow = []
        elif it.seconds > SLOW_STEP * usual_s * it.steps:
            slow.append(it)
        else:
            yield from ([each] for each in slow)
            yield [it]
            slow = []
    yield from ([each] for each in slow)


def _works(it: Progress, context: float) -> Iterator[StepWork]:
    """Every step carries the running streams; the prompts that were ready are in the last."""
    steps = round(it.steps)
    streams = round(max(0.0, it.output_tokens - it.first_tokens) / steps)
    prompt = round(it.prompt_tokens)
    prompts = max(1, round(it.first_tokens)) if prompt else 0
    for number in range(steps):
        last = number == steps - 1
        yield StepWork(
            prompt_tokens=prompt if last else 0,
            decode_tokens=streams,
            requests=streams + (prompts if last else 0),
            attention_token_pairs=round(prompt * prompt / 2 / prompts) if last and prompts else 0,
            kv_read_tokens=round(streams * context),
        )


def counted_requests(engine: str, loads: Sequence[LoadReading], typical: Typical) -> tuple[Timeline, ...]:
    """The requests that came within the readings, and those that ran already, as long as typical ones."""
    known = [it for it in loads if it.finished is not None and it.first_tokens is not None]
    if len(known) < 2:
        return ()
    came_s = arrivals(InEngine(it.at_unix_s, it.waiting, it.running, it.finished or 0.0) for it in known)
    running, until_s = known[0].running, known[-1].at_unix_s
    firsts = [(known[0].at_unix_s, 1.0)] * running + list(_first_tokens(known, typical.prompt_tokens))
    made = []
    for number, at_s in enumerate(came_s):
        first_s, prompt = firsts[number] if number < len(firsts) else (None, typical.prompt_tokens)
        made.append(_request(f"{engine}-{number}", engine, (at_s, first_s, until_s), prompt, typical))
    return tuple(made)


def _first_tokens(loads: Sequence[LoadReading], usual: float) -> Iterator[tuple[float, float]]:
    """When first tokens came, and the tokens of their prompts."""
    for before, after in pairwise(loads):
        started = round((after.first_tokens or 0.0) - (before.first_tokens or 0.0))
        tokens = (after.prompt_tokens or 0.0) - (before.prompt_tokens or 0.0)
        for _ in range(started):
            yield (before.at_unix_s + after.at_unix_s) / 2, tokens / started if tokens > 0 else usual


def _request(
    request_id: str, engine: str, times: tuple[float, float | None, float], prompt: float, typical: Typical
) -> Timeline:
    came_s, first_s, until_s = times
    output = max(1, round(typical.output_tokens))
    begins_s = None if first_s is None else max(0.0, first_s - came_s)
    tokens = () if begins_s is None else tuple(begins_s + typical.token_s * index for index in range(output))
    seen = tuple(at_s for at_s in tokens if came_s + at_s <= until_s)
    outcome = Outcome.SUCCEEDED if len(seen) == output else Outcome.UNFINISHED
    ended_s = seen[-1] if len(seen) == output else until_s - came_s
    return Timeline(
        request_id=request_id,
        started_unix_s=came_s,
        model="",
        outcome=outcome,
        ended_s=ended_s,
        attempts=(Attempt(AttemptKind.LOCAL, WorkerRef(engine, ""), 0.0, ended_s, outcome),),
        content_times_s=seen,
        prompt_tokens=max(1, round(prompt)),
        cached_tokens=min(max(0, round(prompt) - 1), round(typical.cached_share * prompt)),
        output_tokens=output,
    )
