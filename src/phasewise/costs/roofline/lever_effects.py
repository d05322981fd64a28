"""What a serving lever would change on a deployment, phase by phase, as ratios of modelled times.

They compare a model with itself, so the assumed shares of a device's peaks mostly cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from phasewise.costs.roofline.capacity import UniformTraffic
from phasewise.costs.roofline.deployment import Deployment
from phasewise.costs.roofline.precision import KV_BYTES, SIXTEEN_BIT, WEIGHT_SCHEMES, KvDtype, WeightScheme
from phasewise.costs.roofline.step_demand import PrefillChunk

DRAFTED = 4
"""Tokens that speculation proposes per step; proposing them is free, as with n-gram lookup."""
SMALL_CHUNK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Served:
    """A way to serve: a deployment, the cached share of prompts, and the share of accepted drafts."""

    deployment: Deployment
    cached_share: float = 0.0
    drafted: int = 0
    acceptance: float = 0.0

    def ttft_s(self, prompt_tokens: int) -> float:
        """Prefill without a queue."""
        return self.deployment.ttft_s(prompt_tokens, round(self.cached_share * prompt_tokens))

    def tpot_s(self, batch: int, context_tokens: int) -> float:
        """Time per token: a step divided by the tokens that it is expected to generate."""
        new = 1 + self.drafted
        step_s = self.deployment.step_seconds(
            PrefillChunk(new, context_tokens, requests=batch, sampled_tokens=new, decoding=True)
        )
        return step_s / expected_tokens(self.drafted, self.acceptance)


def expected_tokens(drafted: int, acceptance: float) -> float:
    """Tokens that a step generates: the drafted ones up to the first that is wrong, and one more."""
    return sum(acceptance**position for position in range(drafted + 1))


@dataclass(frozen=True, slots=True)
class ModelledEffect:
    """Times and KV capacity with the lever, divided by those without: below 1 is faster, or less capacity."""

    lever: str
    ttft: float
    tpot_alone: float
    tpot_batch: float
    kv_tokens: float | None


Lever = Callable[[Served], Served | None]
"""The way to serve with the lever; None where it is on already or not available."""


def _quantized(scheme: WeightScheme) -> Lever:
    def apply(served: Served) -> Served | None:
        architecture = served.deployment.architecture
        if architecture.precision != SIXTEEN_BIT:
            return None
        smaller = replace(architecture, precision=WEIGHT_SCHEMES[scheme])
        return replace(served, deployment=replace(served.deployment, architecture=smaller))

    return apply


def _small_kv(served: Served) -> Served | None:
    fp8_bytes = KV_BYTES[KvDtype.FP8]
    if served.deployment.kv_element_bytes <= fp8_bytes:
        return None
    return replace(served, deployment=replace(served.deployment, kv_element_bytes=fp8_bytes))


def _half_cached(served: Served) -> Served | None:
    if served.cached_share >= 0.5:
        return None
    return replace(served, cached_share=0.5)


def _small_chunks(served: Served) -> Served | None:
    if served.deployment.step_tokens <= SMALL_CHUNK_TOKENS:
        return None
    return replace(served, deployment=replace(served.deployment, chunk_tokens=SMALL_CHUNK_TOKENS))


def _speculating(acceptance: float) -> Lever:
    return lambda served: replace(served, drafted=DRAFTED, acceptance=acceptance)


def _more_devices(served: Served) -> Served | None:
    deployment, gpus = served.deployment, 2 * served.deployment.gpus
    accelerator = deployment.accelerator
    # Beyond one host all-reduces use a slower link whose bandwidth is unknown here.
    linked = accelerator.link_bytes_per_s > 0 and gpus <= accelerator.linked_devices
    if not linked or not deployment.architecture.attention.divides_among(gpus):
        return None
    return replace(served, deployment=replace(deployment, gpus=gpus))


LEVERS: Mapping[str, Lever] = {
    "weights w8a8": _quantized(WeightScheme.W8A8),
    "weights w4a16": _quantized(WeightScheme.W4A16),
    "KV cache fp8": _small_kv,
    "half the prompt cached": _half_cached,
    f"prompt chunks of {SMALL_CHUNK_TOKENS}": _small_chunks,
    f"speculation, {DRAFTED} drafts, 80% right": _speculating(0.8),
    f"speculation, {DRAFTED} drafts, 20% right": _speculating(0.2),
    "twice the devices": _more_devices,
}
"""Every lever, by the name that the sheet shows."""


def lever_effects(deployment: Deployment, traffic: UniformTraffic, batch: int) -> tuple[ModelledEffect, ...]:
    """What each lever would change; those that are on already or not available are left out."""
    off = Served(deployment, cached_share=traffic.cached_tokens / traffic.prompt_tokens)
    tried = {name: apply(off) for name, apply in LEVERS.items()}
    return tuple(_effect(name, off, on, traffic, batch) for name, on in tried.items() if on is not None)


def _effect(name: str, off: Served, on: Served, traffic: UniformTraffic, batch: int) -> ModelledEffect:
    context, capacity = traffic.mean_context_tokens, off.deployment.kv_capacity_tokens
    return ModelledEffect(
        lever=name,
        ttft=on.ttft_s(traffic.prompt_tokens) / off.ttft_s(traffic.prompt_tokens),
        tpot_alone=on.tpot_s(1, context) / off.tpot_s(1, context),
        tpot_batch=on.tpot_s(batch, context) / off.tpot_s(batch, context),
        kv_tokens=on.deployment.kv_capacity_tokens / capacity if capacity else None,
    )
