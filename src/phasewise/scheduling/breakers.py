"""A circuit breaker per worker, fed by the outcomes of its requests and by the gateway's own checks.

The cluster view knows which workers answer at all; a breaker is for workers that answer and fail. Pairs of
workers that transfer KV have breakers of the same kind, keyed by `pair_ref`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from phasewise.core.worker import WorkerRef

FAILURES_TO_OPEN = 5
REMEMBERED = 20
"""Outcomes that are kept per worker, from its first failure on. This many successes in a row reset it."""
FIRST_OPEN_S = 1.0
LONGEST_OPEN_S = 8.0
"""A circuit stays open no longer. It is below the default `max_wait_s` of 10 s, so that every worker is tried
again while a request waits."""
PAIR_FAILURES_TO_OPEN = 2
LONGEST_PAIR_OPEN_S = 64.0
"""No request waits for a pair: while its circuit is open, one worker serves the request. So it may stay open
long."""
TRIAL_S = 3.0
"""A trial without an answer by then is inconclusive, and another may run beside it."""
UNBOUNDED = 1 << 30


class BreakerTrial:
    """A request that tries a worker. `answered()` is true once its answer has begun; the driver sets it.

    Elapsed time is no sign of success: a worker may accept requests, answer none and still report healthy.
    """

    __slots__ = ("answered",)

    def __init__(self) -> None:
        self.answered: Callable[[], bool] = _not_yet


def _not_yet() -> bool:
    return False


@dataclass(slots=True)
class _Breaker:
    """The state of one worker's breaker. Its circuit is open while `open_until_s` is set.

    With `needs_proof` an answer closes it no more.
    """

    ref: WorkerRef
    failed: deque[bool] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    open_s: float = 0.0
    open_until_s: float | None = None
    trials: set[BreakerTrial] = field(default_factory=set)
    tried_s: float = 0.0
    needs_proof: bool = False

    @property
    def passed(self) -> bool:
        # A whole answer may take minutes, so its beginning counts.
        return not self.needs_proof and any(trial.answered() for trial in self.trials)


class Breakers:
    """Opens a worker's circuit when it fails at least half of its requests and a minimum number of them.

    After a while one request tries the worker again. Failures count by share, not in a row: long streams that
    began before the worker broke still end well, and each would reset a count. A worker that fails again
    before it has recovered stays open for longer. A worker under trial gets one more request every few
    seconds until an answer begins, so one that hangs holds a few requests and not one per slot.
    """

    def __init__(
        self, failures_to_open: int = FAILURES_TO_OPEN, longest_open_s: float = LONGEST_OPEN_S
    ) -> None:
        self._failures_to_open = failures_to_open
        self._longest_open_s = longest_open_s
        # By name: a new incarnation replaces the old one, so this cannot grow.
        self._breakers: dict[str, _Breaker] = {}
        self._open: dict[WorkerRef, _Breaker] = {}

    @property
    def any_open(self) -> bool:
        """Whether any circuit is open. Rarely true, so a placement seldom asks per worker."""
        return bool(self._open)

    def allowance(self, ref: WorkerRef, now_s: float) -> int:
        """How many more requests the breaker lets through to the worker now."""
        breaker = self._open.get(ref)
        if breaker is None or breaker.passed:
            return UNBOUNDED
        is_open = breaker.open_until_s is not None and now_s < breaker.open_until_s
        tried = bool(breaker.trials) and now_s < breaker.tried_s + TRIAL_S
        return 0 if is_open or tried else 1

    def is_open(self, ref: WorkerRef) -> bool:
        """Whether the worker's circuit is open, a trial included."""
        return ref in self._open

    def begin(self, ref: WorkerRef, now_s: float) -> BreakerTrial | None:
        """Note that the worker gets a request. Returns a trial if this request tries the worker."""
        if not self._open:
            return None
        breaker = self._open.get(ref)
        if breaker is None:
            self._forget_former_incarnation(ref)
            return None
        if breaker.passed:
            self._close(breaker)
            return None
        trial = BreakerTrial()
        breaker.trials.add(trial)
        breaker.tried_s = now_s
        if breaker.needs_proof:
            # Its answer will say nothing: the next may try once this one had time to be proved.
            breaker.open_until_s = now_s + breaker.open_s
        return trial

    def succeeded(self, ref: WorkerRef, trial: BreakerTrial | None) -> None:
        """The request was answered.

        With an open circuit only a trial counts: others started before it opened.
        """
        breaker = self._breakers.get(ref.name)
        if breaker is None or breaker.ref != ref:
            return
        if breaker.open_until_s is not None:
            if trial in breaker.trials and not breaker.needs_proof:
                self._close(breaker)
            return
        breaker.failed.append(False)
        if len(breaker.failed) == REMEMBERED and not any(breaker.failed):
            del self._breakers[ref.name]

    def failed(self, ref: WorkerRef, trial: BreakerTrial | None, now_s: float) -> None:
        """The request failed.

        With an open circuit only a trial counts, so a burst of failures opens it once.
        """
        breaker = self._breaker_of(ref)
        if breaker.open_until_s is not None:
            if trial in breaker.trials:
                self._trip(breaker, now_s)
            return
        breaker.failed.append(True)
        failures = sum(breaker.failed)
        if failures >= self._failures_to_open and 2 * failures >= len(breaker.failed):
            self._trip(breaker, now_s)

    def open(self, ref: WorkerRef, now_s: float, at_least_s: float = FIRST_OPEN_S) -> None:
        """Open the worker's circuit, whatever the outcomes of its requests; trials under way no longer count.

        For faults that look like success to requests: one of them tries the worker now and then, but only a
        proof closes the circuit.
        """
        breaker = self._breaker_of(ref)
        breaker.needs_proof = True
        self._trip(breaker, now_s, at_least_s)

    def proved(self, ref: WorkerRef) -> None:
        """The worker did what its requests cannot show: a circuit that was opened for it closes."""
        breaker = self._open.get(ref)
        if breaker is not None and breaker.needs_proof:
            self._close(breaker)

    def abandoned(self, ref: WorkerRef, trial: BreakerTrial | None) -> None:
        """The gateway or its client ended the request.

        If it was a trial without an answer, another may follow.
        """
        breaker = self._open.get(ref)
        if breaker is not None and trial in breaker.trials:
            if breaker.passed:
                self._close(breaker)
            breaker.trials.discard(trial)

    def export(self) -> list[tuple[str, str, float, float]]:
        """The open circuits, in plain types, for the process that follows: until when on the same clock."""
        return [
            (breaker.ref.name, breaker.ref.incarnation, breaker.open_s, breaker.open_until_s or 0.0)
            for breaker in self._open.values()
        ]

    def adopt(self, opened: Iterable[tuple[str, str, float, float]]) -> None:
        """Open the circuits that another gateway has open."""
        for name, incarnation, open_s, open_until_s in opened:
            breaker = self._breaker_of(WorkerRef(name, incarnation))
            breaker.open_s, breaker.open_until_s = open_s, open_until_s
            self._open[breaker.ref] = breaker

    def forget(self, name: str) -> None:
        """The worker is gone."""
        if (breaker := self._breakers.pop(name, None)) is not None:
            self._open.pop(breaker.ref, None)

    def check_invariants(self) -> None:
        """The index of open circuits is right, and only workers with an open circuit are tried."""
        expected = {
            breaker.ref: breaker for breaker in self._breakers.values() if breaker.open_until_s is not None
        }
        if expected != self._open:
            raise AssertionError(f"open breakers out of step: {self._open} but workers say {expected}")
        if any(breaker.trials for breaker in self._breakers.values() if breaker.ref not in self._open):
            raise AssertionError("a worker is tried whose circuit is closed")

    def _forget_former_incarnation(self, ref: WorkerRef) -> None:
        before = self._breakers.get(ref.name)
        if before is not None and before.ref != ref:
            self._open.pop(before.ref, None)
            del self._breakers[ref.name]

    def _breaker_of(self, ref: WorkerRef) -> _Breaker:
        self._forget_former_incarnation(ref)
        breaker = self._breakers.get(ref.name)
        if breaker is None:
            breaker = self._breakers[ref.name] = _Breaker(ref)
        return breaker

    def _trip(self, breaker: _Breaker, now_s: float, at_least_s: float = FIRST_OPEN_S) -> None:
        breaker.open_s = min(self._longest_open_s, max(at_least_s, breaker.open_s * 2))
        breaker.open_until_s = now_s + breaker.open_s
        breaker.trials.clear()
        self._open[breaker.ref] = breaker

    def _close(self, breaker: _Breaker) -> None:
        breaker.open_until_s, breaker.needs_proof = None, False
        breaker.trials.clear()
        breaker.failed.clear()
        del self._open[breaker.ref]


# --- A token bucket over all retries. Each request earns a fraction of a retry, which bounds their load.


class RetryBudget:
    """At most `earned_per_request` retries per request in the long run, `burst` at once."""

    def __init__(self, earned_per_request: float = 0.2, burst: float = 2_500.0) -> None:
        self._earned_per_request = earned_per_request
        self._burst = burst
        self._tokens = burst

    def earn(self) -> None:
        """A request was admitted."""
        self._tokens = min(self._burst, self._tokens + self._earned_per_request)

    def take(self) -> bool:
        """Take one retry from the budget; False if the budget is empty."""
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def check_invariants(self) -> None:
        """The bucket is neither overdrawn nor overfull."""
        if not 0.0 <= self._tokens <= self._burst:
            raise AssertionError(f"retry budget holds {self._tokens} of {self._burst}")
