"""Holds what was handed over against what engines count of it, and tells of prompts that were computed twice.

Engines are asked often only while there is something to hold against their counters. The sums are
kv_balance.py's; which pairs may hand over is the flow's to decide, from the breakers that this feeds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from phasewise.adapters.http_client import HttpClient
from phasewise.adapters.vllm_kv_counters import KvCounters, fetch_kv_counters
from phasewise.errors import UpstreamError
from phasewise.gateway.guard import Guard
from phasewise.model.hand_over import pair_ref
from phasewise.model.hand_over_state import HandOverState
from phasewise.model.timeline import AttemptKind, Outcome, Timeline
from phasewise.model.worker import Role, Worker, WorkerRef
from phasewise.request_flow import World
from phasewise.state.cluster_view import Health
from phasewise.state.hand_over_proofs import HandOverProofs
from phasewise.state.kv_balance import TOLERATED_SHARE, KvBalance

logger = logging.getLogger("phasewise.gateway")

LOOK_EVERY_S = 2.0
LOOK_ANYWAY_EVERY_S = 30.0
"""Where nothing is due, so that what others handed over meanwhile is not held to be ours later."""
BEGIN_WITHIN_S = 2.0
TELL_EVERY_S = 60.0
CHECK_HINT = "`phasewise check FILE` names what is wrong"


class HandOverAudit:
    """A TimelineSink that sees hand-overs end, and looks at the engines' counters from `start` on."""

    def __init__(
        self,
        world: World,
        clients: Mapping[str, HttpClient],
        proofs: HandOverProofs,
        *,
        look_every_s: float = LOOK_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._world = world
        self._clients = clients
        self._proofs = proofs
        self._look_every_s = look_every_s
        self._clock = clock
        self._balance = KvBalance()
        self._decodes = frozenset(it.name for it in self._workers(Role.DECODE))
        # Tokens of whose hand-overs to a decode worker ended since the last look at it, and before that.
        self._unjudged: dict[str, Counter[WorkerRef]] = {}
        self._due: dict[str, Counter[WorkerRef]] = {}
        self._look_anyway_s = 0.0
        self._tell_after_s: dict[str, float] = {}
        self._moved_bytes: dict[str, int] = {}
        self._late_reads: dict[str, tuple[WorkerRef, float]] = {}
        self._guard = Guard("auditing hand-overs")

    # --- what requests tell -------------------------------------------------------------------------------

    def record(self, timeline: Timeline) -> None:
        """Take note of a request that has ended, if it was served by a decode worker."""
        serving = timeline.serving_attempt
        if serving is None or serving.worker.name not in self._decodes:
            return
        if serving.outcome is not Outcome.SUCCEEDED:
            return
        prefill = timeline.prefill_attempt
        if serving.kind is not AttemptKind.DECODE_SIDE:
            self._balance.served_whole(serving.worker, timeline.cached_tokens or 0)
        elif prefill is not None:
            self.handed_over(prefill.worker, serving.worker, timeline.prompt_tokens or 0)

    def handed_over(self, prefill: WorkerRef, decode: WorkerRef, prompt_tokens: int) -> None:
        """Take note of a prompt whose KV the decode worker was to fetch, and that it has answered."""
        self._balance.handed_over(decode, prompt_tokens)
        self._unjudged.setdefault(decode.name, Counter())[prefill] += prompt_tokens

    # --- what engines tell --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Note where the counters of engines stand before anything is handed over."""
        begun = [self._begin(it) for it in (*self._up(Role.DECODE), *self._up(Role.PREFILL))]
        await asyncio.gather(*begun)

    async def run(self) -> None:
        """Look as long as the gateway runs."""
        while True:
            await asyncio.sleep(self._look_every_s)
            with self._guard:
                await self._look()

    def states(self) -> Iterator[HandOverState]:
        """What is known of every decode worker."""
        now_s = self._clock()
        for name in sorted(self._decodes):
            proven_s = self._proofs.last_proven_s(name)
            yield HandOverState(
                worker=name,
                recomputed_tokens=self._balance.recomputed_tokens(name),
                moved_bytes=self._moved_bytes.get(name, 0),
                proven_ago_s=None if proven_s is None else now_s - proven_s,
                failing=self._proofs.failing(name),
            )

    async def _begin(self, worker: Worker) -> None:
        # No gateway waits long for it: a beginning that was not seen is made up for at the next look.
        with suppress(UpstreamError, TimeoutError):
            async with asyncio.timeout(BEGIN_WITHIN_S):
                if worker.role is Role.DECODE:
                    await self._look_at_decode(worker)
                else:
                    await self._look_at_prefill(worker)

    async def _look(self) -> None:
        decodes, now_s = self._up(Role.DECODE), self._clock()
        if now_s < self._look_anyway_s:
            decodes = [it for it in decodes if self._balance.is_due(it.ref)]
        else:
            self._look_anyway_s = now_s + LOOK_ANYWAY_EVERY_S
        if not decodes:
            return
        await asyncio.gather(
            *map(self._look_at_decode, decodes), *map(self._look_at_prefill, self._up(Role.PREFILL))
        )

    async def _look_at_decode(self, worker: Worker) -> None:
        with suppress(UpstreamError):
            self._hold_against(worker, await fetch_kv_counters(self._clients[worker.name]))

    def _hold_against(self, worker: Worker, seen: KvCounters) -> None:
        self._moved_bytes[worker.name] = round(seen.moved_bytes or 0)
        moved, hits = seen.moved_tokens or 0.0, seen.hit_tokens or 0.0
        if seen.computed_tokens is None:
            # It has computed nothing yet, or tells nobody where prompts' KV came from.
            self._balance.begin(worker.ref, moved, hits)
            return
        judged = self._due.pop(worker.name, Counter())
        # What has ended since the last look is judged at the next.
        self._due[worker.name] = self._unjudged.pop(worker.name, Counter())
        under_way = self._world.ledger.load(worker.ref).requests
        verdict = self._balance.counted(worker.ref, moved, hits, under_way)
        if verdict.recomputed_tokens:
            self._tell_recomputed(worker, verdict.recomputed_tokens, judged)
            # Which of them it was the sums do not tell: the canary clears the others.
            for prefill in judged:
                self._proofs.fail(prefill, worker.ref, self._clock())
                self._let_rest(prefill, worker.ref)
        elif verdict.sound:
            for prefill, tokens in judged.items():
                # What is missing may all be one's.
                if verdict.missing_tokens <= TOLERATED_SHARE * tokens:
                    self._proofs.prove(prefill, worker.ref, self._clock())

    def _tell_recomputed(self, worker: Worker, tokens: int, judged: Iterable[WorkerRef]) -> None:
        now_s = self._clock()
        if now_s < self._tell_after_s.get(worker.name, now_s):
            return  # the metric counts on
        self._tell_after_s[worker.name] = now_s + TELL_EVERY_S
        logger.warning(
            "%s computed %d prompt tokens again that were computed for it by %s: their KV did not come. "
            "hint: %s",
            worker.name,
            tokens,
            " or ".join(sorted(it.name for it in judged)),
            CHECK_HINT,
        )

    def _let_rest(self, prefill: WorkerRef, decode: WorkerRef) -> None:
        """What counters say is no chance: the pair hands over no more until its rest is over."""
        if not (self._world.cluster.is_current(prefill) and self._world.cluster.is_current(decode)):
            return
        self._world.pairs.open(pair_ref(prefill, decode), self._clock())

    async def _look_at_prefill(self, worker: Worker) -> None:
        with suppress(UpstreamError):
            late = (await fetch_kv_counters(self._clients[worker.name])).read_after_release or 0.0
            # Of an engine that is seen for the first time nobody knows when it counted what it has counted.
            ref, before = self._late_reads.get(worker.name, (None, 0.0))
            self._late_reads[worker.name] = (worker.ref, late)
            if ref == worker.ref and late > before:
                self._stop_handing_over_from(worker)

    def _stop_handing_over_from(self, prefill: Worker) -> None:
        """KV was read that had been given up: answers may be wrong without a word, so its pairs rest."""
        logger.error(
            "KV of %s was fetched after it had been released: answers may be wrong. Nothing is handed over "
            "from it for now. hint: raise gateway.hand_over.lease_s",
            prefill.name,
        )
        for decode in self._workers(Role.DECODE):
            self._let_rest(prefill.ref, decode.ref)

    def _workers(self, role: Role) -> Sequence[Worker]:
        return [it.worker for it in self._world.cluster.snapshot() if it.worker.role is role]

    def _up(self, role: Role) -> Sequence[Worker]:
        states = self._world.cluster.snapshot()
        return [it.worker for it in states if it.worker.role is role and it.health is Health.UP]
