"""Tries hand-overs where no request has proved one, so that failures are known before users meet them.

What a trial took is learned like that of a request, its failures feed the pair's breaker. A canary is no
traffic: it has no timeline and stands in no request metric.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from random import Random, SystemRandom

from phasewise.adapters.http_client import HttpClient
from phasewise.adapters.kv_trial import PLEASE_KEEP, TrialAnswer, ask, trial_prompt
from phasewise.adapters.vllm_kv_counters import KvCounters, fetch_kv_counters
from phasewise.errors import UpstreamError
from phasewise.gateway.guard import Guard
from phasewise.gateway.hand_over_audit import CHECK_HINT
from phasewise.model.hand_over import pair_ref
from phasewise.model.worker import Role, Worker
from phasewise.request_flow import World
from phasewise.state.cluster_view import Health
from phasewise.state.hand_over_proofs import HandOverProofs

logger = logging.getLogger("phasewise.gateway")

LOOK_EVERY_S = 1.0
FIRST_SIZES_TOKENS = (96, 640)
"""What a pair is first tried with: two sizes tell what a token costs and what does not depend on it."""
LATER_SIZES_TOKENS = (160,)
OUTPUT_TOKENS = 4
COUNTED_WITHIN_S = 1.0
_BETWEEN_COUNTS_S = 0.2


class NotHandedOver(Exception):
    """Why a trial proved nothing."""


class Canary:
    """Tries one pair at a time, from `run` on, so that no worker ever has two canaries."""

    def __init__(
        self,
        world: World,
        clients: Mapping[str, HttpClient],
        proofs: HandOverProofs,
        every_s: float,
        *,
        timeout_s: float,
        look_every_s: float = LOOK_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
        chance: Random | None = None,
    ) -> None:
        self._world = world
        self._clients = clients
        self._proofs = proofs
        self._every_s = every_s
        self._timeout_s = timeout_s
        self._look_every_s = look_every_s
        self._clock = clock
        self._chance = chance or SystemRandom()
        self._guard = Guard("trying hand-overs")

    async def run(self) -> None:
        """Try whatever is due as long as the gateway runs."""
        while True:
            with self._guard:
                for prefill, decode in list(self._due()):
                    await self._try(prefill, decode)
            await asyncio.sleep(self._look_every_s)

    def _due(self) -> Iterator[tuple[Worker, Worker]]:
        up = [it.worker for it in self._world.cluster.snapshot() if it.health is Health.UP]
        for prefill in (it for it in up if it.role is Role.PREFILL):
            for decode in (it for it in up if it.role is Role.DECODE and it.model == prefill.model):
                tried_s = self._proofs.last_tried_s(prefill.ref, decode.ref)
                if tried_s is None or self._clock() >= tried_s + self._every_s:
                    yield prefill, decode

    async def _try(self, prefill: Worker, decode: Worker) -> None:
        is_new = not self._proofs.is_proven(prefill.ref, decode.ref)
        pair = pair_ref(prefill.ref, decode.ref)
        trial = self._world.pairs.begin(pair, self._clock())
        try:
            for tokens in FIRST_SIZES_TOKENS if is_new else LATER_SIZES_TOKENS:
                await self._hand_over(prefill, decode, tokens)
        except NotHandedOver as error:
            self._world.pairs.failed(pair, trial, self._clock())
            self._tell_failure(prefill, decode, str(error))
        except (UpstreamError, TimeoutError):
            # A worker that is busy or goes away: requests and health checks know better what to make of it.
            self._world.pairs.abandoned(pair, trial)
            self._proofs.put_off(prefill.ref, decode.ref, self._clock())
        except BaseException:
            self._world.pairs.abandoned(pair, trial)
            raise
        else:
            self._world.pairs.succeeded(pair, trial)
            if self._proofs.prove(prefill.ref, decode.ref, self._clock()):
                logger.info("%s hands KV over to %s again", prefill.name, decode.name)
            if is_new:
                await self._read_whole(decode)

    def _tell_failure(self, prefill: Worker, decode: Worker, words: str) -> None:
        if self._proofs.fail(prefill.ref, decode.ref, self._clock()):
            message = "%s does not hand KV over to %s: %s. hint: %s"
            logger.warning(message, prefill.name, decode.name, words, CHECK_HINT)

    async def _hand_over(self, prefill: Worker, decode: Worker, tokens: int) -> None:
        """One prompt from one worker to the other, between two looks at the decode engine's counters."""
        prompt, alone = trial_prompt(tokens, self._chance), self._is_idle(prefill)
        # Before the prompt is computed: nothing may come between that and the fetching of KV that is kept
        # for a time only.
        before = await fetch_kv_counters(self._clients[decode.name])
        async with asyncio.timeout(self._timeout_s):
            kept = await ask(self._clients[prefill.name], prefill.model, prompt, 1, PLEASE_KEEP)
        if not kept.ok:
            raise NotHandedOver(f"{prefill.name} answered HTTP {kept.status}")
        if not kept.params:
            raise NotHandedOver(f"{prefill.name} keeps no KV for others: it has no connector")
        if alone and self._is_idle(prefill):
            self._learn_read(prefill, kept)
        alone = self._is_idle(decode)
        answer = await self._fetch(decode, prompt, kept)
        await self._prove_moved(decode, before, kept.prompt_tokens or 0)
        if alone and self._is_idle(decode):
            self._learn_fetch(decode, answer)

    async def _fetch(self, decode: Worker, prompt: str, kept: TrialAnswer) -> TrialAnswer:
        """The decode worker's answer. One that takes the request and gives none has not got the KV."""
        try:
            async with asyncio.timeout(self._timeout_s):
                client = self._clients[decode.name]
                answer = await ask(client, decode.model, prompt, OUTPUT_TOKENS, kept.params)
        except TimeoutError:
            raise NotHandedOver(f"{decode.name} had not got it after {self._timeout_s:g} s") from None
        if not answer.ok:
            raise NotHandedOver(f"{decode.name} answered HTTP {answer.status} when it was to fetch it")
        return answer

    async def _prove_moved(self, decode: Worker, before: KvCounters, prompt_tokens: int) -> None:
        """Raise unless the engine counts the prompt's KV as fetched, at latest a moment after its answer."""
        if before.computed_tokens is None:
            return  # it tells nobody where prompts' KV came from
        give_up_s = self._clock() + COUNTED_WITHIN_S
        while True:
            after = await fetch_kv_counters(self._clients[decode.name])
            moved = (after.moved_tokens or 0.0) - (before.moved_tokens or 0.0)
            if moved >= prompt_tokens > 0:
                return
            if self._clock() >= give_up_s:
                raise NotHandedOver(
                    f"{decode.name} answered, but computed the prompt itself ({moved:g} of {prompt_tokens} "
                    "tokens came)"
                )
            await asyncio.sleep(_BETWEEN_COUNTS_S)

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

    def _learn_fetch(self, worker: Worker, answer: TrialAnswer) -> None:
        if answer.prompt_tokens is not None and answer.queue_s is not None:
            self._world.paces.learn_fetch(worker.ref, answer.prompt_tokens, answer.queue_s)
        if answer.gap_s is not None:
            self._world.paces.learn_step(worker.ref, 1, answer.gap_s)
