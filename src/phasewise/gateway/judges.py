"""Judges: who says, once the model has answered too, whether a stored answer would have been right.

A judge that cannot be asked says None, from which nothing is learned and by which nothing is served. Whether
one says None must never hang on what it would have said: if doubtful matches were left out, those that are
counted would look better than they are. So doubt is wrong, as is what nobody takes to look at, unless it is
equal; only what has nothing to do with the answers is None. When a judge is asked, and what is learned, is
cache_learning.py's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import orjson

from phasewise.adapters.http_client import HttpClient
from phasewise.caching.judging import (
    CONTROL_ANSWER,
    judge_messages,
    read_verdict,
    same_text,
    states_otherwise,
)
from phasewise.config import JudgeConfig
from phasewise.errors import EmbedderRefused, EmbedderUnreachable, UpstreamError
from phasewise.model.worker import Role, Worker
from phasewise.ports import Embedder
from phasewise.state.cluster_view import ClusterView
from phasewise.state.load_ledger import LoadLedger

LONGEST_EMBEDDED = 800
"""In bytes of UTF-8: some 200 tokens of English, some 270 of Chinese. Small embedders read 256 tokens; what
comes after would not be compared."""
_REFUSED_THE_TEXT = frozenset({400, 413, 422})
"""What engines reply with to a prompt that is too long for them, or that they do not like."""


class Judge(Protocol):
    """Compares a stored answer with what the model says now."""

    async def right(self, question: str, stored: str, made: str) -> bool | None:
        """Whether the stored answer says what the model says; None if nobody could be asked. Never raises."""


def build_judge(
    config: JudgeConfig,
    embedder: Embedder,
    cluster: ClusterView,
    ledger: LoadLedger,
    clients: Mapping[str, HttpClient],
) -> Judge:
    """The judge that the configuration names; clients are those of the gateway's workers, by name."""
    if config.kind == "embedding":
        return EmbeddingJudge(embedder, config.similarity, config.deadline_s)
    if config.kind == "model" and config.model is not None:
        return ModelJudge(config.model, cluster, ledger, clients, config.deadline_s)
    return TextJudge()


class TextJudge:
    """Right is what reads the same."""

    async def right(self, question: str, stored: str, made: str) -> bool | None:
        """Whether both answers are the same but for space and a last full stop."""
        return same_text(stored, made)


class EmbeddingJudge:
    """Right is what is near in meaning, has the same numbers and denies as much."""

    def __init__(self, embedder: Embedder, similarity: float, deadline_s: float) -> None:
        self._embedder = embedder
        self._similarity = similarity
        self._deadline_s = deadline_s

    async def right(self, question: str, stored: str, made: str) -> bool | None:
        """Whether the answers' embeddings are near enough; what cannot be embedded has to be equal."""
        same = same_text(stored, made)
        if any(len(text.encode(errors="replace")) > LONGEST_EMBEDDED for text in (stored, made)):
            return same
        try:
            async with asyncio.timeout(self._deadline_s):
                one, other = [
                    np.frombuffer(await self._embedder.embed(text), "<f4") for text in (stored, made)
                ]
        except EmbedderRefused:
            return same
        except (EmbedderUnreachable, TimeoutError):
            return None  # for equal answers too, which would else be all that counts while it is away
        if same or states_otherwise(stored, made):
            return same
        return bool(float(one @ other) >= self._similarity)


class _TextRefused(Exception):
    """An engine does not take what it was shown."""


class ModelJudge:
    """Right is what a model of this fleet calls the same.

    Its yes is believed only if it says no to a control: an answer that is wrong whatever was asked. It is
    asked one thing at a time, so that judging never takes more of an engine than one place.
    """

    def __init__(
        self,
        model: str,
        cluster: ClusterView,
        ledger: LoadLedger,
        clients: Mapping[str, HttpClient],
        deadline_s: float,
    ) -> None:
        self._model = model
        self._cluster = cluster
        self._ledger = ledger
        self._clients = clients
        self._deadline_s = deadline_s
        self._turn = asyncio.Lock()

    async def right(self, question: str, stored: str, made: str) -> bool | None:
        """Whether the model replies with a bare yes, and does not do so to everything.

        It is asked of equal answers too, and what it cannot be shown whole, or refuses, has to be equal.
        """
        asked = judge_messages(question, stored, made)
        control = judge_messages(question, stored, CONTROL_ANSWER)
        if asked is None or control is None:
            return same_text(stored, made)
        try:
            async with asyncio.timeout(self._deadline_s), self._turn:
                reply = await self._ask(asked)
                if reply is None or read_verdict(reply) is not True:
                    return None if reply is None else False
                # Small models say yes to whatever they are shown: a yes counts from who can say no, too.
                return True if read_verdict(await self._ask(control) or "") is False else None
        except _TextRefused:
            return same_text(stored, made)
        except (UpstreamError, TimeoutError):
            return None

    async def _ask(self, messages: list[dict[str, str]]) -> str | None:
        worker = self._least_loaded()
        if worker is None:
            return None
        body = {"model": self._model, "messages": messages, "temperature": 0, "max_tokens": 4}
        reply = await self._clients[worker.name].fetch(
            "POST",
            "/v1/chat/completions",
            headers=[(b"content-type", b"application/json")],
            body=orjson.dumps(body),
        )
        if reply.status in _REFUSED_THE_TEXT:
            raise _TextRefused
        return _content(reply.body) if reply.status == 200 else None

    def _least_loaded(self) -> Worker | None:
        able = [it for it in self._cluster.usable(self._model) if it.role is not Role.PREFILL]
        return min(able, key=lambda it: self._ledger.load(it.ref).requests, default=None)


def _content(body: bytes) -> str | None:
    try:
        content: Any = orjson.loads(body)["choices"][0]["message"]["content"]
    except (ValueError, TypeError, LookupError):
        return None
    return content if isinstance(content, str) else None
