"""llama.cpp's server: the names of its flags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FLAGS: Mapping[str, str] = {
    "max_num_seqs": "-np",
    "max_num_batched_tokens": "-ub",
    "batch": "-b",
    "threads": "-t",
    "prefix_cache": "--[no-]cache-prompt",
    "cache_reuse": "--cache-reuse",
    "speculation": "-md",
    "max_model_len": "-c",
}


def flags(name: str, value: Any) -> tuple[str, ...] | None:  # noqa: ANN401 - each setting has its own type
    """The arguments that give a setting this value; None if it has no such setting."""
    if name == "prefix_cache":
        return ("--cache-prompt" if value else "--no-cache-prompt",)
    return (FLAGS[name], str(value)) if name in FLAGS else None
