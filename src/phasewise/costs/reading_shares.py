"""How much of its time each worker has lately been given to read prompts. Pure; written by request_flow only.

A stream stands still while its worker reads: who is to write where much is read will take longer to write.
"""

from __future__ import annotations

from math import exp

from phasewise.model.worker import WorkerRef

_MEMORY_S = 120.0
"""Two minutes hold enough long prompts to tell a habit from an accident."""


class ReadingShares:
    """Sums of seconds to read, which fade. A restarted engine has its traffic still: shares go by name."""

    def __init__(self) -> None:
        self._shares: dict[str, tuple[float, float]] = {}

    def placed(self, worker: WorkerRef, read_s: float, now_s: float) -> None:
        """A worker was given a prompt that should take so long to read."""
        self._shares[worker.name] = (self.share(worker, now_s) + read_s / _MEMORY_S, now_s)

    def share(self, worker: WorkerRef, now_s: float) -> float:
        """The seconds to read that a worker was given per second; above 1 it cannot keep up."""
        share, then_s = self._shares.get(worker.name, (0.0, now_s))
        return share * exp(min(0.0, then_s - now_s) / _MEMORY_S)
