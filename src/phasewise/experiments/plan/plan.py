"""A plan: the cheapest fleet that meets the goal, its neighbours, and where disaggregation pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from phasewise.core.errors import ConfigError
from phasewise.core.statistics import Interval
from phasewise.experiments.plan.assess import Binds, TokenPrices, binds, engines_interval, token_prices
from phasewise.experiments.plan.candidates import MOST_ENGINES, Candidate, Space
from phasewise.experiments.plan.disaggregation import Comparison, compare, pays_from, scan
from phasewise.experiments.plan.search import Choice, choose
from phasewise.experiments.plan.trials import Trial, Trials
from phasewise.experiments.simulate.run import SimulatedFigures, with_intervals

TURNOVER = 5
"""Traffic with fewer requests than so many times those open at once says little about a steady load."""


@dataclass(frozen=True, slots=True)
class PlannedFleet:
    """A fleet and what its users would see; `efficient` if no other is at least as cheap and as fast."""

    candidate: Candidate
    simulated: SimulatedFigures
    price_per_hour: float
    efficient: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
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
class Plan:
    """The outcome. `fleets` are those around the best of each kind; `here` and `scan` compare the kinds."""

    chosen: PlannedFleet
    engines: Interval | None
    one_more: PlannedFleet
    mixed_engines: int | None
    disaggregated_engines: int | None
    fleets: tuple[PlannedFleet, ...]
    binds: Binds | None
    prices: TokenPrices
    here: Comparison
    scan: tuple[Comparison, ...]
    requests: int
    enough_requests: int

    @property
    def pays_from_engines(self) -> float | None:
        """The smallest fleet from which on disaggregation pays, with the same prompts."""
        near = [it for it in self.scan if it.engines != self.here.engines]
        return pays_from([self.here, *near], "engines")

    @property
    def pays_from_prompt_tokens(self) -> float | None:
        """The shortest prompts, on average, from which on disaggregation pays with as many engines."""
        near = [it for it in self.scan if it.engines == self.here.engines]
        return pays_from([self.here, *near], "prompt_tokens")

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        own = ("mixed_engines", "disaggregated_engines", "binds", "requests", "enough_requests")
        compared = [asdict(it) | {"pays": it.pays} for it in (self.here, *self.scan)]
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
            "fleets": [it.to_dict() for it in self.fleets],
        }


def make_plan(
    trials: Trials, engine_per_hour: float, draws: int = 0, most: int = MOST_ENGINES, *, scans: bool = True
) -> Plan:
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
    own, kinds = choice.best.candidate, [it for it in (choice.mixed, choice.disaggregated) if it]
    shown = {it: _shown(trials, it, engine_per_hour) for kind in kinds for it in _around(kind.candidate)}
    shown[own] = _shown(trials, own, engine_per_hour, draws)
    fleets = {it.candidate: it for it in _marked(sorted(shown.values(), key=_size))}
    chosen, fewer = fleets[own], min(_around(own), key=lambda it: it.engines)
    size, here = own.engines, compare(trials, max(2, own.engines), choice)
    per_s = here.mixed_per_s if own.prefill == 0 else here.disaggregated_per_s
    return Plan(
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


def _size(fleet: PlannedFleet) -> tuple[int, int]:
    return fleet.candidate.engines, fleet.candidate.prefill


def _engines(trial: Trial | None) -> int | None:
    return None if trial is None else trial.candidate.engines


def _around(candidate: Candidate) -> list[Candidate]:
    """One engine fewer to two more."""
    least = 2 if candidate.prefill else 1
    return [
        candidate.resized(candidate.engines + it) for it in range(-1, 3) if candidate.engines + it >= least
    ]


def _shown(trials: Trials, candidate: Candidate, engine_per_hour: float, draws: int = 0) -> PlannedFleet:
    engine, slo, plan = trials.engine, trials.goal.slo, trials.plan(candidate)
    drawn, since_s = engine.draws[:draws], trials.counts_from_s
    figures, _ = with_intervals(candidate.label, plan, slo, engine.fitted, drawn, trials.run, since_s)
    return PlannedFleet(candidate, figures, engine_per_hour * candidate.engines)


def _marked(fleets: Sequence[PlannedFleet]) -> tuple[PlannedFleet, ...]:
    """Mark those that no other beats in price, TTFT and TPOT at once."""
    places = [it.place for it in fleets if it.place is not None]

    def beaten(own: tuple[float, ...]) -> bool:
        return any(it != own and all(x <= y for x, y in zip(it, own, strict=True)) for it in places)

    return tuple(replace(it, efficient=it.place is not None and not beaten(it.place)) for it in fleets)
