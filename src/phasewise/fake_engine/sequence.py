"""A request inside a virtual engine, and the batch of them that one step carries.

Who gets what in which step is decided in virtual_engine.py; here are only the books of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from phasewise.costs.step_work import StepWork, chunk_pairs
from phasewise.fake_engine.blocks import BlockHash, chain_hash, root_hash
from phasewise.fake_engine.kv_connector import RemoteKv
from phasewise.fake_engine.tokens import ContextHash
from phasewise.fake_engine.virtual_request import VirtualRequest
from phasewise.model.steps import FinishedRequest


@dataclass(slots=True, eq=False)
class Sequence:
    """One request inside the engine: its tokens so far, the blocks it holds and when what happened to it."""

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
        """Tokens that are still to be computed before the next one can be written."""
        return len(self.ids) - self.computed_tokens

    @property
    def decoding(self) -> bool:
        """Whether its prompt is done and only the last token is to be computed."""
        return self.outputs > 0 and self.remaining == 1

    def hash_full_blocks(self, block_size: int) -> None:
        """Extend the chain of hashes to every full block of the sequence."""
        for end in range((len(self.hashes) + 1) * block_size, len(self.ids) + 1, block_size):
            parent = self.hashes[-1] if self.hashes else root_hash(self.request.cache_salt)
            self.hashes.append(chain_hash(parent, self.ids[end - block_size : end]))


@dataclass(slots=True)
class Batch:
    """What one step carries: so many tokens of each sequence."""

    budget_tokens: int
    chunks: dict[Sequence, int] = field(default_factory=dict)
    preempted: int = 0

    def put(self, sequence: Sequence, tokens: int) -> None:
        """Carry so many tokens of it."""
        self.chunks[sequence] = tokens
        self.budget_tokens -= tokens

    def drop(self, sequence: Sequence) -> bool:
        """Carry nothing of it after all; whether it was to be carried."""
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
    """What is known of a request when it ends."""
    request = sequence.request
    first_token_s = sequence.last_token_s if sequence.first_token_s is None else sequence.first_token_s
    scheduled_s = sequence.queued_s if sequence.scheduled_s is None else sequence.scheduled_s
    # As vLLM does it, who fetched a prompt's KV reports what its keeper had found cached.
    told_tokens = request.remote_kv.cached_tokens if sequence.fetched_tokens and request.remote_kv else None
    return FinishedRequest(
        request_id=request.client_id or request.request_id,
        reason=reason,
        prompt_tokens=len(request.prompt_ids),
        cached_tokens=(sequence.cached_tokens or 0) if told_tokens is None else told_tokens,
        output_tokens=sequence.outputs,
        queue_s=scheduled_s - sequence.queued_s,
        prefill_s=first_token_s - scheduled_s,
        decode_s=sequence.last_token_s - first_token_s,
        e2e_s=ended_s - request.arrived_s,
        preemptions=sequence.preemptions,
    )
