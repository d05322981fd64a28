"""The configuration names the embedder, and what is missing is reported before anything starts."""

from __future__ import annotations

import pytest

from phasewise.clients.embedders import HttpEmbedder, OnnxEmbedder
from phasewise.core.errors import ConfigError
from phasewise.fleet.config import CacheConfig, SemanticConfig
from phasewise.gateway.answer_cache.build import build_embedder
from tests.gateway.harness import chat_body, request_id_of, running_gateway
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


def caching_by(embedder):
    # Here what is found matters, not when.
    return CacheConfig(mode="serve", deadline_s=5.0, semantic={"embedder": embedder})


async def look_ups_in(engine, embedder, *questions):
    """What the timelines of these requests say of the cache, asked one after the other."""
    notes = []
    async with running_gateway([engine], cache=caching_by(embedder)) as gateway:
        for question in questions:
            body = chat_body(question, max_tokens=4)
            reply = await gateway.fetch("POST", "/v1/chat/completions", body)
            notes.append((await gateway.timeline(request_id_of(reply)))["cache"])
    return notes


async def test_a_gateway_embeds_by_a_server_of_embeddings(fake_engine):
    embedder = {"kind": "http", "url": fake_engine.base_url, "model": fake_engine.model}
    (note,) = await look_ups_in(fake_engine, embedder, "how do I reset it?")
    assert (note["result"], note["why"]) == ("miss", "nothing_near")
    assert "embed" in note


async def test_a_gateway_embeds_by_a_model_of_its_own(fake_engine, tmp_path):
    folder = write_tiny_model(tmp_path / "tiny", ("how", "reset"))
    (note,) = await look_ups_in(fake_engine, {"kind": "onnx", "model": str(folder)}, "how do I reset it?")
    assert (note["result"], note["why"]) == ("miss", "nothing_near")
    assert "embed" in note


async def test_a_server_of_embeddings_that_is_away_makes_misses_and_no_failures(fake_engine):
    embedder = {"kind": "http", "url": "http://127.0.0.1:1", "model": "m"}
    notes = await look_ups_in(fake_engine, embedder, "how do I reset it?", "where is it?")
    assert [(note["result"], note["why"]) for note in notes] == [("miss", "embedder_down")] * 2
