"""Continuous batching without a model: which request gets what in which step, and how long that takes.

Pure: time is handed in and a step's effects are stamped with its end. Drivers (a server in real time, a
simulator in virtual time) decide when to step; texts and connections are theirs too.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from phasewise.costs.step_work import StepSeconds, StepWork, chunk_pairs
from phasewise.errors import ConfigError
from phasewise.fake_engine.blocks import BlockHash, BlockPool, chain_hash, root_hash
from phasewise.fake_engine.tokens import END_ID, ContextHash
from phasewise.model.steps import EngineStep, FinishedRequest


@dataclass(frozen=True, slots=True)
class EngineShape:
    """The sizes of an engine, under vLLM's names; the defaults are those of the demo engine on a CPU."""

    max_model_len: int = 8192
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    block_size: int = 128
    total_blocks: int = 364
    mean_output_tokens: int = 512
    """Answers that may end by themselves do so after this many tokens on average."""
    prefix_cache: bool = True
    """Whether blocks of one request are found by others that begin with the same tokens."""

    def __post_init__(self) -> None:
        smallest = min(self.max_num_seqs, self.block_size, self.total_blocks, self.mean_output_tokens)
        if smallest < 1 or self.max_model_len < 2:
            raise ConfigError("an engine's sizes must be positive", hint="max_model_len must be at least 2")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} is below "
                f"max_num_seqs={self.max_num_seqs}",
                hint="a step must have room for one token of every running request",
            )
        if self.total_blocks * self.block_size < self.max_model_len:
            raise ConfigError(
                f"{self.total_blocks} blocks of {self.block_size} tokens hold less than one request of "
                f"max_model_len={self.max_model_len}",
                hint="raise total_blocks or lower max_model_len",
            )


@dataclass(frozen=True, slots=True)
class VirtualRequest:
    """What the engine is asked for. `arrived_s` is when the front end got it.

    `request_id` is unique here; `client_id` is what records call the request, and clients may repeat theirs.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    arrived_s: float
    min_tokens: int = 0
    ignore_eos: bool = False
    cache_salt: str = ""
    client_id: str | None = None


@dataclass(frozen=True, slots=True)
class EmittedToken:
    """One token of one request; `gap_s` counts from the token before it, or from arrival for the first.

    The last token of a request comes with the account of it.
    """

    request_id: str
    token_id: int
    index: int
    gap_s: float
    finished: FinishedRequest | None = None

    @property
    def finish_reason(self) -> str | None:
        """Why the request ended with this token, if it did."""
        return None if self.finished is None else self.finished.reason


@dataclass(frozen=True, slots=True)
class StepReport:
    """What happened in a step: true from `step.ended_unix_s` on, and not before.

    `queried_tokens` and `hit_tokens` are of requests scheduled for the first time, `begun_prompt_tokens` and
    `begun_cached_tokens` of those that got their first token.
    """

    step: EngineStep
    duration_s: float
    emitted: tuple[EmittedToken, ...]
    work: StepWork
    queried_tokens: int
    hit_tokens: int
    begun_prompt_tokens: int
    begun_cached_tokens: int


@dataclass(slots=True, eq=False)
class _Sequence:
    request: VirtualRequest
    ids: list[int]
    context: ContextHash
    hashes: list[BlockHash]
    queued_s: float
    computed_tokens: int = 0
    blocks: list[int] = field(default_factory=list)
    outputs: int = 0
    preemptions: int = 0
    cached_tokens: int | None = None
    scheduled_s: float = 0.0
    first_token_s: float | None = None
    last_token_s: float = 0.0

    @property
    def remaining(self) -> int:
        return len(self.ids) - self.computed_tokens

    @property
    def decoding(self) -> bool:
        return self.outputs > 0 and self.remaining == 1

    def hash_full_blocks(self, block_size: int) -> None:
        """Extend the chain of hashes to every full block of the sequence."""
        for end in range((len(self.hashes) + 1) * block_size, len(self.ids) + 1, block_size):
            parent = self.hashes[-1] if self.hashes else root_hash(self.request.cache_salt)
            self.hashes.append(chain_hash(parent, self.ids[end - block_size : end]))


@dataclass(slots=True)
class _Batch:
    budget_tokens: int
    chunks: dict[_Sequence, int] = field(default_factory=dict)
    preempted: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0

    def put(self, sequence: _Sequence, tokens: int) -> None:
        self.chunks[sequence] = tokens
        self.budget_tokens -= tokens

    def drop(self, sequence: _Sequence) -> bool:
        tokens = self.chunks.pop(sequence, 0)
        self.budget_tokens += tokens
        return tokens > 0


class VirtualEngine:
    """The scheduler and KV cache of one engine. One writer: whoever drives it."""

    def __init__(self, shape: EngineShape, cost: StepSeconds) -> None:
        self.shape = shape
        self._cost = cost
        self._pool = BlockPool(shape.total_blocks)
        self._waiting: deque[_Sequence] = deque()
        self._running: dict[str, _Sequence] = {}
        self._present: set[str] = set()
        self._next_seq = 0

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._running or self._waiting)

    @property
    def running(self) -> int:
        """Requests that hold blocks."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that were not scheduled yet, or were preempted."""
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """The share of KV blocks in use."""
        return self._pool.usage

    def add(self, request: VirtualRequest, now: float) -> None:
        """Queue a request; it is looked at when the next step begins."""
        if not 0 < len(request.prompt_ids) < self.shape.max_model_len or request.max_tokens < 1:
            raise ValueError("a prompt must leave room for at least one token")
        if request.request_id in self._present:
            raise ValueError(f"request {request.request_id} is already here")
        ids = list(request.prompt_ids)
        sequence = _Sequence(request, ids, ContextHash(ids), [], queued_s=now)
        sequence.hash_full_blocks(self.shape.block_size)
        self._waiting.append(sequence)
        self._present.add(request.request_id)

    def abort(self, request_id: str) -> bool:
        """End a request between two steps; False when it is not here (any more)."""
        if request_id not in self._present:
            return False
        self._present.remove(request_id)
        sequence = self._running.pop(request_id, None)
        if sequence is not None:
            self._pool.release(sequence.blocks)
        else:
            self._waiting.remove(next(w for w in self._waiting if w.request.request_id == request_id))
        return True

    def step(self, now: float) -> StepReport | None:
        """Do the step that begins now; None when there is nothing to do."""
        if not self.has_work:
            return None
        batch = self._schedule(now)
        work = _work_of(batch)
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
        )
        self._next_seq += 1
        return StepReport(
            step,
            duration_s,
            tuple(emitted),
            work,
            queried_tokens=batch.queried_tokens,
            hit_tokens=batch.hit_tokens,
            begun_prompt_tokens=sum(len(sequence.request.prompt_ids) for sequence in begun),
            begun_cached_tokens=sum(sequence.cached_tokens or 0 for sequence in begun),
        )

    # --- what a step carries ------------------------------------------------------------------------------

    def _schedule(self, now: float) -> _Batch:
        batch = _Batch(self.shape.max_num_batched_tokens)
        # Decodes first: a stream never waits for a prompt that could have waited for it.
        for sequence in sorted(self._running.values(), key=lambda running: not running.decoding):
            if sequence.request.request_id not in self._running:
                continue  # preempted a moment ago, for one before it
            tokens = min(sequence.remaining, batch.budget_tokens)
            if tokens and self._make_room(sequence, tokens, batch):
                batch.put(sequence, tokens)
        if not batch.preempted:
            self._admit(batch, now)
        return batch

    def _make_room(self, sequence: _Sequence, tokens: int, batch: _Batch) -> bool:
        """Grow a running sequence at the cost of the youngest; False when it was the youngest itself."""
        while not self._grow(sequence, tokens):
            victim = next(reversed(self._running.values()))
            self._preempt(victim, batch)
            if victim is sequence:
                return False
        return True

    def _grow(self, sequence: _Sequence, tokens: int) -> bool:
        fresh = self._blocks_for(sequence.computed_tokens + tokens) - len(sequence.blocks)
        if fresh > self._pool.free_blocks:
            return False
        sequence.blocks += self._pool.take(fresh)
        self._publish(sequence, sequence.computed_tokens + tokens)
        return True

    def _preempt(self, victim: _Sequence, batch: _Batch) -> None:
        del self._running[victim.request.request_id]
        if batch.drop(victim):
            # What it would have computed in this step will not be there to be found.
            for block in victim.blocks[victim.computed_tokens // self.shape.block_size :]:
                self._pool.forget(block)
        self._pool.release(victim.blocks)
        victim.blocks = []
        victim.computed_tokens = 0
        victim.preemptions += 1
        batch.preempted += 1
        self._waiting.appendleft(victim)

    def _admit(self, batch: _Batch, now: float) -> None:
        """Let waiting requests in, oldest first, while there is budget, a seat and room in the cache."""
        block_size = self.shape.block_size
        while self._waiting and batch.budget_tokens and len(self._running) < self.shape.max_num_seqs:
            sequence = self._waiting[0]
            # The last token is always computed, cached or not: its output is what the answer begins with.
            cached = self._pool.cached_prefix(sequence.hashes[: (len(sequence.ids) - 1) // block_size])
            cached_tokens = len(cached) * block_size
            tokens = min(len(sequence.ids) - cached_tokens, batch.budget_tokens)
            fresh = self._blocks_for(cached_tokens + tokens) - len(cached)
            if not self._pool.can_take(cached, fresh):
                return
            self._waiting.popleft()
            self._running[sequence.request.request_id] = sequence
            self._pool.hold(cached)
            sequence.blocks = cached + self._pool.take(fresh)
            sequence.computed_tokens = cached_tokens
            self._publish(sequence, cached_tokens + tokens)
            batch.put(sequence, tokens)
            if sequence.cached_tokens is None:
                sequence.cached_tokens = cached_tokens
                # A driver that runs late may begin a step before the request came.
                sequence.scheduled_s = max(now, sequence.queued_s)
                batch.queried_tokens += len(sequence.ids)
                batch.hit_tokens += cached_tokens

    def _publish(self, sequence: _Sequence, upto_tokens: int) -> None:
        if not self.shape.prefix_cache:
            return
        block_size = self.shape.block_size
        for index in range(sequence.computed_tokens // block_size, upto_tokens // block_size):
            self._pool.publish(sequence.blocks[index], sequence.hashes[index])

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.shape.block_size)

    # --- what comes of it ---------------------------------------------------------------------------------

    def _advance(self, batch: _Batch, ended_s: float) -> list[EmittedToken]:
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
                self._pool.release(sequence.blocks)
        return emitted

    def _emit(self, sequence: _Sequence, ended_s: float) -> EmittedToken:
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
        finished = None if reason is None else _finish(sequence, reason, ended_s)
        return EmittedToken(request.request_id, token_id, sequence.outputs - 1, ended_s - before_s, finished)

    def check_invariants(self) -> None:
        """Raise when blocks or requests are not where they should be."""
        sequences = (*self._running.values(), *self._waiting)
        self._pool.check_invariants(block for sequence in sequences for block in sequence.blocks)
        if sorted(sequence.request.request_id for sequence in sequences) != sorted(self._present):
            raise AssertionError("a request is here twice, or is lost")
        if any(sequence.blocks or sequence.computed_tokens for sequence in self._waiting):
            raise AssertionError("a waiting request holds blocks")
        for sequence in self._running.values():
            if len(sequence.blocks) != self._blocks_for(sequence.computed_tokens):
                raise AssertionError("a running request holds more or fewer blocks than it needs")
            if len(sequence.ids) != len(sequence.request.prompt_ids) + sequence.outputs:
                raise AssertionError("a token was lost or doubled")


def _work_of(batch: _Batch) -> StepWork:
    prompt_tokens = decode_tokens = pairs = kv_read = 0
    for sequence, tokens in batch.chunks.items():
        if sequence.decoding:
            decode_tokens += 1
            kv_read += len(sequence.ids)
        else:
            prompt_tokens += tokens
            pairs += chunk_pairs(tokens, sequence.computed_tokens)
    return StepWork(prompt_tokens, decode_tokens, len(batch.chunks), pairs, kv_read)


def _finish(sequence: _Sequence, reason: str, ended_s: float) -> FinishedRequest:
    request = sequence.request
    first_token_s = sequence.last_token_s if sequence.first_token_s is None else sequence.first_token_s
    return FinishedRequest(
        request_id=request.client_id or request.request_id,
        reason=reason,
        prompt_tokens=len(request.prompt_ids),
        cached_tokens=sequence.cached_tokens or 0,
        output_tokens=sequence.outputs,
        queue_s=sequence.scheduled_s - sequence.queued_s,
        prefill_s=first_token_s - sequence.scheduled_s,
        decode_s=sequence.last_token_s - first_token_s,
        e2e_s=ended_s - request.arrived_s,
        preemptions=sequence.preemptions,
    )
