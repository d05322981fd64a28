"""Reads a Hugging Face configuration into an Architecture, and refuses what its counts would get wrong.

Finding and opening the file is left to the caller; routed experts and windows are layer_plan.py's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from phasewise.costs.architecture import Architecture, Attention, FeedForward, Latent, LayerGroup
from phasewise.costs.config_keys import count_of, optional_count
from phasewise.costs.layer_plan import feed_forwards_of, windows_of
from phasewise.costs.precision import Precision, precision_of
from phasewise.errors import ConfigError

KNOWN_FAMILIES = frozenset({
    "arcee", "axk1", "cohere", "cohere2", "cohere2_moe", "cwm", "deepseek_v2", "deepseek_v3", "dots1",
    "ernie4_5", "exaone4", "flex_olmo", "gemma", "gemma2", "gemma3", "gemma3_text", "glm", "glm4",
    "glm4_moe", "glm4_moe_lite", "gpt_neox", "gpt_oss", "granite", "granite_swa", "granitemoe",
    "granitemoe_swa", "granitemoeshared", "helium", "hyperclovax", "kimi_k2", "llama", "mellum", "minimax_m2",
    "ministral", "ministral3", "mistral", "mixtral", "nemotron", "olmo", "olmo2", "olmo3",
    "olmoe", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3",
    "solar_open", "stablelm", "starcoder2", "vaultgemma",
})  # fmt: skip
"""Families whose layers are what is counted here; their counts were held against those of transformers."""

_TIED_UNLESS_SAID = frozenset({"gemma", "gemma2", "gemma3", "gemma3_text", "cohere", "cohere2"})
_MULTI_HEAD_UNLESS_SAID = frozenset({"llama", "olmo", "gpt_neox", "phi"})
_KEEPS_LATENTS = frozenset({"axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_k2"})
"""Families whose latents vLLM keeps; of others with latents (minicpm3) it keeps whole heads."""
_HEAD_DIM_UNLESS_SAID: Mapping[str, int] = {
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text", "vaultgemma"), 256),
    **dict.fromkeys(("cohere2_moe", "cwm", "ernie4_5", "glm", "glm4", "helium", "mellum"), 128),
    **dict.fromkeys(("minimax_m2", "ministral3", "qwen3", "seed_oss", "solar_open"), 128),
    "gpt_oss": 64,
}
"""What transformers' classes of these families take where the file has no head_dim."""
_FOUR_NORMS = frozenset({"gemma2", "gemma3", "gemma3_text"})

_NOT_MODELLED = {
    "is_encoder_decoder": "an encoder and cross attention",
    "cross_attention_layers": "cross attention",
    "attention_chunk_size": "attention in chunks",
    "index_topk": "sparse attention by an index",
    "index_topk_blocks": "sparse attention by an index",
    "swa_num_key_value_heads": "KV heads of another number in layers with a window",
    "num_kv_shared_layers": "layers that share a KV cache",
    "block_configs": "layers with heads of their own number",
    "layers_block_type": "layers that are no attention",
    "hybrid_override_pattern": "layers that are no attention",
    "attn_layer_period": "layers that are no attention",
    "block_types": "layers that are no attention",
    "mamba_d_state": "state-space layers",
    "ssm_cfg": "state-space layers",
    "ssm_state_size": "state-space layers",
    "state_size": "state-space layers",
    "linear_attn_config": "linear attention",
    "linear_num_key_heads": "linear attention",
    "conv_L_cache": "convolution layers",
}


def architecture_of(config: Mapping[str, Any], weights: Precision | None = None) -> Architecture:
    """The shape that a configuration describes; `weights` replaces what it says about their precision."""
    text, notes = _language_part(config)
    model_type = str(text.get("model_type") or "")
    _refuse_what_is_not_modelled(text)
    _refuse_latents_that_are_not_kept(text, model_type)
    if model_type not in KNOWN_FAMILIES:
        raise ConfigError(
            f"model_type is {model_type or 'missing'!r}, whose layers are not known here",
            hint='if they are built like a Llama\'s, write "model_type": "llama" into a copy of the file',
        )
    precision, precision_notes = (weights, ()) if weights else precision_of(text)
    extra_layers = text.get("num_nextn_predict_layers")
    if extra_layers:
        notes += (f"{extra_layers} more layers for predicting several tokens at once are not counted",)
    groups = _groups_of(text)
    _refuse_experts_that_were_not_read(text, groups)
    return Architecture(
        model_type=model_type,
        hidden_size=count_of(text, "hidden_size"),
        vocab_size=count_of(text, "vocab_size"),
        tied_embeddings=bool(text.get("tie_word_embeddings", model_type in _TIED_UNLESS_SAID)),
        groups=groups,
        precision=precision,
        norms_per_layer=4 if model_type in _FOUR_NORMS else 2,
        max_context_tokens=optional_count(text, "max_position_embeddings"),
        notes=notes + precision_notes,
    )


def _language_part(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The part about text, with what only the whole says, such as how it is quantised."""
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


def _refuse_what_is_not_modelled(text: Mapping[str, Any]) -> None:
    for key, what in _NOT_MODELLED.items():
        if text.get(key):
            raise ConfigError(
                f"this model has {what} ({key}), which the counts here would get wrong",
                hint="the sheet covers transformers with attention in every layer; measure this one instead:"
                " phasewise bench",
            )


def _refuse_latents_that_are_not_kept(text: Mapping[str, Any], model_type: str) -> None:
    if text.get("kv_lora_rank") and model_type not in _KEEPS_LATENTS:
        raise ConfigError(
            f"{model_type or 'this family'!r} has latent attention (kv_lora_rank), but vLLM is not known to"
            " keep its latents in the KV cache",
            hint=f"kept: those of {', '.join(sorted(_KEEPS_LATENTS))}; measure this one: phasewise bench",
        )


def _refuse_experts_that_were_not_read(text: Mapping[str, Any], groups: tuple[LayerGroup, ...]) -> None:
    """A mixture whose keys are not known would pass for a dense model."""
    named = sorted(
        key for key, value in text.items() if value and ("expert" in key or key.startswith("moe_"))
    )
    if named and not any(group.feed_forward.experts for group in groups):
        raise ConfigError(
            f"the configuration speaks of experts ({', '.join(named)}), but how many there are is not said",
            hint="name them as num_experts and num_experts_per_tok, or remove these keys if there are none",
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
            f"head_dim is missing, and hidden_size {hidden_size} is no multiple of {heads} heads",
            hint="add head_dim to the configuration",
        )
    return hidden_size // heads


def _kv_heads_of(text: Mapping[str, Any], heads: int) -> int:
    if text.get("num_key_value_heads") is None and text.get("model_type") in _MULTI_HEAD_UNLESS_SAID:
        return heads
    kv_heads = count_of(text, "num_key_value_heads")
    if heads % kv_heads:
        raise ConfigError(
            f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}",
            hint="every key and value is shared by the same number of heads: look at both keys",
        )
    return kv_heads
