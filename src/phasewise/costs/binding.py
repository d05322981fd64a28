"""What holds up a step here, read from the parts of its fitted cost.

"Decode is bound by bandwidth" is true of most models on most accelerators, and not of this one unless it
shows: the floor is weights and overhead together, and only what the machine can read tells them apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from phasewise.costs.step_cost import CostPart, StepCost
from phasewise.costs.step_work import StepWork


class Bound(StrEnum):
    """What a step waits for most."""

    WEIGHTS = "reading the weights"
    OVERHEAD = "overhead"
    WEIGHTS_OR_OVERHEAD = "weights or overhead"
    COMPUTE = "compute"
    ATTENTION = "attention"
    KV_READS = "reading the KV cache"
    REQUESTS = "work per request"


_BOUND_OF = {
    CostPart.ATTENTION: Bound.ATTENTION,
    CostPart.KV_READ: Bound.KV_READS,
    CostPart.REQUESTS: Bound.REQUESTS,
    CostPart.TOKENS: Bound.COMPUTE,
    CostPart.BEYOND_KNEE: Bound.COMPUTE,
}


@dataclass(frozen=True, slots=True)
class Binding:
    """What binds a step: its largest part's share, and how long reading the weights alone would take."""

    work: StepWork
    seconds: float
    bound: Bound
    share: float
    weights_read_s: float | None = None


def binding(cost: StepCost, work: StepWork, weights_read_s: float | None = None) -> Binding:
    """What binds a step; `weights_read_s` is how long this machine needs to read all weights, where known."""
    by_bound: dict[Bound, float] = {}
    for part, part_s in cost.parts_s(work).items():
        shares = {_BOUND_OF[part]: part_s} if part in _BOUND_OF else _floor(part_s, weights_read_s)
        for bound, bound_s in shares.items():
            by_bound[bound] = by_bound.get(bound, 0.0) + bound_s
    seconds = sum(by_bound.values())
    largest = max(by_bound, key=lambda bound: by_bound[bound])
    share = by_bound[largest] / seconds if seconds > 0 else 0.0
    return Binding(work, seconds, largest, share, weights_read_s)


def _floor(floor_s: float, weights_read_s: float | None) -> dict[Bound, float]:
    """The floor's two parts; one where nothing tells them apart, or the weights alone would take longer."""
    if weights_read_s is None or weights_read_s > floor_s:
        return {Bound.WEIGHTS_OR_OVERHEAD: floor_s}
    return {Bound.WEIGHTS: weights_read_s, Bound.OVERHEAD: floor_s - weights_read_s}
