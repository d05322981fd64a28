"""Runs a fleet with its step times, and with other step times that fit what was measured about as well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from phasewise.core.slo import Slo
from phasewise.core.statistics import Interval, quantile
from phasewise.costs.fit.solve import FittedCost
from phasewise.experiments.simulate.figures import FleetFigures, figures_of
from phasewise.simulator.fleet import FleetPlan, SimulatedFleet

CONFIDENCE = 0.8
BOUNDED = (
    "attained", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "tpot_p50_s", "tpot_p90_s", "e2e_p50_s",
    "output_tokens_per_s",
)  # fmt: skip
"""Figures that have an interval."""


@dataclass(frozen=True, slots=True)
class SimulatedFigures:
    """A fleet's figures; `intervals` come from the uncertainty of the step times alone."""

    label: str
    figures: FleetFigures
    intervals: dict[str, Interval]

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        bounds = {name: [it.low, it.high] for name, it in self.intervals.items()}
        return {"fleet": self.label, **self.figures.to_dict(), "intervals": bounds}


Run = Callable[[FleetPlan], SimulatedFleet]


def with_intervals(
    label: str,
    plan: FleetPlan,
    slo: Slo,
    fitted: FittedCost,
    draws: tuple[FittedCost, ...],
    run: Run,
    since_s: float = 0.0,
) -> tuple[SimulatedFigures, SimulatedFleet]:
    """Run the fleet, and once more with each drawn cost; count what comes after `since_s`."""
    fleet = run(plan)
    figures = figures_of(fleet, slo, fitted.front_end_s, since_s)
    others = [figures_of(run(_with_cost(plan, it)), slo, it.front_end_s, since_s) for it in draws]
    return SimulatedFigures(label, figures, _intervals([figures, *others]) if others else {}), fleet


def _with_cost(plan: FleetPlan, drawn: FittedCost) -> FleetPlan:
    return replace(plan, pools=tuple(replace(it, cost=drawn.step) for it in plan.pools))


def _intervals(runs: list[FleetFigures]) -> dict[str, Interval]:
    found = {}
    for name in BOUNDED:
        values = [value for it in runs if (value := getattr(it, name)) is not None]
        if len(values) == len(runs):
            outside = (1 - CONFIDENCE) / 2
            found[name] = Interval(quantile(values, outside), quantile(values, 1 - outside), CONFIDENCE)
    return found
