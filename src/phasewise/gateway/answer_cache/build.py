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
    byte_size,
    phasewise_home,
)
from phasewise.gateway.answer_cache.cache import AnswerCache
from phasewise.gateway.answer_cache.judges import TextJudge, build_judge
from phasewise.scheduling.ledger import LoadLedger
from phasewise.scheduling.world import ClusterView


def build_embedder(config: OnnxEmbedderConfig | HttpEmbedderConfig, home: Path) -> Embedder:
    """The embedder, or a ConfigError that says what to install or download.

    It loads nothing before its start.
    """
    if isinstance(config, OnnxEmbedderConfig):
        return OnnxEmbedder(resolve_embedding_model(config.model, home))
    return HttpEmbedder(config.url, config.model, config.api_key_file)


def build_answer_cache(
    config: CacheConfig, cluster: ClusterView, ledger: LoadLedger, clients: Mapping[str, HttpClient]
) -> AnswerCache:
    """The cache; raises ConfigError if a setting is missing or invalid.

    A judge model is one of `cluster`'s models, called over the `clients` of its workers.
    """
    semantic = config.semantic
    if semantic is None:
        return AnswerCache(config, _store(config), None, TextJudge())
    if semantic.judge.model is not None and semantic.judge.model not in cluster.models:
        raise ConfigError(
            f"gateway.cache.semantic.judge.model is {semantic.judge.model!r}, which no worker serves",
            hint=f"accepted: {', '.join(cluster.models)}",
        )
    embedder = build_embedder(semantic.embedder, phasewise_home(os.environ))
    judge = build_judge(semantic.judge, embedder, cluster, ledger, clients)
    return AnswerCache(config, _store(config), embedder, judge)


def _store(config: CacheConfig) -> AnswerStore:
    if config.redis is None:
        return ProcessAnswers(byte_size(config.keep))
    return RedisAnswers(config.redis.url, config.redis.key_prefix)
