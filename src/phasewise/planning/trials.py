"""Candidates under the traffic: does a fleet meet its goal, and which is the smallest that does?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, sqrt
from statistics import fmean

from phasewise.core.slo import Slo
from phasewise.planning.candidates import MOST_ENGINES, FleetCandidate, Space
from phasewise.planning.figures import is_saturated, is_within
from phasewise.planning.fleet_plan import EngineFigures, fleet_plan
from phasewise.simulator.fleet import FleetScenario, SimulatedFleet
from phasewise.simulator.gateway import SimulatedRequest
from phasewise.simulator.traffic import Session, SimulatedTraffic

WARM_UP = 0.2
"""The share of sessions that does not count: engines and gateways begin empty."""
CAUTION = 1.8
"""Standard errors of the load between two samples of the same traffic, in one case of ten on one side."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to be met: the share `attainment` of requests within the objectives.

    `caution` is for how much more load, in standard errors of the traffic's: other traffic of this kind may
    be a little more work, and a fleet that does well just below its limit does badly above it.
    """

    slo: Slo
    attainment: float = 0.95
    caution: float = CAUTION


@dataclass(frozen=True, slots=True)
class CandidateTrial:
    """How a candidate did, at the goal's caution. One that was `cut` short has certainly missed.

    `lacks_prefill`: most requests that missed had waited too long for their prefill.
    """

    candidate: FleetCandidate
    met: bool
    attained: float
    lacks_prefill: bool
    cut: bool = False


class _CertainMissError(Exception):
    """So many have missed that the rest does not matter."""


@dataclass
class CandidateTrials:
    """Runs candidates under the same traffic with the same seed, each only once."""

    engine: EngineFigures
    traffic: SimulatedTraffic
    goal: Goal
    block_tokens: int
    seed: int = 1
    note: Callable[[CandidateTrial], None] = lambda _trial: None
    done: dict[FleetCandidate, CandidateTrial] = field(default_factory=dict)

    def __call__(self, candidate: FleetCandidate) -> CandidateTrial:
        """Try it, and stop as soon as it has certainly missed."""
        if candidate not in self.done:
            self.done[candidate] = self._trial(candidate)
            self.note(self.done[candidate])
        return self.done[candidate]

    def plan(self, candidate: FleetCandidate) -> FleetScenario:
        """The candidate as a fleet to simulate."""
        return fleet_plan(candidate.fleet("planned"), self.engine, 1, self.block_tokens)

    def run(self, plan: FleetScenario) -> SimulatedFleet:
        fleet = SimulatedFleet(plan, self.seed)
        fleet.run(self.traffic)
        return fleet

    @cached_property
    def _cautious(self) -> tuple[SimulatedTraffic, SimulatedTraffic]:
        """The traffic with as much more load as the goal's caution asks for, of mixed engines and others."""
        if not self.goal.caution:
            return self.traffic, self.traffic
        space = Space(self.engine, self.traffic, self.goal.slo)
        errors = (space.load_error(disaggregated=disaggregated) for disaggregated in (False, True))
        mixed, apart = (faster(self.traffic, 1.0 + self.goal.caution * error) for error in errors)
        return mixed, apart

    def with_traffic(self, traffic: SimulatedTraffic) -> CandidateTrials:
        return replace(self, traffic=traffic, done={})

    @property
    def counts_from_s(self) -> float:
        return warm_from_s(self.traffic)

    def _trial(self, candidate: FleetCandidate) -> CandidateTrial:
        fleet = SimulatedFleet(self.plan(candidate), self.seed)
        traffic = self._cautious[candidate.prefill > 0]
        from_s, slo, front_end_s = warm_from_s(traffic), self.goal.slo, self.engine.front_end_s
        most = (1 - self.goal.attainment) * traffic.requests
        met = 0
        missed: list[SimulatedRequest] = []

        def ended(served: SimulatedRequest) -> None:
            nonlocal met
            if served.arrived_s < from_s:
                return
            if is_within(served, slo, front_end_s):
                met += 1
                return
            missed.append(served)
            if len(missed) > most:
                raise _CertainMissError

        fleet.on_end = ended
        cut = False
        try:
            fleet.run(traffic)
        except _CertainMissError:
            cut = True
        attained = met / max(1, met + len(missed))
        # More and more requests wait: sooner or later they all miss.
        grows = not cut and is_saturated(fleet.requests)
        does = not cut and not grows and attained >= self.goal.attainment
        late = fleet.requests[len(fleet.requests) * 3 // 4 :] if grows else missed
        for_prefill = fmean(
            [waited_for_prefill(request, slo.ttft_s * (not grows)) for request in late] or [0.0]
        )
        return CandidateTrial(candidate, does, attained, for_prefill > 1 / 2, cut)


def warm_from_s(traffic: SimulatedTraffic) -> float:
    """When the warm-up of a run is over."""
    return traffic.sessions[int(len(traffic.sessions) * WARM_UP)].at_s


def faster(traffic: SimulatedTraffic, factor: float) -> SimulatedTraffic:
    """More sessions in the same time."""
    return SimulatedTraffic([Session(session.at_s / factor, session.turns) for session in traffic.sessions])


def waited_for_prefill(served: SimulatedRequest, longer_than_s: float) -> bool:
    """Whether TTFT took longer, and most of that time was not spent on a decode engine."""
    if served.ttft_s <= longer_than_s or not served.attempts:
        return False
    first = served.attempts[0]
    return not first.is_prefill or first.ended_s - served.arrived_s > served.ttft_s / 2


# --- The fewest engines that meet a goal, and the most load that so many engines carry.
#
# Misses are cheap, because a trial is cut short once it has certainly missed. More engines are taken to do
# better, and a row of candidates to have one best stretch: a miss says in which direction that lies.

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
