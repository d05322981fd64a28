"""Finds a model's config.json on this machine: a file, a folder, a known name, or a hub's cache."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from phasewise.core.errors import ConfigError
from phasewise.fleet.config import LLAMA_CPP, VLLM, FleetConfig
from phasewise.fleet.engines.command import ServedModel
from phasewise.fleet.engines.known_models import resolve_gguf, resolve_model

CONFIG_FILE = "config.json"


def fleet_model(fleet: FleetConfig, home: Path, environ: Mapping[str, str]) -> ServedModel:
    """What the engines of each kind that a fleet has load for its model."""
    gguf = resolve_gguf(fleet.model, home) if fleet.has(LLAMA_CPP) else ""
    if not fleet.has(VLLM):
        return ServedModel(fleet.model, gguf, is_folder=False, gguf=gguf)
    return replace(served_model(fleet.model, home, environ), gguf=gguf)


def served_model(name: str, home: Path, environ: Mapping[str, str]) -> ServedModel:
    """What engines load for a model of this name, and whether they compute it in bfloat16."""
    source = resolve_model(name, home)
    try:
        in_bf16 = computed_in_bf16(read_model_config(name, home, environ))
    except ConfigError:
        in_bf16 = False  # the engine will download it
    return ServedModel(name, source, is_folder=Path(source).is_dir(), in_bf16=in_bf16)


def computed_in_bf16(config: Mapping[str, Any]) -> bool:
    """Whether vLLM on a CPU computes a model in bfloat16 by default: its weights are bf16, fp32 or unnamed.

    Quantized models are excluded, because their kernels may not support float32.
    """
    inner = config.get("text_config")
    parts = (config, inner) if isinstance(inner, dict) else (config,)
    if any(part.get("quantization_config") or part.get("compression_config") for part in parts):
        return False
    stated = (part.get(key) for part in parts for key in ("dtype", "torch_dtype"))
    return next(filter(None, stated), None) in (None, "auto", "bfloat16", "float32")


def read_model_config(model: str, home: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """The configuration of a model that is on this machine."""
    path = _find(model, home, environ)
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"there is no {path}", hint="give a config.json or a folder that has one") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", hint="it should be a JSON object") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{path} is not a JSON object", hint="give a model's config.json")
    return config


def _find(model: str, home: Path, environ: Mapping[str, str]) -> Path:
    given = Path(model).expanduser()
    if given.is_file() or given.suffix == ".json":
        return given
    resolved = Path(resolve_model(model, home))
    if resolved.is_absolute():
        return resolved / CONFIG_FILE
    kept = _kept_by_the_hub(model, environ)
    if kept is None:
        raise ConfigError(
            f"the configuration of {model} is not on this machine",
            hint=f"download that file (hf download {model} {CONFIG_FILE} --local-dir .) and give its path",
        )
    return kept


def _kept_by_the_hub(model: str, environ: Mapping[str, str]) -> Path | None:
    cache = Path(environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface").expanduser()
    folder = cache / "hub" / f"models--{model.replace('/', '--')}" / "snapshots"
    found = sorted(folder.glob(f"*/{CONFIG_FILE}"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None
