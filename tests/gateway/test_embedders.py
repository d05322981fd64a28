"""The configuration names the embedder, and what is missing is told before anything starts."""

from __future__ import annotations

import pytest

from phasewise.adapters.http_embedder import HttpEmbedder
from phasewise.adapters.onnx_embedder import OnnxEmbedder
from phasewise.config import SemanticConfig
from phasewise.errors import ConfigError
from phasewise.gateway.embedders import build_embedder
from tests.tiny_embedding_model import write_tiny_model


def named(**embedder):
    return SemanticConfig(embedder=embedder).embedder


def test_a_folder_is_run_in_this_process(tmp_path):
    folder = write_tiny_model(tmp_path / "tiny", ("how",))
    embedder = build_embedder(named(kind="onnx", model=str(folder)), tmp_path)
    assert isinstance(embedder, OnnxEmbedder)
    assert embedder.space.startswith("tiny-")


def test_an_address_is_asked_over_http(tmp_path):
    embedder = build_embedder(named(kind="http", url="http://127.0.0.1:1", model="m"), tmp_path)
    assert isinstance(embedder, HttpEmbedder)


def test_without_a_choice_the_known_model_is_wanted(tmp_path):
    with pytest.raises(ConfigError, match="hint: run `phasewise model fetch minilm-l6`"):
        build_embedder(SemanticConfig().embedder, tmp_path)
