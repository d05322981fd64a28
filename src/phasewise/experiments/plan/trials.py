"""Candidates under the traffic: does a fleet meet its goal, and if not, which phase is short?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from statistics import fmean, stdev

from phasewise.core.slo import Slo
from phasewise.experiments.plan.candidates import Candidate
from phasewise.experiments.simulate.figures import is_saturated, is_within
from phasewise.experiments.simulate.fleet_plan import EngineFigures, fleet_plan
from phasewise.simulator.fleet import FleetPlan, SimulatedFleet
from phasewise.simulator.gateway import SimulatedRequest
from phasewise.simulator.traffic import Traffic

WARM_UP = 0.2
"""The share of sessions that does not count: engines and gateways begin empty."""
BATCHES = 10
"""Stretches of the traffic whose attainment is compared, to see how far other traffic would be from it."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to be met: the share `attainment` of requests within the objectives.

    `caution` is by how many standard errors: other traffic of this kind does a little better or worse.
    """

    slo: Slo
    attainment: float = 0.95
    caution: float = 1.0


@dataclass(frozen=True, slots=True)
class Trial:
    """How a candidate did. One that was `cut` short has certainly missed; its share is that until then.

    `lacks_prefill`: most requests that missed had waited too long for their prefill.
    """

    candidate: Candidate
    met: bool
    attained: float
    error: float
    lacks_prefill: bool
    cut: bool = False


class _CertainMissError(Exception):
    """So many have missed that the rest does not matter."""


@dataclass
class Trials:
    """Runs candidates under the same traffic with the same seed, each only once."""

    engine: EngineFigures
    traffic: Traffic
    goal: Goal
    block_tokens: int
    seed: int = 1
    note: Callable[[Trial], None] = lambda _trial: None
    done: dict[Candidate, Trial] = field(default_factory=dict)

    def __call__(self, candidate: Candidate) -> Trial:
        """Try it, and stop as soon as it has certainly missed."""
        if candidate not in self.done:
            self.done[candidate] = self._trial(candidate)
            self.note(self.done[candidate])
        return self.done[candidate]

    def plan(self, candidate: Candidate) -> FleetPlan:
        """The candidate as a fleet to simulate."""
        return fleet_plan(candidate.fleet("planned"), self.engine, 1, self.block_tokens)

    def run(self, plan: FleetPlan) -> SimulatedFleet:
        """Run a fleet to the end."""
        fleet = SimulatedFleet(plan, self.seed)
        fleet.run(self.traffic)
        return fleet

    def with_traffic(self, traffic: Traffic) -> Trials:
        """The same with other traffic."""
        return replace(self, traffic=traffic, done={})

    @property
    def counts_from_s(self) -> float:
        """When the warm-up is over."""
        sessions = self.traffic.sessions
        return sessions[int(len(sessions) * WARM_UP)].at_s

    def _trial(self, candidate: Candidate) -> Trial:
        fleet = SimulatedFleet(self.plan(candidate), self.seed)
        from_s, slo, front_end_s = self.counts_from_s, self.goal.slo, self.engine.front_end_s
        most = (1 - self.goal.attainment) * self.traffic.requests
        met: list[tuple[float, bool]] = []
        missed: list[SimulatedRequest] = []

        def ended(served: SimulatedRequest) -> None:
            if served.arrived_s < from_s:
                return
            met.append((served.arrived_s, is_within(served, slo, front_end_s)))
            if not met[-1][1]:
                missed.append(served)
                if len(missed) > most:
                    raise _CertainMissError

        fleet.on_end = ended
        cut = False
        try:
            fleet.run(self.traffic)
        except _CertainMissError:
            cut = True
        in_order = [it for _, it in sorted(met)]
        attained, error = fmean(in_order or [0.0]), standard_error(in_order)
        # More and more requests wait: sooner or later they all miss.
        grows = not cut and is_saturated(fleet.requests)
        sure = not cut and not grows and attained - self.goal.caution * error >= self.goal.attainment
        late = fleet.requests[len(fleet.requests) * 3 // 4 :] if grows else missed
        for_prefill = fmean([waited_for_prefill(it, slo.ttft_s * (not grows)) for it in late] or [0.0])
        return Trial(candidate, sure, attained, error, for_prefill > 1 / 2, cut)


def standard_error(met: Sequence[bool]) -> float:
    """Of a share, from its means over stretches: requests that arrive together fare alike."""
    size = len(met) // BATCHES
    if size < 2:
        return 0.0
    return stdev(fmean(met[at * size : (at + 1) * size]) for at in range(BATCHES)) / sqrt(BATCHES)


def waited_for_prefill(served: SimulatedRequest, longer_than_s: float) -> bool:
    """Whether TTFT took longer, and most of that time was not spent on a decode engine."""
    if served.ttft_s <= longer_than_s or not served.attempts:
        return False
    first = served.attempts[0]
    return not first.is_prefill or first.ended_s - served.arrived_s > served.ttft_s / 2
