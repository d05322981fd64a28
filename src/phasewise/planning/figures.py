"""What the users of a simulated fleet would see, and how busy its engines were."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from statistics import mean, median
from typing import Any

from phasewise.core.decision import RejectReason
from phasewise.core.slo import Slo
from phasewise.core.statistics import Interval, quantile
from phasewise.costs.fit.solve import FittedCost
from phasewise.simulator.fleet import FleetScenario, SimulatedFleet
from phasewise.simulator.gateway import SimulatedRequest

FEWEST = 10
"""Fewer requests than this in a quarter of the load show no growth."""
GROWTH, LATER_GROWTH = 1.25, 1.15
"""A queue that grows steadily from nothing grows by two thirds from the second quarter to the third, and by
two fifths to the last."""
_FULL = frozenset({RejectReason.QUEUE_FULL, RejectReason.QUEUE_TIMEOUT})


@dataclass(frozen=True, slots=True)
class PoolFigures:
    """How busy a pool was: the share of the time in which its engines stepped, and preempted requests."""

    pool: str
    engines: int
    busy: float
    preempted: int


@dataclass(frozen=True, slots=True)
class FleetFigures:
    """The figures of one run. Times are of answered requests, None without any; `attained` is of all.

    In a `saturated` fleet the queue grew until the load ended, or requests were rejected: TTFT and E2E then
    depend on how long the load lasts, so they have no figures.
    """

    engines: int
    requests: int
    answered: int
    saturated: bool
    rejected: dict[str, int]
    too_long: int
    attained: float
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    tpot_p90_s: float | None
    e2e_p50_s: float | None
    output_tokens_per_s: float
    cached_share: float
    split_share: float
    pools: tuple[PoolFigures, ...]
    virtual_s: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def figures_of(
    fleet: SimulatedFleet, slo: Slo, front_end_s: float = 0.0, since_s: float = 0.0
) -> FleetFigures:
    """The figures of a fleet that has run; clients wait `front_end_s` beyond the engines' steps.

    Requests that came before `since_s` do not count.
    """
    served = [request for request in fleet.requests if request.arrived_s >= since_s]
    answered = [request for request in served if request.answered]
    saturated = is_saturated(served)
    waited = [] if saturated else answered
    ttfts, e2es = (
        [request.ttft_s + front_end_s for request in waited],
        [request.e2e_s + front_end_s for request in waited],
    )
    tpots = [tpot_s for tpot_s in (each.tpot_s for each in answered) if tpot_s is not None]
    ends_s = max((request.last_s or 0.0 for request in answered), default=0.0)
    begins_s = min((request.arrived_s for request in served), default=0.0)
    prompt_tokens = sum(request.prompt_tokens for request in answered)
    virtual_s = ends_s - begins_s
    return FleetFigures(
        engines=len(fleet.hosts),
        requests=len(served),
        answered=len(answered),
        saturated=saturated,
        rejected=dict(Counter(str(request.rejected) for request in served if request.rejected is not None)),
        too_long=sum(request.too_long for request in served),
        attained=sum(is_within(request, slo, front_end_s) for request in answered) / len(served)
        if served
        else 0.0,
        ttft_p50_s=_quantile(ttfts, 0.5),
        ttft_p90_s=_quantile(ttfts, 0.9),
        ttft_p99_s=_quantile(ttfts, 0.99),
        tpot_p50_s=_quantile(tpots, 0.5),
        tpot_p90_s=_quantile(tpots, 0.9),
        e2e_p50_s=_quantile(e2es, 0.5),
        output_tokens_per_s=sum(request.output_tokens for request in answered) / virtual_s
        if virtual_s
        else 0.0,
        cached_share=sum(request.cached_tokens for request in answered) / prompt_tokens
        if prompt_tokens
        else 0.0,
        split_share=sum(request.attempts[0].is_prefill for request in answered) / len(answered)
        if answered
        else 0.0,
        pools=_pools(fleet, ends_s - fleet.requests[0].arrived_s if fleet.requests else 0.0),
        virtual_s=virtual_s,
    )


def is_within(served: SimulatedRequest, slo: Slo, front_end_s: float = 0.0) -> bool:
    """Whether a request was answered within its objectives; one token is judged by TTFT alone."""
    tpot_s, ttft_s = served.tpot_s, served.ttft_s + front_end_s
    return served.answered and ttft_s <= slo.ttft_s and (tpot_s is None or tpot_s <= slo.tpot_s)


def is_saturated(served: Sequence[SimulatedRequest]) -> bool:
    """Whether requests were rejected for want of a slot, or waited longer and longer until the last came.

    Both the open requests and the usual TTFT have to grow from the second quarter to the third, and again to
    the last: a burst makes them grow once.
    """
    if not served:
        return False
    if any(request.rejected in _FULL for request in served):
        return True
    by_arrival = sorted(served, key=lambda request: request.arrived_s)
    quarter = len(by_arrival) // 4
    if quarter < FEWEST:
        return False
    arrivals = [request.arrived_s for request in by_arrival]
    ends = sorted(request.last_s or request.rejected_s or inf for request in served)
    later = [by_arrival[quarter * number : quarter * (number + 1)] for number in (1, 2, 3)]
    waits_s = [median(request.ttft_s for request in each) for each in later]
    opens = [
        mean(
            bisect_right(arrivals, request.arrived_s) - bisect_right(ends, request.arrived_s)
            for request in each
        )
        for each in later
    ]
    return all(
        second > GROWTH * first and third > LATER_GROWTH * second for first, second, third in (waits_s, opens)
    )


def _quantile(values: Sequence[float], share: float) -> float | None:
    return quantile(values, share) if values else None


def _pools(fleet: SimulatedFleet, virtual_s: float) -> tuple[PoolFigures, ...]:
    names = dict.fromkeys(host.worker.pool for host in fleet.hosts.values())
    found = []
    for name in names:
        hosts = [host for host in fleet.hosts.values() if host.worker.pool == name]
        busy_s = sum(host.busy_s for host in hosts)
        found.append(
            PoolFigures(
                name,
                len(hosts),
                min(1.0, busy_s / (len(hosts) * virtual_s)) if virtual_s else 0.0,
                sum(host.engine.preempted for host in hosts),
            )
        )
    return tuple(found)


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
        bounds = {name: [interval.low, interval.high] for name, interval in self.intervals.items()}
        return {"fleet": self.label, **self.figures.to_dict(), "intervals": bounds}


Run = Callable[[FleetScenario], SimulatedFleet]


def with_intervals(
    label: str,
    plan: FleetScenario,
    slo: Slo,
    fitted: FittedCost,
    draws: tuple[FittedCost, ...],
    run: Run,
    since_s: float = 0.0,
) -> tuple[SimulatedFigures, SimulatedFleet]:
    """Run the fleet, and once more with each drawn cost; count what comes after `since_s`."""
    fleet = run(plan)
    figures = figures_of(fleet, slo, fitted.front_end_s, since_s)
    others = []
    for drawn in draws:
        redrawn = replace(plan, pools=tuple(replace(pool, cost=drawn.step) for pool in plan.pools))
        others.append(figures_of(run(redrawn), slo, drawn.front_end_s, since_s))
    return SimulatedFigures(label, figures, _intervals([figures, *others]) if others else {}), fleet


def _intervals(runs: list[FleetFigures]) -> dict[str, Interval]:
    found = {}
    for name in BOUNDED:
        values = [value for figures in runs if (value := getattr(figures, name)) is not None]
        if len(values) == len(runs):
            found[name] = interval_of(values)
    return found


def interval_of(values: Sequence[float]) -> Interval:
    """The interval that holds `CONFIDENCE` of what was simulated with other step times."""
    outside = (1 - CONFIDENCE) / 2
    return Interval(quantile(values, outside), quantile(values, 1 - outside), CONFIDENCE)
