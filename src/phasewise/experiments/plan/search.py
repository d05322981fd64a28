"""The fewest engines that meet a goal, and the most load that so many engines carry.

Failures are cheap, because a trial is cut short once it has certainly missed. More engines are taken to do
better, and a line of candidates to have one best part: a miss says in which direction that lies.
"""

from __future__ import annotations

from collections.abc import Callable

from phasewise.experiments.plan.candidates import MOST_ENGINES, Candidate, Space
from phasewise.experiments.plan.trials import Trial

Try = Callable[[Candidate], Trial]

RESOLUTION = 1.015
"""Loads closer together than this are not told apart."""
FIRST_STEP = 1.12
LEAST_LOAD, MOST_LOAD = 1 / 16, 16.0


def climb(line: list[Candidate], begin: int, attempt: Try) -> Trial | None:
    """A candidate of the line that meets the goal: where prefill is short look further on, else further back."""
    at, seen = begin, set[int]()
    while 0 <= at < len(line) and at not in seen:
        seen.add(at)
        trial = attempt(line[at])
        if trial.met:
            return trial
        at += 1 if trial.prefill_missed > trial.decode_missed else -1
    return None


def fewest(
    space: Space, attempt: Try, *, disaggregated: bool, most: int = MOST_ENGINES, begin: int | None = None
) -> Trial | None:
    """The fewest engines, of these the candidate with most to spare; None if `most` do not meet the goal."""
    best: Trial | None = None
    begin = space.usual_engines if begin is None else begin
    least = 2 if disaggregated else 1
    for cap in space.caps:

        def meets(engines: int, cap: int = cap) -> Trial | None:
            line = space.line(engines, cap, disaggregated=disaggregated)
            return climb(line, space.begin_at(line, best.candidate if best else None), attempt)

        if best is None:
            best = _first(meets, least, min(max(begin, least), most), most)
            continue
        while best.candidate.engines > least and (fewer := meets(best.candidate.engines - 1)):
            best = fewer
    return best and _with_most_to_spare(space, best, attempt)


def _first(meets: Callable[[int], Trial | None], least: int, begin: int, most: int) -> Trial | None:
    """The smallest number that does, by steps that double and then halve."""
    low, high, found, engines, step = least - 1, most + 1, None, begin, 1
    while high - low > 1:
        trial = meets(engines)
        if trial is not None:
            found, high = trial, engines
            engines = max(engines - step, low + 1)
        else:
            low = engines
            engines = min(engines + step, high - 1)
        step *= 2
        if least - 1 < low and high < most + 1:
            engines = (low + high) // 2
    return found


def _with_most_to_spare(space: Space, best: Trial, attempt: Try) -> Trial:
    """A neighbour on the line may do better at the same price."""
    candidate = best.candidate
    line = space.line(candidate.engines, candidate.max_num_seqs, disaggregated=candidate.prefill > 0)
    if candidate not in line:
        return best
    at = line.index(candidate)
    near = [attempt(it) for it in line[max(0, at - 1) : at + 2]]
    return max((it for it in near if it.met), key=lambda it: it.attained - it.error)


def most_load(
    space: Space, at_load: Callable[[float], Try], engines: int, like: Candidate, begin: float = 1.0
) -> float:
    """The most load that so many engines carry, as a multiple; 0 if less than the least that is tried."""
    line = space.line(engines, space.caps[0], disaggregated=like.prefill > 0)
    best = like

    def carries(load: float) -> bool:
        nonlocal best
        trial = climb(line, space.begin_at(line, best), at_load(load))
        best = best if trial is None else trial.candidate
        return trial is not None

    low = high = begin
    if carries(begin):
        while carries(high := high * FIRST_STEP):
            low = high
            if high > MOST_LOAD * begin:
                return low
    else:
        while not carries(low := low / FIRST_STEP):
            high = low
            if low < LEAST_LOAD * begin:
                return 0.0
    while high / low > RESOLUTION:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if carries(middle) else (low, middle)
    return (low * high) ** 0.5
