"""One replica: a model on some devices, what fits, and how long each phase takes; modelled, not measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from phasewise.core.errors import ConfigError
from phasewise.costs.roofline.accelerators import ASSUMED, Accelerator, Assumptions
from phasewise.costs.roofline.architecture import Architecture
from phasewise.costs.roofline.precision import Arithmetic
from phasewise.costs.roofline.step_demand import (
    PrefillChunk,
    Rates,
    StepDemand,
    StepTime,
    TotalTime,
    decodes,
    demand_of,
    step_time,
)

FURTHEST = 1 << 24
"""Where the search for the token or the batch at which something changes gives up."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model on `gpus` devices that divide every layer among them (tensor parallel).

    `chunk_tokens` is the most prompt tokens in a step; None is vLLM's default on this device.
    """

    architecture: Architecture
    accelerator: Accelerator
    gpus: int = 1
    kv_element_bytes: float = 2.0
    chunk_tokens: int | None = None
    assumptions: Assumptions = ASSUMED

    def __post_init__(self) -> None:
        attention = self.architecture.attention
        if self.gpus < 1 or not attention.divides_among(self.gpus):
            heads = f"{attention.heads} attention heads, {attention.kv_heads} with a KV cache,"
            possible = [str(n) for n in range(1, attention.heads + 1) if attention.divides_among(n)]
            raise ConfigError(
                f"{heads} cannot be divided among {self.gpus} devices",
                hint=f"vLLM takes {', '.join(possible)} of them",
            )

    @property
    def step_tokens(self) -> int:
        """Prompt tokens in a step, at most."""
        return self.chunk_tokens or self.accelerator.chunk_tokens

    @property
    def arithmetic(self) -> Arithmetic:
        """The number type that this device multiplies for this model."""
        return self.accelerator.arithmetic_for(self.architecture.precision.arithmetic)

    @property
    def rates(self) -> Rates:
        """The assumed rates of all devices together."""
        reached = self.assumptions.compute * self.gpus
        return Rates(
            block_flops_per_s=self.accelerator.peak_flops[self.arithmetic] * reached,
            flops_per_s=self.accelerator.peak_flops[Arithmetic.SIXTEEN_BIT] * reached,
            bytes_per_s=self.accelerator.bandwidth_bytes_per_s * self.assumptions.bandwidth * self.gpus,
            kv_copies=self.kv_copies,
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What the figures leave out about the model and the deployment."""
        wanted, used = self.architecture.precision.arithmetic, self.arithmetic
        notes = list(self.architecture.notes)
        if wanted is not used:
            notes.append(f"{self.accelerator.name} has no units for {wanted}: it computes in {used}")
        if self.gpus > self.accelerator.linked_devices:
            hosts = f"one host of {self.accelerator.linked_devices}"
            notes.append(f"the link bandwidth holds within {hosts}; between hosts all-reduces take longer")
        if self.gpus > 1 and self.architecture.attention.latent is not None:
            notes.append("the latent KV cache is on every device; data-parallel attention is not modelled")
        return tuple(notes)

    @property
    def kv_copies(self) -> float:
        """How many copies of the KV cache exist: a head is on every device that needs it, a latent on all."""
        attention = self.architecture.attention
        if attention.latent is not None:
            return float(self.gpus)
        return max(1.0, self.gpus / attention.kv_heads)

    @property
    def kv_capacity_bytes(self) -> float:
        """Memory for KV cache, over all devices; below 0 when the weights alone do not fit."""
        usable = self.accelerator.memory_bytes * self.assumptions.memory - self.assumptions.reserve_gb * 1e9
        return usable * self.gpus - self.architecture.weight_bytes

    @property
    def fits(self) -> bool:
        """Whether there is any memory left beside the weights."""
        return self.kv_capacity_bytes > 0

    def kv_bytes(self, context_tokens: int) -> float:
        """KV cache of one request over all devices, copies included."""
        return self.architecture.kv_bytes(context_tokens, self.kv_element_bytes) * self.kv_copies

    @property
    def kv_capacity_tokens(self) -> int:
        """How many tokens the KV cache holds (a layer with a window is counted as if it kept them all)."""
        return max(0, int(self.kv_capacity_bytes // self.kv_bytes(1)))

    def requests_that_fit(self, context_tokens: int) -> int:
        """How many requests of this length the KV cache holds at once."""
        return max(0, int(self.kv_capacity_bytes // self.kv_bytes(context_tokens)))

    def demand(self, *chunks: PrefillChunk) -> StepDemand:
        return demand_of(self.architecture, self.kv_element_bytes, chunks)

    def network_s(self, tokens: int) -> float:
        """Two ring all-reduces of the activations per layer."""
        if self.gpus == 1:
            return 0.0
        share = 2 * (self.gpus - 1) / self.gpus
        payload_bytes = tokens * self.architecture.hidden_size * 2
        link = self.accelerator.link_among(self.gpus) * self.assumptions.link
        return (
            2
            * self.architecture.layers
            * (share * payload_bytes / link + self.assumptions.allreduce_us * 1e-6)
        )

    def step(self, *chunks: PrefillChunk) -> StepTime:
        demand = self.demand(*chunks)
        return step_time(
            demand, self.rates, self.network_s(demand.tokens), self.assumptions.overhead_ms * 1e-3
        )

    def step_seconds(self, *chunks: PrefillChunk) -> float:
        return self.step(*chunks).total_s

    def prefill_chunks(self, prompt_tokens: int, cached_tokens: int = 0) -> tuple[PrefillChunk, ...]:
        """The steps that a prompt is computed in; only the last samples a token."""
        starts = range(min(cached_tokens, prompt_tokens - 1), prompt_tokens, self.step_tokens)
        ends = [min(start + self.step_tokens, prompt_tokens) for start in starts]
        return tuple(
            PrefillChunk(end - start, start, sampled_tokens=int(end == prompt_tokens))
            for start, end in zip(starts, ends, strict=True)
        )

    def prefill(self, prompt_tokens: int, cached_tokens: int = 0) -> TotalTime:
        """The times of a prompt's steps on an idle engine."""
        return TotalTime(
            tuple(self.step(chunk) for chunk in self.prefill_chunks(prompt_tokens, cached_tokens))
        )

    def ttft_s(self, prompt_tokens: int, cached_tokens: int = 0) -> float:
        """Prefill of one prompt on an idle engine: no queue, no network to the client."""
        return self.prefill(prompt_tokens, cached_tokens).total_s

    def tpot_s(self, batch: int, context_tokens: int) -> float:
        """One decode step of so many requests, which is each request's time per token."""
        return self.step_seconds(decodes(batch, context_tokens))

    def compute_bound_batch(self) -> int | None:
        """From how many tokens in a step compute bounds the matrix products, without KV reads."""
        return _first(lambda tokens: (step := self.step(decodes(tokens, 0))).compute_s >= step.weight_read_s)

    def prefill_knee_tokens(self) -> int | None:
        """From which prompt length compute bounds a step: below, reading the weights takes longer."""
        return _first(
            lambda tokens: (step := self.step(PrefillChunk(tokens))).compute_s >= step.weight_read_s
        )

    def compute_bound_batch_with_kv(self, context_tokens: int) -> int | None:
        """From which batch on compute bounds a step, KV reads included; None where these grow as fast."""

        def compute_leads(batch: int) -> bool:
            step = self.step(decodes(batch, context_tokens))
            return step.compute_s + step.attention_compute_s >= step.weight_read_s + step.kv_s

        return _first(compute_leads)

    def kv_equals_weights_batch(self, context_tokens: int) -> int | None:
        """From which batch size a decode step reads more KV cache than weights."""
        return _first(
            lambda batch: (step := self.step(decodes(batch, context_tokens))).kv_s >= step.weight_read_s
        )

    def quadratic_from_tokens(self) -> int | None:
        """From which prompt length attention takes more arithmetic than the weights."""

        def attention_leads(tokens: int) -> bool:
            demand = self.demand(PrefillChunk(tokens))
            return demand.attention_flops >= demand.block_flops

        return _first(attention_leads)


def _first(holds: Callable[[int], bool]) -> int | None:
    """The smallest number from 1 for which a condition holds that, once true, stays true."""
    if not holds(FURTHEST):
        return None
    low, high = 0, FURTHEST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
