"""Models with fewer bits per weight, made on this machine from models that are already here.

It decides what can be done, where the result goes and whether it is there. The rounding itself is left to the
engine plugin's quantise.py, which runs in the engine's environment.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phasewise.errors import ConfigError
from phasewise.fleet.demo_model import DEMO_MODELS, NOTES_FILE, resolve_model, run_step
from phasewise.fleet.engine_install import plugin_source
from phasewise.fleet.paths import models_folder
from phasewise.fleet.progress import Progress

GROUP_SIZES = (128, 64, 32)
"""Inputs that may share a scale, the largest first: sizes that kernels for CPUs and for GPUs take alike."""
ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Dense decoders whose layers are named alike; others would need rules of their own."""


@dataclass(frozen=True)
class Scheme:
    """A way to write weights with fewer bits, in words."""

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


def quantised_folder(model: str, scheme: str, home: Path) -> Path:
    """Where the quantised form of a known name or of a folder is kept."""
    if model in DEMO_MODELS:
        return models_folder(home) / f"{model}-{scheme}"
    source = Path(model).expanduser().absolute()
    # Folders of the same name may hold different models.
    mark = hashlib.sha256(str(source).encode()).hexdigest()[:8]
    return models_folder(home) / f"{source.name}-{mark}-{scheme}"


def is_quantised(model: str, scheme: str, home: Path) -> bool:
    """Whether the quantised form is there, whole, and made from the model as it is now."""
    folder = quantised_folder(model, scheme, home)
    try:
        notes = json.loads((folder / NOTES_FILE).read_text())
        whole = all((folder / name).stat().st_size == size for name, size in notes["files"].items())
        return whole and bool(notes["source_digest"] == source_digest(_source(model, home)))
    except (OSError, ValueError, KeyError, ConfigError):
        return False


def quantise_model(
    model: str, scheme: str, home: Path, engine_python: Path, log: Path, progress: Progress
) -> Path:
    """Write the quantised form of a model; its folder appears only when whole."""
    source, folder = _source(model, home), quantised_folder(model, scheme, home)
    config = _config(source)
    _refuse_what_cannot_be_done(source, config)
    group_size = _group_size(config) if SCHEMES[scheme].grouped else None
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that the last move is a rename on one file system.
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch_name:
        made = Path(scratch_name) / "model"
        progress.started(1, 1, f"quantise {source.name} to {scheme}")
        digest = source_digest(source)
        command = _command(engine_python, source, made, scheme, group_size)
        run_step(command, "quantising the model", log, progress)
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


def _refuse_what_cannot_be_done(source: Path, config: dict[str, Any]) -> None:
    if "quantization_config" in config:
        raise ConfigError(
            f"{source} is quantised already", hint="give the model it was made from, in 16 or 32 bits"
        )
    architecture = next(iter(config.get("architectures") or ()), None)
    if architecture not in ARCHITECTURES:
        raise ConfigError(
            f"{source} is a {architecture or 'model of unknown kind'}, which this command cannot quantise",
            hint=f"it can do {', '.join(ARCHITECTURES)}; others are published quantised by their makers",
        )
    if not _weights(source):
        raise ConfigError(
            f"{source} holds no model*.safetensors", hint="fetch or convert its weights as safetensors"
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
    """What the model is now: its configuration, and name, size and time of its weights.

    The weights themselves are not read: that would take minutes with large models, each time somebody asks.
    """
    facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in _weights(source)]
    return hashlib.sha256((source / "config.json").read_bytes() + repr(facts).encode()).hexdigest()


def _command(python: Path, source: Path, made: Path, scheme: str, group_size: int | None) -> list[str]:
    script = plugin_source() / "phasewise_engine_plugin" / "quantise.py"
    grouping = [] if group_size is None else ["--group-size", str(group_size)]
    return [str(python), "-I", str(script), str(source), str(made), "--scheme", scheme, *grouping]


def _write_notes(folder: Path, source: Path, scheme: str, digest: str) -> None:
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    notes = {"source": str(source), "scheme": scheme, "source_digest": digest, "files": files}
    (folder / NOTES_FILE).write_text(json.dumps(notes, indent=2) + "\n")
