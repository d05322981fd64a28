"""Judges decide, from the model's own answer, whether a stored answer would have been right.

A judge that cannot be reached returns None, from which nothing is learned. None must not depend on the
answers: if doubtful matches were left out, the counted ones would look better than they are. So a doubtful
match counts as wrong, and so does one that the judge cannot process, unless the texts are equal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import orjson

from phasewise.clients.http_client import HttpClient
from phasewise.core.errors import EmbedderRejected, EmbedderUnreachable, UpstreamError
from phasewise.core.ports import Embedder
from phasewise.core.worker import Role, Worker
from phasewise.fleet.config import JudgeConfig
from phasewise.scheduling.ledger import LoadLedger
from phasewise.scheduling.world import ClusterView
from phasewise.semantic_match.judging import (
    CONTROL_ANSWER,
    judge_messages,
    read_verdict,
    same_text,
    states_otherwise,
)

LONGEST_EMBEDDED = 800
"""In bytes of UTF-8: some 200 tokens of English, some 270 of Chinese. Small embedders read 256 tokens and
would ignore the rest."""
_REJECTED_THE_TEXT = frozenset({400, 413, 422})
"""The status codes of engines for a prompt that is too long or invalid."""


class Judge(Protocol):
    """Compares a stored answer with the model's answer of now."""

    async def right(self, question: str, stored: str, made: str) -> bool | None:
        """Whether the stored answer says the same as the model's; None if unknown. Never raises."""


def build_judge(
    config: JudgeConfig,
    embedder: Embedder,
    cluster: ClusterView,
    ledger: LoadLedger,
    clients: Mapping[str, HttpClient],
) -> Judge:
    """The judge that the configuration names; `clients` are those of the gateway's workers, by name."""
    if config.kind == "embedding":
        return EmbeddingJudge(embedder, config.similarity, config.deadline_s)
    if config.kind == "model" and config.model is not None:
        return ModelJudge(config.model, cluster, ledger, clients, config.deadline_s)
    return TextJudge()


class TextJudge:
    """An answer is right if its text is the same."""

    async def right(self, question: str, stored: str, made: str) -> bool | None:
        """Whether both answers are the same except for whitespace and a final full stop."""
        return same_text(stored, made)


class EmbeddingJudge:
    """An answer is right if it is near in meaning and has the same numbers and negations."""

    def __init__(self, embedder: Embedder, similarity: float, deadline_s: float) -> None:
        self._embedder = embedder
        self._similarity = similarity
        self._deadline_s = deadline_s

    async def right(self, question: str, stored: str, made: str) -> bool | None:
        """Whether the answers' embeddings are near enough; texts that cannot be embedded must be equal."""
        same = same_text(stored, made)
        if any(len(text.encode(errors="replace")) > LONGEST_EMBEDDED for text in (stored, made)):
            return same
        try:
            async with asyncio.timeout(self._deadline_s):
                one, other = [
                    np.frombuffer(await self._embedder.embed(text), "<f4") for text in (stored, made)
                ]
        except EmbedderRejected:
            return same
        except (EmbedderUnreachable, TimeoutError):
            return None  # for equal answers too: otherwise only those would count during an outage
        if same or states_otherwise(stored, made):
            return same
        return bool(float(one @ other) >= self._similarity)


class _TextRejected(Exception):
    """An engine rejected the judge's prompt."""


class ModelJudge:
    """An answer is right if a model of this fleet calls it the same.

    A yes counts only if the model says no to a control: an answer that is wrong for any question. Requests
    run one at a time, so judging uses at most one slot of an engine.
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
        self._lock = asyncio.Lock()

    async def right(self, question: str, stored: str, made: str) -> bool | None:
        """Whether the model replies with a plain yes, and with no to the control.

        Equal answers are judged too. Texts that are too long for the model, or that it rejects, must be
        equal.
        """
        asked = judge_messages(question, stored, made)
        control = judge_messages(question, stored, CONTROL_ANSWER)
        if asked is None or control is None:
            return same_text(stored, made)
        try:
            async with asyncio.timeout(self._deadline_s), self._lock:
                reply = await self._ask(asked)
                if reply is None or read_verdict(reply) is not True:
                    return None if reply is None else False
                # Small models say yes to everything, so a yes counts only if the control gets a no.
                return True if read_verdict(await self._ask(control) or "") is False else None
        except _TextRejected:
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
        if reply.status in _REJECTED_THE_TEXT:
            raise _TextRejected
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
