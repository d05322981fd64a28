"""Finds a model's config.json on this machine: a file, a folder, a known name, or a hub's cache.

What the configuration means is costs/model_config.py's business.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phasewise.errors import ConfigError
from phasewise.fleet.demo_model import resolve_model

CONFIG_FILE = "config.json"


def read_model_config(model: str, home: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """The configuration of a model that is on this machine."""
    path = _find(model, home, environ)
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(
            f"there is no {path}", hint="give a config.json or a folder that holds one"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", hint="it should be a JSON object") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{path} holds no JSON object", hint="give a model's config.json")
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
            hint=f"fetch that small file (hf download {model} {CONFIG_FILE} --local-dir .) and give its path",
        )
    return kept


def _kept_by_the_hub(model: str, environ: Mapping[str, str]) -> Path | None:
    cache = Path(environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface").expanduser()
    folder = cache / "hub" / f"models--{model.replace('/', '--')}" / "snapshots"
    found = sorted(folder.glob(f"*/{CONFIG_FILE}"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None
