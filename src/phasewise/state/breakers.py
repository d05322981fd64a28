"""A circuit breaker per worker, fed by what becomes of requests, and by whoever knows more than they tell.

Whether a worker answers at all is the cluster view's to know; this is about workers that answer and fail.
Pairs of workers that hand KV over have breakers of the same kind, under a name of their own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from phasewise.model.worker import WorkerRef

FAILURES_TO_OPEN = 5
REMEMBERED = 20
"""Outcomes that are remembered of a worker, from its first failure on; so many good ones clear its name."""
FIRST_REST_S = 1.0
LONGEST_REST_S = 8.0
"""Below the 10 s that requests wait unless told otherwise: one that waits sees every worker tried again."""
PAIR_FAILURES_TO_OPEN = 2
LONGEST_PAIR_REST_S = 64.0
"""Nobody waits for a pair: whoever finds it resting is served by one worker, so it may rest for long."""
TRIAL_S = 3.0
"""A trial that has not been answered by then tells nothing yet, and another may be made beside it."""
UNBOUNDED = 1 << 30


class Trial:
    """A request that tries a worker. `answered` is asked whether its answer has begun; a driver sets it.

    Time alone tells nothing: a worker may take requests, answer none, and still say that it is well.
    """

    __slots__ = ("answered",)

    def __init__(self) -> None:
        self.answered: Callable[[], bool] = _not_yet


def _not_yet() -> bool:
    return False


@dataclass(slots=True)
class _Breaker:
    """What is remembered of one worker; it rests while `open_until_s` is set."""

    ref: WorkerRef
    failed: deque[bool] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    rest_s: float = 0.0
    open_until_s: float | None = None
    trials: set[Trial] = field(default_factory=set)
    tried_s: float = 0.0

    @property
    def passed(self) -> bool:
        # A whole answer may take minutes: its beginning will do.
        return any(trial.answered() for trial in self.trials)


class Breakers:
    """A worker that fails at least half of its requests, and some of them, rests; then one request tries it.

    Failures count by share and not in a row: long streams that began before a worker fell ill end well long
    after, and each would wipe out what a dozen new requests met. A worker that falls ill again before it has
    cleared its name rests for longer. One that is tried has another request only every few seconds until
    an answer begins: if it hangs, it holds a few, and not as many as it has slots.
    """

    def __init__(
        self, failures_to_open: int = FAILURES_TO_OPEN, longest_rest_s: float = LONGEST_REST_S
    ) -> None:
        self._failures_to_open = failures_to_open
        self._longest_rest_s = longest_rest_s
        # By name: a new incarnation's failures take the place of the old one's, so that this cannot grow.
        self._breakers: dict[str, _Breaker] = {}
        self._open: dict[WorkerRef, _Breaker] = {}

    @property
    def any_open(self) -> bool:
        """Whether any worker rests or is being tried; rarely, so that a placement need not ask each."""
        return bool(self._open)

    def allowance(self, ref: WorkerRef, now_s: float) -> int:
        """How many more requests the worker may be given now, as far as trust goes."""
        breaker = self._open.get(ref)
        if breaker is None or breaker.passed:
            return UNBOUNDED
        resting = breaker.open_until_s is not None and now_s < breaker.open_until_s
        tried = bool(breaker.trials) and now_s < breaker.tried_s + TRIAL_S
        return 0 if resting or tried else 1

    def is_open(self, ref: WorkerRef) -> bool:
        """Whether the worker rests or is being tried."""
        return ref in self._open

    def begin(self, ref: WorkerRef, now_s: float) -> Trial | None:
        """The worker is given a request; a trial if this one tries the worker, else None."""
        if not self._open:
            return None
        breaker = self._open.get(ref)
        if breaker is None:
            self._forget_former_life(ref)
            return None
        if breaker.passed:
            self._close(breaker)
            return None
        trial = Trial()
        breaker.trials.add(trial)
        breaker.tried_s = now_s
        return trial

    def succeeded(self, ref: WorkerRef, trial: Trial | None) -> None:
        """The request was answered. One that was given before the rest tells nothing of what comes after."""
        breaker = self._breakers.get(ref.name)
        if breaker is None or breaker.ref != ref:
            return
        if breaker.open_until_s is not None:
            if trial in breaker.trials:
                self._close(breaker)
            return
        breaker.failed.append(False)
        if len(breaker.failed) == REMEMBERED and not any(breaker.failed):
            del self._breakers[ref.name]

    def failed(self, ref: WorkerRef, trial: Trial | None, now_s: float) -> None:
        """The request failed. A crowd that was given before the rest and fails at once is one failure."""
        breaker = self._breaker_of(ref)
        if breaker.open_until_s is not None:
            if trial in breaker.trials:
                self._rest(breaker, now_s)
            return
        breaker.failed.append(True)
        failures = sum(breaker.failed)
        if failures >= self._failures_to_open and 2 * failures >= len(breaker.failed):
            self._rest(breaker, now_s)

    def open(self, ref: WorkerRef, now_s: float) -> None:
        """Let the worker rest whatever requests told of it, those that try it now among them.

        For faults that look like success to requests. They would clear its name of them at once, so it rests
        for the longest time.
        """
        self._rest(self._breaker_of(ref), now_s, self._longest_rest_s)

    def abandoned(self, ref: WorkerRef, trial: Trial | None) -> None:
        """The request was broken off on our side; if it tried the worker and saw nothing, another may."""
        breaker = self._open.get(ref)
        if breaker is not None and trial in breaker.trials:
            if breaker.passed:
                self._close(breaker)
            breaker.trials.discard(trial)

    def check_invariants(self) -> None:
        """What is open is what rests, and nothing else is being tried."""
        resting = {it.ref: it for it in self._breakers.values() if it.open_until_s is not None}
        if resting != self._open:
            raise AssertionError(f"open breakers out of step: {self._open} but workers say {resting}")
        if any(it.trials for it in self._breakers.values() if it.ref not in self._open):
            raise AssertionError("a worker is tried that does not rest")

    def _forget_former_life(self, ref: WorkerRef) -> None:
        before = self._breakers.get(ref.name)
        if before is not None and before.ref != ref:
            self._open.pop(before.ref, None)
            del self._breakers[ref.name]

    def _breaker_of(self, ref: WorkerRef) -> _Breaker:
        self._forget_former_life(ref)
        breaker = self._breakers.get(ref.name)
        if breaker is None:
            breaker = self._breakers[ref.name] = _Breaker(ref)
        return breaker

    def _rest(self, breaker: _Breaker, now_s: float, at_least_s: float = FIRST_REST_S) -> None:
        breaker.rest_s = min(self._longest_rest_s, max(at_least_s, breaker.rest_s * 2))
        breaker.open_until_s = now_s + breaker.rest_s
        breaker.trials.clear()
        self._open[breaker.ref] = breaker

    def _close(self, breaker: _Breaker) -> None:
        breaker.open_until_s = None
        breaker.trials.clear()
        breaker.failed.clear()
        del self._open[breaker.ref]
