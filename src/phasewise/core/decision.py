"""Decisions: what was chosen, why, over which alternatives, and what was expected."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from phasewise.core.value import value
from phasewise.core.worker import Worker, WorkerRef


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
    NO_SAME_WEIGHTS = "no_same_weights"
    GATEWAY_FULL = "gateway_full"
    GATEWAY_STOPPED = "gateway_stopped"


KEPT_CANDIDATES = 16
"""A decision lives as long as its request, so it keeps the closest contenders and not the whole fleet."""


class Candidate(NamedTuple):
    """A worker that could take the request, and its present load. Lower is better.

    A tuple, because every placement makes one for every worker. `unread_tokens` counts the prompt tokens
    that the worker was sent and has not answered yet, `unread_requests` those prompts. Prompts that another
    worker prefills for this one are not counted. `streams` counts the answers it is generating.
    """

    worker: Worker
    outstanding_tokens: int
    outstanding_requests: int
    unread_tokens: int = 0
    streams: int = 0
    unread_requests: int = 0

    @property
    def has_slot(self) -> bool:
        """Whether its worker may get another request now."""
        return self.outstanding_requests < self.worker.slots


@value
class Terms:
    """What a placement is expected to take, part by part.

    `wait_s` until the prefill starts, `prefill_s` to compute the part of the prompt that is not cached,
    `kv_transfer_s` until the decode worker has the KV and schedules the request, `decode_s` to generate the
    answer, and `delay_s` what all of it adds to other requests' streams, summed over them.
    """

    wait_s: float = 0.0
    prefill_s: float = 0.0
    kv_transfer_s: float = 0.0
    decode_s: float = 0.0
    delay_s: float = 0.0

    @property
    def ttft_s(self) -> float:
        """The expected time to first token."""
        return self.wait_s + self.prefill_s + self.kv_transfer_s

    @property
    def cost_s(self) -> float:
        """What placements are compared by: the request's own time plus the time it takes from others."""
        return self.ttft_s + self.decode_s + self.delay_s


@value
class Option:
    """One way to serve a request: all of it on `worker`, or its prefill on `prefill`.

    `cached_tokens` is how much of the prompt is expected in the prefix cache of the worker that computes it,
    `prompt_tokens` the assumed length of the prompt.
    """

    worker: WorkerRef
    prefill: WorkerRef | None
    terms: Terms
    prompt_tokens: int
    cached_tokens: int = 0


KEPT_OPTIONS = 4
"""Options are recorded with the request: the chosen one, and the closest losing one of each kind."""


@value
class Decision:
    """A placement with its losing candidates.

    `candidates` holds the chosen one too, cheapest first, and at most KEPT_CANDIDATES of them. With a
    `prefill` worker the prompt is computed there and `chosen` decodes. `options` say what was expected of
    the chosen way, which comes first, and of the ways that lost; it is empty where nothing was estimated.
    """

    chosen: Worker
    policy: str
    reason: str
    candidates: tuple[Candidate, ...]
    prefill: Worker | None = None
    options: tuple[Option, ...] = ()
