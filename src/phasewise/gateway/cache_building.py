"""Builds the answer cache that the configuration asks for; nothing is contacted before it is started."""

from __future__ import annotations

import os
from collections.abc import Mapping

from phasewise.adapters.http_client import HttpClient
from phasewise.adapters.process_answers import ProcessAnswers
from phasewise.adapters.redis_answers import RedisAnswers
from phasewise.config import CacheConfig, byte_size, phasewise_home
from phasewise.errors import ConfigError
from phasewise.gateway.answer_cache import AnswerCache
from phasewise.gateway.embedders import build_embedder
from phasewise.gateway.judges import TextJudge, build_judge
from phasewise.ports import AnswerStore
from phasewise.state.cluster_view import ClusterView
from phasewise.state.load_ledger import LoadLedger


def build_answer_cache(
    config: CacheConfig, cluster: ClusterView, ledger: LoadLedger, clients: Mapping[str, HttpClient]
) -> AnswerCache:
    """The cache; raises ConfigError for what is missing or makes no sense.

    A judge that is a model is one of `cluster`'s, asked over the `clients` of its workers.
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
