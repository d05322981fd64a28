"""KV on its way from the worker that computed it to the worker that decodes with it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from phasewise.model.noun import noun
from phasewise.model.worker import WorkerRef

ASKS_TO_KEEP_KV: Mapping[str, bool | None] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What asks an engine, in its own terms, to keep a prompt's KV for another to fetch."""


class SplitRule(StrEnum):
    """When a request's prefill is done on another worker than its decode."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"
    THRESHOLD = "threshold"


class HandOverOutcome(StrEnum):
    """What became of a hand-over that was tried."""

    DONE = "done"
    NO_KV = "no_kv"
    """The prefill worker kept no KV to be fetched."""
    REFUSED = "refused"
    """The decode worker answered with an error."""
    TIMED_OUT = "timed_out"
    TOO_LATE = "too_late"
    """The decode worker was not asked: this gateway came to it when the KV may have been released."""
    BROKEN = "broken"
    """A worker broke the conversation off, which tells nothing of the hand-over."""


@noun
class KvTicket:
    """KV that a prefill worker keeps for one decode worker to fetch, once, until a time.

    `params` is what the decode worker's engine needs to find it, as JSON in the engine's own terms: nobody
    but the two engines reads it. After `good_until_s` the blocks may hold another request's KV, and an engine
    would read that without a word: a ticket is then worth nothing.
    """

    source: WorkerRef
    params: bytes
    prompt_tokens: int
    good_until_s: float


def pair_ref(prefill: WorkerRef, decode: WorkerRef) -> WorkerRef:
    """What a record keeps of two workers that hand KV over: another incarnation of either is another pair."""
    return WorkerRef(f"{prefill.name} -> {decode.name}", f"{prefill.incarnation} -> {decode.incarnation}")


@noun
class EngineAccount:
    """What an engine and the stream that it gave tell of one attempt; None where nobody could see.

    `queue_s` and `prefill_s` are as the engine reports them: on a worker that fetched its KV the first holds
    the hand-over. `gap_s` is the median between two tokens, which stalls hardly move.
    """

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    gap_s: float | None = None


NO_ACCOUNT = EngineAccount()
