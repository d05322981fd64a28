"""Reads a Hugging Face configuration into an Architecture, and rejects models that it would count wrongly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from phasewise.core.errors import ConfigError
from phasewise.costs.roofline.architecture import (
    Architecture,
    Attention,
    Experts,
    FeedForward,
    Latent,
    LayerGroup,
)
from phasewise.costs.roofline.precision import Precision, precision_of

# --- Reads single numbers from a configuration, and names the key when one is missing or invalid.


def count_of(config: Mapping[str, Any], *keys: str) -> int:
    """The whole number under the first key that is present."""
    for key in keys:
        if (found := optional_count(config, key)) is not None:
            return found
    raise ConfigError(
        f"the configuration lacks {' or '.join(keys)}",
        hint="transformers may have a default for it: add the key with its value to the file",
    )


def optional_count(config: Mapping[str, Any], key: str) -> int | None:
    """A whole number above 0, or None where the key is missing or null."""
    value = config.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{key} is {value!r}", hint="use a whole number above 0")
    return value


# --- Each layer's window and experts: one entry per layer of a configuration.

_WINDOW_ONLY_IF_SAID = frozenset({"qwen2", "qwen2_moe", "qwen3", "qwen3_moe"})
_FULL_EVERY = {"gemma2": 2, "gpt_oss": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}
"""Every n-th layer has full attention where the configuration names no pattern."""
_TWO_MATRICES = frozenset({"gpt_neox", "phi", "starcoder2", "nemotron", "arcee"})
"""Families whose feed-forward has no gate."""


def windows_of(text: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    """Each layer's attention window; None for full attention."""
    kinds = text.get("layer_types")
    if kinds is not None:
        return tuple(_window_of_kind(text, kind) for kind in _as_many("layer_types", kinds, layers))
    window = optional_count(text, "sliding_window") if text.get("sliding_window") else None
    if window is None or not _uses_window(text):
        return (None,) * layers
    if text.get("model_type") in _WINDOW_ONLY_IF_SAID and "max_window_layers" in text:
        return tuple(window if layer >= text["max_window_layers"] else None for layer in range(layers))
    full_every = optional_count(text, "sliding_window_pattern") or _FULL_EVERY.get(
        str(text.get("model_type"))
    )
    return tuple(None if full_every and (layer + 1) % full_every == 0 else window for layer in range(layers))


def _uses_window(text: Mapping[str, Any]) -> bool:
    return bool(text.get("use_sliding_window", text.get("model_type") not in _WINDOW_ONLY_IF_SAID))


def _window_of_kind(text: Mapping[str, Any], kind: str) -> int | None:
    if kind == "full_attention":
        return None
    if kind == "sliding_attention":
        return count_of(text, "sliding_window")
    raise ConfigError(
        f"layer_types names {kind!r}, which cannot be modelled",
        hint="known: full_attention, sliding_attention",
    )


def feed_forwards_of(text: Mapping[str, Any], layers: int) -> tuple[FeedForward, ...]:
    hidden_size = count_of(text, "hidden_size")
    matrices = 2 if text.get("model_type") in _TWO_MATRICES else 3
    experts = _experts_of(text)
    if experts is None:
        return (FeedForward(hidden_size, count_of(text, "intermediate_size"), matrices),) * layers
    routed = FeedForward(hidden_size, _shared_size_of(text, experts), matrices, experts)
    sparse = _routed_layers(text, layers)
    if all(sparse):
        return (routed,) * layers
    dense = FeedForward(hidden_size, count_of(text, "intermediate_size"), matrices)
    return tuple(routed if has_experts else dense for has_experts in sparse)


def _experts_of(text: Mapping[str, Any]) -> Experts | None:
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    if not any(text.get(name) for name in names):
        return None
    experts = Experts(
        count=count_of(text, *names),
        per_token=count_of(text, "num_experts_per_tok", "experts_per_token", "moe_topk"),
        intermediate_size=count_of(text, "moe_intermediate_size", "intermediate_size"),
    )
    if experts.per_token > experts.count:
        raise ConfigError(
            f"{experts.per_token} experts per token are more than the {experts.count} that exist",
            hint="correct num_experts_per_tok",
        )
    return experts


def _shared_size_of(text: Mapping[str, Any], experts: Experts) -> int:
    given = text.get("shared_expert_intermediate_size") or text.get("shared_intermediate_size")
    return int(given or (text.get("n_shared_experts") or 0) * experts.intermediate_size)


def _routed_layers(text: Mapping[str, Any], layers: int) -> tuple[bool, ...]:
    """Which layers have experts, from whichever of the usual keys is present."""
    if (kinds := text.get("mlp_layer_types")) is not None:
        return tuple(kind == "sparse" for kind in _as_many("mlp_layer_types", kinds, layers))
    dense_first = text.get("first_k_dense_replace") or 0
    dense_always = set(text.get("mlp_only_layers") or ())
    step = text.get("decoder_sparse_step") or 1
    every = text.get("moe_layer_freq") or 1
    listed = _as_many("moe_layer_freq", every, layers) if isinstance(every, list) else None
    return tuple(
        layer >= dense_first
        and layer not in dense_always
        and (layer + 1) % step == 0
        and (bool(listed[layer]) if listed else layer % every == 0)
        for layer in range(layers)
    )


def _as_many(key: str, entries: list[Any], layers: int) -> list[Any]:
    if len(entries) != layers:
        raise ConfigError(
            f"{key} has {len(entries)} entries for {layers} layers", hint="give one entry per layer"
        )
    return entries


KNOWN_FAMILIES = frozenset({
    "arcee", "axk1", "cohere", "cohere2", "cohere2_moe", "cwm", "deepseek_v2", "deepseek_v3", "dots1",
    "ernie4_5", "exaone4", "flex_olmo", "gemma", "gemma2", "gemma3", "gemma3_text", "glm", "glm4",
    "glm4_moe", "glm4_moe_lite", "gpt_neox", "gpt_oss", "granite", "granite_swa", "granitemoe",
    "granitemoe_swa", "granitemoeshared", "helium", "hyperclovax", "kimi_k2", "llama", "mellum", "minimax_m2",
    "ministral", "ministral3", "mistral", "mixtral", "nemotron", "olmo", "olmo2", "olmo3",
    "olmoe", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3",
    "solar_open", "stablelm", "starcoder2", "vaultgemma",
})  # fmt: skip
"""Families whose layers are counted here; tests compare their counts with those of transformers."""

_TIED_UNLESS_SAID = frozenset({"gemma", "gemma2", "gemma3", "gemma3_text", "cohere", "cohere2"})
_MULTI_HEAD_UNLESS_SAID = frozenset({"llama", "olmo", "gpt_neox", "phi"})
_KEEPS_LATENTS = frozenset({"axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_k2"})
"""Families whose latents vLLM caches; for others with latents (minicpm3) it caches whole heads."""
_HEAD_DIM_UNLESS_SAID: Mapping[str, int] = {
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text", "vaultgemma"), 256),
    **dict.fromkeys(("cohere2_moe", "cwm", "ernie4_5", "glm", "glm4", "helium", "mellum"), 128),
    **dict.fromkeys(("minimax_m2", "ministral3", "qwen3", "seed_oss", "solar_open"), 128),
    "gpt_oss": 64,
}
"""The defaults of transformers' classes for these families when the file has no head_dim."""
_FOUR_NORMS = frozenset({"gemma2", "gemma3", "gemma3_text"})

_NOT_MODELLED = {
    "is_encoder_decoder": "an encoder and cross attention",
    "cross_attention_layers": "cross attention",
    "attention_chunk_size": "attention in chunks",
    "index_topk": "sparse attention by an index",
    "index_topk_blocks": "sparse attention by an index",
    "swa_num_key_value_heads": "a different number of KV heads in layers with a window",
    "num_kv_shared_layers": "layers that share a KV cache",
    "block_configs": "layers with different numbers of heads",
    "layers_block_type": "layers without attention",
    "hybrid_override_pattern": "layers without attention",
    "attn_layer_period": "layers without attention",
    "block_types": "layers without attention",
    "mamba_d_state": "state-space layers",
    "ssm_cfg": "state-space layers",
    "ssm_state_size": "state-space layers",
    "state_size": "state-space layers",
    "linear_attn_config": "linear attention",
    "linear_num_key_heads": "linear attention",
    "conv_L_cache": "convolution layers",
}


def architecture_of(config: Mapping[str, Any], weights: Precision | None = None) -> Architecture:
    """The shape that a configuration describes; `weights` overrides its weight precision."""
    text, notes = _language_part(config)
    model_type = str(text.get("model_type") or "")
    _reject_what_is_not_modelled(text)
    _reject_latents_that_are_not_kept(text, model_type)
    if model_type not in KNOWN_FAMILIES:
        raise ConfigError(
            f"model_type is {model_type or 'missing'!r}, which is not supported",
            hint='if its layers are like Llama\'s, write "model_type": "llama" into a copy of the file',
        )
    precision, precision_notes = (weights, ()) if weights else precision_of(text)
    extra_layers = text.get("num_nextn_predict_layers")
    if extra_layers:
        notes += (f"{extra_layers} extra layers for multi-token prediction are not counted",)
    groups = _groups_of(text)
    _reject_experts_that_were_not_read(text, groups)
    return Architecture(
        hidden_size=count_of(text, "hidden_size"),
        vocab_size=count_of(text, "vocab_size"),
        tied_embeddings=bool(text.get("tie_word_embeddings", model_type in _TIED_UNLESS_SAID)),
        groups=groups,
        precision=precision,
        norms_per_layer=4 if model_type in _FOUR_NORMS else 2,
        max_model_len=optional_count(text, "max_position_embeddings"),
        notes=notes + precision_notes,
    )


def _language_part(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The text model's configuration, with the keys that only the top level has, such as quantization."""
    inner = config.get("text_config")
    if not isinstance(inner, Mapping):
        return config, ()
    inherited = {
        key: config[key]
        for key in ("tie_word_embeddings", "quantization_config", "torch_dtype", "dtype", "model_type")
        if key in config
    }
    towers = [key.removesuffix("_config") for key in ("vision_config", "audio_config") if key in config]
    notes = (f"the {' and '.join(towers)} part is not counted",) if towers else ()
    return inherited | dict(inner), notes


def _reject_what_is_not_modelled(text: Mapping[str, Any]) -> None:
    for key, what in _NOT_MODELLED.items():
        if text.get(key):
            raise ConfigError(
                f"this model has {what} ({key}), which cannot be modelled",
                hint="the sheet covers transformers with attention in every layer; measure this one instead:"
                " phasewise bench",
            )


def _reject_latents_that_are_not_kept(text: Mapping[str, Any], model_type: str) -> None:
    if text.get("kv_lora_rank") and model_type not in _KEEPS_LATENTS:
        raise ConfigError(
            f"{model_type or 'this family'!r} has latent attention (kv_lora_rank), but vLLM may not keep its"
            " latents in the KV cache",
            hint=f"supported: {', '.join(sorted(_KEEPS_LATENTS))}; measure this model: phasewise bench",
        )


def _reject_experts_that_were_not_read(text: Mapping[str, Any], groups: tuple[LayerGroup, ...]) -> None:
    """A mixture of experts with unknown keys would be counted as a dense model."""
    named = sorted(
        key for key, value in text.items() if value and ("expert" in key or key.startswith("moe_"))
    )
    if named and not any(group.feed_forward.experts for group in groups):
        raise ConfigError(
            f"the configuration mentions experts ({', '.join(named)}), but not how many there are",
            hint="add num_experts and num_experts_per_tok, or remove these keys if there are none",
        )


def _groups_of(text: Mapping[str, Any]) -> tuple[LayerGroup, ...]:
    layers = count_of(text, "num_hidden_layers")
    alike: Counter[tuple[Attention, FeedForward]] = Counter(
        zip(
            (_attention_of(text, window) for window in windows_of(text, layers)),
            feed_forwards_of(text, layers),
            strict=True,
        )
    )
    return tuple(LayerGroup(count, attention, forward) for (attention, forward), count in alike.items())


def _attention_of(text: Mapping[str, Any], window: int | None) -> Attention:
    hidden_size, heads = count_of(text, "hidden_size"), count_of(text, "num_attention_heads")
    if text.get("kv_lora_rank"):
        return _latent_attention_of(text, hidden_size, heads, window)
    usual = None if "head_dim" in text else _HEAD_DIM_UNLESS_SAID.get(str(text.get("model_type")))
    head_dim = optional_count(text, "head_dim") or usual or _even_head_dim(hidden_size, heads)
    return Attention(hidden_size, heads, _kv_heads_of(text, heads), head_dim, head_dim, window)


def _latent_attention_of(
    text: Mapping[str, Any], hidden_size: int, heads: int, window: int | None
) -> Attention:
    rope_dim = count_of(text, "qk_rope_head_dim")
    latent = Latent(count_of(text, "kv_lora_rank"), rope_dim, optional_count(text, "q_lora_rank"))
    head_dim = count_of(text, "qk_nope_head_dim") + rope_dim
    return Attention(hidden_size, heads, heads, head_dim, count_of(text, "v_head_dim"), window, latent)


def _even_head_dim(hidden_size: int, heads: int) -> int:
    if hidden_size % heads:
        raise ConfigError(
            f"head_dim is missing, and hidden_size {hidden_size} is not a multiple of {heads} heads",
            hint="add head_dim to the configuration",
        )
    return hidden_size // heads


def _kv_heads_of(text: Mapping[str, Any], heads: int) -> int:
    if text.get("num_key_value_heads") is None and text.get("model_type") in _MULTI_HEAD_UNLESS_SAID:
        return heads
    kv_heads = count_of(text, "num_key_value_heads")
    if heads % kv_heads:
        raise ConfigError(
            f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}",
            hint="every key and value is shared by the same number of heads: correct one of the two keys",
        )
    return kv_heads
