"""Step costs from an engine's counters: what a step, a stream in it and a prompt token take.

Between two readings an engine makes several steps, of which only the sum is seen. A full fit finds almost any
cost in such sums; these three are separable, and a stream costs only a part of a step on any machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import numpy as np

from phasewise.costs.fit.observation import Observation
from phasewise.costs.fit.step import StepCost, StepWork
from phasewise.diagnosis.predict.costs import KnownCost

FEWEST, FEWEST_PLAIN = 10, 5
"""With prompts in all of them, nobody can separate a step from its prompts."""
MOST_PER_STREAM = 0.05
"""Another stream adds at most this share of a step: weights are read once for all."""
PAUSED = 3.0
"""What took so many times as long as its work is a pause."""


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
            len(it.works),
            sum(work.decode_tokens for work in it.works),
            sum(work.prompt_tokens for work in it.works),
            it.seconds,
        )
        for it in observations
        if it.seconds > 0
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
    """Seconds of a step, a stream and a prompt token; none is negative."""
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
