"""Builds the embedder that the configuration names; nothing is contacted or loaded before its start."""

from __future__ import annotations

from pathlib import Path

from phasewise.adapters.embedding_folder import resolve_embedding_model
from phasewise.adapters.http_embedder import HttpEmbedder
from phasewise.adapters.onnx_embedder import OnnxEmbedder
from phasewise.config import HttpEmbedder as HttpEmbedderConfig
from phasewise.config import OnnxEmbedder as OnnxEmbedderConfig
from phasewise.ports import Embedder


def build_embedder(config: OnnxEmbedderConfig | HttpEmbedderConfig, home: Path) -> Embedder:
    """The embedder, or a ConfigError that says what to install or fetch."""
    if isinstance(config, OnnxEmbedderConfig):
        return OnnxEmbedder(resolve_embedding_model(config.model, home))
    return HttpEmbedder(config.url, config.model, config.api_key_file)
