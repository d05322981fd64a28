"""The parts of a step's time, as formulas with the numbers filled in. A test evaluates them and compares."""

from __future__ import annotations

from collections.abc import Sequence

from phasewise.costs.roofline.architecture import Attention
from phasewise.costs.roofline.bounds import Roof, TotalTime
from phasewise.costs.roofline.deployment import Deployment
from phasewise.costs.roofline.precision import Arithmetic
from phasewise.costs.roofline.step_demand import PrefillChunk, StepDemand
from phasewise.costs.sheet.facts import power, seconds

_PART_NAMES = {
    Roof.COMPUTE: "compute",
    Roof.WEIGHT_READS: "weights",
    Roof.ATTENTION: "attention",
    Roof.KV_READS: "KV cache",
    Roof.NETWORK: "all-reduces",
    Roof.OVERHEAD: "overhead",
}


def sum_formula(time: TotalTime) -> str:
    """The parts that add up; compute and reading the weights overlap, so the longer counts in each step."""
    return " + ".join(f"{seconds(part_s)} {_part_name(roofs)}" for roofs, part_s in time.parts if part_s)


def _part_name(roofs: tuple[Roof, ...]) -> str:
    name = " or ".join(_PART_NAMES[roof] for roof in roofs)
    return name if len(roofs) == 1 else f"{name}, chunk by chunk"


def _flops_rate(deployment: Deployment, arithmetic: Arithmetic) -> str:
    peak = power(deployment.accelerator.peak_flops[arithmetic])
    return f"({deployment.gpus} x {peak} x {deployment.assumptions.compute:g})"


def _byte_rate(deployment: Deployment) -> str:
    peak = power(deployment.accelerator.bandwidth_bytes_per_s)
    return f"({deployment.gpus} x {peak} x {deployment.assumptions.bandwidth:g})"


def compute_formula(deployment: Deployment, demands: Sequence[StepDemand]) -> str:
    """Two FLOPs for every active parameter and token; the output head once, for the sampled token."""
    model, tokens = deployment.architecture, sum(demand.tokens for demand in demands)
    blocks = f"2 x {power(model.active_block_parameters)} x {tokens:,}"
    head = f"2 x {power(model.embedding_parameters)} head"
    blocks_at, head_at = (
        _flops_rate(deployment, kind) for kind in (deployment.arithmetic, Arithmetic.SIXTEEN_BIT)
    )
    return f"{blocks} / {blocks_at} + {head} / {head_at}"


def weights_formula(deployment: Deployment, demands: Sequence[StepDemand]) -> str:
    """Every weight once per step, the output head in the last one; only the experts that are needed."""
    model, precision = deployment.architecture, deployment.architecture.precision
    read = [f"{len(demands)} x {power(model.dense_parameters)} x {precision.dense_bytes:g}"]
    for group in model.groups:
        if (experts := group.feed_forward.experts) is not None:
            needed = power(sum(experts.touched(demand.tokens) for demand in demands))
            size = power(group.feed_forward.expert_parameters)
            read.append(f"{group.layers} layers x {needed} experts x {size} x {precision.expert_bytes:g}")
    read.append(f"{power(model.embedding_parameters)} head x {precision.table_bytes:g}")
    return f"({' + '.join(read)}) bytes / {_byte_rate(deployment)}"


def attention_formula(deployment: Deployment, chunks: Sequence[PrefillChunk]) -> str:
    """QK^T and AV over all pairs of tokens where one sees the other."""
    rate = _flops_rate(deployment, Arithmetic.SIXTEEN_BIT)
    attention, layers = deployment.architecture.attention, deployment.architecture.layers
    if any(group.attention.window for group in deployment.architecture.groups):
        flops = sum(deployment.demand(chunk).attention_flops for chunk in chunks)
        return f"{power(flops)} FLOPs, windows counted / {rate}"
    new, context = sum(chunk.new_tokens for chunk in chunks), chunks[0].context_tokens
    pairs = f"({new:,} x {context:,} + {new:,} x {new + 1:,} / 2) pairs"
    per_pair = f"2 x {attention.heads} heads x ({attention.head_dim} + {attention.value_dim})"
    expanded = _expansion_formula(attention, chunks)
    return f"{layers} layers x ({pairs} x {per_pair}{expanded}) / {rate}"


def _expansion_formula(attention: Attention, chunks: Sequence[PrefillChunk]) -> str:
    """Every chunk expands the cached latents that it sees into keys and values."""
    cached = sum(chunk.context_tokens for chunk in chunks)
    if attention.latent is None or not cached:
        return ""
    width = f"({attention.head_dim - attention.latent.rope_dim} + {attention.value_dim})"
    return f" + 2 x {cached:,} latents x {attention.latent.kv_rank} x {attention.heads} x {width}"


def kv_formula(deployment: Deployment, demand: StepDemand) -> str:
    """Reads every token's KV once and writes the new token's, for every copy."""
    total_bytes = power(demand.kv_read_bytes + demand.kv_written_bytes)
    return f"{total_bytes} bytes x {power(deployment.kv_copies)} / {_byte_rate(deployment)}"


def network_formula(deployment: Deployment, demands: Sequence[StepDemand]) -> str:
    """Two all-reduces per layer; each sends nearly twice the activations, and adds its latency."""
    model, assumed = deployment.architecture, deployment.assumptions
    tokens = sum(demand.tokens for demand in demands)
    link = f"({power(deployment.accelerator.link_among(deployment.gpus))} x {assumed.link:g})"
    share = f"2 x {deployment.gpus - 1} / {deployment.gpus}"
    sent = f"{share} x {tokens:,} x {model.hidden_size:,} x 2 bytes / {link}"
    return f"2 x {model.layers} layers x ({sent} + {len(demands)} x {assumed.allreduce_us:g}e-6)"


def ridge_formula(deployment: Deployment) -> str:
    """The reached arithmetic over the reached bandwidth."""
    peak = power(deployment.accelerator.peak_flops[deployment.arithmetic])
    bandwidth = power(deployment.accelerator.bandwidth_bytes_per_s)
    assumed = deployment.assumptions
    return f"{peak} x {assumed.compute:g} / ({bandwidth} x {assumed.bandwidth:g})"


def quadratic_formula(deployment: Deployment) -> str:
    """Where attention's arithmetic equals that of the weights; no simple formula when layers have windows."""
    model = deployment.architecture
    if any(group.attention.window for group in model.groups):
        return ""
    width = f"{model.attention.heads} x ({model.attention.head_dim} + {model.attention.value_dim}) / 2"
    return f"{power(model.active_block_parameters)} / ({model.layers} layers x {width})"


def score_formula(deployment: Deployment, prompt_tokens: int, cached_tokens: int) -> str:
    """One 16 bit score for every head and pair of a new token and a token."""
    layers, heads = deployment.architecture.layers, deployment.architecture.attention.heads
    new = prompt_tokens - cached_tokens
    return f"{layers} layers x {heads} heads x {new:,} x {prompt_tokens:,} x 2 bytes"
