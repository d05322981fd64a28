"""Tries hand-overs where no request has proved one, so that failures are known before users meet them.

What a trial took is learned like that of a request. A pair that was seen not to hand over rests until a trial
proves the contrary. A canary is no traffic: it has no timeline and stands in no request metric.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from random import Random, SystemRandom

from phasewise.adapters.http_client import HttpClient
from phasewise.adapters.kv_trial import TrialAnswer, ask, growth_since, trial_prompt
from phasewise.adapters.vllm_kv_counters import fetch_kv_counters
from phasewise.config import HandOverConfig
from phasewise.errors import UpstreamError
from phasewise.gateway.guard import Guard
from phasewise.gateway.hand_over_audit import CHECK_HINT
from phasewise.model.hand_over import ASKS_TO_KEEP_KV, pair_ref
from phasewise.model.kv_proof import KvProof
from phasewise.model.worker import Role, Worker, WorkerRef
from phasewise.request_flow import World
from phasewise.state.breakers import Trial
from phasewise.state.cluster_view import Health
from phasewise.state.hand_over_proofs import HandOverProofs

logger = logging.getLogger("phasewise.gateway")

LOOK_EVERY_S = 1.0
FIRST_SIZES_TOKENS = (96, 640)
"""What a pair is first tried with: two sizes tell what a token costs and what does not depend on it."""
LATER_SIZES_TOKENS = (160,)
OUTPUT_TOKENS = 4
_NOT_THE_PAIRS_FAULT = frozenset({*range(400, 500), 503})
"""A prompt that is too long for the model, or a worker that takes no more for now."""


class NotHandedOver(Exception):
    """Why a pair does not hand over."""


class Canary:
    """Tries one pair at a time, from `run` on, so that no worker ever has two canaries.

    `answered` is told of every prompt that a decode worker answered when it was to fetch its KV.
    """

    def __init__(
        self,
        world: World,
        clients: Mapping[str, HttpClient],
        proofs: HandOverProofs,
        config: HandOverConfig,
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
        self._guard = Guard("trying hand-overs")

    async def run(self) -> None:
        """Try whatever is due as long as the gateway runs."""
        while True:
            with self._guard:
                while pair := self._most_due():
                    await self._try(*pair)
                self._let_failing_pairs_rest()
            await asyncio.sleep(self._look_every_s)

    def _most_due(self) -> tuple[Worker, Worker] | None:
        """Pairs that are not known to fail go first: one that hangs must not hold up all the others."""
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

    def _let_failing_pairs_rest(self) -> None:
        # A request whose prompt is computed twice looks well: it must not be what ends the rest.
        for prefill, decode in self._pairs_up():
            if self._proofs.is_failing(prefill.ref, decode.ref):
                self._world.pairs.open(pair_ref(prefill.ref, decode.ref), self._clock())

    async def _try(self, prefill: Worker, decode: Worker) -> None:
        is_new = not self._proofs.is_proven(prefill.ref, decode.ref)
        pair = pair_ref(prefill.ref, decode.ref)
        trial = self._trial(prefill, decode)
        try:
            proven = await self._prove(prefill, decode, FIRST_SIZES_TOKENS if is_new else LATER_SIZES_TOKENS)
        except NotHandedOver as error:
            self._world.pairs.open(pair, self._clock())
            self._tell_failure(prefill, decode, str(error))
            return
        except (UpstreamError, TimeoutError):
            # A worker that is busy or goes away: requests and health checks know better what to make of it.
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
            logger.info("%s hands KV over to %s again", prefill.name, decode.name)
        if is_new:
            await self._read_whole(decode)

    def _trial(self, prefill: Worker, decode: Worker) -> Trial | None:
        """A trial that ends the pair's rest, unless it rests for what canaries cannot see."""
        pair, now_s = pair_ref(prefill.ref, decode.ref), self._clock()
        may_end_it = self._proofs.is_failing(prefill.ref, decode.ref)
        if may_end_it or self._world.pairs.allowance(pair, now_s):
            return self._world.pairs.begin(pair, now_s)
        return None

    def _tell_failure(self, prefill: Worker, decode: Worker, words: str) -> None:
        if self._proofs.fail(prefill.ref, decode.ref, self._clock()):
            message = "%s does not hand KV over to %s: %s. hint: %s"
            logger.warning(message, prefill.name, decode.name, words, CHECK_HINT)

    async def _prove(self, prefill: Worker, decode: Worker, sizes_tokens: Sequence[int]) -> bool:
        """Whether KV was seen to move; the first size that tells nothing is the last."""
        proven = False
        for tokens in sizes_tokens:
            if not await self._hand_over(prefill, decode, tokens):
                break
            proven = True
        return proven

    async def _hand_over(self, prefill: Worker, decode: Worker, tokens: int) -> bool:
        """One prompt from one worker to the other; whether the decode engine's counters prove that it came.

        They tell nothing where others' prompts hide it, and where the engine does not count.
        """
        prompt, alone = trial_prompt(tokens, self._chance), self._is_idle(prefill)
        # Before the prompt is computed: nothing may come between that and the fetching of KV that is kept
        # for a time only.
        before = await fetch_kv_counters(self._clients[decode.name])
        async with asyncio.timeout(self._timeout_s):
            kept = await ask(self._clients[prefill.name], prefill.model, prompt, 1, ASKS_TO_KEEP_KV)
        if kept.status in _NOT_THE_PAIRS_FAULT:
            return False
        if not kept.ok:
            raise NotHandedOver(f"{prefill.name} answered HTTP {kept.status}")
        if not kept.params:
            raise NotHandedOver(f"{prefill.name} keeps no KV for others: it has no connector")
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
            raise NotHandedOver(f"{decode.name} answered, but computed the prompt itself ({came})")
        if proof is not KvProof.HIDDEN:
            self._learn_fetch(decode, answer, alone=alone and self._is_idle(decode))
        return proof is KvProof.MOVED

    async def _fetch(self, decode: Worker, prompt: str, kept: TrialAnswer) -> TrialAnswer | None:
        """The decode worker's answer; None where there is none for a reason that is not the pair's."""
        was_idle = self._is_idle(decode)
        try:
            async with asyncio.timeout(self._timeout_s):
                client = self._clients[decode.name]
                answer = await ask(client, decode.model, prompt, OUTPUT_TOKENS, kept.params)
        except TimeoutError:
            if was_idle:
                raise NotHandedOver(f"{decode.name} had not got it after {self._timeout_s:g} s") from None
            return None  # it may have waited for a slot, and requests have a time limit of their own
        if answer.status in _NOT_THE_PAIRS_FAULT:
            return None
        if not answer.ok:
            raise NotHandedOver(f"{decode.name} answered HTTP {answer.status} when it was to fetch it")
        return answer

    async def _read_whole(self, decode: Worker) -> None:
        """Learn what the decode worker takes to compute prompts itself; it proves nothing."""
        with suppress(UpstreamError, TimeoutError):
            for tokens in FIRST_SIZES_TOKENS:
                alone, prompt = self._is_idle(decode), trial_prompt(tokens, self._chance)
                async with asyncio.timeout(self._timeout_s):
                    answer = await ask(self._clients[decode.name], decode.model, prompt, 1)
                if answer.ok and alone and self._is_idle(decode):
                    self._learn_read(decode, answer)

    # --- learning -----------------------------------------------------------------------------------------

    def _is_idle(self, worker: Worker) -> bool:
        """Whether nothing of this gateway's runs there: only then do times tell of one prompt."""
        return self._world.ledger.load(worker.ref).requests == 0

    def _learn_read(self, worker: Worker, answer: TrialAnswer) -> None:
        if answer.prompt_tokens is not None and answer.prefill_s is not None:
            paces = self._world.paces
            paces.learn_read(worker.ref, answer.prompt_tokens, answer.cached_tokens, answer.prefill_s)

    def _learn_fetch(self, worker: Worker, answer: TrialAnswer, *, alone: bool) -> None:
        # Beside streams it waits as long as a request would have; only a gap tells of the streams beside it.
        if answer.prompt_tokens is not None and answer.queue_s is not None:
            self._world.paces.learn_fetch(worker.ref, answer.prompt_tokens, answer.queue_s)
        if alone and answer.gap_s is not None:
            self._world.paces.learn_step(worker.ref, 1, answer.gap_s)
