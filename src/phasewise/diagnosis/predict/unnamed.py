"""What makes steps slow that no rule has a name for.

Steps slow down with time, a prompt takes time whatever its length, or steps of the same work take much longer
for a while: fragmented memory, throttled clocks, a grammar that is compiled or applied, an adapter that is
loaded, a neighbour look so. Which of them it is, steps do not show.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from phasewise.costs.fit.observation import Observation
from phasewise.costs.fit.step import StepWork, decoding
from phasewise.diagnosis.analysis.window_summary import Unnamed
from phasewise.diagnosis.predict.costs import Costs
from phasewise.diagnosis.predict.counted import not_negative

LEAST_SLOWER = 1.3
"""Steps of one size that take this many times as long at the end of a window are no chance and no load."""
GROWTHS = (0.0, 0.3, 0.6, 1.0, 1.6, 2.5, 4.0)
"""How much costs may have grown over a window, as a share of those at its begin."""
MUCH_LESS = 0.7
"""Costs grew if the growth leaves at most this share of the error that constant costs leave."""
FEWEST_STEPS = 40
"""Fewer steps show no growth and no stretches."""
MOSTLY_FIXED = 0.6
"""Prompts cost time whatever their length if this share of it does not go with their tokens."""
FEWEST_PROMPTS = 12
"""Fewer steps with prompts do not show what a prompt takes besides its tokens."""
VARIED = 0.08
"""If lengths vary by less than this share of their mean, nothing separates prompts from their tokens."""
BETTER = 1.5
"""A cost by tokens alone is wrong if it leaves this many times as large an error."""
NOTICED_STEPS = 3.0
"""A prompt's fixed time matters from this many decode steps."""
SHORT_CONTEXT = 200
LASTS, VARIES = 0.5, 0.2
"""Steps take longer in stretches if their logarithms, each against others of the same work, vary by so much,
and if the next varies with it as much as this; noise comes and goes from one step to the next."""
FEWEST_ALIKE = 5
FAST = 10
"""The percentile of steps that none of it has slowed down."""


def unnamed_in(engines: Iterable[Sequence[Observation]], costs: Costs) -> Unnamed:
    """What the steps of these engines have of it, by the engine that has most."""
    slower, fixed_s, stretches = [1.0], [0.0], [0.0]
    for seen in engines:
        slower.append(_slower(seen))
        fixed_s.append(_per_prompt_s(seen, costs))
        stretches.append(_in_stretches(seen))
    return Unnamed(max(slower), max(fixed_s), max(stretches))


def _in_stretches(seen: Sequence[Observation]) -> float:
    """The share of the time of steps without prompts that they take longer for a while, though their work is
    that of others.
    """
    alone = [
        observation
        for observation in seen
        if len(observation.works) == 1 and not observation.works[0].prompt_tokens and observation.seconds > 0
    ]
    if len(alone) < FEWEST_STEPS:
        return 0.0
    alone.sort(key=lambda observation: observation.at_s)
    seconds = np.array([observation.seconds for observation in alone])
    works = np.array([_sums(observation.works) for observation in alone])
    ratios = seconds / (works @ not_negative(works / seconds[:, None], np.ones(len(seconds))))
    streams = works[:, 1]
    for count in np.unique(streams):
        like = streams == count
        if like.sum() >= FEWEST_ALIKE:
            ratios[like] /= np.median(ratios[like])
    logs = np.log(ratios)
    lasts = float(np.corrcoef(logs[:-1], logs[1:])[0, 1]) if float(np.std(logs)) >= VARIES else 0.0
    if lasts < LASTS:
        return 0.0
    return 1.0 - float(np.percentile(ratios, FAST)) / float(np.mean(ratios))


def _slower(seen: Sequence[Observation]) -> float:
    """How many times as long steps take in the last third as in the first, where time explains what their
    work does not: more streams make steps slower too, but up and down.
    """
    if len(seen) < FEWEST_STEPS:
        return 1.0
    at_s = np.array([observation.at_s for observation in seen])
    span_s = float(np.ptp(at_s))
    if span_s <= 0:
        return 1.0
    passed = (at_s - at_s.min()) / span_s
    works = (
        np.array([_sums(observation.works) for observation in seen])
        / np.array([observation.seconds for observation in seen])[:, None]
    )
    errors = {growth: _error(works * (1.0 + growth * passed)[:, None]) for growth in GROWTHS}
    best = min(errors, key=lambda growth: errors[growth])
    slower = (1.0 + best * 5 / 6) / (1.0 + best / 6)
    return slower if slower >= LEAST_SLOWER and errors[best] <= MUCH_LESS * errors[0.0] else 1.0


def _sums(works: Sequence[StepWork]) -> tuple[float, ...]:
    return (
        len(works),
        sum(work.decode_tokens for work in works),
        sum(work.decode_tokens**2 for work in works),
        sum(work.prompt_tokens for work in works),
        sum(work.kv_read_tokens for work in works),
    )


def _error(works: np.ndarray) -> float:
    """By how much the best costs miss that each takes one."""
    ones = np.ones(len(works))
    return float(np.sum((works @ not_negative(works, ones) - ones) ** 2))


def _cost_s(works: Iterable[StepWork], costs: Costs) -> float:
    return sum(costs.of(work).cost(work) for work in works)


def _per_prompt_s(seen: Sequence[Observation], costs: Costs) -> float:
    """What a prompt takes besides its tokens, from what steps with prompts take longer than without them."""
    rows = []
    for observation in seen:
        tokens = sum(work.prompt_tokens for work in observation.works)
        prompts = sum(
            max(0, work.requests - work.decode_tokens) for work in observation.works if work.prompt_tokens
        )
        if tokens and prompts:
            streams = [work.without_prompts() for work in observation.works if work.decode_tokens]
            rows.append((prompts, tokens, observation.seconds - _cost_s(streams, costs)))
    known = np.array([row for row in rows if row[2] > 0.0])
    if len(known) < FEWEST_PROMPTS:
        return 0.0
    prompts, tokens, seconds = known.T
    each = tokens / prompts
    if float(np.std(each)) < VARIED * float(np.mean(each)):
        return 0.0
    # By what share each is off counts, so that long steps do not outweigh all others.
    both = np.column_stack((prompts, tokens)) / seconds[:, None]
    ones = np.ones(len(seconds))
    (fixed_s, token_s), *_ = np.linalg.lstsq(both, ones, rcond=None)
    by_tokens = both[:, 1] * (both[:, 1].sum() / (both[:, 1] ** 2).sum())
    if token_s < 0.0:
        fixed_s, token_s = float(both[:, 0].sum() / (both[:, 0] ** 2).sum()), 0.0
    error = float(np.sum((both @ np.array([fixed_s, token_s]) - ones) ** 2))
    share = float(fixed_s * prompts.sum() / seconds.sum())
    alone = decoding([SHORT_CONTEXT])
    step_s = costs.of(alone).cost(alone)
    if share < MOSTLY_FIXED or fixed_s < NOTICED_STEPS * step_s:
        return 0.0
    return float(fixed_s) if float(np.sum((by_tokens - ones) ** 2)) >= BETTER * error else 0.0
