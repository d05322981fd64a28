"""The fewest engines that meet a goal, and the most load that so many engines carry.

Misses are cheap, because a trial is cut short once it has certainly missed. More engines are taken to do
better, and a row of candidates to have one best stretch: a miss says in which direction that lies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, sqrt

from phasewise.planning.candidates import MOST_ENGINES, FleetCandidate, Space
from phasewise.planning.trials import CandidateTrial

Try = Callable[[FleetCandidate], CandidateTrial]

FIRST_STEP = 1.1
"""The first factor towards another load; each further one is the square of the one before."""
FARTHEST = 500.0
MORE_ENGINES = 1.25
"""How many times the engines of a mixed fleet a disaggregated one may have before the search gives up."""


def climb(row: list[FleetCandidate], begin: int, attempt: Try) -> CandidateTrial | None:
    """A candidate that meets the goal: where prefill is short it lies further on, else further back."""
    at, seen = begin, set[int]()
    while 0 <= at < len(row) and at not in seen:
        seen.add(at)
        trial = attempt(row[at])
        if trial.met:
            return trial
        at += 1 if trial.lacks_prefill else -1
    return None


def fewest(
    space: Space, attempt: Try, begin: int, most: int = MOST_ENGINES, *, disaggregated: bool
) -> CandidateTrial | None:
    """The fewest engines that meet the goal; None if `most` do not."""
    best: CandidateTrial | None = None
    least = 2 if disaggregated else 1

    def meets(engines: int, cap: int = space.caps[0]) -> CandidateTrial | None:
        nonlocal best
        row = space.candidates(engines, cap, disaggregated=disaggregated)
        found = climb(row, space.begin_at(row, best.candidate if best else None), attempt)
        best = found or best
        return found

    _first(meets, least, min(max(begin, least), most), most)
    for cap in space.caps[1:]:
        while best and best.candidate.engines > least and meets(best.candidate.engines - 1, cap):
            pass
    return best


def _first(meets: Callable[[int], object], least: int, begin: int, most: int) -> None:
    """Find the smallest number that does, by steps that double until they cross it, and then halve."""
    low, high, engines, step = least - 1, most + 1, begin, 1
    while high - low > 1:
        if meets(engines):
            high, engines = engines, engines - step
        else:
            low, engines = engines, engines + step
        step *= 2
        crossed = low >= least and high <= most
        engines = (low + high) // 2 if crossed else min(max(engines, low + 1), high - 1)


def _with_most_to_spare(space: Space, best: CandidateTrial, attempt: Try) -> CandidateTrial:
    """A neighbour on the row may do better at the same price, which other traffic may need."""
    own = best.candidate
    row = space.candidates(own.engines, own.max_num_seqs, disaggregated=own.prefill > 0)
    at = row.index(own)
    near = [attempt(candidate) for candidate in row[max(0, at - 1) : at + 2]]
    return max((trial for trial in near if trial.met), key=lambda trial: trial.attained)


@dataclass(frozen=True, slots=True)
class Choice:
    """The best fleet of each kind; None if no fleet of a sensible size meets the goal."""

    mixed: CandidateTrial | None
    disaggregated: CandidateTrial | None

    @property
    def best(self) -> CandidateTrial | None:
        """The one with fewer engines; a mixed fleet if both need as many, because it is simpler."""
        found = [trial for trial in (self.mixed, self.disaggregated) if trial is not None]
        return min(found, key=lambda trial: trial.candidate.engines, default=None)


def choose(space: Space, attempt: Try, most: int = MOST_ENGINES) -> Choice:
    """Search both kinds of fleets."""
    begin = space.usual_engines
    mixed = fewest(space, attempt, begin, most, disaggregated=False)
    if mixed is not None:
        begin = mixed.candidate.engines
        most = min(most, max(2, round(begin * MORE_ENGINES)))
    found = Choice(mixed, fewest(space, attempt, begin, most, disaggregated=True))
    if (best := found.best) is None:
        return found
    spared = _with_most_to_spare(space, best, attempt)
    return replace(found, mixed=spared) if best is mixed else replace(found, disaggregated=spared)


def most_load(
    row: list[FleetCandidate], begin_at: int, at_load: Callable[[float], Try], begin: float, resolution: float
) -> float:
    """The most load that a candidate of the row carries, as a multiple; 0 if next to none."""
    place = begin_at

    def carries(load: float) -> bool:
        nonlocal place
        trial = climb(row, place, at_load(load))
        place = place if trial is None else row.index(trial.candidate)
        return trial is not None

    low, high, load, step = 0.0, inf, begin, FIRST_STEP
    while not low or high == inf:
        if not begin / FARTHEST < load < begin * FARTHEST:
            return low
        low, high = (load, high) if carries(load) else (low, load)
        load, step = (load * step if low else load / step), step * step
    while high / low > resolution:
        middle = sqrt(low * high)
        low, high = (middle, high) if carries(middle) else (low, middle)
    return sqrt(low * high)
