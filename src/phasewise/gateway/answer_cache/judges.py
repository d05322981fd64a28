"""Judges decide whether a stored answer would have served another question: models of the fleet.

A judge that cannot be asked returns None, from which nothing is learned. None must not depend on the texts:
what a judge cannot process counts as "no". Its cost is bounded: one request at a time, only while no client's
request waits for the judge's model, and only for a share of the time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Protocol

import orjson

from phasewise.clients.http_client import HttpClient
from phasewise.core.errors import UpstreamError
from phasewise.core.value import value
from phasewise.core.worker import Role, Worker
from phasewise.fleet.config import JudgeConfig
from phasewise.scheduling.world import World
from phasewise.semantic_match.judging import judge_messages, read_verdict

LOOK_AGAIN_S = 0.1
"""How often a judge looks whether its model has nothing else to do."""
_REJECTED_THE_TEXT = frozenset({400, 413, 422})
"""The status codes of engines for a prompt that is too long or invalid."""


@value
class QuestionPair:
    """What is judged: would the stored answer serve the asked question?"""

    asked: str
    stored: str
    answer: str


class Judge(Protocol):
    """Decides about pairs, and says what that has cost so far."""

    calls: int
    prompt_tokens: int
    busy_s: float

    async def approves(self, pair: QuestionPair) -> bool | None:
        """Whether the stored answer serves the question; None if nobody could be asked. Never raises."""


class FleetJudge:
    """A judge among the fleet's models; `clients` are those of the gateway's workers, by name."""

    def __init__(self, config: JudgeConfig, world: World, clients: Mapping[str, HttpClient]) -> None:
        self._config = config
        self._model = config.model or ""
        self._world = world
        self._clients = clients
        self._lock = asyncio.Lock()
        self._free_from_s = 0.0
        self.calls = self.prompt_tokens = 0
        self.busy_s = 0.0

    async def approves(self, pair: QuestionPair) -> bool | None:
        """Whether the model says yes, or scores the pair high enough."""
        async with self._lock:
            await asyncio.sleep(self._free_from_s - time.monotonic())
            worker = await self._free_worker()
            if worker is None:
                return None
            began_s = time.monotonic()
            try:
                async with asyncio.timeout(self._config.deadline_s):
                    return await self._ask(worker, pair)
            except (UpstreamError, TimeoutError):
                return None
            finally:
                took_s = time.monotonic() - began_s
                self.calls += 1
                self.busy_s += took_s
                self._free_from_s = began_s + took_s / self._config.share

    async def _free_worker(self) -> Worker | None:
        """A worker of the model, once no client's request waits for it; None after the deadline."""
        until_s = time.monotonic() + self._config.deadline_s
        while time.monotonic() < until_s:
            able = [it for it in self._world.cluster.usable(self._model) if it.role is not Role.PREFILL]
            if able and not self._world.queue.is_waiting(self._model):
                return min(able, key=lambda it: self._world.ledger.load(it.ref).requests)
            await asyncio.sleep(LOOK_AGAIN_S)
        return None

    async def _ask(self, worker: Worker, pair: QuestionPair) -> bool | None:
        if self._config.kind == "score":
            reply = await self._post(worker, "/score", {"text_1": pair.asked, "text_2": pair.stored})
            score = _inside(reply, "data", 0, "score")
            return isinstance(score, float | int) and score >= self._config.min_score if reply else None
        messages = judge_messages(pair.asked, pair.stored, pair.answer)
        # Models that reason before they answer would spend the one token on that.
        body = {"messages": messages, "temperature": 0, "max_tokens": 1}
        body["chat_template_kwargs"] = {"enable_thinking": False}
        reply = await self._post(worker, "/v1/chat/completions", body)
        return read_verdict(_inside(reply, "choices", 0, "message", "content")) if reply else None

    async def _post(self, worker: Worker, path: str, body: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
        """The reply as JSON; None if the engine fails. A rejected text is a reply without a verdict."""
        sent = orjson.dumps({"model": self._model, **body})
        headers = [(b"content-type", b"application/json")]
        client = self._clients.get(worker.name)
        if client is None:
            return None  # it has left the fleet
        reply = await client.fetch("POST", path, headers=headers, body=sent)
        if reply.status in _REJECTED_THE_TEXT:
            return {"rejected": True}
        try:
            answer = orjson.loads(reply.body) if reply.status == 200 else None
        except orjson.JSONDecodeError:
            return None
        tokens = _inside(answer, "usage", "prompt_tokens")
        self.prompt_tokens += tokens if isinstance(tokens, int) else 0
        return answer


def _inside(reply: Any, *path: str | int) -> Any:  # noqa: ANN401 - JSON
    """What a reply holds along a path; None if it is not there."""
    for step in path:
        try:
            reply = reply[step]
        except (TypeError, LookupError):
            return None
    return reply
