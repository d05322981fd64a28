"""A plan: the cheapest fleet that meets the goal, its neighbours, and where disaggregation pays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from phasewise.core.errors import ConfigError
from phasewise.core.statistics import Interval
from phasewise.costs.fit.solve import FittedCost
from phasewise.costs.fit.step import StepSeconds, StepWork
from phasewise.planning.candidates import MOST_ENGINES, FleetCandidate, Space
from phasewise.planning.disaggregation import PoolComparison, compare, pays_from, scan
from phasewise.planning.figures import SimulatedFigures, interval_of, is_within, with_intervals
from phasewise.planning.trials import CandidateTrial, CandidateTrials, Choice, choose, waited_for_prefill
from phasewise.simulator.gateway import SimulatedAttempt

NEARLY = 0.95
"""A limit counts as reached from this share on: what is left may be too little for the next request."""


class Binds(StrEnum):
    """What a fleet runs out of first."""

    PREFILL = "TTFT: prefill compute"
    DECODE = "TPOT: decode steps"
    KV_MEMORY = "KV cache memory"
    QUEUE = "the queue: max_num_seqs or the gateway's slots"


def binds(trials: CandidateTrials, candidate: FleetCandidate) -> Binds | None:
    """What made most requests miss their objectives; None if none did."""
    slo, front_end_s = trials.goal.slo, trials.engine.front_end_s
    fleet = trials.run(trials.plan(candidate))
    missed = [served for served in fleet.requests if not is_within(served, slo, front_end_s)]
    attempts = [attempt for served in missed for attempt in served.attempts[-1:]]
    running: dict[str, list[SimulatedAttempt]] = {name: [] for name in fleet.hosts}
    for attempt in (attempt for served in fleet.requests for attempt in served.attempts):
        running[attempt.worker].append(attempt)

    def mostly_over(size: Callable[[SimulatedAttempt], float], limit: float) -> bool:
        """Whether most of those that missed came to an engine that was full."""
        full = 0
        for own in attempts:
            beside = (
                other
                for other in running[own.worker]
                if (began_s := other.request.scheduled_s) is not None
                and began_s < own.began_s < other.ended_s
            )
            full += sum(map(size, beside)) >= NEARLY * limit
        return full > len(missed) / 2

    if not missed:
        return None
    shape = fleet.plan.pools[-1].shape
    kv_tokens = shape.total_blocks * shape.block_size
    if mostly_over(lambda own: own.request.prompt_tokens + own.request.outputs / 2, kv_tokens):
        return Binds.KV_MEMORY
    if mostly_over(lambda _: 1.0, min(shape.max_num_seqs, fleet.plan.pools[-1].slots)):
        return Binds.QUEUE
    waited = sum(waited_for_prefill(served, slo.ttft_s) for served in missed)
    return Binds.PREFILL if waited > len(missed) / 2 else Binds.DECODE


class PhaseMeter:
    """Step times that are added up. A step of both phases counts to each by what it would take alone."""

    def __init__(self, cost: StepSeconds) -> None:
        self.prefill_s = 0.0
        self._cost = cost

    def __call__(self, work: StepWork) -> float:
        seconds = self._cost(work)
        if work.prompt_tokens:
            decode_s = self._cost(work.without_prompts()) if work.decode_tokens else 0.0
            prefill_s = self._cost(replace(work, decode_tokens=0, kv_read_tokens=0))
            self.prefill_s += seconds * prefill_s / (prefill_s + decode_s)
        return seconds


@dataclass(frozen=True, slots=True)
class TokenPrices:
    """What a million tokens cost by phase. `per_hour` is the price of the whole fleet."""

    per_hour: float
    prefill_share: float
    per_million_input: float
    per_million_output: float


def token_prices(trials: CandidateTrials, candidate: FleetCandidate, engine_per_hour: float) -> TokenPrices:
    """Mixed engines are charged to both phases by busy time, others to the phase that they are for."""
    plan, meter = trials.plan(candidate), PhaseMeter(trials.engine.cost)
    fleet = trials.run(replace(plan, pools=tuple(replace(pool, cost=meter) for pool in plan.pools)))
    answered = [served for served in fleet.requests if served.answered]
    share = meter.prefill_s / max(sum(host.busy_s for host in fleet.hosts.values()), 1e-9)
    if candidate.prefill:
        share = candidate.prefill / candidate.engines
    per_hour = engine_per_hour * candidate.engines
    arrivals_s = trials.traffic.sessions[-1].at_s - trials.traffic.sessions[0].at_s
    paid = per_hour * arrivals_s / 3600 * 1e6
    return TokenPrices(
        per_hour,
        share,
        paid * share / max(1, sum(served.prompt_tokens for served in answered)),
        paid * (1 - share) / max(1, sum(served.output_tokens for served in answered)),
    )


def engines_interval(
    trials: CandidateTrials, candidate: FleetCandidate, draws: tuple[FittedCost, ...]
) -> Interval | None:
    """How many engines of this kind it takes if step times are others that fit the measurement as well."""
    least = 2 if candidate.prefill else 1
    needed = [float(candidate.engines)]
    for drawn in draws:
        engine = replace(trials.engine, cost=drawn.step, front_end_s=drawn.front_end_s)
        attempt, engines = replace(trials, engine=engine, done={}), candidate.engines
        while engines < MOST_ENGINES and not attempt(candidate.resized(engines)).met:
            engines += 1
        while engines > least and attempt(candidate.resized(engines - 1)).met:
            engines -= 1
        needed.append(float(engines))
    return interval_of(needed) if draws else None


TURNOVER = 5
"""Traffic with fewer requests than so many times those open at once says little about a steady load."""


@dataclass(frozen=True, slots=True)
class PlannedFleet:
    """A fleet and what its users would see; `efficient` if no other is at least as cheap and as fast."""

    candidate: FleetCandidate
    simulated: SimulatedFigures
    price_per_hour: float
    efficient: bool = False

    def to_dict(self) -> dict[str, Any]:
        own = {"price_per_hour": self.price_per_hour, "efficient": self.efficient}
        return {**asdict(self.candidate), **own, **self.simulated.to_dict()}

    @property
    def place(self) -> tuple[float, float, float] | None:
        """Its price and its latencies; None if it is saturated and has no TTFT."""
        figures = self.simulated.figures
        if figures.ttft_p90_s is None or figures.tpot_p90_s is None:
            return None
        return self.price_per_hour, figures.ttft_p90_s, figures.tpot_p90_s


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """The outcome. `fleets` are those around the best of each kind; `here` and `scan` compare the kinds."""

    chosen: PlannedFleet
    engines: Interval | None
    one_more: PlannedFleet
    mixed_engines: int | None
    disaggregated_engines: int | None
    fleets: tuple[PlannedFleet, ...]
    binds: Binds | None
    prices: TokenPrices
    here: PoolComparison
    scan: tuple[PoolComparison, ...]
    requests: int
    enough_requests: int

    @property
    def pays_from_engines(self) -> float | None:
        """The smallest fleet from which on disaggregation pays, with the same prompts."""
        near = [point for point in self.scan if point.engines != self.here.engines]
        return pays_from([self.here, *near], "engines")

    @property
    def pays_from_prompt_tokens(self) -> float | None:
        """The shortest prompts, on average, from which on disaggregation pays with as many engines."""
        near = [point for point in self.scan if point.engines == self.here.engines]
        return pays_from([self.here, *near], "prompt_tokens")

    def to_dict(self) -> dict[str, Any]:
        own = ("mixed_engines", "disaggregated_engines", "binds", "requests", "enough_requests")
        compared = [asdict(point) | {"pays": point.pays} for point in (self.here, *self.scan)]
        return {
            "chosen": self.chosen.to_dict(),
            "engines_interval": self.engines and [self.engines.low, self.engines.high],
            "one_more_engine": self.one_more.to_dict(),
            **{name: getattr(self, name) for name in own},
            "prices": asdict(self.prices),
            "disaggregation": {
                "pays": self.here.pays,
                "pays_from_engines": self.pays_from_engines,
                "pays_from_prompt_tokens": self.pays_from_prompt_tokens,
                "compared": compared,
            },
            "fleets": [fleet.to_dict() for fleet in self.fleets],
        }


def make_plan(
    trials: CandidateTrials,
    engine_per_hour: float,
    draws: int = 0,
    most: int = MOST_ENGINES,
    *,
    scans: bool = True,
) -> CapacityPlan:
    """Search, then look around what was found."""
    space = Space(trials.engine, trials.traffic, trials.goal.slo)
    why = space.hopeless(trials.goal.attainment)
    choice = Choice(None, None) if why else choose(space, trials, most)
    if choice.best is None:
        hint = "loosen --slo or --attainment, or use faster engines (--gpu, --gpus)"
        if not why:
            why = f"{most} engines do not meet the objective, neither mixed nor disaggregated"
            more = (
                "raise --most-engines"
                if most < MOST_ENGINES
                else "plan cells with a part of the traffic each"
            )
            hint = f"{more}, {hint}"
        raise ConfigError(why, hint=hint)
    own, kinds = choice.best.candidate, [trial for trial in (choice.mixed, choice.disaggregated) if trial]
    shown = {
        candidate: _shown(trials, candidate, engine_per_hour)
        for kind in kinds
        for candidate in _around(kind.candidate)
    }
    shown[own] = _shown(trials, own, engine_per_hour, draws)
    ordered = sorted(shown.values(), key=lambda fleet: (fleet.candidate.engines, fleet.candidate.prefill))
    fleets = {fleet.candidate: fleet for fleet in _marked(ordered)}
    chosen, fewer = fleets[own], min(_around(own), key=lambda candidate: candidate.engines)
    size, here = own.engines, compare(trials, max(2, own.engines), choice)
    per_s = here.mixed_per_s if own.prefill == 0 else here.disaggregated_per_s
    return CapacityPlan(
        chosen=chosen,
        engines=engines_interval(trials, own, trials.engine.draws[:draws]),
        one_more=fleets[own.resized(size + 1)],
        mixed_engines=_engines(choice.mixed),
        disaggregated_engines=_engines(choice.disaggregated),
        fleets=tuple(fleets.values()),
        binds=binds(trials, fewer) if fewer.engines < size else None,
        prices=token_prices(trials, own, engine_per_hour),
        here=here,
        scan=tuple(scan(trials, max(2, size), choice)) if scans else (),
        requests=trials.traffic.requests,
        enough_requests=round(TURNOVER * per_s * (chosen.simulated.figures.e2e_p50_s or 0.0)),
    )


def _engines(trial: CandidateTrial | None) -> int | None:
    return None if trial is None else trial.candidate.engines


def _around(candidate: FleetCandidate) -> list[FleetCandidate]:
    """One engine fewer to two more."""
    least = 2 if candidate.prefill else 1
    return [
        candidate.resized(candidate.engines + more)
        for more in range(-1, 3)
        if candidate.engines + more >= least
    ]


def _shown(
    trials: CandidateTrials, candidate: FleetCandidate, engine_per_hour: float, draws: int = 0
) -> PlannedFleet:
    engine, slo, plan = trials.engine, trials.goal.slo, trials.plan(candidate)
    drawn, since_s = engine.draws[:draws], trials.counts_from_s
    figures, _ = with_intervals(candidate.label, plan, slo, engine.fitted, drawn, trials.run, since_s)
    return PlannedFleet(candidate, figures, engine_per_hour * candidate.engines)


def _marked(fleets: Sequence[PlannedFleet]) -> tuple[PlannedFleet, ...]:
    """Mark those that no other beats in price, TTFT and TPOT at once."""
    places = [fleet.place for fleet in fleets if fleet.place is not None]

    def beaten(own: tuple[float, ...]) -> bool:
        return any(other != own and all(x <= y for x, y in zip(other, own, strict=True)) for other in places)

    return tuple(
        replace(fleet, efficient=fleet.place is not None and not beaten(fleet.place)) for fleet in fleets
    )
