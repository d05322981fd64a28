"""Looks whether workers that answer also make progress, and takes those out of service that do not.

Their steps show in their counters, and bytes of their answers in our connections. A worker that shows no
counters is not judged: a long answer that is not streamed looks the same as a worker that hangs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import Any

import orjson

from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.core.engine_metrics import Rank
from phasewise.core.errors import UpstreamError
from phasewise.core.request import Endpoint
from phasewise.core.units import duration
from phasewise.core.worker import Worker, WorkerRef
from phasewise.engines.known import read_page
from phasewise.gateway.upstream.engines import Connect
from phasewise.scheduling import World
from phasewise.scheduling.engines_needed import FULL_KV
from phasewise.scheduling.progress import Pace, WorkerProgress, may_take_out
from phasewise.scheduling.world import Health

logger = logging.getLogger("phasewise.gateway")

KV_EVERY_S = 15.0
"""How often a busy worker is asked how full its KV cache is."""
CANARY_TIMEOUTS = Timeouts(connect_s=1.0, head_s=60.0, idle_s=60.0)


class ProgressWatch:
    """Judges workers one look at a time; the health watcher calls `look` after each good health check."""

    def __init__(
        self, world: World, clients: Mapping[str, HttpClient], connect: Connect, timeouts: Timeouts
    ) -> None:
        self._world = world
        self._clients = clients
        self._connect = connect
        self._timeouts = timeouts
        self._asked: dict[str, HttpClient] = {}
        self._ranks: dict[str, Mapping[str, Rank]] = {}
        self._progress: dict[tuple[str, str], WorkerProgress] = {}
        self._heard_s: dict[str, float] = {}
        self._asked_s: dict[str, float] = {}
        self._trying: dict[str, asyncio.Task[None]] = {}

    async def look(self, name: str) -> None:
        """Look at a worker that has answered its health check."""
        state = self._world.cluster.state(name)
        worker, load = state.worker, self._world.ledger.load(state.worker.ref)
        # A request in neither phase waits for KV from another worker.
        works = state.health.stands_still or load.streams + load.unread_requests > 0
        heard_s = max(self._heard_s.get(name, 0.0), self._clients[name].last_heard_s)
        is_heard = heard_s > self._heard_s.get(name, 0.0)
        self._heard_s[name] = heard_s
        asked_s = self._asked_s.get(name, -inf)
        due = not is_heard or len(self._ranks.get(name, ())) != 1 or time.monotonic() >= asked_s + KV_EVERY_S
        if works and due:
            await self._ask(worker)
        ranks = self._ranks.get(name, {})
        slowest = self._slowest(worker.ref, ranks, heard_s, works=works)
        if slowest is None:
            return
        pace = Pace.MOVES
        if slowest.is_silent:
            prompts = self._world.ledger.prompts(worker.ref)
            # A full KV cache preempts requests: what was computed for them is computed again.
            is_full = any(rank.kv_used >= FULL_KV for rank in ranks.values())
            pace = slowest.pace(replace(prompts, unread=prompts.unread_before) if is_full else prompts)
        if pace is not Pace.MOVES and await self._is_paused(worker):
            slowest.silent_s = 0.0
            return
        self._judge(worker, slowest, pace)
        if self._world.cluster.state(name).health.stands_still and not load.requests:
            self._try(worker)

    def forget(self, name: str) -> None:
        """The worker is gone."""
        self._ranks.pop(name, None)
        self._asked_s.pop(name, None)
        self._heard_s.pop(name, None)
        self._progress = {key: known for key, known in self._progress.items() if key[0] != name}
        if (trying := self._trying.pop(name, None)) is not None:
            trying.cancel()
        if (client := self._asked.pop(name, None)) is not None:
            client.close()

    def kv_used(self, name: str) -> float:
        """The share of a worker's KV cache that was in use when it was last asked."""
        ranks = self._ranks.get(name, {}).values()
        return sum(rank.kv_used for rank in ranks) / len(ranks) if ranks else 0.0

    async def stop(self) -> None:
        """Drop the connections."""
        trying = tuple(self._trying.values())
        for name in tuple(self._asked.keys() | self._trying.keys()):
            self.forget(name)
        await asyncio.gather(*trying, return_exceptions=True)

    # --- what a worker shows ------------------------------------------------------------------------------

    def _client(self, worker: Worker) -> HttpClient:
        client = self._asked.get(worker.name)
        if client is None:
            client = self._asked[worker.name] = self._connect(worker, self._timeouts)
        return client

    async def _ask(self, worker: Worker) -> None:
        self._asked_s[worker.name] = time.monotonic()
        with suppress(UpstreamError, ValueError):
            reply = await self._client(worker).fetch("GET", "/metrics")
            if reply.status == 200:
                self._ranks[worker.name] = read_page(reply.body, time.time()).ranks

    async def _is_paused(self, worker: Worker) -> bool:
        """Whether its operator paused the worker; only some engines can say so."""
        with suppress(UpstreamError, orjson.JSONDecodeError):
            reply = await self._client(worker).fetch("GET", "/is_paused")
            answer = orjson.loads(reply.body) if reply.status == 200 else None
            return isinstance(answer, dict) and answer.get("is_paused") is True
        return False

    def _slowest(
        self, ref: WorkerRef, ranks: Mapping[str, Rank], heard_s: float, *, works: bool
    ) -> WorkerProgress | None:
        """The rank that has been silent longest; None if the worker shows no counters."""
        now_s, looked, unread = time.monotonic(), [], self._world.ledger.load(ref).unread_tokens
        for name, rank in ranks.items():
            progress = self._progress.get((ref.name, name))
            if progress is None or progress.ref != ref:
                progress = self._progress[ref.name, name] = WorkerProgress(ref)
            # A byte may come from any rank, so it says something only if there is one.
            is_only = len(ranks) == 1
            signs = (heard_s, rank.signs) if is_only else rank.signs
            busy = works and not rank.asleep and (is_only or rank.running)
            progress.look(signs, works=busy, now_s=now_s, unread=unread)
            looked.append(progress)
        return max(looked, key=lambda progress: progress.silent_s, default=None)

    # --- what follows -----------------------------------------------------------------------------------

    def _judge(self, worker: Worker, progress: WorkerProgress, pace: Pace) -> None:
        cluster, name = self._world.cluster, worker.name
        state = cluster.state(name)
        if pace is Pace.MOVES:
            if state.health.stands_still:
                logger.info("%s makes steps again", name)
                cluster.mark_up(name, worker.incarnation)
            elif state.health is Health.UP and state.note:
                cluster.annotate(name, "")
            return
        if state.health not in {Health.UP, Health.SUSPECT, Health.HUNG}:
            return
        note = self._words(worker.ref, progress.silent_s)
        pool = [(other.worker, other.health.stands_still) for other in cluster.snapshot()]
        if not may_take_out(worker, pool):
            if not state.note:
                logger.warning("%s %s; too few others are left to take it out of service", name, note)
            cluster.annotate(name, note)
            return
        health = Health.HUNG if pace is Pace.HUNG else Health.SUSPECT
        if state.health is not health:
            logger.warning("%s %s: %s", name, note, _FOLLOWS[health])
        cluster.mark_still(name, health, note)
        self._clients[name].abort_not_begun()
        if health is Health.HUNG:
            self._clients[name].abort_silent(progress.silent_s / 2)

    def _words(self, ref: WorkerRef, silent_s: float) -> str:
        requests = self._world.ledger.load(ref).requests
        of = f" with {requests} request{'s' * (requests != 1)} open" if requests else ""
        return f"answers /health but has made no step for {duration(silent_s)}{of}"

    def _try(self, worker: Worker) -> None:
        """Send a short request to a worker that has none: if it lives, its counters will show a step."""
        running = self._trying.get(worker.name)
        if running is None or running.done():
            self._trying[worker.name] = asyncio.create_task(self._send_canary(worker))

    async def _send_canary(self, worker: Worker) -> None:
        client, headers = self._connect(worker, CANARY_TIMEOUTS), [(b"content-type", b"application/json")]
        prompts: dict[Endpoint, dict[str, Any]] = {
            Endpoint.COMPLETIONS: {"prompt": "1", "max_tokens": 1},
            Endpoint.EMBEDDINGS: {"input": "1"},
        }
        try:
            for path, prompt in prompts.items():
                body = orjson.dumps({"model": worker.model, **prompt})
                if (await client.fetch("POST", path.value, headers=headers, body=body)).status == 200:
                    return
        except UpstreamError:
            return
        finally:
            client.close()


_FOLLOWS = {
    Health.SUSPECT: "it gets no new requests, and those without an answer move to others",
    Health.HUNG: "it is out of service, and its streams are resumed by others",
}
