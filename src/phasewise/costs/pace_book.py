"""Learns how fast each engine is from what its requests took. Pure; written by request_flow only."""

from __future__ import annotations

from phasewise.costs.pace import EnginePace
from phasewise.model.worker import WorkerRef


class PaceBook:
    """What is known of the pace of every worker."""

    def learn_read(self, worker: WorkerRef, prompt_tokens: int, cached_tokens: int, seconds: float) -> None:
        """A prompt was computed in so long, with nothing else to compute beside it."""

    def learn_step(self, worker: WorkerRef, streams: int, seconds: float) -> None:
        """A stream got its tokens so far apart, beside so many streams with itself."""

    def learn_fetch(self, worker: WorkerRef, tokens: int, seconds: float) -> None:
        """KV of so many tokens was fetched in so long, the wait for a step included."""

    def pace(self, worker: WorkerRef) -> EnginePace | None:
        """The worker's pace; None while too little is known."""
        del worker
        return None
