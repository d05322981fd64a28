"""The sheet's first sections: the model in words, its parameters, and how much KV cache fits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from phasewise.core.units import counted, significant, size
from phasewise.costs.roofline.architecture import (
    Architecture,
    Attention,
    AttentionKind,
    FeedForward,
    LayerGroup,
)
from phasewise.costs.roofline.deployment import Deployment
from phasewise.costs.sheet.facts import (
    Column,
    FactTable,
    Section,
    SheetFact,
    SheetRow,
    SheetSubject,
    figure_fact,
    lengths_up_to,
    power,
)

CONTEXTS = (4096, 32_768, 131_072)


def shape_section(asked: SheetSubject) -> Section:
    """What the model is, and how large."""
    model = asked.deployment.architecture
    facts = [
        SheetFact("attention", "attention", model.attention.kind.value, _attention_words(model)),
        SheetFact("feed_forward", "feed-forward", _forward_words(model), _forward_words(model)),
        SheetFact(
            "parameters", "parameters", model.parameters, _billions(model.parameters), _parameters(model)
        ),
    ]
    if model.has_experts:
        active = model.active_parameters
        facts.append(
            SheetFact("active_parameters", "active per token", active, _billions(active), _active(model))
        )
    stored = f"{size(model.weight_bytes)}, {model.precision.name}"
    facts.append(SheetFact("weight_bytes", "weights", model.weight_bytes, stored, _bytes(model)))
    return Section("The model", tuple(facts))


def memory_section(asked: SheetSubject) -> Section:
    """What a request's KV cache takes, and how many fit."""
    deployment = asked.deployment
    model, space = deployment.architecture, deployment.kv_capacity_bytes
    per_token = model.kv_bytes(1, deployment.kv_element_bytes)
    space_text = size(space) if space > 0 else f"none: {size(-space)} too little"
    return Section(
        "KV cache and memory",
        (
            SheetFact(
                "kv_bytes_per_token",
                "KV cache per token",
                per_token,
                size(per_token),
                _kv_formula(deployment),
            ),
            SheetFact(
                "kv_shrink",
                "smaller than multi-head",
                model.kv_shrink,
                f"{significant(model.kv_shrink)} times",
                _shrink_formula(model.attention),
            ),
            figure_fact("kv_copies", "copies among the devices", deployment.kv_copies),
            SheetFact(
                "kv_capacity_bytes", "space for KV cache", space, space_text, _space_formula(deployment)
            ),
            SheetFact(
                "kv_capacity_tokens",
                "tokens that fit",
                deployment.kv_capacity_tokens,
                f"{deployment.kv_capacity_tokens:,}",
                f"{power(space)} / ({power(per_token)} x {power(deployment.kv_copies)})" if space > 0 else "",
            ),
        ),
        _context_table(deployment),
        _window_remark(model),
    )


def _context_table(deployment: Deployment) -> FactTable:
    columns = (
        Column("context_tokens", "context"),
        Column("kv_bytes", "KV cache"),
        Column("requests", "requests that fit"),
    )
    rows = []
    for context in lengths_up_to(deployment.architecture.max_model_len, CONTEXTS):
        kv_bytes = deployment.architecture.kv_bytes(context, deployment.kv_element_bytes)
        requests = deployment.requests_that_fit(context)
        rows.append(
            SheetRow((context, kv_bytes, requests), (f"{context:,}", size(kv_bytes), f"{requests:,}"))
        )
    return FactTable("kv_cache", columns, tuple(rows))


def _attention_words(model: Architecture) -> str:
    attention = model.attention
    words = f"{model.layers} layers, {attention.heads} heads of {attention.head_dim}"
    if attention.kind is AttentionKind.LATENT:
        return f"latent, {words}"
    if attention.kind is not AttentionKind.MULTI_HEAD:
        words += f", {counted(attention.kv_heads, 'KV head')}"
    return f"{attention.kind.value}, {words}"


def _forward_words(model: Architecture) -> str:
    routed = next((group for group in model.groups if group.feed_forward.experts), None)
    if routed is None or routed.feed_forward.experts is None:
        inside = model.groups[0].feed_forward.intermediate_size
        return f"dense, {model.hidden_size:,} wide, {inside:,} inside"
    experts = routed.feed_forward.experts
    shared = ", and a shared one" if routed.feed_forward.intermediate_size else ""
    dense = sum(group.layers for group in model.groups if group.feed_forward.experts is None)
    words = f"{experts.per_token} of {experts.count} experts for each token{shared}"
    return f"{words}; {dense} layers dense" if dense else words


def _window_remark(model: Architecture) -> str:
    windowed = [group for group in model.groups if group.attention.window]
    if not windowed:
        return ""
    layers = sum(group.layers for group in windowed)
    seen = f"{windowed[0].attention.window:,} tokens back"
    capped = f"{layers} of {model.layers} layers see {seen} and keep no more"
    return f"{capped}; tokens that fit are counted as if they kept all"


def _billions(count: int) -> str:
    return f"{significant(count / 1e9)} billion" if count >= 1e9 else f"{significant(count / 1e6)} million"


def _parameters(model: Architecture) -> str:
    alike: Counter[tuple[Attention, FeedForward]] = Counter()
    for group in model.groups:
        alike[replace(group.attention, window=None), group.feed_forward] += group.layers
    groups = " + ".join(_group_formula(LayerGroup(layers, *kinds)) for kinds, layers in alike.items())
    tables = 1 if model.tied_embeddings else 2
    norms = f"({model.norms_per_layer} x {model.layers} + 1) x {model.hidden_size:,} norms"
    return f"{groups} + {tables} x {model.vocab_size:,} x {model.hidden_size:,} embeddings + {norms}"


def _group_formula(group: LayerGroup) -> str:
    attention = _attention_formula(group.attention)
    return f"{group.layers} layers x ({attention} attention + {_forward_formula(group.feed_forward)})"


def _attention_formula(attention: Attention) -> str:
    if attention.latent is not None:
        return f"{attention.parameters:,}"
    heads = f"(2 x {attention.heads} + 2 x {attention.kv_heads})"
    return f"{attention.hidden_size:,} x {attention.head_dim} x {heads}"


def _forward_formula(forward: FeedForward) -> str:
    width = f"{forward.matrices} x {forward.hidden_size:,}"
    shared = f"{width} x {forward.intermediate_size:,}"
    if forward.experts is None:
        return f"{shared} feed-forward"
    experts = forward.experts
    router = f"{forward.hidden_size:,} x {experts.count} router"
    routed = f"{experts.count} experts x {width} x {experts.intermediate_size:,}"
    return f"{shared} shared + {router} + {routed}" if forward.intermediate_size else f"{router} + {routed}"


def _active(model: Architecture) -> str:
    idle = [
        f"{group.layers} layers x {experts.count - experts.per_token} idle x {forward.expert_parameters:,}"
        for group in model.groups
        if (experts := (forward := group.feed_forward).experts)
    ]
    return " - ".join([power(model.parameters), *idle])


def _bytes(model: Architecture) -> str:
    precision, tables = model.precision, model.parameters - model.block_parameters
    experts = (
        f" + {power(model.expert_parameters)} in experts x {precision.expert_bytes:g}"
        if model.has_experts
        else ""
    )
    dense = f"{power(model.dense_parameters)} x {precision.dense_bytes:g} bytes"
    return f"{dense}{experts} + {power(tables)} embeddings x {precision.table_bytes:g}"


def _kv_formula(deployment: Deployment) -> str:
    model, element = deployment.architecture, f"{deployment.kv_element_bytes:g} bytes"
    latent = model.attention.latent
    if latent is not None:
        return f"{model.layers} layers x ({latent.kv_rank} latent + {latent.rope_dim} rotary) x {element}"
    heads = f"{model.attention.kv_heads} KV heads x {model.attention.head_dim}"
    return f"2 x {model.layers} layers x {heads} x {element}"


def _shrink_formula(attention: Attention) -> str:
    if attention.latent is None:
        return f"{attention.heads} heads / {attention.kv_heads} KV heads"
    kept = f"({attention.latent.kv_rank} + {attention.latent.rope_dim})"
    return f"{attention.heads} heads x ({attention.head_dim} + {attention.value_dim}) / {kept}"


def _space_formula(deployment: Deployment) -> str:
    memory, assumed = power(deployment.accelerator.memory_bytes), deployment.assumptions
    usable = f"({memory} x {assumed.memory:g} - {power(assumed.reserve_gb * 1e9)} reserve)"
    return f"{deployment.gpus} x {usable} - {power(deployment.architecture.weight_bytes)} weights"
