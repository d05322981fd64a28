"""Which worker has which beginnings of prompts in its cache, as far as the gateway can tell.

Written by request_flow only. What the hashes are made of is model/prefix_hashes.py's.
"""

from __future__ import annotations

from collections.abc import Sequence

from phasewise.model.worker import WorkerRef


class PrefixIndex:
    """Remembers who served what, and how far that memory was right."""

    def served(
        self, worker: WorkerRef, hashes: Sequence[int], prompt_tokens: int, cached_tokens: int
    ) -> None:
        """A worker has computed this prompt and reported how much of it was cached."""

    def cached_tokens(self, worker: WorkerRef, hashes: Sequence[int], prompt_tokens: int) -> int:
        """How much of a prompt is expected to be in the worker's cache."""
        del worker, hashes, prompt_tokens
        return 0
