"""Decisions: what was chosen, why, what it was chosen over, and what was expected of it."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from phasewise.model.noun import noun
from phasewise.model.worker import Worker, WorkerRef


class RejectReason(StrEnum):
    """Why a request was not served: a closed vocabulary, used in replies, metrics and timelines."""

    NO_WORKER_FOR_MODEL = "no_worker_for_model"
    NO_HEALTHY_WORKER = "no_healthy_worker"
    REQUESTS_OVER_LIMIT = "requests_over_limit"
    TOKENS_OVER_LIMIT = "tokens_over_limit"
    CONCURRENCY_OVER_LIMIT = "concurrency_over_limit"
    LIMITS_UNAVAILABLE = "limits_unavailable"
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    RETRY_BUDGET_SPENT = "retry_budget_spent"
    ALL_ATTEMPTS_FAILED = "all_attempts_failed"
    ATTEMPTS_TIMED_OUT = "attempts_timed_out"
    NOT_RESUMABLE = "not_resumable"
    GATEWAY_FULL = "gateway_full"
    GATEWAY_STOPPED = "gateway_stopped"


KEPT_CANDIDATES = 16
"""A decision lives as long as its request, so it keeps the closest contenders and not a whole fleet."""


class Candidate(NamedTuple):
    """A worker that could take the request, and what it has to do already. Lower is better.

    A tuple, because every placement makes one for every worker. `unread_tokens` are those of prompts that it
    was given and has not answered yet, `unread_requests` how many prompts those are: one that is read
    elsewhere for this worker is not among them. `streams` are the answers that it is writing.
    """

    worker: Worker
    outstanding_tokens: int
    outstanding_requests: int
    unread_tokens: int = 0
    streams: int = 0
    unread_requests: int = 0


@noun
class Terms:
    """What a placement is expected to take, part by part.

    `wait_s` until the prompt is begun, `prefill_s` to compute what of it is not cached, `hand_over_s` until
    the decoding worker has the KV and its turn, `decode_s` to write the answer, and `delay_s` what all of it
    adds to others' streams, over all of them.
    """

    wait_s: float = 0.0
    prefill_s: float = 0.0
    hand_over_s: float = 0.0
    decode_s: float = 0.0
    delay_s: float = 0.0

    @property
    def ttft_s(self) -> float:
        """When the first token is expected."""
        return self.wait_s + self.prefill_s + self.hand_over_s

    @property
    def cost_s(self) -> float:
        """What placements are compared by: one's own time and the time taken from others."""
        return self.ttft_s + self.decode_s + self.delay_s


@noun
class Option:
    """One way to serve a request: all of it on `worker`, or its prefill on `prefill`.

    `cached_tokens` is what of the prompt is expected to be there already where it is computed, and
    `prompt_tokens` how long it was taken to be.
    """

    worker: WorkerRef
    prefill: WorkerRef | None
    terms: Terms
    prompt_tokens: int
    cached_tokens: int = 0


KEPT_OPTIONS = 4
"""Options are written down with the request: the chosen one, and the closest of each kind that lost."""


@noun
class Decision:
    """A placement with its losing candidates.

    `candidates` holds the chosen one too, cheapest first, and the first KEPT_CANDIDATES of them. With a
    `prefill` worker the prompt is computed there and `chosen` decodes. `options` tell what was expected of
    the chosen way, which stands first, and of those it was chosen over; there are none where nothing was
    expected.
    """

    chosen: Worker
    policy: str
    reason: str
    candidates: tuple[Candidate, ...]
    prefill: Worker | None = None
    options: tuple[Option, ...] = ()
