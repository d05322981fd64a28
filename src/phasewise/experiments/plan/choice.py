"""The cheapest fleet that meets a goal, and whether it pays to disaggregate prefill and decode."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf

from phasewise.experiments.plan.candidates import MOST_ENGINES, Candidate, Space
from phasewise.experiments.plan.search import RESOLUTION, fewest, most_load
from phasewise.experiments.plan.trials import Trial, Trials, faster

MORE_ENGINES = 1.25
"""How many more engines than a mixed fleet a disaggregated one may need before the search gives up."""


class Pays(StrEnum):
    """Whether disaggregation carries more load with as many engines."""

    YES = "yes"
    NO = "no"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Choice:
    """The best fleet of each kind; None if no fleet of a sensible size meets the goal."""

    mixed: Trial | None
    disaggregated: Trial | None

    @property
    def best(self) -> Trial | None:
        """The one with fewer engines; a mixed fleet if both need as many, because it is simpler."""
        found = [it for it in (self.mixed, self.disaggregated) if it is not None]
        return min(found, key=lambda it: it.candidate.engines, default=None)


def choose(space: Space, trials: Trials, most: int = MOST_ENGINES) -> Choice:
    """Search both kinds of fleets."""
    mixed = fewest(space, trials, disaggregated=False, most=most)
    if mixed is None:
        return Choice(None, fewest(space, trials, disaggregated=True, most=most))
    engines = mixed.candidate.engines
    enough = min(most, max(2, round(engines * MORE_ENGINES)))
    return Choice(mixed, fewest(space, trials, disaggregated=True, most=enough, begin=engines))


@dataclass(frozen=True, slots=True)
class Comparison:
    """The load that so many engines carry at the goal, mixed and disaggregated, as multiples of the traffic."""

    engines: int
    mixed: float
    disaggregated: float

    @property
    def ratio(self) -> float:
        """How many times as much a disaggregated fleet carries."""
        return self.disaggregated / self.mixed if self.mixed else inf

    @property
    def pays(self) -> Pays:
        """Undecided where the loads are closer than they were searched for, or neither carries any."""
        if not self.mixed and not self.disaggregated:
            return Pays.UNDECIDED
        if 1 / RESOLUTION <= self.ratio <= RESOLUTION:
            return Pays.UNDECIDED
        return Pays.YES if self.ratio > 1 else Pays.NO


def compare(space: Space, trials: Trials, engines: int, choice: Choice, begin: float = 1.0) -> Comparison:
    """How much load both kinds carry. No margin is kept: it would favour neither."""
    bare = replace(trials, goal=replace(trials.goal, caution=0.0), done={})
    chunk, cap = space.engine.batch_tokens, space.caps[0]
    likes = [
        choice.mixed.candidate if choice.mixed else Candidate(engines, 0, space.chunks[0], cap),
        choice.disaggregated.candidate
        if choice.disaggregated
        else Candidate(engines, max(1, round(engines * space.prefill_share)), chunk, cap),
    ]
    loads = [
        most_load(space, lambda load: bare.with_traffic(faster(trials.traffic, load)), engines, it, begin)
        for it in likes
    ]
    return Comparison(engines, *loads)
