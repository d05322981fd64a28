"""KV on its way from the worker that computed it to the worker that decodes with it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from phasewise.core.value import value
from phasewise.core.worker import WorkerRef

ASKS_TO_KEEP_KV: Mapping[str, bool | None] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""The request parameters that make a vLLM engine keep a prompt's KV for another engine to fetch."""


class SplitRule(StrEnum):
    """When a request's prefill runs on another worker than its decode."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"
    THRESHOLD = "threshold"


class KvTransferOutcome(StrEnum):
    """How an attempted KV transfer ended."""

    DONE = "done"
    NO_KV = "no_kv"
    """The prefill worker kept no KV to fetch."""
    REJECTED = "rejected"
    """The decode worker answered with an error."""
    TIMED_OUT = "timed_out"
    TOO_LATE = "too_late"
    """The gateway did not ask the decode worker, because the KV may already have been released."""
    BROKEN = "broken"
    """A worker broke off the exchange; that says nothing about the KV transfer."""


@value
class KvTicket:
    """KV that a prefill worker keeps for one decode worker to fetch, once, until a deadline.

    `params` is what the decode engine needs to find the KV: opaque JSON that only the two engines read.
    After `good_until_s` the blocks may hold another request's KV, and an engine would read that without an
    error, so an expired ticket must not be used.
    """

    source: WorkerRef
    params: bytes
    prompt_tokens: int
    good_until_s: float


def pair_ref(prefill: WorkerRef, decode: WorkerRef) -> WorkerRef:
    """The record key of a KV transfer pair; a new incarnation of either worker makes a new pair."""
    return WorkerRef(f"{prefill.name} -> {decode.name}", f"{prefill.incarnation} -> {decode.incarnation}")


# --- What is known about KV transfers to one decode worker, for metrics and reports.


@value
class KvTransferState:
    """Tokens the worker computed again, bytes it received, and how long ago a KV transfer last succeeded.

    `proven_ago_s` is None before the first success. `failing` counts prefill workers whose last KV transfer
    to this worker failed.
    """

    worker: str
    recomputed_tokens: int
    moved_bytes: int
    proven_ago_s: float | None
    failing: int


# --- What a decode engine's counters say about a prompt whose KV was transferred to it.


class KvProof(StrEnum):
    """Where a prompt's KV came from, as far as counters show."""

    MOVED = "moved"
    """Enough tokens were fetched, and too few computed to include the prompt."""
    NOT_MOVED = "not_moved"
    """Fewer tokens were fetched than the prompt holds."""
    HIDDEN = "hidden"
    """Other requests fetched as much and computed as much in that time, so either may include the prompt."""
    UNCOUNTED = "uncounted"
    """The engine does not report where its prompts' KV comes from."""


def kv_proof(moved_tokens: float | None, computed_tokens: float | None, prompt_tokens: int) -> KvProof:
    """Where the KV of a prompt came from that ended between two reads and of which the engine lacked so much.

    The counters grew by these numbers of tokens in between, over all requests; None where not counted.
    """
    if moved_tokens is None and computed_tokens is None:
        return KvProof.UNCOUNTED
    if (moved_tokens or 0.0) < max(prompt_tokens, 1):
        return KvProof.NOT_MOVED
    return KvProof.MOVED if (computed_tokens or 0.0) < prompt_tokens else KvProof.HIDDEN
