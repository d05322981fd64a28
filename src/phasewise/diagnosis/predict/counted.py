"""What a replay takes of a stock engine, from counters that were read several times a second.

Nobody sees single requests there. But requests start in the order of their arrival, so the n-th that came has
the n-th first token, and its prompt is among those that were ready by then. Between two readings an engine
made so many steps, with so many tokens of prompts and of answers, of which only the sum is seen. A full fit
finds almost any cost in such sums; what a step, a stream in it and a prompt token cost is separable, and a
stream costs only a part of a step on any machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import median

import numpy as np

from phasewise.core.engine_metrics import LoadReading
from phasewise.core.timeline import Attempt, AttemptKind, Outcome, Timeline
from phasewise.core.worker import WorkerRef
from phasewise.costs.fit.observation import Observation
from phasewise.costs.fit.step import StepCost, StepWork
from phasewise.diagnosis.analysis.open_requests import InEngine, arrivals
from phasewise.diagnosis.analysis.standstill import Progress, progress_of
from phasewise.diagnosis.predict.costs import KnownCost

SLOW_STEP = 2.5
"""Steps without prompts that take so many times as long as usual may compute one that is ready later: engines
count a prompt's tokens when it is."""
FEWEST = 10
"""Fewer readings do not separate three costs."""
FEWEST_PLAIN = 5
"""With prompts in more of them, nobody can separate a step from its prompts."""
MOST_PER_STREAM = 0.05
"""Another stream adds at most this share of a step: weights are read once for all."""
PAUSED = 3.0
"""What took so many times as long as its work is a pause."""


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


def counted_steps(loads: Sequence[LoadReading], typical: Typical) -> tuple[Observation, ...]:
    """What an engine did between readings, and how long it took."""
    return tuple(
        Observation(
            tuple(work for mark in group for work in _works(mark, typical.context_tokens)),
            sum(mark.seconds for mark in group),
            at_s=group[-1].later.at_unix_s,
        )
        for group in _with_their_prompts([mark for mark in progress_of(loads) if round(mark.steps)])
    )


def _with_their_prompts(marks: Sequence[Progress]) -> Iterator[list[Progress]]:
    """One by one, but slow steps together with the prompts that were ready right after them."""
    plain = [mark.seconds / mark.steps for mark in marks if not mark.prompt_tokens]
    usual_s = median(plain) if plain else 0.0
    slow: list[Progress] = []
    for mark in marks:
        if slow and mark.last is not slow[-1].later:
            yield from ([each] for each in slow)
            slow = []
        if mark.prompt_tokens:
            yield [*slow, mark]
            slow = []
        elif mark.seconds > SLOW_STEP * usual_s * mark.steps:
            slow.append(mark)
        else:
            yield from ([each] for each in slow)
            yield [mark]
            slow = []
    yield from ([each] for each in slow)


def _works(mark: Progress, context: float) -> Iterator[StepWork]:
    """Every step carries the running streams; the prompts that were ready are in the last."""
    steps = round(mark.steps)
    streams = round(max(0.0, mark.output_tokens - mark.first_tokens) / steps)
    prompt = round(mark.prompt_tokens)
    prompts = max(1, round(mark.first_tokens)) if prompt else 0
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
    known = [load for load in loads if load.finished is not None and load.first_tokens is not None]
    if len(known) < 2:
        return ()
    came_s = arrivals(
        InEngine(load.at_unix_s, load.waiting, load.running, load.finished or 0.0) for load in known
    )
    running, until_s = known[0].running, known[-1].at_unix_s
    firsts = [(known[0].at_unix_s, 1.0)] * running + list(_first_tokens(known, typical.prompt_tokens))
    made = []
    for number, at_s in enumerate(came_s):
        first_s, prompt = firsts[number] if number < len(firsts) else (None, typical.prompt_tokens)
        made.append(_request(f"{engine}-{number}", engine, (at_s, first_s, until_s), prompt, typical))
    return tuple(made)


def _first_tokens(loads: Sequence[LoadReading], usual: float) -> Iterator[tuple[float, float]]:
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


class CountedCosts:
    """One cost for all steps."""

    def __init__(self, step_s: float, stream_s: float, token_s: float) -> None:
        cost = StepCost(
            floor_s=step_s,
            knee_tokens=0,
            beyond_knee_s_per_token=0.0,
            attention_s_per_token_pair=0.0,
            kv_read_s_per_token=0.0,
            per_request_s=max(0.0, stream_s - token_s),
            per_token_s=token_s,
        )
        self._known = KnownCost(cost, (), seen=True)

    def of(self, work: StepWork) -> KnownCost:
        """The cost of a step."""
        return self._known


def counted_costs(observations: Iterable[Observation]) -> CountedCosts | None:
    """What fits these sums of steps best; None if they are too few."""
    rows = [
        (
            len(observation.works),
            sum(work.decode_tokens for work in observation.works),
            sum(work.prompt_tokens for work in observation.works),
            observation.seconds,
        )
        for observation in observations
        if observation.seconds > 0
    ]
    plain = [row for row in rows if not row[2]]
    if len(rows) < FEWEST or len(plain) < FEWEST_PLAIN:
        return None
    table = np.array(rows, dtype=float)
    works, seconds = table[:, :3], table[:, 3]
    found = _solved(works, seconds)
    usual = seconds <= PAUSED * (works @ found)
    if usual.sum() >= FEWEST:
        found = _solved(works[usual], seconds[usual])
    return CountedCosts(*map(float, found)) if found[0] > 0 else None


def _solved(works: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    # A reading falls into the middle of a step, so short sums are off by as much as long ones.
    weight = 1.0 / np.sqrt(seconds)
    found = not_negative(works * weight[:, None], seconds * weight)
    if found[1] > MOST_PER_STREAM * found[0]:
        both = np.column_stack((works[:, 0] + MOST_PER_STREAM * works[:, 1], works[:, 2]))
        step_s, token_s = not_negative(both * weight[:, None], seconds * weight)
        found = np.array([step_s, MOST_PER_STREAM * step_s, token_s])
    return found


def not_negative(works: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """The least squares among all choices of columns, always with steps, that have no negative solution."""
    best, least = np.zeros(works.shape[1]), np.inf
    others = range(1, works.shape[1])
    for count in range(works.shape[1]):
        for chosen in ([0, *some] for some in combinations(others, count)):
            solution, *_ = np.linalg.lstsq(works[:, chosen], seconds, rcond=None)
            error = float(np.sum((works[:, chosen] @ solution - seconds) ** 2))
            if solution.min() >= 0 and error < least:
                best, least = np.zeros(works.shape[1]), error
                best[chosen] = solution
    return best
