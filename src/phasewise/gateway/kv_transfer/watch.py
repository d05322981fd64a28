"""The canary of KV transfers, and the watch that runs it and the audit with the gateway."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from random import Random, SystemRandom

from phasewise.clients.engine_metrics import fetch_kv_counters
from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.clients.kv_trial import TrialAnswer, ask, growth_since, trial_prompt
from phasewise.core.errors import UpstreamError
from phasewise.core.kv_transfer import ASKS_TO_KEEP_KV, KvProof, KvTransferState, SplitRule, pair_ref
from phasewise.core.timeline import Timeline
from phasewise.core.worker import Role, Worker, WorkerRef
from phasewise.fleet.config import KvTransferConfig
from phasewise.gateway.guard import ErrorGuard
from phasewise.gateway.kv_transfer.audit import CHECK_HINT, KvTransferAudit
from phasewise.gateway.upstream.engines import Connect
from phasewise.scheduling import World
from phasewise.scheduling.breakers import BreakerTrial
from phasewise.scheduling.kv_proofs import KvTransferProofs
from phasewise.scheduling.world import Health

logger = logging.getLogger("phasewise.gateway")

# --- Tries KV transfers where no request has proved one, so that failures are known before users meet them.
#
# The times of a trial are learned like those of a request. The circuit of a pair that failed stays open until
# a trial succeeds. Canaries are not traffic: they have no timeline and no request metric.

LOOK_EVERY_S = 1.0
FIRST_SIZES_TOKENS = (96, 640)
"""The sizes of a pair's first trials: two sizes separate the cost per token from the fixed cost."""
LATER_SIZES_TOKENS = (160,)
OUTPUT_TOKENS = 4
_NOT_THE_PAIRS_FAULT = frozenset({*range(400, 500), 503})
"""The prompt is too long for the model, or the worker is overloaded."""


class KvNotTransferred(Exception):
    """Why a pair does not transfer KV."""


class Canary:
    """Tries one pair at a time, so that no worker ever has two canaries.

    `answered` is called for every prompt that a decode worker answered when it had to fetch its KV.
    """

    def __init__(
        self,
        world: World,
        clients: Mapping[str, HttpClient],
        proofs: KvTransferProofs,
        config: KvTransferConfig,
        *,
        answered: Callable[[WorkerRef, WorkerRef, int], None],
        look_every_s: float = LOOK_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
        chance: Random | None = None,
    ) -> None:
        self._world = world
        self._clients = clients
        self._proofs = proofs
        self._every_s = inf if config.canary_s is None else config.canary_s
        self._timeout_s = config.timeout_s
        self._answered = answered
        self._look_every_s = look_every_s
        self._clock = clock
        self._chance = chance or SystemRandom()
        self._guard = ErrorGuard("trying KV transfers")

    async def run(self) -> None:
        """Try the due pairs as long as the gateway runs."""
        while True:
            with self._guard:
                while pair := self._most_due():
                    await self._try(*pair)
                self._open_circuits_of_failing_pairs()
            await asyncio.sleep(self._look_every_s)

    def _most_due(self) -> tuple[Worker, Worker] | None:
        """Failing pairs come last: one that hangs must not delay the others."""
        return min(self._due(), key=lambda it: self._proofs.is_failing(it[0].ref, it[1].ref), default=None)

    def _due(self) -> Iterator[tuple[Worker, Worker]]:
        for prefill, decode in self._pairs_up():
            tried_s = self._proofs.last_tried_s(prefill.ref, decode.ref)
            if tried_s is None or self._clock() >= tried_s + self._every_s:
                yield prefill, decode

    def _pairs_up(self) -> Iterator[tuple[Worker, Worker]]:
        up = [it.worker for it in self._world.cluster.snapshot() if it.health is Health.UP]
        for prefill in (it for it in up if it.role is Role.PREFILL):
            for decode in (it for it in up if it.role is Role.DECODE and it.model == prefill.model):
                yield prefill, decode

    def _open_circuits_of_failing_pairs(self) -> None:
        # A request whose prompt is computed twice looks successful: it must not close the circuit.
        for prefill, decode in self._pairs_up():
            if self._proofs.is_failing(prefill.ref, decode.ref):
                self._world.pairs.open(pair_ref(prefill.ref, decode.ref), self._clock())

    async def _try(self, prefill: Worker, decode: Worker) -> None:
        is_new = not self._proofs.is_proven(prefill.ref, decode.ref)
        pair = pair_ref(prefill.ref, decode.ref)
        trial = self._trial(prefill, decode)
        try:
            proven = await self._prove(prefill, decode, FIRST_SIZES_TOKENS if is_new else LATER_SIZES_TOKENS)
        except KvNotTransferred as error:
            self._world.pairs.open(pair, self._clock())
            self._report_failure(prefill, decode, str(error))
            return
        except (UpstreamError, TimeoutError):
            # The worker is busy or went away: requests and health checks handle that.
            proven = False
        except BaseException:
            self._world.pairs.abandoned(pair, trial)
            raise
        if not proven:
            self._world.pairs.abandoned(pair, trial)
            self._proofs.put_off(prefill.ref, decode.ref, self._clock())
            return
        self._world.pairs.succeeded(pair, trial)
        if self._proofs.prove(prefill.ref, decode.ref, self._clock()):
            logger.info("%s transfers KV to %s again", prefill.name, decode.name)
        if is_new:
            await self._read_whole(decode)

    def _trial(self, prefill: Worker, decode: Worker) -> BreakerTrial | None:
        """A trial that may close the pair's circuit, unless it is open for a reason that canaries miss."""
        pair, now_s = pair_ref(prefill.ref, decode.ref), self._clock()
        may_close = self._proofs.is_failing(prefill.ref, decode.ref)
        if may_close or self._world.pairs.allowance(pair, now_s):
            return self._world.pairs.begin(pair, now_s)
        return None

    def _report_failure(self, prefill: Worker, decode: Worker, words: str) -> None:
        if self._proofs.fail(prefill.ref, decode.ref, self._clock()):
            message = "%s does not transfer KV to %s: %s. hint: %s"
            logger.warning(message, prefill.name, decode.name, words, CHECK_HINT)

    async def _prove(self, prefill: Worker, decode: Worker, sizes_tokens: Sequence[int]) -> bool:
        """Whether KV was transferred. An inconclusive size ends the trial."""
        proven = False
        for tokens in sizes_tokens:
            if not await self._kv_transfer(prefill, decode, tokens):
                break
            proven = True
        return proven

    async def _kv_transfer(self, prefill: Worker, decode: Worker, tokens: int) -> bool:
        """Transfer the KV of one prompt. Returns whether the decode engine's counters prove that it came.

        They prove nothing if other requests' prompts hide it, or if the engine does not count.
        """
        prompt, alone = trial_prompt(tokens, self._chance), self._is_idle(prefill)
        # Read before the prompt is computed: the KV is kept only for a time, so the fetch follows at once.
        before = await fetch_kv_counters(self._clients[decode.name])
        async with asyncio.timeout(self._timeout_s):
            kept = await ask(self._clients[prefill.name], prefill.model, prompt, 1, ASKS_TO_KEEP_KV)
        if kept.status in _NOT_THE_PAIRS_FAULT:
            return False
        if not kept.ok:
            raise KvNotTransferred(f"{prefill.name} answered HTTP {kept.status}")
        if not kept.params:
            raise KvNotTransferred(f"{prefill.name} keeps no KV for others: it has no connector")
        if alone and self._is_idle(prefill):
            self._learn_read(prefill, kept)
        alone = self._is_idle(decode)
        answer = await self._fetch(decode, prompt, kept)
        if answer is None or not kept.prompt_tokens:
            return False
        self._answered(prefill.ref, decode.ref, kept.prompt_tokens)
        grown = await growth_since(self._clients[decode.name], before, kept.prompt_tokens)
        proof = grown.proof_of(kept.prompt_tokens)
        if proof is KvProof.NOT_MOVED:
            came = f"{grown.moved_tokens or 0:g} of {kept.prompt_tokens} tokens came"
            raise KvNotTransferred(f"{decode.name} answered, but computed the prompt itself ({came})")
        if proof is not KvProof.HIDDEN:
            self._learn_fetch(decode, answer, alone=alone and self._is_idle(decode))
        return proof is KvProof.MOVED

    async def _fetch(self, decode: Worker, prompt: str, kept: TrialAnswer) -> TrialAnswer | None:
        """The decode worker's answer; None if it failed for a reason that is not the pair's fault."""
        was_idle = self._is_idle(decode)
        try:
            async with asyncio.timeout(self._timeout_s):
                client = self._clients[decode.name]
                answer = await ask(client, decode.model, prompt, OUTPUT_TOKENS, kept.params)
        except TimeoutError:
            if was_idle:
                raise KvNotTransferred(f"{decode.name} had no KV after {self._timeout_s:g} s") from None
            return None  # it may have waited for a slot; requests have their own time limit
        if answer.status in _NOT_THE_PAIRS_FAULT:
            return None
        if not answer.ok:
            raise KvNotTransferred(f"{decode.name} answered HTTP {answer.status} to the request with the KV")
        return answer

    async def _read_whole(self, decode: Worker) -> None:
        """Learn how fast the decode worker computes prompts itself; this proves nothing about the pair."""
        with suppress(UpstreamError, TimeoutError):
            for tokens in FIRST_SIZES_TOKENS:
                alone, prompt = self._is_idle(decode), trial_prompt(tokens, self._chance)
                async with asyncio.timeout(self._timeout_s):
                    answer = await ask(self._clients[decode.name], decode.model, prompt, 1)
                if answer.ok and alone and self._is_idle(decode):
                    self._learn_read(decode, answer)

    # --- learning -----------------------------------------------------------------------------------------

    def _is_idle(self, worker: Worker) -> bool:
        """Whether no request of this gateway runs there: only then are the times those of one prompt."""
        return self._world.ledger.load(worker.ref).requests == 0

    def _learn_read(self, worker: Worker, answer: TrialAnswer) -> None:
        if answer.prompt_tokens is not None and answer.prefill_s is not None:
            paces = self._world.paces
            paces.learn_read(worker.ref, answer.prompt_tokens, answer.cached_tokens, answer.prefill_s)

    def _learn_fetch(self, worker: Worker, answer: TrialAnswer, *, alone: bool) -> None:
        # Beside streams a fetch waits as long as a request's would, but a gap depends on the streams.
        if answer.prompt_tokens is not None and answer.queue_s is not None:
            self._world.paces.learn_fetch(worker.ref, answer.prompt_tokens, answer.queue_s)
        if alone and answer.gap_s is not None:
            self._world.paces.learn_step(worker.ref, 1, answer.gap_s)


class KvTransferWatch:
    """A TimelineSink that runs audit and canary.

    It does nothing in a fleet without prefill and decode workers. It has connections of its own: when
    requests are aborted on a silent worker, canaries are not.
    """

    def __init__(self, world: World, connect: Connect, config: KvTransferConfig) -> None:
        self._world = world
        self._connect = connect
        self._config = config
        self._clients: dict[str, HttpClient] = {}
        self._audit: KvTransferAudit | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def record(self, timeline: Timeline) -> None:
        """Note a request that has ended."""
        if self._audit is not None:
            self._audit.record(timeline)

    def states(self) -> Sequence[KvTransferState]:
        """The state of KV transfers to every decode worker."""
        return () if self._audit is None else tuple(self._audit.states())

    async def start(self) -> None:
        """Read the counters, then watch in the background. The workers' health is known by now."""
        workers, config = [state.worker for state in self._world.cluster.snapshot()], self._config
        if not {Role.PREFILL, Role.DECODE} <= {worker.role for worker in workers}:
            return
        # Longer than a canary may take; it has its own timeout.
        timeout_s = 2 * config.timeout_s
        bounds = Timeouts(connect_s=2.0, head_s=timeout_s, idle_s=timeout_s)
        self._clients = {
            worker.name: self._connect(worker, bounds) for worker in workers if worker.role is not Role.MIXED
        }
        proofs = KvTransferProofs()
        self._audit = audit = KvTransferAudit(self._world, self._clients, proofs)
        await audit.start()
        self._tasks.append(asyncio.create_task(audit.run()))
        # With KV transfers off there is neither load nor a warning from canaries.
        if config.canary_s is not None and config.when is not SplitRule.NEVER:
            canary = Canary(self._world, self._clients, proofs, config, answered=audit.transferred)
            self._tasks.append(asyncio.create_task(canary.run()))

    async def stop(self) -> None:
        """Stop watching."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks, self._audit = [], None
        for client in self._clients.values():
            client.close()
