"""Compares KV transfers with the engines' counters, and reports prompts that were computed twice.

It reads the counters often only while transfers are due. Its results open the breakers of pairs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from phasewise.clients.engine_metrics import fetch_page
from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.core.engine_metrics import KvCounters
from phasewise.core.errors import UpstreamError
from phasewise.core.kv_transfer import KvTransferState, pair_ref
from phasewise.core.timeline import AttemptKind, Outcome, Timeline
from phasewise.core.worker import Role, Worker, WorkerRef
from phasewise.fleet.config import KvTransferConfig
from phasewise.gateway.guard import ErrorGuard
from phasewise.gateway.upstream.engines import Connect
from phasewise.scheduling import World
from phasewise.scheduling.breakers import LONGEST_PAIR_OPEN_S
from phasewise.scheduling.kv_proofs import TOLERATED_SHARE, KvBalance, KvTransferProofs
from phasewise.scheduling.world import Health

logger = logging.getLogger("phasewise.gateway")

LOOK_EVERY_S = 2.0
LOOK_ANYWAY_EVERY_S = 30.0
"""When nothing is due, so that KV transfers of other gateways are not counted as ours later."""
BEGIN_WITHIN_S = 2.0
TO_BE_JUDGED_S = 3 * LOOK_EVERY_S
"""A request that ends is judged within so long, alone if the next pair is tried later than that."""
REPORT_EVERY_S = 60.0
CHECK_HINT = "`phasewise check FILE` names what is wrong"


class KvTransferWatch:
    """A TimelineSink that notes finished KV transfers and reads the engines' counters from `start` to `stop`.

    It does nothing in a fleet without prefill and decode workers.
    """

    def __init__(
        self,
        world: World,
        connect: Connect,
        config: KvTransferConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._world = world
        self._connect = connect
        self._timeout_s = config.timeout_s
        self._clock = clock
        self._clients: dict[str, HttpClient] = {}
        self._proofs, self._balance = KvTransferProofs(), KvBalance()
        self._decodes: frozenset[str] = frozenset()
        # Tokens per prefill worker whose KV transfers to a decode worker ended since its last reading, and
        # before.
        self._unjudged: dict[str, Counter[WorkerRef]] = {}
        self._due: dict[str, Counter[WorkerRef]] = {}
        self._look_anyway_s = 0.0
        self._report_after_s: dict[str, float] = {}
        self._moved_bytes: dict[str, int] = {}
        self._late_reads: dict[str, tuple[WorkerRef, float]] = {}
        self._guard = ErrorGuard("auditing KV transfers")
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the engines' counters before the first KV transfer, then watch in the background.

        The workers' health is known by now. Of what was seen until an earlier `stop`, proofs and sums stay.
        """
        workers = [state.worker for state in self._world.cluster.snapshot()]
        if not {Role.PREFILL, Role.DECODE} <= {worker.role for worker in workers}:
            return
        bounds = Timeouts(connect_s=2.0, head_s=self._timeout_s, idle_s=self._timeout_s)
        self._clients = {
            worker.name: self._connect(worker, bounds) for worker in workers if worker.role is not Role.MIXED
        }
        for seen in (self._unjudged, self._due, self._report_after_s, self._moved_bytes, self._late_reads):
            seen.clear()
        self._look_anyway_s = 0.0
        self._decodes = frozenset(worker.name for worker in self._workers(Role.DECODE))
        await asyncio.gather(*map(self._begin, (*self._up(Role.DECODE), *self._up(Role.PREFILL))))
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._task, self._decodes = None, frozenset()
        for client in self._clients.values():
            client.close()

    # --- from requests ------------------------------------------------------------------------------------

    def record(self, timeline: Timeline) -> None:
        """Note a request that has ended, if a decode worker served it."""
        serving = timeline.serving_attempt
        if serving is None or serving.outcome is not Outcome.SUCCEEDED:
            return
        if serving.worker.name not in self._decodes:
            return
        prefill = timeline.prefill_attempt
        if serving.kind is not AttemptKind.DECODE_SIDE:
            self._balance.served_whole(serving.worker, timeline.cached_tokens or 0)
        elif prefill is not None:
            self.transferred(prefill.worker, serving.worker, timeline.prompt_tokens or 0)

    def transferred(self, prefill: WorkerRef, decode: WorkerRef, prompt_tokens: int) -> None:
        """Note an answered prompt whose KV the decode worker had to fetch."""
        self._balance.transferred(decode, prompt_tokens)
        self._unjudged.setdefault(decode.name, Counter())[prefill] += prompt_tokens

    # --- from engines -------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            with self._guard:
                await self._look()

    def states(self) -> Iterator[KvTransferState]:
        """The state of KV transfers to every decode worker."""
        now_s = self._clock()
        for name in sorted(self._decodes):
            proven_s = self._proofs.last_proven_s(name)
            yield KvTransferState(
                worker=name,
                recomputed_tokens=self._balance.recomputed_tokens(name),
                moved_bytes=self._moved_bytes.get(name, 0),
                proven_ago_s=None if proven_s is None else now_s - proven_s,
                failing=self._proofs.failing(name),
            )

    async def _begin(self, worker: Worker) -> None:
        # The start does not wait long: a missed first reading is made up for at the next one.
        with suppress(UpstreamError, TimeoutError):
            async with asyncio.timeout(BEGIN_WITHIN_S):
                decodes = worker.role is Role.DECODE
                await (self._look_at_decode if decodes else self._look_at_prefill)(worker)

    async def _look(self) -> None:
        decodes, now_s = self._up(Role.DECODE), self._clock()
        if now_s < self._look_anyway_s:
            decodes = [worker for worker in decodes if self._balance.is_due(worker.ref)]
        else:
            self._look_anyway_s = now_s + LOOK_ANYWAY_EVERY_S
        if not decodes:
            return
        await asyncio.gather(
            *map(self._look_at_decode, decodes), *map(self._look_at_prefill, self._up(Role.PREFILL))
        )

    async def _look_at_decode(self, worker: Worker) -> None:
        with suppress(UpstreamError):
            self._hold_against(worker, (await fetch_page(self._clients[worker.name])).kv)

    def _hold_against(self, worker: Worker, seen: KvCounters) -> None:
        self._moved_bytes[worker.name] = round(seen.moved_bytes or 0)
        moved, hits = seen.moved_tokens or 0.0, seen.hit_tokens or 0.0
        if seen.computed_tokens is None:
            # It has computed nothing yet, or does not report where prompts' KV came from.
            self._balance.begin(worker.ref, moved, hits)
            return
        judged = self._due.pop(worker.name, Counter())
        # Requests that ended since the last reading are judged at the next.
        self._due[worker.name] = self._unjudged.pop(worker.name, Counter())
        under_way = self._world.ledger.load(worker.ref).requests
        verdict = self._balance.counted(worker.ref, moved, hits, under_way)
        if verdict.recomputed_tokens:
            self._report_recomputed(worker, verdict.recomputed_tokens, judged)
            # The sums do not show which pair failed: each is tried again, one after the other.
            for turn, prefill in enumerate(judged, 1):
                self._proofs.fail(prefill, worker.ref, self._clock())
                self._open_circuit(prefill, worker.ref, turn * TO_BE_JUDGED_S)
        elif verdict.sound:
            for prefill, tokens in judged.items():
                # All missing tokens may belong to one pair.
                if verdict.missing_tokens <= TOLERATED_SHARE * tokens:
                    self._note_proof(prefill, worker.ref)

    def _report_recomputed(self, worker: Worker, tokens: int, judged: Iterable[WorkerRef]) -> None:
        now_s = self._clock()
        if now_s < self._report_after_s.get(worker.name, now_s):
            return  # the metric still counts
        self._report_after_s[worker.name] = now_s + REPORT_EVERY_S
        logger.warning(
            "%s computed %d prompt tokens again that %s had computed for it: their KV did not come. hint: %s",
            worker.name,
            tokens,
            " or ".join(sorted(prefill.name for prefill in judged)),
            CHECK_HINT,
        )

    def _note_proof(self, prefill: WorkerRef, decode: WorkerRef) -> None:
        self._world.pairs.proved(pair_ref(prefill, decode))
        if self._proofs.prove(prefill, decode, self._clock()):
            logger.info("%s transfers KV to %s again", prefill.name, decode.name)

    def _open_circuit(self, prefill: WorkerRef, decode: WorkerRef, at_least_s: float) -> None:
        """Open the pair's circuit: counters are conclusive."""
        if not (self._world.cluster.is_current(prefill) and self._world.cluster.is_current(decode)):
            return
        self._world.pairs.open(pair_ref(prefill, decode), self._clock(), at_least_s)

    async def _look_at_prefill(self, worker: Worker) -> None:
        with suppress(UpstreamError):
            late = (await fetch_page(self._clients[worker.name])).kv.read_after_release or 0.0
            # Counts before the first reading of an engine are of unknown age.
            ref, before = self._late_reads.get(worker.name, (None, 0.0))
            self._late_reads[worker.name] = (worker.ref, late)
            if ref == worker.ref and late > before:
                self._stop_transfers_from(worker)

    def _stop_transfers_from(self, prefill: Worker) -> None:
        """KV was read after its release: answers may be silently wrong, so the circuits of its pairs open."""
        logger.error(
            "KV of %s was fetched after its release: answers may be wrong. KV transfers from it stop. "
            "hint: raise gateway.kv_transfer.lease_s",
            prefill.name,
        )
        for decode in self._workers(Role.DECODE):
            self._open_circuit(prefill.ref, decode.ref, LONGEST_PAIR_OPEN_S)

    def _workers(self, role: Role) -> Sequence[Worker]:
        return [state.worker for state in self._world.cluster.snapshot() if state.worker.role is role]

    def _up(self, role: Role) -> Sequence[Worker]:
        states = self._world.cluster.snapshot()
        return [state.worker for state in states if state.worker.role is role and state.health is Health.UP]
