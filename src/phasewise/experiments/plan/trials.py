"""Candidates under the traffic: does a fleet meet its objectives, and if not, which phase is short?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import sqrt
from statistics import fmean, stdev

from phasewise.core.slo import Slo
from phasewise.experiments.plan.candidates import Candidate
from phasewise.experiments.simulate.fleet_plan import EngineFigures, fleet_plan
from phasewise.experiments.simulate.figures import is_within
from phasewise.simulator.fleet import FleetPlan, SimulatedFleet
from phasewise.simulator.gateway import SimulatedRequest
from phasewise.simulator.traffic import Content, Session, Traffic, Turn, tokens_of

WARM_UP = 0.2
"""The share of sessions that does not count: engines and gateways begin empty."""
BATCHES = 10
"""Stretches of the traffic whose attainment is compared, for how far it is from that of other traffic."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to be met: the share `attainment` of requests within the objectives.

    `caution`: by how many standard errors, as other traffic of the kind will do a little worse or better.
    """

    slo: Slo
    attainment: float = 0.95
    caution: float = 1.0


@dataclass(frozen=True, slots=True)
class Trial:
    """How a candidate did. One that was `cut` short has certainly missed; its shares are those until then.

    `prefill_missed` and `decode_missed` are the shares of requests that missed for the sake of each phase.
    """

    candidate: Candidate
    met: bool
    attained: float
    error: float
    prefill_missed: float
    decode_missed: float
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

    def run(self, candidate: Candidate) -> SimulatedFleet:
        """Run it to the end."""
        fleet = SimulatedFleet(self.plan(candidate), self.seed)
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
        from_s, counted = self.counts_from_s, _Counted(self.goal.slo, self.engine.front_end_s)
        most = (1 - self.goal.attainment) * self.traffic.requests

        def ended(served: SimulatedRequest) -> None:
            if served.arrived_s >= from_s:
                counted.add(served)
                if counted.missed > most:
                    raise _CertainMissError

        fleet.on_end = ended
        cut = False
        try:
            fleet.run(self.traffic)
        except _CertainMissError:
            cut = True
        return counted.trial(candidate, self.goal, cut=cut)


class _Counted:
    """Requests that have ended, and why some missed."""

    def __init__(self, slo: Slo, front_end_s: float) -> None:
        self._slo = slo
        self._front_end_s = front_end_s
        self._met: list[tuple[float, bool]] = []
        self._prefill_missed = 0
        self.missed = 0

    def add(self, served: SimulatedRequest) -> None:
        met = is_within(served, self._slo, self._front_end_s)
        self._met.append((served.arrived_s, met))
        self.missed += not met
        self._prefill_missed += not met and _for_prefill(served, self._slo)

    def trial(self, candidate: Candidate, goal: Goal, *, cut: bool) -> Trial:
        met = [it for _, it in sorted(self._met)]
        attained, error = fmean(met) if met else 0.0, standard_error(met)
        ended = max(1, len(met))
        return Trial(
            candidate,
            met=not cut and attained - goal.caution * error >= goal.attainment,
            attained=attained,
            error=error,
            prefill_missed=self._prefill_missed / ended,
            decode_missed=(self.missed - self._prefill_missed) / ended,
            cut=cut,
        )


def standard_error(met: Sequence[bool]) -> float:
    """Of a share, from its means over stretches: requests that arrive together fare alike."""
    size = len(met) // BATCHES
    if size < 2:
        return 0.0
    shares = [fmean(islice(met, at * size, (at + 1) * size)) for at in range(BATCHES)]
    return stdev(shares) / sqrt(BATCHES)


def _for_prefill(served: SimulatedRequest, slo: Slo) -> bool:
    """Whether a request missed TTFT and most of that was not spent on a decode engine."""
    if served.ttft_s <= slo.ttft_s or not served.attempts:
        return False
    first = served.attempts[0]
    if not first.is_prefill:
        return True
    return first.ended_s - served.arrived_s > served.ttft_s / 2


# --- The same traffic at another load, or with longer prompts.


def faster(traffic: Traffic, factor: float) -> Traffic:
    """More sessions in the same time."""
    return Traffic([Session(it.at_s / factor, it.turns) for it in traffic.sessions])


def with_longer_prompts(traffic: Traffic, factor: float, longest: int, block_tokens: int) -> Traffic:
    """Prompts so many times as long, up to the `longest` with their answers. What began alike still does."""

    def turn(each: Turn) -> Turn:
        most = max(1, longest - each.output_tokens - 1) / tokens_of(each.prompt)
        by = min(factor, max(most, 1.0))
        prompt = tuple(Content(it.text, max(1, int(it.tokens * by))) for it in each.prompt)
        blocks = (tokens_of(prompt) + each.output_tokens) // block_tokens if each.keys else 0
        last = len(each.keys) - 1
        keys = tuple(hash((each.keys[min(int(at / by), last)], at)) for at in range(blocks))
        return replace(each, prompt=prompt, keys=keys)

    return Traffic([Session(it.at_s, tuple(map(turn, it.turns))) for it in traffic.sessions])
