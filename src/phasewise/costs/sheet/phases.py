"""The sheet's two phases: how long a prompt and a token take, from which parts, and what binds them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phasewise.core.units import duration, significant
from phasewise.costs.fit.step import StepBound
from phasewise.costs.roofline.architecture import Attention
from phasewise.costs.roofline.deployment import Deployment
from phasewise.costs.roofline.precision import Arithmetic
from phasewise.costs.roofline.step_demand import PrefillChunk, StepDemand, TotalTime, decodes
from phasewise.costs.sheet.facts import (
    Column,
    FactTable,
    Section,
    SheetFact,
    SheetRow,
    SheetSubject,
    count_fact,
    figure_fact,
    lengths_up_to,
    power,
    seconds,
    size_fact,
    time_fact,
)

_PART_NAMES = {
    StepBound.COMPUTE: "compute",
    StepBound.WEIGHTS: "weights",
    StepBound.ATTENTION: "attention",
    StepBound.KV_READS: "KV cache",
    StepBound.NETWORK: "all-reduces",
    StepBound.OVERHEAD: "overhead",
}


def sum_formula(time: TotalTime) -> str:
    """The parts that add up; compute and reading the weights overlap, so the longer counts in each step."""
    return " + ".join(f"{seconds(part_s)} {_part_name(roofs)}" for roofs, part_s in time.parts if part_s)


def _part_name(roofs: tuple[StepBound, ...]) -> str:
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


PROMPTS = (128, 512, 2048, 8192, 32_768, 131_072)
BATCHES = (1, 4, 16, 64, 256, 1024)


def prefill_section(asked: SheetSubject) -> Section:
    """TTFT of the given prompt, by part, and against prompt length."""
    return Section(
        "Prefill: time to first token",
        (*_prefill_parts(asked), *_prefill_marks(asked)),
        _prompt_table(asked.deployment),
        "scores are what attention would pass through memory about four times (write, read for the softmax,"
        " write, read for the values) if it were not fused (FlashAttention)",
    )


def _prefill_parts(asked: SheetSubject) -> Iterator[SheetFact]:
    deployment, prompt_tokens = asked.deployment, asked.traffic.prompt_tokens
    chunks = deployment.prefill_chunks(prompt_tokens, asked.traffic.cached_tokens)
    time = deployment.prefill(prompt_tokens, asked.traffic.cached_tokens)
    sums = time.sums
    demands = [deployment.demand(chunk) for chunk in chunks]
    weights, attention = weights_formula(deployment, demands), attention_formula(deployment, chunks)
    network = network_formula(deployment, demands)
    yield count_fact("chunk_tokens", "prompt tokens in a step", deployment.step_tokens)
    yield time_fact("prefill_compute_s", "compute", sums.compute_s, compute_formula(deployment, demands))
    yield time_fact("prefill_weights_s", "reading the weights", sums.weight_read_s, weights)
    yield time_fact("prefill_attention_s", "attention", sums.attention_compute_s, attention)
    yield time_fact("prefill_network_s", "all-reduces", sums.network_s, network)
    label = f"TTFT, {prompt_tokens:,} tokens, no queue"
    yield time_fact("prefill_s", label, time.total_s, sum_formula(time))


def _prefill_marks(asked: SheetSubject) -> Iterator[SheetFact]:
    deployment, prompt_tokens, cached = (
        asked.deployment,
        asked.traffic.prompt_tokens,
        asked.traffic.cached_tokens,
    )
    ridge, quadratic = deployment.rates.ridge, deployment.quadratic_from_tokens()
    scores = deployment.demand(PrefillChunk(prompt_tokens - cached, cached)).score_bytes
    yield figure_fact("ridge", "ridge point", ridge, ridge_formula(deployment), "FLOP/byte")
    yield count_fact(
        "prefill_knee_tokens", "reads bind up to", deployment.prefill_knee_tokens(), unit="tokens"
    )
    yield count_fact(
        "quadratic_from_tokens", "attention is half from", quadratic, quadratic_formula(deployment), "tokens"
    )
    yield size_fact(
        "score_bytes", "scores kept out of memory", scores, score_formula(deployment, prompt_tokens, cached)
    )


def decode_section(asked: SheetSubject) -> Section:
    """Time per token at batch 1, by part, and against the batch."""
    return Section(
        "Decode: time per output token",
        (*_decode_parts(asked), *_decode_marks(asked)),
        _batch_table(asked.deployment, asked.context_tokens),
    )


def _decode_parts(asked: SheetSubject) -> Iterator[SheetFact]:
    deployment, alone = asked.deployment, decodes(1, asked.context_tokens)
    step, demand = deployment.step(alone), deployment.demand(alone)
    intensity = f"{power(demand.flops)} FLOPs / {power(demand.memory_bytes)} bytes"
    weights, network = weights_formula(deployment, [demand]), network_formula(deployment, [demand])
    yield figure_fact("decode_intensity", "intensity, alone", demand.intensity, intensity, "FLOP/byte")
    yield time_fact("decode_weights_s", "reading the weights", step.weight_read_s, weights)
    yield time_fact("decode_kv_s", "reading the KV cache", step.kv_s, kv_formula(deployment, demand))
    yield time_fact("decode_network_s", "all-reduces", step.network_s, network)
    yield time_fact(
        "decode_s",
        f"TPOT alone, context {asked.context_tokens:,}",
        step.total_s,
        sum_formula(TotalTime((step,))),
    )


def _decode_marks(asked: SheetSubject) -> Iterator[SheetFact]:
    deployment, context = asked.deployment, asked.context_tokens
    marks = (
        ("compute_bound_batch", "compute-bound from", deployment.compute_bound_batch()),
        (
            "compute_bound_batch_with_kv",
            "with KV reads, from",
            deployment.compute_bound_batch_with_kv(context),
        ),
        ("kv_equals_weights_batch", "more KV than weights from", deployment.kv_equals_weights_batch(context)),
    )
    for key, label, batch in marks:
        yield count_fact(key, label, batch, unit="requests")


def _prompt_table(deployment: Deployment) -> FactTable:
    columns = (
        Column("prompt_tokens", "prompt"),
        Column("ttft_s", "TTFT"),
        Column("tokens_per_s", "tokens/s"),
        Column("intensity", "FLOP/byte"),
        Column("bound_by", "bound by"),
    )
    lengths = lengths_up_to(deployment.architecture.max_model_len, PROMPTS)
    return FactTable("prefill", columns, tuple(_prompt_row(deployment, prompt) for prompt in lengths))


def _prompt_row(deployment: Deployment, prompt: int) -> SheetRow:
    time = deployment.prefill(prompt)
    demands = [deployment.demand(chunk) for chunk in deployment.prefill_chunks(prompt)]
    intensity = sum(demand.flops for demand in demands) / sum(demand.memory_bytes for demand in demands)
    rate, bound = prompt / time.total_s, time.bound.value
    return SheetRow(
        (prompt, time.total_s, rate, intensity, bound),
        (f"{prompt:,}", duration(time.total_s), significant(rate), significant(intensity), bound),
    )


def _batch_table(deployment: Deployment, context: int) -> FactTable:
    columns = (
        Column("batch", "batch"),
        Column("tpot_s", "TPOT"),
        Column("stream_tokens_per_s", "tokens/s each"),
        Column("tokens_per_s", "tokens/s all"),
        Column("bound_by", "bound by"),
        Column("fits", "fits"),
    )
    fitting = deployment.requests_that_fit(context)
    rows = []
    for batch in BATCHES:
        step = deployment.step(decodes(batch, context))
        each = 1 / step.total_s
        rows.append(
            SheetRow(
                (batch, step.total_s, each, batch * each, step.bound.value, batch <= fitting),
                (
                    f"{batch:,}",
                    duration(step.total_s),
                    significant(each),
                    significant(batch * each),
                    step.bound.value,
                    "yes" if batch <= fitting else "no",
                ),
            )
        )
    return FactTable("decode", columns, tuple(rows))
