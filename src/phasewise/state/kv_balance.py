"""Whether decode workers got the KV that was handed to them, or computed prompts again without a word.

Written by the gateway's audit only, which is told what requests were handed over and what engines counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from phasewise.model.worker import WorkerRef

TOLERATED_SHARE = 0.05
"""Engines may compute a prompt's last token or block themselves: that is no fall-back."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one look at an engine's counters showed of the hand-overs that were due.

    `recomputed_tokens` did not come, and more than is tolerated. `missing_tokens` have not been seen to come,
    tolerated or not. `sound` is whether the sums hold, with nothing among them that may be somebody else's.
    """

    recomputed_tokens: int = 0
    missing_tokens: float = 0.0
    sound: bool = False


NOTHING_DUE = Verdict()


@dataclass(slots=True)
class _Account:
    """What is known of one life of a worker.

    Requests that have `ended` since the last look are `due` at the next: by then they are in the counters for
    sure. `spare` tokens came for requests that have not ended yet. `seen` is None until counters were read
    when nothing was under way: what had come before that is nobody's.
    """

    ref: WorkerRef
    seen: tuple[float, float] | None = None
    ended: int = 0
    ended_hits: int = 0
    due: int = 0
    due_hits: int = 0
    spare: float = 0.0
    moved_before: float = 0.0
    largest: int = 0
    was_under_way: int = 0
    recomputed: int = 0


class KvBalance:
    """Per decode worker: tokens whose KV should have come, against those that its engine says did.

    What an engine had in its own prefix cache need not come. Its counters tell all hits; those of requests
    that it served whole are taken off. Every look is judged by itself. What came too much is kept only while
    requests are under way that it may be for, so that others' hand-overs to the same engine give no credit
    for long; they can hide a shortfall, and never make one up.
    """

    def __init__(self) -> None:
        # By name, so that former lives of workers cannot pile up.
        self._accounts: dict[str, _Account] = {}
        self._past: dict[str, int] = {}

    def begin(self, ref: WorkerRef, moved_tokens: float, hit_tokens: float) -> None:
        """The engine had counted so much when it was first seen; told again, it changes nothing."""
        account = self._account(ref)
        if account.seen is None:
            account.seen = (moved_tokens, hit_tokens)

    def handed_over(self, ref: WorkerRef, prompt_tokens: int) -> None:
        """A request that was given KV for so many tokens has been answered."""
        account = self._account(ref)
        account.ended += prompt_tokens
        account.largest = max(account.largest, prompt_tokens)

    def served_whole(self, ref: WorkerRef, cached_tokens: int) -> None:
        """A request without KV has been answered, with so many tokens from the worker's own cache."""
        self._account(ref).ended_hits += cached_tokens

    def is_due(self, ref: WorkerRef) -> bool:
        """Whether the worker's counters would tell anything that was not known before."""
        account = self._account(ref)
        return account.seen is None or account.ended + account.due > 0

    def counted(self, ref: WorkerRef, moved_tokens: float, hit_tokens: float, under_way: int = 0) -> Verdict:
        """Judge what had ended at the last look, by counters of now and requests that are under way now."""
        account = self._account(ref)
        # A request may be off the worker a moment before it is known how it ended.
        running = max(under_way, account.was_under_way)
        account.was_under_way = under_way
        if account.seen is None:
            if not running:
                self.begin(ref, moved_tokens, hit_tokens)
            account.ended = account.ended_hits = 0
            return NOTHING_DUE
        moved = moved_tokens - account.seen[0]
        came = account.spare + moved + hit_tokens - account.seen[1]
        account.seen = (moved_tokens, hit_tokens)
        due, missing = account.due, account.due + account.due_hits - came
        account.due, account.due_hits = account.ended, account.ended_hits
        account.ended = account.ended_hits = 0
        pending = account.due + account.due_hits
        # Kept in full while anything runs: how long the prompts are that are under way nobody knows yet.
        account.spare = max(0.0, -missing if running else min(-missing, pending))
        # What is due was mostly fetched before the last look.
        has_moved = moved + account.moved_before > 0
        account.moved_before = moved
        if due and missing > TOLERATED_SHARE * due:
            recomputed = min(due, round(missing))
            account.recomputed += recomputed
            return Verdict(recomputed, missing)
        # What came may be for those that have just ended: a proof has to do without it.
        unseen = missing + pending
        holds = -running * account.largest <= unseen <= TOLERATED_SHARE * due
        return Verdict(0, max(0.0, unseen), sound=holds and has_moved and due > 0)

    def recomputed_tokens(self, name: str) -> int:
        """So many prompt tokens the worker computed again, over all its lives."""
        account = self._accounts.get(name)
        return self._past.get(name, 0) + (0 if account is None else account.recomputed)

    def _account(self, ref: WorkerRef) -> _Account:
        account = self._accounts.get(ref.name)
        if account is None or account.ref != ref:
            self._past[ref.name] = self.recomputed_tokens(ref.name)
            account = self._accounts[ref.name] = _Account(ref)
        return account
