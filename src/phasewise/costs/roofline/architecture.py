"""A transformer's shape as counts: parameters, KV cache and arithmetic per token, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from phasewise.costs.fit.step import chunk_pairs
from phasewise.costs.roofline.precision import Precision


class AttentionKind(StrEnum):
    """How many heads share one key and value."""

    MULTI_HEAD = "multi-head"
    GROUPED_QUERY = "grouped-query"
    MULTI_QUERY = "multi-query"
    LATENT = "latent"


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: one compressed vector per token replaces all heads' keys and values."""

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
        if self.latent is not None:
            return AttentionKind.LATENT
        if self.kv_heads == self.heads:
            return AttentionKind.MULTI_HEAD
        return AttentionKind.MULTI_QUERY if self.kv_heads == 1 else AttentionKind.GROUPED_QUERY

    def divides_among(self, gpus: int) -> bool:
        """Whether heads divide evenly, with whole KV heads or a copy of one per device, as vLLM requires."""
        whole_kv_heads = self.kv_heads % gpus == 0 or gpus % self.kv_heads == 0
        return self.heads % gpus == 0 and (self.latent is not None or whole_kv_heads)

    @property
    def parameters(self) -> int:
        """The weights of the projections."""
        wide, latent = self.heads * self.head_dim, self.latent
        output = self.heads * self.value_dim * self.hidden_size
        if latent is None:
            keys_and_values = self.kv_heads * (self.head_dim + self.value_dim)
            return self.hidden_size * (wide + keys_and_values) + output
        rank = latent.query_rank
        query = self.hidden_size * wide if rank is None else rank * (self.hidden_size + wide)
        expanded = self.heads * (self.head_dim - latent.rope_dim + self.value_dim)
        compressed = self.hidden_size * (latent.kv_rank + latent.rope_dim) + latent.kv_rank * expanded
        return query + compressed + output

    @property
    def kv_elements(self) -> int:
        """Numbers that one token adds to the KV cache."""
        if self.latent is not None:
            return self.latent.kv_rank + self.latent.rope_dim
        return self.kv_heads * (self.head_dim + self.value_dim)

    @property
    def multi_head_kv_elements(self) -> int:
        """What it would add if every head had its own key and value."""
        return self.heads * (self.head_dim + self.value_dim)

    def seen(self, tokens: int) -> int:
        """How many of these tokens this layer keeps and attends to."""
        return tokens if self.window is None else min(tokens, self.window)

    def pairs(self, new_tokens: int, context_tokens: int) -> int:
        """(query, key) pairs of new tokens that see the context, themselves and one another, causally."""
        if self.window is None:
            return chunk_pairs(new_tokens, context_tokens)
        growing = max(0, min(new_tokens, self.window - context_tokens))
        return chunk_pairs(growing, context_tokens) + (new_tokens - growing) * self.window

    def expansion_flops(self, context_tokens: int) -> int:
        """Expanding cached latents into heads' keys and values, which every chunk of a prompt does."""
        if self.latent is None:
            return 0
        per_head = self.head_dim - self.latent.rope_dim + self.value_dim
        return 2 * self.seen(context_tokens) * self.latent.kv_rank * self.heads * per_head

    def flops_per_pair(self, *, absorbed: bool) -> int:
        """QK^T and AV for one pair over all heads; if absorbed, a latent layer works on the latent itself."""
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
        """How many different experts a step of so many tokens is expected to need if routing is even."""
        missed_by_one = 1.0 - self.per_token / self.count
        return self.count * (1.0 - missed_by_one**tokens)


@dataclass(frozen=True, slots=True)
class FeedForward:
    """One feed-forward layer: the part every token uses (`intermediate_size`), and routed experts if any."""

    hidden_size: int
    intermediate_size: int
    matrices: int = 3
    experts: Experts | None = None

    @property
    def shared_parameters(self) -> int:
        """The weights that every token uses, including the router's."""
        router = self.hidden_size * self.experts.count if self.experts else 0
        return self.matrices * self.hidden_size * self.intermediate_size + router

    @property
    def expert_parameters(self) -> int:
        """The weights of one routed expert."""
        return self.matrices * self.hidden_size * self.experts.intermediate_size if self.experts else 0

    @property
    def parameters(self) -> int:
        """All weights, including those of idle experts."""
        return self.shared_parameters + self.expert_parameters * (self.experts.count if self.experts else 0)

    @property
    def active_parameters(self) -> int:
        """The weights that one token uses."""
        used = self.experts.per_token if self.experts else 0
        return self.shared_parameters + self.expert_parameters * used


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Identical layers."""

    layers: int
    attention: Attention
    feed_forward: FeedForward


@dataclass(frozen=True, slots=True)
class Architecture:
    """A whole model; `notes` say which parts of its configuration are not counted."""

    hidden_size: int
    vocab_size: int
    tied_embeddings: bool
    groups: tuple[LayerGroup, ...]
    precision: Precision
    norms_per_layer: int = 2
    max_model_len: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def layers(self) -> int:
        return sum(group.layers for group in self.groups)

    @property
    def attention(self) -> Attention:
        """The representative layer: heads are the same in all layers, windows may differ."""
        return self.groups[0].attention

    @property
    def embedding_parameters(self) -> int:
        """One table of vocabulary x width; the output head is as large, and is the same table where tied."""
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
        """The layers' weights that every token uses: attention, shared feed-forward, routers, norms."""
        used = sum(
            group.layers * (group.attention.parameters + group.feed_forward.shared_parameters)
            for group in self.groups
        )
        return used + (self.norms_per_layer * self.layers + 1) * self.hidden_size

    @property
    def active_block_parameters(self) -> int:
        """The layers' weights that one token uses: all of a dense model, a few experts of a mixture."""
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
        """Active parameters as the field counts them, embedding tables included."""
        return self.parameters - self.block_parameters + self.active_block_parameters

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights as the checkpoint stores them."""
        precision = self.precision
        blocks = (
            self.dense_parameters * precision.dense_bytes + self.expert_parameters * precision.expert_bytes
        )
        return blocks + (self.parameters - self.block_parameters) * precision.table_bytes

    def kv_bytes(self, context_tokens: int, kv_bytes_per_element: float = 2.0) -> float:
        """KV cache of one request with so many tokens; a layer with a window keeps at most the window."""
        elements = sum(
            group.layers * group.attention.kv_elements * group.attention.seen(context_tokens)
            for group in self.groups
        )
        return elements * kv_bytes_per_element

    @property
    def kv_shrink(self) -> float:
        """How much smaller the KV cache is than with a key and value for every head."""
        return self.attention.multi_head_kv_elements / self.attention.kv_elements

    @property
    def has_experts(self) -> bool:
        return any(group.feed_forward.experts for group in self.groups)
