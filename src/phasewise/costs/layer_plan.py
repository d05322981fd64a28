"""Which layers look back how far, and which have experts: one entry per layer of a configuration.

What a layer then costs is architecture.py's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phasewise.costs.architecture import Experts, FeedForward
from phasewise.costs.config_keys import count_of, optional_count
from phasewise.errors import ConfigError

_WINDOW_ONLY_IF_SAID = frozenset({"qwen2", "qwen2_moe", "qwen3", "qwen3_moe"})
_FULL_EVERY = {"gemma2": 2, "gpt_oss": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}
"""Every so manieth layer sees everything where the configuration names no pattern."""
_TWO_MATRICES = frozenset({"gpt_neox", "phi", "starcoder2", "nemotron", "arcee"})
"""Families whose feed-forward has no gate."""


def windows_of(text: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    """How far back each layer sees; None for everything."""
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
        f"layer_types names {kind!r}, which the counts here would get wrong",
        hint="known: full_attention, sliding_attention",
    )


def feed_forwards_of(text: Mapping[str, Any], layers: int) -> tuple[FeedForward, ...]:
    """What each layer has after its attention."""
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
            hint="look at num_experts_per_tok",
        )
    return experts


def _shared_size_of(text: Mapping[str, Any], experts: Experts) -> int:
    given = text.get("shared_expert_intermediate_size") or text.get("shared_intermediate_size")
    return int(given or (text.get("n_shared_experts") or 0) * experts.intermediate_size)


def _routed_layers(text: Mapping[str, Any], layers: int) -> tuple[bool, ...]:
    """Which layers have experts, by whichever of the usual keys says so."""
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
            f"{key} has {len(entries)} entries for {layers} layers", hint="one entry per layer is needed"
        )
    return entries
