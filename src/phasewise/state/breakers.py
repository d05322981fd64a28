"""A circuit breaker per worker incarnation, fed by what becomes of requests. Written by request_flow only.

Whether a worker answers at all is the cluster view's to know; this is about workers that answer and fail.
"""

from __future__ import annotations

from dataclasses import dataclass

from phasewise.model.worker import WorkerRef

FAILURES_TO_OPEN = 5
FIRST_REST_S = 2.0
LONGEST_REST_S = 60.0


@dataclass(slots=True)
class _Breaker:
    failures: int = 0
    rest_s: float = 0.0
    open_until_s: float | None = None
    trial: bool = False


class Breakers:
    """After some failures in a row a worker rests; then one request tries it, and its outcome decides."""

    def __init__(self) -> None:
        self._breakers: dict[WorkerRef, _Breaker] = {}

    def allows(self, ref: WorkerRef, now_s: float) -> bool:
        """Whether the worker may be given a request now."""
        breaker = self._breakers.get(ref)
        if breaker is None or breaker.open_until_s is None:
            return True
        return now_s >= breaker.open_until_s and not breaker.trial

    def is_open(self, ref: WorkerRef) -> bool:
        """Whether the worker rests or is being tried."""
        breaker = self._breakers.get(ref)
        return breaker is not None and breaker.open_until_s is not None

    def begin(self, ref: WorkerRef) -> None:
        """The worker was given a request."""
        breaker = self._breakers.get(ref)
        if breaker is not None and breaker.open_until_s is not None:
            breaker.trial = True

    def succeeded(self, ref: WorkerRef) -> None:
        """The request was answered: the worker is as good as new."""
        self._breakers.pop(ref, None)

    def failed(self, ref: WorkerRef, now_s: float) -> None:
        """The request failed."""
        breaker = self._breakers.setdefault(ref, _Breaker())
        breaker.failures += 1
        breaker.trial = False
        if breaker.failures >= FAILURES_TO_OPEN:
            breaker.rest_s = min(LONGEST_REST_S, breaker.rest_s * 2 or FIRST_REST_S)
            breaker.open_until_s = now_s + breaker.rest_s

    def abandoned(self, ref: WorkerRef) -> None:
        """The request ended without telling anything of the worker."""
        breaker = self._breakers.get(ref)
        if breaker is not None:
            breaker.trial = False
