"""The work of one engine step: arithmetic, weights to read, KV cache to read and to write.

Totals, before they are divided among devices. Activations between kernels and the few embedding rows are
left out, because they are small in comparison.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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
        kv_written_bytes=tokens * architecture.kv_bytes_per_token(kv_element_bytes),
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
