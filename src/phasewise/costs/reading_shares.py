"""How much each worker has lately been given to read. Pure; written by request_flow only.

A stream stands still while its worker reads: who is to write where much is read will take longer to write.
And who comes to a worker that reads has to wait.
"""

from __future__ import annotations

from math import exp
from typing import NamedTuple

from phasewise.model.worker import WorkerRef

_MEMORY_S = 120.0
"""Two minutes hold enough long prompts to tell a habit from an accident."""


class Reading(NamedTuple):
    """What a worker was given per second: seconds to read, above 1 where it cannot keep up, and prompts."""

    share: float
    prompts_per_s: float


class ReadingShares:
    """Sums of seconds to read, which fade. A restarted engine has its traffic still: shares go by name."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float, float]] = {}

    def placed(self, worker: WorkerRef, read_s: float, now_s: float) -> None:
        """A worker was given a prompt that should take so long to read."""
        share, prompts_per_s = self.lately(worker, now_s)
        self._sums[worker.name] = (share + read_s / _MEMORY_S, prompts_per_s + 1.0 / _MEMORY_S, now_s)

    def lately(self, worker: WorkerRef, now_s: float) -> Reading:
        """What a worker was given over the last two minutes or so."""
        sums = self._sums.get(worker.name)
        if sums is None:
            return _NOTHING
        share, prompts_per_s, then_s = sums
        kept = exp(min(0.0, then_s - now_s) / _MEMORY_S)
        return Reading(share * kept, prompts_per_s * kept)


_NOTHING = Reading(0.0, 0.0)
