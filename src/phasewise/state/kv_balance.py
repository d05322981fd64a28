"""Whether decode workers got the KV that was handed to them, or computed prompts again without a word.

Written by the gateway's audit only, which is told what requests were handed over and what engines counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from phasewise.model.worker import WorkerRef

TOLERATED_SHARE = 0.05
"""Engines may compute a prompt's last token or block themselves: that is no fall-back."""


@dataclass(slots=True)
class _Account:
    ref: WorkerRef
    base_moved: float = 0.0
    base_hits: float = 0.0
    expected: int = 0
    due: int = 0
    judged: int = 0
    own_hits: int = 0
    recomputed: int = 0


class KvBalance:
    """Per decode worker: tokens whose KV should have come, against those that its engine says did.

    What an engine had in its own prefix cache need not come. Its counters tell all hits; those of requests
    that it served whole are taken off. Other gateways' hand-overs to the same engine can hide a shortfall and
    never make one up.
    """

    def __init__(self) -> None:
        # By name, so that former lives of workers cannot pile up.
        self._accounts: dict[str, _Account] = {}
        self._past: dict[str, int] = {}

    def begin(self, ref: WorkerRef, moved_tokens: float, hit_tokens: float) -> None:
        """The engine had counted so much before anything was handed to it from here."""
        self._accounts[ref.name] = _Account(ref, moved_tokens, hit_tokens)

    def handed_over(self, ref: WorkerRef, prompt_tokens: int) -> None:
        """A request that was given KV for so many tokens has been answered."""
        self._account(ref).expected += prompt_tokens

    def served_whole(self, ref: WorkerRef, cached_tokens: int) -> None:
        """A request without KV has been answered, with so many tokens from the worker's own cache."""
        self._account(ref).own_hits += cached_tokens

    def is_due(self, name: str) -> bool:
        """Whether the worker's counters would tell anything that was not known before."""
        account = self._accounts.get(name)
        return account is not None and account.judged < account.expected

    def counted(self, ref: WorkerRef, moved_tokens: float, hit_tokens: float) -> int:
        """How many more tokens the engine computed again than was known; asked again and again.

        Held against its counters is what had been answered the last time that they were asked for: by now it
        is in them for sure.
        """
        account = self._account(ref)
        moved = moved_tokens - account.base_moved
        hits = max(0.0, hit_tokens - account.base_hits - account.own_hits)
        missing = account.due - moved - hits
        account.judged, account.due = account.due, account.expected
        if missing <= TOLERATED_SHARE * account.judged or missing <= account.recomputed:
            return 0
        newly, account.recomputed = round(missing) - account.recomputed, round(missing)
        return newly

    def recomputed_tokens(self, name: str) -> int:
        """So many prompt tokens the worker computed again, over all its lives."""
        account = self._accounts.get(name)
        return self._past.get(name, 0) + (0 if account is None else account.recomputed)

    def _account(self, ref: WorkerRef) -> _Account:
        account = self._accounts.get(ref.name)
        if account is None or account.ref != ref:
            # A new life begins to count at nothing.
            self._past[ref.name] = self.recomputed_tokens(ref.name)
            account = self._accounts[ref.name] = _Account(ref)
        return account
