"""When each pair of workers last proved that it hands KV over, and which last failed to.

Written by the gateway's audit and canary; who may hand over is decided from breakers, not from here.
"""

from __future__ import annotations

from phasewise.model.hand_over import pair_ref
from phasewise.model.worker import WorkerRef


class HandOverProofs:
    """The last proof and the last failure of every pair, by the pair's present incarnations."""

    def __init__(self) -> None:
        # By name, so that former lives of workers cannot pile up.
        self._proven: dict[tuple[str, str], tuple[WorkerRef, float]] = {}
        self._failed: dict[tuple[str, str], tuple[WorkerRef, float]] = {}
        self._put_off: dict[tuple[str, str], tuple[WorkerRef, float]] = {}

    def prove(self, prefill: WorkerRef, decode: WorkerRef, at_s: float) -> bool:
        """KV moved; whether the pair's last trial had failed."""
        names = (prefill.name, decode.name)
        self._proven[names] = (pair_ref(prefill, decode), at_s)
        return self._failed.pop(names, None) is not None

    def fail(self, prefill: WorkerRef, decode: WorkerRef, at_s: float) -> bool:
        """KV did not move; whether that is news."""
        names, pair = (prefill.name, decode.name), pair_ref(prefill, decode)
        known = self._failed.get(names)
        self._failed[names] = (pair, at_s)
        return known is None or known[0] != pair

    def put_off(self, prefill: WorkerRef, decode: WorkerRef, at_s: float) -> None:
        """It was tried, and nothing came of it that tells of the pair."""
        self._put_off[prefill.name, decode.name] = (pair_ref(prefill, decode), at_s)

    def last_tried_s(self, prefill: WorkerRef, decode: WorkerRef) -> float | None:
        """When these two incarnations were last tried, whatever came of it."""
        names, pair = (prefill.name, decode.name), pair_ref(prefill, decode)
        known = (book.get(names) for book in (self._proven, self._failed, self._put_off))
        return max((at_s for ref, at_s in filter(None, known) if ref == pair), default=None)

    def is_proven(self, prefill: WorkerRef, decode: WorkerRef) -> bool:
        """Whether these two incarnations ever handed over."""
        found = self._proven.get((prefill.name, decode.name))
        return found is not None and found[0] == pair_ref(prefill, decode)

    def is_failing(self, prefill: WorkerRef, decode: WorkerRef) -> bool:
        """Whether these two incarnations were last seen not to hand over."""
        found = self._failed.get((prefill.name, decode.name))
        return found is not None and found[0] == pair_ref(prefill, decode)

    def last_proven_s(self, decode: str) -> float | None:
        """When anybody last handed over to this worker."""
        return max((at_s for (_, name), (_, at_s) in self._proven.items() if name == decode), default=None)

    def failing(self, decode: str) -> int:
        """How many prefill workers' last trial with this worker failed."""
        return sum(name == decode for _, name in self._failed)
