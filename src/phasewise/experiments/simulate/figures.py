"""What the users of a simulated fleet would see, and how busy its engines were."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf
from statistics import mean, median
from typing import Any

from phasewise.core.decision import RejectReason
from phasewise.core.slo import Slo
from phasewise.core.statistics import quantile
from phasewise.simulator.fleet import SimulatedFleet
from phasewise.simulator.gateway import SimulatedRequest

FEWEST = 10
"""Requests in a quarter of the load: fewer show no growth."""
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
        """As JSON types."""
        return asdict(self)


def figures_of(
    fleet: SimulatedFleet, slo: Slo, front_end_s: float = 0.0, since_s: float = 0.0
) -> FleetFigures:
    """The figures of a fleet that has run; clients wait `front_end_s` beyond the engines' steps.

    Requests that came before `since_s` do not count.
    """
    served = [it for it in fleet.requests if it.arrived_s >= since_s]
    answered = [it for it in served if it.answered]
    saturated = is_saturated(served)
    waited = [] if saturated else answered
    ttfts, e2es = [it.ttft_s + front_end_s for it in waited], [it.e2e_s + front_end_s for it in waited]
    tpots = [it for it in (each.tpot_s for each in answered) if it is not None]
    ends_s = max((it.last_s or 0.0 for it in answered), default=0.0)
    begins_s = min((it.arrived_s for it in served), default=0.0)
    prompt_tokens = sum(it.prompt_tokens for it in answered)
    virtual_s = ends_s - begins_s
    return FleetFigures(
        engines=len(fleet.hosts),
        requests=len(served),
        answered=len(answered),
        saturated=saturated,
        rejected=dict(Counter(str(it.rejected) for it in served if it.rejected is not None)),
        too_long=sum(it.too_long for it in served),
        attained=sum(is_within(it, slo, front_end_s) for it in answered) / len(served) if served else 0.0,
        ttft_p50_s=_quantile(ttfts, 0.5),
        ttft_p90_s=_quantile(ttfts, 0.9),
        ttft_p99_s=_quantile(ttfts, 0.99),
        tpot_p50_s=_quantile(tpots, 0.5),
        tpot_p90_s=_quantile(tpots, 0.9),
        e2e_p50_s=_quantile(e2es, 0.5),
        output_tokens_per_s=sum(it.output_tokens for it in answered) / virtual_s if virtual_s else 0.0,
        cached_share=sum(it.cached_tokens for it in answered) / prompt_tokens if prompt_tokens else 0.0,
        split_share=sum(it.attempts[0].is_prefill for it in answered) / len(answered) if answered else 0.0,
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
    if any(it.rejected in _FULL for it in served):
        return True
    by_arrival = sorted(served, key=lambda it: it.arrived_s)
    quarter = len(by_arrival) // 4
    if quarter < FEWEST:
        return False
    arrivals = [it.arrived_s for it in by_arrival]
    ends = sorted(it.last_s or it.rejected_s or inf for it in served)
    later = [by_arrival[quarter * number : quarter * (number + 1)] for number in (1, 2, 3)]
    waits_s = [median(it.ttft_s for it in each) for each in later]
    opens = [
        mean(bisect_right(arrivals, it.arrived_s) - bisect_right(ends, it.arrived_s) for it in each)
        for each in later
    ]
    return all(
        second > GROWTH * first and third > LATER_GROWTH * second for first, second, third in (waits_s, opens)
    )


def _quantile(values: Sequence[float], share: float) -> float | None:
    return quantile(values, share) if values else None


def _pools(fleet: SimulatedFleet, virtual_s: float) -> tuple[PoolFigures, ...]:
    names = dict.fromkeys(it.worker.pool for it in fleet.hosts.values())
    found = []
    for name in names:
        hosts = [it for it in fleet.hosts.values() if it.worker.pool == name]
        busy_s = sum(it.busy_s for it in hosts)
        found.append(
            PoolFigures(
                name,
                len(hosts),
                min(1.0, busy_s / (len(hosts) * virtual_s)) if virtual_s else 0.0,
                sum(it.engine.preempted for it in hosts),
            )
        )
    return tuple(found)
