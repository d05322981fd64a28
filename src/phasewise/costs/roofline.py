"""How long a step's work takes on a group of devices: the slower of arithmetic and memory, kernel by kernel.

Weights and attention are kernels of their own, so their times add up; within each, arithmetic and reads
overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from phasewise.costs.step_demand import StepDemand


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
    """What is reached, over all devices of a replica together: peaks times what is assumed of them.

    `kv_copies` is how often the KV cache is kept, for heads that cannot be divided any further.
    """

    block_flops_per_s: float
    flops_per_s: float
    bytes_per_s: float
    kv_copies: float = 1.0

    @property
    def ridge(self) -> float:
        """FLOPs per byte at which matrix products pass from bandwidth-bound to compute-bound."""
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
        """The whole step."""
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
    def bound(self) -> Roof:
        """What takes the most."""
        linear = Roof.COMPUTE if self.compute_s > self.weight_read_s else Roof.WEIGHT_READS
        attention = Roof.ATTENTION if self.attention_compute_s > self.kv_s else Roof.KV_READS
        parts = {
            linear: self.linear_s,
            attention: self.attention_s,
            Roof.NETWORK: self.network_s,
            Roof.OVERHEAD: self.overhead_s,
        }
        return max(parts, key=lambda part: parts[part])


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
