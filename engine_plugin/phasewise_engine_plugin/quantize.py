"""Writes a model folder with fewer bits per weight; `phasewise model quantize` runs it as a script.

It rounds to nearest, without calibration.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LINEAR = re.compile(
    r"model\.layers\.(\d+)\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)\.weight", re.ASCII
)
"""The matrices of the decoder's layers. Embeddings and the output head stay: often they are one tensor."""
HALF_A_STEP = 0.54
"""Rounding is off by half a step; the bfloat16 scale adds up to 8 steps / 256."""
INDEX = "model.safetensors.index.json"
NOT_COPIED = {INDEX, "config.json", "phasewise-model.json"}
"""Two are rewritten, and the notes describe the source folder."""


@dataclass(frozen=True)
class Recipe:
    """How matrices are stored: the library's scheme and compressor."""

    scheme: Any
    compressor: Any
    format: str


def main() -> None:
    """Quantize one file of weights after the other, then read each result back."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="the model folder, with safetensors")
    parser.add_argument("folder", type=Path, help="where to write the quantized model")
    parser.add_argument("--scheme", choices=["w8a8", "w4a16"], required=True)
    parser.add_argument("--group-size", type=int, default=64, help="inputs that share a scale (w4a16)")
    arguments = parser.parse_args()
    print("loading compressed-tensors", flush=True)
    recipe = recipe_for(arguments.scheme, arguments.group_size)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    copy_the_rest(arguments.source, arguments.folder)
    where: dict[str, str] = {}
    for file in weight_files(arguments.source):
        names = quantize_file(file, arguments.folder / file.name, recipe)
        check_file(file, arguments.folder / file.name, recipe)
        where |= dict.fromkeys(names, file.name)
    if not any(name.endswith(".weight_scale") for name in where):
        raise SystemExit("no layer of this model has an expected name, so nothing was quantized")
    write_index(arguments.source, arguments.folder, where)
    write_config(arguments.source, arguments.folder, recipe)


def recipe_for(scheme_name: str, group_size: int) -> Recipe:
    """The library's description of a scheme, and the compressor that writes it."""
    from compressed_tensors.compressors import (  # noqa: PLC0415 - takes seconds
        IntQuantizationCompressor,
        PackedQuantizationCompressor,
    )
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme  # noqa: PLC0415

    if scheme_name == "w8a8":
        weights = QuantizationArgs(num_bits=8, strategy="channel", symmetric=True)
        inputs = QuantizationArgs(num_bits=8, strategy="token", symmetric=True, dynamic=True)
        scheme = QuantizationScheme(targets=["Linear"], weights=weights, input_activations=inputs)
        return Recipe(scheme, IntQuantizationCompressor, "int-quantized")
    weights = QuantizationArgs(num_bits=4, strategy="group", group_size=group_size, symmetric=True)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    return Recipe(scheme, PackedQuantizationCompressor, "pack-quantized")


def weight_files(source: Path) -> list[Path]:
    """The files of weights in the folder's index, or the only one."""
    index = source / INDEX
    if index.is_file():
        named = set(json.loads(index.read_text())["weight_map"].values())
        return [source / name for name in sorted(named)]
    return [source / "model.safetensors"]


def quantize_file(source: Path, target: Path, recipe: Recipe) -> list[str]:
    """Write one file's tensors, the matrices quantized; only this file is held in memory."""
    from safetensors import safe_open  # noqa: PLC0415 - loads torch, which takes seconds
    from safetensors.torch import save_file  # noqa: PLC0415

    written: dict[str, Any] = {}
    with safe_open(source, framework="pt") as tensors:
        for name, layer in in_layer_order(tensors.keys()):
            tensor = tensors.get_tensor(name)
            if layer is None:
                written[name] = tensor
                continue
            print(f"{source.name}: layer {layer}, {name.split('.')[-2]}", flush=True)
            written |= with_prefix(name, compressed(tensor, recipe))
    save_file(written, target, metadata={"format": "pt"})
    return list(written)


def in_layer_order(names: list[str]) -> Iterator[tuple[str, int | None]]:
    """Each tensor's name with the layer of its matrix, None for tensors that are not quantized."""
    found = [(name, LINEAR.fullmatch(name)) for name in names]
    pairs = [(name, int(match[1]) if match else None) for name, match in found]
    yield from sorted(pairs, key=lambda pair: (pair[1] is not None, pair[1] or 0, pair[0]))


def compressed(weight: Any, recipe: Recipe) -> dict[str, Any]:
    """One matrix rounded to nearest, in the library's format."""
    scale = scales_of(weight, recipe.scheme.weights)
    state = {"weight": weight.float(), "weight_scale": scale.float()}
    laid_down: dict[str, Any] = recipe.compressor.compress(state, recipe.scheme)
    return laid_down | {"weight_scale": scale}


def scales_of(weight: Any, args: Any) -> Any:
    """The size of one step, per output or per group of inputs.

    Steps are rounded to their stored type before anything is divided by them, so that an engine multiplies
    by the same number.
    """
    import torch  # noqa: PLC0415 - takes seconds
    from compressed_tensors.quantization.utils import calculate_qparams  # noqa: PLC0415

    outputs, inputs = weight.shape
    grouped = weight.float().view(outputs, -1, args.group_size or inputs)
    scale, _ = calculate_qparams(grouped.amin(dim=-1), grouped.amax(dim=-1), args)
    return scale.to(weight.dtype if args.group_size else torch.float32)


def with_prefix(weight_name: str, parts: dict[str, Any]) -> dict[str, Any]:
    """The parts of one matrix under its module's name."""
    module = weight_name.removesuffix("weight")
    return {module + part: tensor.contiguous() for part, tensor in parts.items()}


def check_file(source: Path, target: Path, recipe: Recipe) -> None:
    """Read the written matrices back: each must be within half a step of what it was."""
    from safetensors import safe_open  # noqa: PLC0415

    parts = recipe.compressor.compression_param_names(recipe.scheme)
    with safe_open(source, framework="pt") as before, safe_open(target, framework="pt") as after:
        for name, layer in in_layer_order(before.keys()):
            if layer is None:
                continue
            module = name.removesuffix("weight")
            state = {part: after.get_tensor(module + part) for part in parts}
            steps_off = most_steps_off(before.get_tensor(name), state, recipe)
            if steps_off > HALF_A_STEP:
                raise SystemExit(f"{name} is {steps_off:.2f} steps off after reading it back")
    print(f"{target.name}: read back, every weight within half a step", flush=True)


def most_steps_off(weight: Any, state: dict[str, Any], recipe: Recipe) -> float:
    """How far the worst weight is from its original, in steps of its own scale."""
    scale = state["weight_scale"].float()
    back = recipe.compressor.decompress(state | {"weight_scale": scale}, recipe.scheme)["weight"]
    outputs, groups = scale.shape
    difference = (back.float() - weight.float()).view(outputs, groups, -1).abs()
    return float((difference / scale[:, :, None]).max())


def copy_the_rest(source: Path, folder: Path) -> None:
    """Copy tokenizer, chat template and generation settings unchanged."""
    for path in source.iterdir():
        if path.suffix in {".json", ".jinja", ".txt", ".model"} and path.name not in NOT_COPIED:
            shutil.copyfile(path, folder / path.name)


def write_index(source: Path, folder: Path, where: dict[str, str]) -> None:
    """Write which file holds which tensor, if there are several files."""
    if (source / INDEX).is_file():
        size = sum((folder / name).stat().st_size for name in set(where.values()))
        index = {"metadata": {"total_size": size}, "weight_map": where}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def write_config(source: Path, folder: Path, recipe: Recipe) -> None:
    """Write the model's configuration with its quantization."""
    from compressed_tensors.quantization import QuantizationConfig, QuantizationStatus  # noqa: PLC0415

    quantization = QuantizationConfig(
        config_groups={"group_0": recipe.scheme},
        format=recipe.format,
        quantization_status=QuantizationStatus.COMPRESSED,
        ignore=["lm_head"],
    )
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = json.loads(quantization.model_dump_json())
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    main()
