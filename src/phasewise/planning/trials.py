"""Candidates under the traffic: does a fleet meet its goal, and if not, which phase is short?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean

from phasewise.core.slo import Slo
from phasewise.planning.candidates import FleetCandidate, Space
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
