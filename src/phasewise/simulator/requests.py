"""A virtual engine's sizes and step times, the requests it gets, and its reports about steps."""

from __future__ import annotations

from array import array
from collections import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from phasewise.core.errors import UsageError
from phasewise.core.steps import EngineStep, FinishedRequest
from phasewise.costs.fit.step import StepCost, StepWork, chunk_pairs
from phasewise.simulator.blocks import Block, BlockHash, chain_hash, root_hash
from phasewise.simulator.kv import RemoteKv
from phasewise.simulator.tokens import ContextHash


@dataclass(frozen=True, slots=True)
class EngineShape:
    """The sizes of an engine, under vLLM's names; the defaults are those of the demo engine on a CPU."""

    max_model_len: int = 8192
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    block_size: int = 128
    total_blocks: int = 364
    mean_output_tokens: int = 512
    """Mean length of answers that may end by themselves."""
    prefix_cache: bool = True
    """Whether requests share blocks with others that begin with the same tokens."""

    def __post_init__(self) -> None:
        smallest = min(self.max_num_seqs, self.block_size, self.total_blocks, self.mean_output_tokens)
        if smallest < 1 or self.max_model_len < 2:
            raise UsageError("an engine's sizes must be positive", hint="max_model_len must be at least 2")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise UsageError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} is below "
                f"max_num_seqs={self.max_num_seqs}",
                hint="a step must hold one token of every running request",
            )
        if self.total_blocks * self.block_size < self.max_model_len:
            raise UsageError(
                f"{self.total_blocks} blocks of {self.block_size} tokens hold less than one request of "
                f"max_model_len={self.max_model_len}",
                hint="raise total_blocks or lower max_model_len",
            )


@dataclass(frozen=True, slots=True)
class VirtualRequest:
    """A request to the engine. `arrived_s` is when the front end got it.

    `request_id` is unique here; `client_id` is its name in records, and clients may repeat theirs. With
    `keep_kv` another engine will decode it; with `remote_kv` another engine has computed its prompt. An
    engine without a connector ignores both and computes the whole request.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    arrived_s: float
    min_tokens: int = 0
    ignore_eos: bool = False
    cache_salt: str = ""
    client_id: str | None = None
    keep_kv: bool = False
    remote_kv: RemoteKv | None = None
    choice: int = 0
    """Which answer of several to one prompt: each has a text of its own."""


@dataclass(frozen=True, slots=True)
class EmittedToken:
    """One token of one request; `gap_s` counts from the token before it, or from arrival for the first.

    The last token of a request carries the account of the request, and the blocks that are kept for another
    engine to read.
    """

    request_id: str
    token_id: int
    index: int
    gap_s: float
    finished: FinishedRequest | None = None
    kept_blocks: tuple[int, ...] | None = None

    @property
    def finish_reason(self) -> str | None:
        """Why the request ended with this token, if it did."""
        return None if self.finished is None else self.finished.reason


@dataclass(frozen=True, slots=True)
class StepReport:
    """What happened in a step; it takes effect at `step.ended_unix_s`, not before.

    `queried_tokens` and `hit_tokens` count requests that were scheduled for the first time, `fetched_tokens`
    what they fetch from other engines. Fields that start with `begun` count requests that got their first
    token. `deferred` requests wait for KV from another engine.
    """

    step: EngineStep
    duration_s: float
    emitted: tuple[EmittedToken, ...]
    work: StepWork
    queried_tokens: int
    hit_tokens: int
    begun_prompt_tokens: int
    begun_cached_tokens: int
    begun_fetched_tokens: int = 0
    fetched_tokens: int = 0
    deferred: int = 0


# --- A request inside a virtual engine, and the batch of them that one step carries.


@dataclass(slots=True, eq=False)
class Sequence:
    """One request inside the engine: its tokens so far, the blocks it holds and the times of its events."""

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
    fetched_tokens: int = 0
    remote_kv: RemoteKv | None = None
    scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float = 0.0

    @property
    def remaining(self) -> int:
        """Tokens to compute before the next one can be generated."""
        return len(self.ids) - self.computed_tokens

    @property
    def decoding(self) -> bool:
        """Whether its prompt is done and only the last token is left to compute."""
        return self.outputs > 0 and self.remaining == 1

    def hash_full_blocks(self, block_size: int) -> None:
        """Extend the hash chain to every full block of the sequence."""
        for end in range((len(self.hashes) + 1) * block_size, len(self.ids) + 1, block_size):
            parent = self.hashes[-1] if self.hashes else root_hash(self.request.cache_salt)
            self.hashes.append(chain_hash(parent, self.ids[end - block_size : end]))


@dataclass(slots=True)
class Batch:
    """What one step carries: a number of tokens of each sequence."""

    budget_tokens: int
    chunks: dict[Sequence, int] = field(default_factory=dict)
    preempted: int = 0

    def put(self, sequence: Sequence, tokens: int) -> None:
        """Carry this many tokens of a sequence."""
        self.chunks[sequence] = tokens
        self.budget_tokens -= tokens

    def drop(self, sequence: Sequence) -> bool:
        """Remove a sequence; returns whether it was in the batch."""
        tokens = self.chunks.pop(sequence, 0)
        self.budget_tokens += tokens
        return tokens > 0


def work_of(batch: Batch) -> StepWork:
    """A step's work, as costs count it."""
    prompt_tokens = decode_tokens = pairs = kv_read = 0
    for sequence, tokens in batch.chunks.items():
        if sequence.decoding:
            decode_tokens += 1
            kv_read += len(sequence.ids)
        else:
            prompt_tokens += tokens
            pairs += chunk_pairs(tokens, sequence.computed_tokens)
    return StepWork(prompt_tokens, decode_tokens, len(batch.chunks), pairs, kv_read)


def account_of(sequence: Sequence, reason: str, ended_s: float) -> FinishedRequest:
    """What is known about a request when it ends."""
    request = sequence.request
    first_token_s = sequence.last_token_s if sequence.first_token_s is None else sequence.first_token_s
    scheduled_s = sequence.queued_s if sequence.scheduled_s is None else sequence.scheduled_s
    # As in vLLM, the engine that fetched a prompt's KV reports what the other engine had found cached.
    reported_tokens = (
        request.remote_kv.cached_tokens if sequence.fetched_tokens and request.remote_kv else None
    )
    return FinishedRequest(
        request_id=request.client_id or request.request_id,
        reason=reason,
        prompt_tokens=len(request.prompt_ids),
        cached_tokens=(sequence.cached_tokens or 0) if reported_tokens is None else reported_tokens,
        output_tokens=sequence.outputs,
        queue_s=scheduled_s - sequence.queued_s,
        prefill_s=first_token_s - scheduled_s,
        decode_s=sequence.last_token_s - first_token_s,
        e2e_s=ended_s - request.arrived_s,
        preemptions=sequence.preemptions,
    )


# --- A request inside an engine that counts tokens.


@dataclass(slots=True, eq=False)
class CountedRequest:
    """One request in an engine.

    `keys` identify the full blocks of its prompt and its answer, in order: those of equal prefixes are equal.
    With `keep_kv` its blocks stay held when it ends, until `release_kept`. With `fetches` its prompt was
    computed elsewhere and only the last token is computed here.
    """

    name: str
    prompt_tokens: int
    output_tokens: int
    keys: abc.Sequence[int]
    keep_kv: bool = False
    fetches: bool = False
    queued_s: float = 0.0
    scheduled_s: float | None = None
    first_token_s: float | None = None
    cached_tokens: int | None = None
    outputs: int = 0
    preemptions: int = 0
    token_times_s: array[float] = field(default_factory=lambda: array("d"))
    computed_tokens: int = 0
    blocks: list[Block] = field(default_factory=list)
    order: int = 0
    """Its number among those that ran: the youngest is preempted first."""
    since_step: int = -1
    """The step after which it decodes; -1 while it does not."""
    chunk_tokens: int = 0

    @property
    def length(self) -> int:
        """Tokens so far, as of when it began to decode, if it does."""
        return self.prompt_tokens + self.outputs

    @property
    def only_decodes(self) -> bool:
        """Whether it was preempted and all but its last token is computed again."""
        return self.outputs > 0 and self.length - self.computed_tokens == 1


# --- Step costs for fake engines by name.

PRESETS: Mapping[str, StepCost] = MappingProxyType(
    {
        # SmolLM2-135M, bf16, one CPU core, eager: a prompt of 512 tokens takes 0.4 s, of 6,000 9 s; a single
        # stream takes 57 ms per token, each of 16 streams 74 ms.
        "cpu-demo": StepCost(
            floor_s=0.056,
            knee_tokens=96,
            beyond_knee_s_per_token=0.76e-3,
            attention_s_per_token_pair=0.25e-6,
            kv_read_s_per_token=2.2e-6,
            per_request_s=1.1e-3,
        ),
        # For tests: about a millisecond per step, but long prompts are still visible.
        "fast": StepCost(
            floor_s=1.0e-3,
            knee_tokens=256,
            beyond_knee_s_per_token=2.0e-6,
            attention_s_per_token_pair=0.5e-9,
            kv_read_s_per_token=1.0e-9,
            per_request_s=5.0e-6,
        ),
    }
)


def preset(name: str) -> StepCost:
    """A cost by its name."""
    if name not in PRESETS:
        raise UsageError(f"unknown preset {name!r}", hint=f"accepted: {', '.join(PRESETS)}")
    return PRESETS[name]
