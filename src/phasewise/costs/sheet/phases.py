"""The sheet's two phases: how long a prompt and a token take, from which parts, and what binds them."""

from __future__ import annotations

from collections.abc import Iterator

from phasewise.core.units import duration, significant
from phasewise.costs.roofline.bounds import TotalTime
from phasewise.costs.roofline.deployment import Deployment
from phasewise.costs.roofline.step_demand import PrefillChunk, decodes
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
    size_fact,
    time_fact,
)
from phasewise.costs.sheet.step_formulas import (
    attention_formula,
    compute_formula,
    kv_formula,
    network_formula,
    quadratic_formula,
    ridge_formula,
    score_formula,
    sum_formula,
    weights_formula,
)

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
    demands = [deployment.demand(chunk) for chunk in chunks]
    weights, attention = weights_formula(deployment, demands), attention_formula(deployment, chunks)
    network = network_formula(deployment, demands)
    yield count_fact("chunk_tokens", "prompt tokens in a step", deployment.step_tokens)
    yield time_fact("prefill_compute_s", "compute", time.compute_s, compute_formula(deployment, demands))
    yield time_fact("prefill_weights_s", "reading the weights", time.weight_read_s, weights)
    yield time_fact("prefill_attention_s", "attention", time.attention_compute_s, attention)
    yield time_fact("prefill_network_s", "all-reduces", time.network_s, network)
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
    time, demand = TotalTime((deployment.step(alone),)), deployment.demand(alone)
    intensity = f"{power(demand.flops)} FLOPs / {power(demand.memory_bytes)} bytes"
    weights, network = weights_formula(deployment, [demand]), network_formula(deployment, [demand])
    yield figure_fact("decode_intensity", "intensity, alone", demand.intensity, intensity, "FLOP/byte")
    yield time_fact("decode_weights_s", "reading the weights", time.weight_read_s, weights)
    yield time_fact("decode_kv_s", "reading the KV cache", time.kv_s, kv_formula(deployment, demand))
    yield time_fact("decode_network_s", "all-reduces", time.network_s, network)
    yield time_fact(
        "decode_s", f"TPOT alone, context {asked.context_tokens:,}", time.total_s, sum_formula(time)
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
