"""Decisions: what was chosen, why, what it was chosen over, and what was expected of it."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from phasewise.model.noun import noun
from phasewise.model.worker import Worker


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
    """A worker that could have taken the request, and what that would have cost. Lower is better.

    A tuple, because every placement makes one for every worker.
    """

    worker: Worker
    outstanding_tokens: int
    outstanding_requests: int


@noun
class Decision:
    """A placement with its losing candidates.

    `candidates` holds the chosen one too, cheapest first, and the first KEPT_CANDIDATES of them.
    """

    chosen: Worker
    policy: str
    reason: str
    candidates: tuple[Candidate, ...]
