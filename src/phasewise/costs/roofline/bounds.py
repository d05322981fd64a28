"""How long a step's work takes on a group of devices: per kernel, the slower of arithmetic and memory.

Weights and attention are kernels of their own, so their times add up; within each, arithmetic and reads
overlap.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

from phasewise.costs.roofline.step_demand import StepDemand


class Roof(StrEnum):
    """What the largest part of a step's time is spent on."""

    WEIGHT_READS = "reading the weights"
    COMPUTE = "compute"
    KV_READS = "reading the KV cache"
    ATTENTION = "attention"
    NETWORK = "network"
    OVERHEAD = "overhead"


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of all devices of a replica together: peaks times the assumed shares.

    `kv_copies` is how many copies of the KV cache exist, for heads that cannot be divided further.
    """

    block_flops_per_s: float
    flops_per_s: float
    bytes_per_s: float
    kv_copies: float = 1.0

    @property
    def ridge(self) -> float:
        """FLOPs per byte at which matrix products turn from bandwidth-bound to compute-bound."""
        return self.block_flops_per_s / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step's time by part; arithmetic and memory of one kernel overlap, everything else adds up."""

    compute_s: float
    weight_read_s: float
    attention_compute_s: float
    kv_s: float
    network_s: float
    overhead_s: float

    @property
    def total_s(self) -> float:
        return self.linear_s + self.attention_s + self.network_s + self.overhead_s

    @property
    def linear_s(self) -> float:
        """Everything that multiplies by weights."""
        return max(self.compute_s, self.weight_read_s)

    @property
    def attention_s(self) -> float:
        """Everything that works on the KV cache."""
        return max(self.attention_compute_s, self.kv_s)

    @property
    def linear_roof(self) -> Roof:
        """Which side of the weight kernels takes longer."""
        return Roof.COMPUTE if self.compute_s > self.weight_read_s else Roof.WEIGHT_READS

    @property
    def attention_roof(self) -> Roof:
        """Which side of the KV cache kernels takes longer."""
        return Roof.ATTENTION if self.attention_compute_s > self.kv_s else Roof.KV_READS

    @property
    def bound(self) -> Roof:
        """What takes the longest."""
        return TotalTime((self,)).bound


@dataclass(frozen=True, slots=True)
class TotalTime:
    """Consecutive steps, such as the chunks of a prompt, part by part."""

    steps: tuple[StepTime, ...]

    @property
    def total_s(self) -> float:
        return sum(step.total_s for step in self.steps)

    @property
    def sums(self) -> StepTime:
        """Each part over all steps; of its derived figures none holds, because sides overlap step by step."""
        return StepTime(*(sum(getattr(step, part.name) for step in self.steps) for part in fields(StepTime)))

    @property
    def parts(self) -> tuple[tuple[tuple[Roof, ...], float], ...]:
        """The parts that add up, each with its roof, or with two where the longer side varies by step."""
        linear = {step.linear_roof for step in self.steps}
        attention = {step.attention_roof for step in self.steps}
        return (
            (
                tuple(roof for roof in (Roof.COMPUTE, Roof.WEIGHT_READS) if roof in linear),
                sum(step.linear_s for step in self.steps),
            ),
            (
                tuple(roof for roof in (Roof.ATTENTION, Roof.KV_READS) if roof in attention),
                sum(step.attention_s for step in self.steps),
            ),
            ((Roof.NETWORK,), self.sums.network_s),
            ((Roof.OVERHEAD,), self.sums.overhead_s),
        )

    @property
    def bound(self) -> Roof:
        """What takes the longest; of a part's two sides, the one that is longer over all steps."""
        sums = self.sums
        sides = {
            Roof.COMPUTE: sums.compute_s,
            Roof.WEIGHT_READS: sums.weight_read_s,
            Roof.ATTENTION: sums.attention_compute_s,
            Roof.KV_READS: sums.kv_s,
        }
        roofs, _ = max(self.parts, key=lambda part: part[1])
        return max(roofs, key=lambda roof: sides.get(roof, 0.0))


def step_time(demand: StepDemand, rates: Rates, network_s: float, overhead_s: float) -> StepTime:
    """The time of a step's work at these rates."""
    head_s = demand.head_flops / rates.flops_per_s
    kv_bytes = (demand.kv_read_bytes + demand.kv_written_bytes) * rates.kv_copies
    return StepTime(
        compute_s=demand.block_flops / rates.block_flops_per_s + head_s,
        weight_read_s=demand.weight_bytes / rates.bytes_per_s,
        attention_compute_s=demand.attention_flops / rates.flops_per_s,
        kv_s=kv_bytes / rates.bytes_per_s,
        network_s=network_s,
        overhead_s=overhead_s,
    )
