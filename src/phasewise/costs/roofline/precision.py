"""In how many bits weights are stored and multiplied: named schemes, and what a quantization_config says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from phasewise.core.errors import ConfigError


class Arithmetic(StrEnum):
    """The number type that a matrix unit multiplies."""

    SIXTEEN_BIT = "16 bit"
    FP8 = "fp8"
    INT8 = "int8"


class WeightScheme(StrEnum):
    """How weights may be stored: their bits, and those of the activations."""

    SIXTEEN_BIT = "16bit"
    FP8 = "fp8"
    W8A8 = "w8a8"
    W8A16 = "w8a16"
    W4A16 = "w4a16"


class KvDtype(StrEnum):
    """How the KV cache may be stored."""

    SIXTEEN_BIT = "16bit"
    FP8 = "fp8"


@dataclass(frozen=True, slots=True)
class Precision:
    """Bytes per weight including scales, by part; tables are the embeddings and the output head."""

    name: str
    dense_bytes: float
    expert_bytes: float
    arithmetic: Arithmetic = Arithmetic.SIXTEEN_BIT
    table_bytes: float = 2.0


def _alike(name: str, bits: float, arithmetic: Arithmetic = Arithmetic.SIXTEEN_BIT) -> Precision:
    return Precision(name, bits / 8, bits / 8, arithmetic)


SIXTEEN_BIT = _alike("16 bit", 16)
WEIGHT_SCHEMES: Mapping[str, Precision] = {
    WeightScheme.SIXTEEN_BIT: SIXTEEN_BIT,
    WeightScheme.FP8: _alike("fp8 weights and activations", 8, Arithmetic.FP8),
    WeightScheme.W8A8: _alike("int8 weights and activations", 8, Arithmetic.INT8),
    WeightScheme.W8A16: _alike("8 bit weights, 16 bit arithmetic", 8),
    WeightScheme.W4A16: _alike("4 bit weights in groups of 128, 16 bit arithmetic", 4 + 16 / 128),
}
"""Weight schemes that users can select; embeddings and output head stay in 16 bit, as usual."""

KV_BYTES: Mapping[str, float] = {KvDtype.SIXTEEN_BIT: 2.0, KvDtype.FP8: 1.0}
"""Bytes per number in the KV cache."""


def precision_of(config: Mapping[str, Any]) -> tuple[Precision, tuple[str, ...]]:
    """The precision of a checkpoint from its quantization_config, and notes about it."""
    quantization = config.get("quantization_config")
    if quantization is None:
        return SIXTEEN_BIT, _dtype_notes(config)
    method = str(quantization.get("quant_method", "")).lower()
    reader = _READERS.get(method)
    if reader is None:
        raise ConfigError(
            f"quantization_config.quant_method is {method or 'missing'!r}, which is not supported",
            hint=f"supported: {', '.join(_READERS)}; or set the scheme with --weights",
        )
    return reader(quantization), _left_out_notes(quantization)


def _dtype_notes(config: Mapping[str, Any]) -> tuple[str, ...]:
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "")
    if not dtype:
        return ("the configuration names no dtype: weights are counted in 16 bit",)
    if dtype == "float32":
        return ("stored in float32, but counted in 16 bit, because vLLM loads it so (dtype auto)",)
    if dtype not in {"float16", "bfloat16"}:
        raise ConfigError(f"dtype is {dtype!r}", hint="supported: float16, bfloat16, float32")
    return ()


def _left_out_notes(quantization: Mapping[str, Any]) -> tuple[str, ...]:
    kept = quantization.get("ignore") or quantization.get("modules_to_not_convert") or ()
    usual = ("lm_head", "embed", "gate", "router", "norm")
    unusual = [name for name in kept if not any(word in str(name) for word in usual)]
    if not unusual or quantization.get("quant_method") == "mxfp4":
        return ()
    return (f"{len(unusual)} modules that the checkpoint keeps in 16 bit are counted as quantized",)


def _packed(quantization: Mapping[str, Any]) -> Precision:
    return _grouped(_needed_bits(quantization, "bits"), quantization.get("group_size"))


def _grouped(bits: int, group_size: object) -> Precision:
    grouped = isinstance(group_size, int) and group_size > 0
    scale_bits = 16 / group_size if grouped and isinstance(group_size, int) else 0.0
    groups = f" in groups of {group_size}" if grouped else ""
    return _alike(f"{bits} bit weights{groups}, 16 bit arithmetic", bits + scale_bits)


def _fp8(_: Mapping[str, Any]) -> Precision:
    return WEIGHT_SCHEMES["fp8"]


def _mxfp4(_: Mapping[str, Any]) -> Precision:
    # Only the experts are stored this way: 4 bits each and an 8 bit scale for every 32.
    return replace(SIXTEEN_BIT, name="4 bit experts (mxfp4), the rest 16 bit", expert_bytes=(4 + 8 / 32) / 8)


def _bitsandbytes(quantization: Mapping[str, Any]) -> Precision:
    return WEIGHT_SCHEMES["w8a16"] if quantization.get("load_in_8bit") else _grouped(4, 64)


def _compressed_tensors(quantization: Mapping[str, Any]) -> Precision:
    groups = quantization.get("config_groups") or {}
    if len(groups) != 1:
        raise ConfigError(
            f"quantization_config.config_groups has {len(groups)} groups; only one is supported",
            hint="set the scheme of most weights with --weights",
        )
    (group,) = groups.values()
    weights, activations = group.get("weights") or {}, group.get("input_activations")
    bits = _needed_bits(weights, "num_bits")
    if activations and bits == 8 and activations.get("num_bits") == 8:
        return WEIGHT_SCHEMES["fp8" if weights.get("type") == "float" else "w8a8"]
    return _grouped(bits, weights.get("group_size"))


def _needed_bits(source: Mapping[str, Any], key: str) -> int:
    bits = source.get(key)
    if not isinstance(bits, int) or not 1 <= bits <= 16:
        raise ConfigError(
            f"quantization_config lacks a usable {key} ({bits!r})", hint="set the scheme with --weights"
        )
    return bits


_READERS = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "compressed-tensors": _compressed_tensors,
    "gptq": _packed,
    "awq": _packed,
    "bitsandbytes": _bitsandbytes,
    "mxfp4": _mxfp4,
}
