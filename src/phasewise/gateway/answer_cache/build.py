"""Builds the answer cache of a configuration. It makes no connection before it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from phasewise.clients.embedders import HttpEmbedder, OnnxEmbedder
from phasewise.clients.embedding_folder import resolve_embedding_model
from phasewise.clients.http_client import HttpClient
from phasewise.clients.memory_answers import ProcessAnswers
from phasewise.clients.redis_answers import RedisAnswers
from phasewise.core.errors import ConfigError
from phasewise.core.ports import AnswerStore, Embedder
from phasewise.fleet.config import (
    CacheConfig,
    HttpEmbedderConfig,
    OnnxEmbedderConfig,
    SemanticConfig,
    byte_size,
    phasewise_home,
)
from phasewise.gateway.answer_cache.cache import AnswerCache
from phasewise.gateway.answer_cache.judges import FleetJudge
from phasewise.scheduling.world import World


def build_embedder(config: OnnxEmbedderConfig | HttpEmbedderConfig, home: Path) -> Embedder:
    """The embedder, or a ConfigError that says what to install or download.

    It loads nothing before its start.
    """
    if isinstance(config, OnnxEmbedderConfig):
        return OnnxEmbedder(resolve_embedding_model(config.model, home))
    return HttpEmbedder(config.url, config.model, config.api_key_file)


def build_answer_cache(config: CacheConfig, world: World, clients: Mapping[str, HttpClient]) -> AnswerCache:
    """The cache; raises ConfigError if a setting is missing or invalid.

    The judge is one of the fleet's models, called over the `clients` of its workers.
    """
    if config.semantic is None:
        return AnswerCache(config, _store(config), None, None)
    semantic = _with_judging_model(config.semantic, world.cluster.models)
    config = config.model_copy(update={"semantic": semantic})
    embedder = build_embedder(semantic.embedder, phasewise_home(os.environ))
    judge = FleetJudge(semantic.judge, world, clients)
    return AnswerCache(config, _store(config), embedder, judge)


def _with_judging_model(semantic: SemanticConfig, models: tuple[str, ...]) -> SemanticConfig:
    """The configuration with the judge's model: the one it names, or the fleet's only one.

    One that is named is believed while no engine has said what it serves.
    """
    named = semantic.judge.model
    if named is not None and (named in models or not models):
        return semantic
    if named is None and len(models) == 1:
        judge = semantic.judge.model_copy(update={"model": models[0]})
        return semantic.model_copy(update={"judge": judge})
    problem = f"is {named!r}, which no worker serves"
    if named is None:
        problem = "is not set, and " + (
            "there are several models" if models else "no engine has said yet what it serves"
        )
    raise ConfigError(
        f"gateway.cache.semantic.judge.model {problem}",
        hint=f"name a model in the gateway's file: {', '.join(models) or 'then engines may start later'}",
    )


def _store(config: CacheConfig) -> AnswerStore:
    if config.redis is None:
        return ProcessAnswers(byte_size(config.keep))
    return RedisAnswers(config.redis.url, config.redis.key_prefix)
