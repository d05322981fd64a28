"""A transformer's shape as counts: parameters, KV cache and the arithmetic of one token, layer by layer.

Where a shape comes from (model_config.py), what a step does with it (step_demand.py) and how fast that is
(roofline.py) is left to others.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from phasewise.costs.precision import Precision
from phasewise.costs.step_work import chunk_pairs


class AttentionKind(StrEnum):
    """How many heads share one pair of key and value."""

    MULTI_HEAD = "multi-head"
    GROUPED_QUERY = "grouped-query"
    MULTI_QUERY = "multi-query"
    LATENT = "latent"


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: one compressed vector per token stands for all heads' keys and values."""

    kv_rank: int
    rope_dim: int
    query_rank: int | None


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention layer; `window` is how many tokens back it sees, None for all."""

    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int | None = None
    latent: Latent | None = None

    @property
    def kind(self) -> AttentionKind:
        """The family of this layer."""
        if self.latent is not None:
            return AttentionKind.LATENT
        if self.kv_heads == self.heads:
            return AttentionKind.MULTI_HEAD
        return AttentionKind.MULTI_QUERY if self.kv_heads == 1 else AttentionKind.GROUPED_QUERY

    def divides_among(self, gpus: int) -> bool:
        """Whether each device gets as many heads, and whole KV heads or a copy of one, as vLLM asks for."""
        whole_kv_heads = self.kv_heads % gpus == 0 or gpus % self.kv_heads == 0
        return self.heads % gpus == 0 and (self.latent is not None or whole_kv_heads)

    @property
    def parameters(self) -> int:
        """The weights of the projections."""
        output = self.heads * self.value_dim * self.hidden_size
        if self.latent is None:
            query = self.hidden_size * self.heads * self.head_dim
            return query + self.hidden_size * self.kv_heads * (self.head_dim + self.value_dim) + output
        return self._latent_query_parameters + self._latent_kv_parameters + output

    @property
    def _latent_query_parameters(self) -> int:
        rank = self.latent.query_rank if self.latent else None
        wide = self.heads * self.head_dim
        return self.hidden_size * wide if rank is None else rank * (self.hidden_size + wide)

    @property
    def _latent_kv_parameters(self) -> int:
        if self.latent is None:
            return 0
        rank, rope_dim = self.latent.kv_rank, self.latent.rope_dim
        return self.hidden_size * (rank + rope_dim) + rank * self.heads * (
            self.head_dim - rope_dim + self.value_dim
        )

    @property
    def kv_elements(self) -> int:
        """Numbers that one token leaves in the KV cache."""
        if self.latent is not None:
            return self.latent.kv_rank + self.latent.rope_dim
        return self.kv_heads * (self.head_dim + self.value_dim)

    @property
    def multi_head_kv_elements(self) -> int:
        """What it would leave if every head kept a key and a value of its own."""
        return self.heads * (self.head_dim + self.value_dim)

    def seen(self, tokens: int) -> int:
        """How many of so many tokens this layer keeps and looks at."""
        return tokens if self.window is None else min(tokens, self.window)

    def pairs(self, new_tokens: int, context_tokens: int) -> int:
        """(query, key) pairs of new tokens that see the context, themselves and one another, causally."""
        if self.window is None:
            return chunk_pairs(new_tokens, context_tokens)
        growing = max(0, min(new_tokens, self.window - context_tokens))
        return chunk_pairs(growing, context_tokens) + (new_tokens - growing) * self.window

    def expansion_flops(self, context_tokens: int) -> int:
        """Turning cached latents into heads' keys and values again, which every chunk of a prompt does."""
        if self.latent is None:
            return 0
        per_head = self.head_dim - self.latent.rope_dim + self.value_dim
        return 2 * self.seen(context_tokens) * self.latent.kv_rank * self.heads * per_head

    def flops_per_pair(self, *, absorbed: bool) -> int:
        """QK^T and AV for one pair over all heads; absorbed, a latent layer works on the latent itself."""
        if absorbed and self.latent is not None:
            return 2 * self.heads * (2 * self.latent.kv_rank + self.latent.rope_dim)
        return 2 * self.heads * (self.head_dim + self.value_dim)


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of a layer; each has `intermediate_size`."""

    count: int
    per_token: int
    intermediate_size: int

    def touched(self, tokens: int) -> float:
        """How many different experts a step of so many tokens is expected to need, were routing even."""
        missed_by_one = 1.0 - self.per_token / self.count
        return self.count * (1.0 - missed_by_one**tokens)


@dataclass(frozen=True, slots=True)
class FeedForward:
    """One feed-forward layer: what every token uses (`intermediate_size`), and routed experts if any."""

    hidden_size: int
    intermediate_size: int
    matrices: int = 3
    experts: Experts | None = None

    @property
    def shared_parameters(self) -> int:
        """The weights that every token uses, the router's among them."""
        router = self.hidden_size * self.experts.count if self.experts else 0
        return self.matrices * self.hidden_size * self.intermediate_size + router

    @property
    def expert_parameters(self) -> int:
        """The weights of one routed expert."""
        return self.matrices * self.hidden_size * self.experts.intermediate_size if self.experts else 0

    @property
    def parameters(self) -> int:
        """All weights, those of idle experts too."""
        return self.shared_parameters + self.expert_parameters * (self.experts.count if self.experts else 0)

    @property
    def active_parameters(self) -> int:
        """The weights that one token uses."""
        used = self.experts.per_token if self.experts else 0
        return self.shared_parameters + self.expert_parameters * used


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that are alike."""

    layers: int
    attention: Attention
    feed_forward: FeedForward


@dataclass(frozen=True, slots=True)
class Architecture:
    """A whole model; `notes` say what of its configuration is not in the counts."""

    model_type: str
    hidden_size: int
    vocab_size: int
    tied_embeddings: bool
    groups: tuple[LayerGroup, ...]
    precision: Precision
    norms_per_layer: int = 2
    max_context_tokens: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return sum(group.layers for group in self.groups)

    @property
    def attention(self) -> Attention:
        """The layer that stands for all: heads are alike everywhere, windows may differ."""
        return self.groups[0].attention

    @property
    def embedding_parameters(self) -> int:
        """One table of vocabulary x width; the output head is as large, and the same one where tied."""
        return self.vocab_size * self.hidden_size

    @property
    def block_parameters(self) -> int:
        """All layers without embeddings and output head."""
        return self.dense_parameters + self.expert_parameters

    @property
    def expert_parameters(self) -> int:
        """All routed experts of all layers."""
        return sum(
            group.layers * (group.feed_forward.parameters - group.feed_forward.shared_parameters)
            for group in self.groups
        )

    @property
    def dense_parameters(self) -> int:
        """What every token uses of the layers: attention, shared feed-forward, routers, norms."""
        used = sum(
            group.layers * (group.attention.parameters + group.feed_forward.shared_parameters)
            for group in self.groups
        )
        return used + (self.norms_per_layer * self.layers + 1) * self.hidden_size

    @property
    def active_block_parameters(self) -> int:
        """What one token uses of the layers: all of a dense model, a few experts of the others."""
        idle = sum(
            group.layers * (group.feed_forward.parameters - group.feed_forward.active_parameters)
            for group in self.groups
        )
        return self.block_parameters - idle

    @property
    def parameters(self) -> int:
        """Everything that has to be in memory."""
        tables = 1 if self.tied_embeddings else 2
        return self.block_parameters + tables * self.embedding_parameters

    @property
    def active_parameters(self) -> int:
        """What counts as active in the field: the embedding tables are counted in."""
        return self.parameters - self.block_parameters + self.active_block_parameters

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights as the checkpoint stores them."""
        precision = self.precision
        blocks = (
            self.dense_parameters * precision.dense_bytes + self.expert_parameters * precision.expert_bytes
        )
        return blocks + (self.parameters - self.block_parameters) * precision.table_bytes

    def kv_bytes_per_token(self, kv_bytes_per_element: float = 2.0) -> float:
        """KV cache that one more token takes while no window is full."""
        return self.kv_bytes(1, kv_bytes_per_element)

    def kv_bytes(self, context_tokens: int, kv_bytes_per_element: float = 2.0) -> float:
        """KV cache of one request with so many tokens; a layer with a window keeps no more than that."""
        elements = sum(
            group.layers * group.attention.kv_elements * group.attention.seen(context_tokens)
            for group in self.groups
        )
        return elements * kv_bytes_per_element

    @property
    def kv_shrink(self) -> float:
        """By how much sharing keys and values makes the KV cache smaller than with a pair for every head."""
        return self.attention.multi_head_kv_elements / self.attention.kv_elements

    @property
    def has_experts(self) -> bool:
        """Whether tokens are routed."""
        return any(group.feed_forward.experts for group in self.groups)
