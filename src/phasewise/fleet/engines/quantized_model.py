"""Models with fewer bits per weight, made on this machine from models that are already here."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phasewise.core.errors import ConfigError
from phasewise.fleet.engines.command_output import TaskProgress
from phasewise.fleet.engines.demo_model import DEMO_MODELS, NOTES_FILE, resolve_model, run_step
from phasewise.fleet.engines.install import plugin_source
from phasewise.fleet.local.run_files import models_folder

GROUP_SIZES = (128, 64, 32)
"""Inputs that may share a scale, the largest first: sizes that kernels for CPUs and for GPUs support."""
ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Dense decoders with the same layer names; others would need their own rules."""


@dataclass(frozen=True)
class Scheme:
    """A quantization scheme and its description."""

    name: str
    about: str
    grouped: bool


SCHEMES = {
    "w8a8": Scheme(
        "w8a8",
        "weights in 8-bit integers, one scale per output; activations rounded per token",
        grouped=False,
    ),
    "w4a16": Scheme("w4a16", "weights in 4-bit integers, one scale per group of inputs", grouped=True),
}


def quantized_folder(model: str, scheme: str, home: Path) -> Path:
    """Where the quantized form of a known name or of a folder is stored."""
    if model in DEMO_MODELS:
        return models_folder(home) / f"{model}-{scheme}"
    source = Path(model).expanduser().absolute()
    # Folders of the same name may hold different models.
    mark = hashlib.sha256(str(source).encode()).hexdigest()[:8]
    return models_folder(home) / f"{source.name}-{mark}-{scheme}"


def is_quantized(model: str, scheme: str, home: Path) -> bool:
    """Whether the quantized form is there, complete, and made from the current model."""
    folder = quantized_folder(model, scheme, home)
    try:
        notes = json.loads((folder / NOTES_FILE).read_text())
        whole = all((folder / name).stat().st_size == size for name, size in notes["files"].items())
        return whole and bool(notes["source_digest"] == source_digest(_source(model, home)))
    except (OSError, ValueError, KeyError, ConfigError):
        return False


def quantize_model(
    model: str, scheme: str, home: Path, engine_python: Path, log: Path, progress: TaskProgress
) -> Path:
    """Write the quantized form of a model; its folder appears only when complete."""
    source, folder = _source(model, home), quantized_folder(model, scheme, home)
    config = _config(source)
    _reject_what_cannot_be_done(source, config)
    group_size = _group_size(config) if SCHEMES[scheme].grouped else None
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Next to the target, so that the last move is a rename on one file system.
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch_name:
        made = Path(scratch_name) / "model"
        progress.started(1, 1, f"quantize {source.name} to {scheme}")
        digest = source_digest(source)
        command = _command(engine_python, source, made, scheme, group_size)
        run_step(command, "quantizing the model", log, progress)
        _write_notes(made, source, scheme, digest)
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
        progress.finished("done")
    return folder


def _source(model: str, home: Path) -> Path:
    source = Path(resolve_model(model, home))
    if not (source / "config.json").is_file():
        raise ConfigError(
            f"{model!r} is not a model folder on this machine",
            hint=f"fetch it first and give its folder, the one with config.json; known names: "
            f"{', '.join(DEMO_MODELS)}",
        )
    return source


def _config(source: Path) -> dict[str, Any]:
    try:
        config = json.loads((source / "config.json").read_text())
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise ConfigError(f"{source / 'config.json'} is not a JSON object", hint="fetch the model again")
    return config


def _reject_what_cannot_be_done(source: Path, config: dict[str, Any]) -> None:
    if "quantization_config" in config:
        raise ConfigError(f"{source} is quantized already", hint="give the original model, in 16 or 32 bits")
    architecture = next(iter(config.get("architectures") or ()), None)
    if architecture not in ARCHITECTURES:
        raise ConfigError(
            f"{source} is a {architecture or 'model of unknown kind'}, which this command cannot quantize",
            hint=f"supported: {', '.join(ARCHITECTURES)}; other models are often published in quantized form",
        )
    if not _weights(source):
        raise ConfigError(
            f"{source} has no model*.safetensors", hint="fetch or convert its weights as safetensors"
        )


def _group_size(config: dict[str, Any]) -> int:
    """The largest group that divides the inputs of every layer."""
    try:
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        inputs = (hidden, config["intermediate_size"], heads * (config.get("head_dim") or hidden // heads))
    except KeyError as error:
        raise ConfigError(f"config.json has no {error.args[0]}", hint="fetch the model again") from None
    for size in GROUP_SIZES:
        if all(count % size == 0 for count in inputs):
            return size
    raise ConfigError(
        f"no group of {', '.join(map(str, GROUP_SIZES))} inputs divides layers with {inputs} inputs",
        hint="use --scheme w8a8, which needs no groups",
    )


def _weights(source: Path) -> list[Path]:
    return sorted(source.glob("model*.safetensors"))


def source_digest(source: Path) -> str:
    """The model's identity: its configuration, and name, size and time of its weights.

    The weights themselves are not read: that would take minutes for a large model.
    """
    facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in _weights(source)]
    return hashlib.sha256((source / "config.json").read_bytes() + repr(facts).encode()).hexdigest()


def _command(python: Path, source: Path, made: Path, scheme: str, group_size: int | None) -> list[str]:
    script = plugin_source() / "phasewise_engine_plugin" / "quantize.py"
    grouping = [] if group_size is None else ["--group-size", str(group_size)]
    return [str(python), "-I", str(script), str(source), str(made), "--scheme", scheme, *grouping]


def _write_notes(folder: Path, source: Path, scheme: str, digest: str) -> None:
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    notes = {"source": str(source), "scheme": scheme, "source_digest": digest, "files": files}
    (folder / NOTES_FILE).write_text(json.dumps(notes, indent=2) + "\n")
