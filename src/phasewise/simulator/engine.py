"""Continuous batching without a model: which request gets which tokens in which step, and how long it takes.

Pure: time is passed in, and a step's effects have the time of its end. Drivers (a server in real time, a
simulator in virtual time) decide when to step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from phasewise.core.steps import EngineStep, KvTransfer
from phasewise.costs.fit.step import StepSeconds
from phasewise.simulator.blocks import BlockPool
from phasewise.simulator.kv import (
    Fetch,
    FetchState,
    KvFetcher,
    KvKeeper,
    KvLink,
    OnLoadFailure,
    RemoteKv,
    SideChannels,
)
from phasewise.simulator.requests import (
    Batch,
    EmittedToken,
    EngineShape,
    Sequence,
    StepReport,
    VirtualRequest,
    account_of,
    work_of,
)
from phasewise.simulator.tokens import END_ID, ContextHash

__all__ = ["EmittedToken", "EngineShape", "StepReport", "VirtualEngine", "VirtualRequest"]

SPOILT_ID = 2**64 - 1
"""Added to a context whose KV is not that of its tokens: it changes every word after it."""


@dataclass(slots=True)
class _LookUps:
    """Lookups in the prefix cache and in other engines since the last report, in tokens."""

    queried: int = 0
    hit: int = 0
    fetched: int = 0


class VirtualEngine:
    """The scheduler and KV cache of one engine, with one driver.

    With a `kv_link` it transfers KV; its driver then calls `settle` before each step and at `next_event_s`,
    so that transfers end.
    """

    def __init__(self, shape: EngineShape, cost: StepSeconds, kv_link: KvLink | None = None) -> None:
        self.shape = shape
        self._cost = cost
        self._pool = BlockPool(shape.total_blocks)
        self._waiting: deque[Sequence] = deque()
        self._running: dict[str, Sequence] = {}
        self._present: set[str] = set()
        self._next_seq = 0
        self._look_ups = _LookUps()
        self._transfers_kv = kv_link is not None
        # Without a link it has channels of its own and finds no other engine.
        self._kv_link = kv_link or KvLink("", ("", 0), SideChannels())
        self._keeper = KvKeeper(self._kv_link, self._pool)
        self._fetcher = KvFetcher(self._kv_link)
        self._fetching: dict[str, tuple[Sequence, Fetch]] = {}
        self._landed: dict[str, Sequence] = {}
        self._transfers: list[KvTransfer] = []

    @property
    def has_work(self) -> bool:
        """Whether there is something to step for; KV in transfer is not."""
        return bool(self._running or self._waiting or self._landed)

    @property
    def running(self) -> int:
        """Requests that hold blocks."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that were not scheduled yet, or were preempted."""
        return len(self._waiting) + self.deferred

    @property
    def deferred(self) -> int:
        """Waiting requests whose KV is in transfer, or has arrived but found no free slot yet."""
        return len(self._fetching) + len(self._landed)

    @property
    def kept_requests(self) -> int:
        """Requests that have ended and whose KV is kept for other engines."""
        return self._keeper.kept_requests

    @property
    def next_event_s(self) -> float:
        """When a transfer or a lease may end next, whether or not the engine steps."""
        fetches_s = min((fetch.ends_s for _, fetch in self._fetching.values()), default=inf)
        return min(fetches_s, self._keeper.next_expiry_s)

    @property
    def kv_usage(self) -> float:
        """The share of KV blocks in use."""
        return self._pool.usage

    def add(self, request: VirtualRequest, now: float) -> None:
        """Queue a request; the next step considers it."""
        if not 0 < len(request.prompt_ids) < self.shape.max_model_len or request.max_tokens < 1:
            raise ValueError("a prompt must leave room for at least one token")
        if request.request_id in self._present:
            raise ValueError(f"request {request.request_id} is already in the engine")
        if not self._transfers_kv:
            request = replace(request, keep_kv=False, remote_kv=None)
        ids = list(request.prompt_ids)
        context = ContextHash([*ids, request.choice] if request.choice else ids)
        sequence = Sequence(request, ids, context, [], queued_s=now)
        sequence.hash_full_blocks(self.shape.block_size)
        if request.remote_kv is not None:
            sequence.remote_kv = request.remote_kv
            self._fetcher.claim(request.remote_kv)
        self._waiting.append(sequence)
        self._present.add(request.request_id)

    def abort(self, request_id: str) -> bool:
        """End a request between two steps; False if it is not in the engine."""
        if request_id not in self._present:
            return False
        self._present.remove(request_id)
        sequence = self._running.pop(request_id, None) or self._landed.pop(request_id, None)
        if sequence is None and request_id in self._fetching:
            sequence, _ = self._fetching.pop(request_id)
        if sequence is None:
            sequence = next(w for w in self._waiting if w.request.request_id == request_id)
            self._waiting.remove(sequence)
        self._pool.release(sequence.blocks)
        if sequence.remote_kv is not None:
            self._fetcher.cancel(sequence.remote_kv)
        return True

    def close(self, now: float) -> None:
        """Shut down: other engines no longer find this one, and the leases it held run out."""
        self._kv_link.channels.close(self._kv_link.address)
        for sequence in (*self._waiting, *(sequence for sequence, _ in self._fetching.values())):
            if sequence.remote_kv is not None:
                self._fetcher.unclaim(sequence.remote_kv, now)

    def when_kept_changes(self, act: Callable[[], None]) -> None:
        """Call `act` whenever other engines change what is kept: blocks may be free, or an event due."""
        self._keeper.on_change = act

    def hang(self, hung: bool) -> None:
        """Stop answering other engines, or start again."""
        self._keeper.hung = hung

    def settle(self, now: float) -> tuple[str, ...]:
        """End the leases and transfers that are due; returns the requests that failed without their KV."""
        self._keeper.expire(now)
        failed: list[str] = []
        for request_id, (sequence, fetch) in tuple(self._fetching.items()):
            state = self._fetcher.look(fetch, now)
            if state is FetchState.UNDER_WAY:
                continue
            del self._fetching[request_id]
            sequence.remote_kv = None
            if state is not FetchState.FAILED:
                self._transfers.append(KvTransfer(fetch.transfer_s, fetch.kv_bytes))
                self._land(sequence, spoilt=state is FetchState.SPOILT)
                continue
            self._fetcher.unclaim(fetch.remote, now)
            if not self._go_on_without(sequence):
                failed.append(request_id)
        return tuple(failed)

    def step(self, now: float) -> StepReport | None:
        """Do the step that starts now; None when there is nothing to do, or nothing can be done yet."""
        if not self.has_work:
            return None
        batch = self._schedule(now)
        if not batch.chunks:
            return None  # KV is in transfer, or KV that is kept for other engines takes all blocks
        work = work_of(batch)
        decodes = sum(1 for sequence in batch.chunks if sequence.decoding)
        duration_s = self._cost(work)
        emitted = self._advance(batch, now + duration_s)
        begun = [sequence for sequence in batch.chunks if sequence.first_token_s == now + duration_s]
        step = EngineStep(
            seq=self._next_seq,
            ended_unix_s=now + duration_s,
            running=self.running,
            waiting=self.waiting,
            kv_usage=self.kv_usage,
            prompt_tokens=work.prompt_tokens,
            prompt_requests=len(batch.chunks) - decodes,
            decode_tokens=work.decode_tokens,
            decode_requests=decodes,
            preempted=batch.preempted,
            first_tokens=len(begun),
            finished=tuple(token.finished for token in emitted if token.finished is not None),
            transfers=tuple(self._transfers),
        )
        self._next_seq += 1
        self._transfers.clear()
        look_ups, self._look_ups = self._look_ups, _LookUps()
        return StepReport(
            step,
            duration_s,
            tuple(emitted),
            work,
            queried_tokens=look_ups.queried,
            hit_tokens=look_ups.hit,
            begun_prompt_tokens=sum(len(sequence.request.prompt_ids) for sequence in begun),
            begun_cached_tokens=sum(sequence.cached_tokens or 0 for sequence in begun),
            begun_fetched_tokens=sum(sequence.fetched_tokens for sequence in begun),
            fetched_tokens=look_ups.fetched,
            deferred=self.deferred,
        )

    # --- what a step carries ------------------------------------------------------------------------------

    def _schedule(self, now: float) -> Batch:
        batch = Batch(self.shape.max_num_batched_tokens)
        self._admit_landed(now)
        # Decodes first: a stream never waits for a new prompt.
        for sequence in sorted(self._running.values(), key=lambda running: not running.decoding):
            if sequence.request.request_id not in self._running:
                continue  # just preempted, for an older sequence
            tokens = min(sequence.remaining, batch.budget_tokens)
            if tokens and self._make_room(sequence, tokens, batch):
                batch.put(sequence, tokens)
        if not batch.preempted:
            self._admit(batch, now)
        return batch

    def _make_room(self, sequence: Sequence, tokens: int, batch: Batch) -> bool:
        """Grow a running sequence by preempting the youngest; False when it was the youngest itself."""
        while not self._grow(sequence, tokens):
            victim = next(reversed(self._running.values()))
            self._preempt(victim, batch)
            if victim is sequence:
                return False
        return True

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        fresh = self._blocks_for(sequence.computed_tokens + tokens) - len(sequence.blocks)
        if fresh > self._pool.free_blocks:
            return False
        sequence.blocks += self._pool.take(fresh)
        self._publish(sequence, sequence.computed_tokens + tokens)
        return True

    def _preempt(self, victim: Sequence, batch: Batch) -> None:
        del self._running[victim.request.request_id]
        if batch.drop(victim):
            # What it would have computed in this step will not be in the cache.
            for block in victim.blocks[victim.computed_tokens // self.shape.block_size :]:
                self._pool.forget(block)
        self._pool.release(victim.blocks)
        victim.blocks = []
        victim.computed_tokens = 0
        victim.preemptions += 1
        batch.preempted += 1
        self._waiting.appendleft(victim)

    def _admit(self, batch: Batch, now: float) -> None:
        """Admit waiting requests, oldest first, while there are token budget, slots and blocks."""
        block_size = self.shape.block_size
        while self._waiting and batch.budget_tokens and len(self._running) < self.shape.max_num_seqs:
            sequence = self._waiting[0]
            # The last token is always computed, cached or not: its output is the answer's first token.
            cached = self._pool.cached_prefix(sequence.hashes[: (len(sequence.ids) - 1) // block_size])
            cached_tokens = len(cached) * block_size
            remote = sequence.remote_kv
            wanted_tokens = len(sequence.ids) - cached_tokens
            tokens = min(wanted_tokens, batch.budget_tokens) if remote is None else wanted_tokens - 1
            fresh = self._blocks_for(cached_tokens + tokens) - len(cached)
            if not self._pool.can_take(cached, fresh):
                return
            self._waiting.popleft()
            self._pool.hold(cached)
            sequence.blocks = cached + self._pool.take(fresh)
            self._note_look_up(sequence, cached_tokens)
            if remote is not None:
                self._begin_fetch(sequence, remote, cached_tokens, now)
                continue
            self._take_slot(sequence, now)
            sequence.computed_tokens = cached_tokens
            self._publish(sequence, cached_tokens + tokens)
            batch.put(sequence, tokens)

    def _take_slot(self, sequence: Sequence, now: float) -> None:
        self._running[sequence.request.request_id] = sequence
        if sequence.scheduled_s is None:
            # A late driver may start a step before the request arrived.
            sequence.scheduled_s = max(now, sequence.queued_s)

    def _note_look_up(self, sequence: Sequence, cached_tokens: int) -> None:
        if sequence.cached_tokens is None:
            sequence.cached_tokens = cached_tokens
            self._look_ups.queried += len(sequence.ids)
            self._look_ups.hit += cached_tokens

    # --- KV from elsewhere --------------------------------------------------------------------------------

    def _begin_fetch(self, sequence: Sequence, remote: RemoteKv, cached_tokens: int, now: float) -> None:
        """Fetch what is not cached here; the sequence holds the blocks that it will arrive in."""
        prompt_ids, block_size = sequence.request.prompt_ids, self.shape.block_size
        blocks = self._blocks_for(len(prompt_ids)) - cached_tokens // block_size
        fetch = self._fetcher.begin(remote, prompt_ids, blocks, block_size, now)
        sequence.fetched_tokens = len(prompt_ids) - cached_tokens
        self._look_ups.fetched += sequence.fetched_tokens
        self._fetching[sequence.request.request_id] = (sequence, fetch)

    def _land(self, sequence: Sequence, *, spoilt: bool) -> None:
        """Its KV has arrived: except for the last token's step, the prompt is done."""
        self._publish(sequence, len(sequence.ids) - 1)
        sequence.computed_tokens = len(sequence.ids) - 1
        if spoilt:
            sequence.context.extend((SPOILT_ID,))
        self._landed[sequence.request.request_id] = sequence

    def _go_on_without(self, sequence: Sequence) -> bool:
        """Compute silently what did not arrive, if that is the policy; otherwise the request has failed."""
        self._pool.release(sequence.blocks)
        sequence.blocks, sequence.cached_tokens, sequence.fetched_tokens = [], None, 0
        if self._kv_link.connector.on_failure is OnLoadFailure.RECOMPUTE:
            self._waiting.appendleft(sequence)
            return True
        self._present.remove(sequence.request.request_id)
        return False

    def _admit_landed(self, now: float) -> None:
        for request_id in tuple(self._landed)[: max(0, self.shape.max_num_seqs - len(self._running))]:
            self._take_slot(self._landed.pop(request_id), now)

    def _publish(self, sequence: Sequence, upto_tokens: int) -> None:
        if not self.shape.prefix_cache:
            return
        block_size = self.shape.block_size
        for index in range(sequence.computed_tokens // block_size, upto_tokens // block_size):
            self._pool.publish(sequence.blocks[index], sequence.hashes[index])

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.shape.block_size)

    # --- what comes of it ---------------------------------------------------------------------------------

    def _advance(self, batch: Batch, ended_s: float) -> list[EmittedToken]:
        emitted: list[EmittedToken] = []
        for sequence, tokens in batch.chunks.items():
            sequence.computed_tokens += tokens
            if sequence.remaining:
                continue
            token = self._emit(sequence, ended_s)
            emitted.append(token)
            if token.finished is not None:
                del self._running[token.request_id]
                self._present.remove(token.request_id)
                self._leave(sequence, ended_s)
        return emitted

    def _leave(self, sequence: Sequence, ended_s: float) -> None:
        request = sequence.request
        if request.keep_kv:
            self._keeper.keep(request.request_id, request.prompt_ids, sequence.blocks, ended_s)
        else:
            self._pool.release(sequence.blocks)

    def _emit(self, sequence: Sequence, ended_s: float) -> EmittedToken:
        request = sequence.request
        may_end = not request.ignore_eos and sequence.outputs >= request.min_tokens
        ends = may_end and sequence.context.ends_here(self.shape.mean_output_tokens)
        token_id = END_ID if ends else sequence.context.next_word()
        before_s = sequence.last_token_s if sequence.outputs else request.arrived_s
        sequence.ids.append(token_id)
        sequence.context.extend((token_id,))
        sequence.hash_full_blocks(self.shape.block_size)
        sequence.outputs += 1
        sequence.last_token_s = ended_s
        if sequence.outputs == 1:
            sequence.first_token_s = ended_s
        full = sequence.outputs >= request.max_tokens or len(sequence.ids) >= self.shape.max_model_len
        reason = "stop" if ends else "length" if full else None
        finished = None if reason is None else account_of(sequence, reason, ended_s)
        kept = tuple(sequence.blocks) if finished is not None and request.keep_kv else None
        gap_s = ended_s - before_s
        return EmittedToken(request.request_id, token_id, sequence.outputs - 1, gap_s, finished, kept)

    def check_invariants(self) -> None:
        """Raise if blocks or requests are inconsistent."""
        fetching = tuple(sequence for sequence, _ in self._fetching.values())
        sequences = (*self._running.values(), *self._waiting, *self._landed.values(), *fetching)
        held = [block for sequence in sequences for block in sequence.blocks]
        self._pool.check_invariants([*held, *self._keeper.held_blocks])
        if sorted(sequence.request.request_id for sequence in sequences) != sorted(self._present):
            raise AssertionError("a request is in two states, or in none")
        if any(sequence.blocks or sequence.computed_tokens for sequence in self._waiting):
            raise AssertionError("a waiting request holds blocks")
        if any(len(sequence.blocks) != self._blocks_for(len(sequence.ids) - 1) for sequence in fetching):
            raise AssertionError("KV in transfer has no blocks")
        for sequence in (*self._running.values(), *self._landed.values()):
            if len(sequence.blocks) != self._blocks_for(sequence.computed_tokens):
                raise AssertionError("a running request holds more or fewer blocks than it needs")
            if len(sequence.ids) != len(sequence.request.prompt_ids) + sequence.outputs:
                raise AssertionError("a token was lost or doubled")
