"""The work of an engine step: arithmetic, weights to read, KV cache to read and to write; how long it takes.

Totals, before they are divided among devices. Activations between kernels and the few embedding rows are
left out, because they are small in comparison.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from phasewise.costs.fit.step import StepBound
from phasewise.costs.roofline.architecture import Architecture, LayerGroup


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """New tokens of a request in a step, after those in its KV cache, for `requests` identical requests.

    `decoding` distinguishes output tokens, including drafts to verify, from prompt tokens.
    """

    new_tokens: int
    context_tokens: int = 0
    requests: int = 1
    sampled_tokens: int = 1
    decoding: bool = False


@dataclass(frozen=True, slots=True)
class StepDemand:
    """One step's work; `score_bytes` is the score matrix, which fused attention never writes to memory."""

    tokens: int
    block_flops: float
    head_flops: float
    attention_flops: float
    weight_bytes: float
    kv_read_bytes: float
    kv_written_bytes: float
    score_bytes: float

    @property
    def flops(self) -> float:
        return self.block_flops + self.head_flops + self.attention_flops

    @property
    def memory_bytes(self) -> float:
        return self.weight_bytes + self.kv_read_bytes + self.kv_written_bytes

    @property
    def intensity(self) -> float:
        """FLOPs per byte: above the device's ridge point a step is compute-bound, below bandwidth-bound."""
        return self.flops / self.memory_bytes


def decodes(batch: int, context_tokens: int) -> PrefillChunk:
    """A decode step's work: one token for each of so many requests."""
    return PrefillChunk(1, context_tokens, requests=batch, decoding=True)


def demand_of(
    architecture: Architecture, kv_element_bytes: float, chunks: Iterable[PrefillChunk]
) -> StepDemand:
    step = tuple(chunks)
    tokens = sum(chunk.requests * chunk.new_tokens for chunk in step)
    sampled = sum(chunk.requests * chunk.sampled_tokens for chunk in step)
    pairs = [(group, chunk) for group in architecture.groups for chunk in step]
    return StepDemand(
        tokens=tokens,
        block_flops=2.0 * architecture.active_block_parameters * tokens,
        head_flops=2.0 * architecture.embedding_parameters * sampled,
        attention_flops=float(sum(_attention_flops(group, chunk) for group, chunk in pairs)),
        weight_bytes=_weight_bytes(architecture, tokens, sampled),
        kv_read_bytes=sum(_kv_read_elements(group, chunk) for group, chunk in pairs) * kv_element_bytes,
        kv_written_bytes=tokens * architecture.kv_bytes(1, kv_element_bytes),
        score_bytes=2.0 * sum(_scores(group, chunk) for group, chunk in pairs),
    )


def _attention_flops(group: LayerGroup, chunk: PrefillChunk) -> int:
    # vLLM works on the latent itself when it decodes, and on expanded heads when it prefills.
    attention = group.attention
    pairs = attention.pairs(chunk.new_tokens, chunk.context_tokens)
    expanding = 0 if chunk.decoding else attention.expansion_flops(chunk.context_tokens)
    request = pairs * attention.flops_per_pair(absorbed=chunk.decoding) + expanding
    return group.layers * chunk.requests * request


def _kv_read_elements(group: LayerGroup, chunk: PrefillChunk) -> int:
    seen = group.attention.seen(chunk.context_tokens)
    return group.layers * chunk.requests * seen * group.attention.kv_elements


def _scores(group: LayerGroup, chunk: PrefillChunk) -> int:
    matrix = chunk.new_tokens * (chunk.context_tokens + chunk.new_tokens)
    return group.layers * chunk.requests * group.attention.heads * matrix


def _weight_bytes(architecture: Architecture, tokens: int, sampled: int) -> float:
    """Read once per step, however many tokens it carries; of the experts only those that a token needs."""
    precision = architecture.precision
    experts = sum(
        group.layers * group.feed_forward.experts.touched(tokens) * group.feed_forward.expert_parameters
        for group in architecture.groups
        if group.feed_forward.experts
    )
    head = architecture.embedding_parameters * precision.table_bytes if sampled else 0.0
    return architecture.dense_parameters * precision.dense_bytes + experts * precision.expert_bytes + head


# --- How long that takes on a group of devices: per kernel, the slower of arithmetic and memory.
#
# Weights and attention are kernels of their own, so their times add up; within each, arithmetic and reads
# overlap.


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
    def linear_roof(self) -> StepBound:
        """Which side of the weight kernels takes longer."""
        return StepBound.COMPUTE if self.compute_s > self.weight_read_s else StepBound.WEIGHTS

    @property
    def attention_roof(self) -> StepBound:
        """Which side of the KV cache kernels takes longer."""
        return StepBound.ATTENTION if self.attention_compute_s > self.kv_s else StepBound.KV_READS

    @property
    def bound(self) -> StepBound:
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
    def parts(self) -> tuple[tuple[tuple[StepBound, ...], float], ...]:
        """The parts that add up, each with its roof, or with two where the longer side varies by step."""
        linear = {step.linear_roof for step in self.steps}
        attention = {step.attention_roof for step in self.steps}
        return (
            (
                tuple(roof for roof in (StepBound.COMPUTE, StepBound.WEIGHTS) if roof in linear),
                sum(step.linear_s for step in self.steps),
            ),
            (
                tuple(roof for roof in (StepBound.ATTENTION, StepBound.KV_READS) if roof in attention),
                sum(step.attention_s for step in self.steps),
            ),
            ((StepBound.NETWORK,), self.sums.network_s),
            ((StepBound.OVERHEAD,), self.sums.overhead_s),
        )

    @property
    def bound(self) -> StepBound:
        """What takes the longest; of a part's two sides, the one that is longer over all steps."""
        sums = self.sums
        sides = {
            StepBound.COMPUTE: sums.compute_s,
            StepBound.WEIGHTS: sums.weight_read_s,
            StepBound.ATTENTION: sums.attention_compute_s,
            StepBound.KV_READS: sums.kv_s,
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
