"""When each pair of workers last transferred KV, and which pairs failed since.

The gateway's audit writes it. Breakers, not these records, decide which pairs get requests.
"""

from __future__ import annotations

from dataclasses import dataclass

from phasewise.core.kv_transfer import pair_ref
from phasewise.core.worker import WorkerRef


class KvTransferProofs:
    """The last proof and the last failure of every pair, by the pair's present incarnations."""

    def __init__(self) -> None:
        # By name, so that former incarnations do not pile up.
        self._proven: dict[tuple[str, str], tuple[WorkerRef, float]] = {}
        self._failed: dict[tuple[str, str], tuple[WorkerRef, float]] = {}

    def prove(self, prefill: WorkerRef, decode: WorkerRef, at_s: float) -> bool:
        """KV was transferred. Returns whether the pair had failed."""
        names = (prefill.name, decode.name)
        self._proven[names] = (pair_ref(prefill, decode), at_s)
        return self._failed.pop(names, None) is not None

    def fail(self, prefill: WorkerRef, decode: WorkerRef, at_s: float) -> None:
        """KV was not transferred."""
        self._failed[prefill.name, decode.name] = (pair_ref(prefill, decode), at_s)

    def last_proven_s(self, decode: str) -> float | None:
        """When KV was last transferred to this worker."""
        return max((at_s for (_, name), (_, at_s) in self._proven.items() if name == decode), default=None)

    def failing(self, decode: str) -> int:
        """How many prefill workers transfer no KV to this worker any more."""
        return sum(name == decode for _, name in self._failed)


# --- Whether decode workers fetched the KV that they were given, or silently computed prompts again.
#
# Only the gateway's audit writes it, from the requests with a KV transfer and the engines' counters.

TOLERATED_SHARE = 0.05
"""Engines may compute a prompt's last token or block themselves; that is not a recomputation."""


@dataclass(frozen=True, slots=True)
class TransferVerdict:
    """The result of one reading of an engine's counters about the KV transfers that were due.

    `recomputed_tokens` were not fetched, beyond the tolerance. `missing_tokens` were not seen to be fetched,
    within the tolerance or not. `sound`: the sums match, and no other requests' tokens can be among them.
    """

    recomputed_tokens: int = 0
    missing_tokens: float = 0.0
    sound: bool = False


NOTHING_DUE = TransferVerdict()


@dataclass(slots=True)
class _Account:
    """The sums of one incarnation of a worker.

    Requests that have `ended` since the last reading are `due` at the next, when the counters surely include
    them. `spare` tokens were fetched for requests that have not ended yet. `seen` is None until the counters
    were read while nothing ran: earlier tokens cannot be attributed.
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
    """Per decode worker: tokens whose KV should have been fetched, against those that its engine counted.

    An engine does not fetch what its own prefix cache holds. Its counters include all cache hits, so hits of
    requests without a KV transfer are subtracted. Every reading is judged by itself. A surplus is kept only
    while requests run that it may belong to, so that other requests' KV transfers to the same engine give
    credit only briefly. They can hide a shortfall but never cause one.
    """

    def __init__(self) -> None:
        # By name, so that former incarnations do not pile up.
        self._accounts: dict[str, _Account] = {}
        self._past: dict[str, int] = {}

    def begin(self, ref: WorkerRef, moved_tokens: float, hit_tokens: float) -> None:
        """The engine's counters at the first reading. A second call changes nothing."""
        account = self._account(ref)
        if account.seen is None:
            account.seen = (moved_tokens, hit_tokens)

    def transferred(self, ref: WorkerRef, prompt_tokens: int) -> None:
        """A request with a KV transfer of so many tokens has been answered."""
        account = self._account(ref)
        account.ended += prompt_tokens
        account.largest = max(account.largest, prompt_tokens)

    def served_whole(self, ref: WorkerRef, cached_tokens: int) -> None:
        """A request without a KV transfer has been answered, with `cached_tokens` from the worker's cache."""
        self._account(ref).ended_hits += cached_tokens

    def is_due(self, ref: WorkerRef) -> bool:
        """Whether a reading of the worker's counters would show anything new."""
        account = self._account(ref)
        return account.seen is None or account.ended + account.due > 0

    def counted(
        self, ref: WorkerRef, moved_tokens: float, hit_tokens: float, under_way: int = 0
    ) -> TransferVerdict:
        """Judge the requests that had ended at the last reading, by the counters of now."""
        account = self._account(ref)
        # A request may leave the worker a moment before its outcome is reported.
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
        # Kept in full while anything runs: the lengths of running prompts are unknown.
        account.spare = max(0.0, -missing if running else min(-missing, pending))
        # What is due was mostly fetched before the last reading.
        has_moved = moved + account.moved_before > 0
        account.moved_before = moved
        if due and missing > TOLERATED_SHARE * due:
            recomputed = min(due, round(missing))
            account.recomputed += recomputed
            return TransferVerdict(recomputed, missing)
        # Fetched tokens may belong to requests that have just ended, so a proof does not count them.
        unseen = missing + pending
        holds = -running * account.largest <= unseen <= TOLERATED_SHARE * due
        return TransferVerdict(0, max(0.0, unseen), sound=holds and has_moved and due > 0)

    def recomputed_tokens(self, name: str) -> int:
        """Prompt tokens that the worker computed again, over all its incarnations."""
        account = self._accounts.get(name)
        return self._past.get(name, 0) + (0 if account is None else account.recomputed)

    def _account(self, ref: WorkerRef) -> _Account:
        account = self._accounts.get(ref.name)
        if account is None or account.ref != ref:
            self._past[ref.name] = self.recomputed_tokens(ref.name)
            account = self._accounts[ref.name] = _Account(ref)
        return account
