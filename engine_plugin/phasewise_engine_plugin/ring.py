"""A bounded ring of engine steps: tuples in, numbered tuples out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

DEFAULT_CAPACITY_STEPS = 65_536


class FinishedRequest(NamedTuple):
    """A request that ended in a step; durations are None if it never reached that phase."""

    id: str
    reason: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None
    e2e_s: float | None
    preemptions: int


class Transfer(NamedTuple):
    """KV that arrived from another engine: how long the transfer took, and its size."""

    seconds: float
    bytes: int


# A step as the ring holds it, in this order. A plain tuple: a named one costs twice as much to create, and
# the recorder creates one per step inside the engine.
STEP_FIELDS = (
    "at",
    "engine",
    "it",
    "prompt_tokens",
    "prompt_requests",
    "decode_tokens",
    "decode_requests",
    "running",
    "waiting",
    "kv",
    "preempted",
    "first_tokens",
    "finished",
    "transfers",
)
StepTuple = tuple[
    float,
    int,
    "int | None",
    "int | None",
    "int | None",
    "int | None",
    "int | None",
    int,
    int,
    float,
    int,
    int,
    tuple[FinishedRequest, ...],
    tuple[Transfer, ...],
]


class StepRing:
    """Keeps the last `capacity` steps; one thread writes, any number read without a lock.

    A slot holds (seq, step) and is replaced as a whole, so a reader either sees the step it asked for or
    notices by the number that it was overwritten.
    """

    def __init__(self, capacity: int = DEFAULT_CAPACITY_STEPS) -> None:
        if capacity < 1:
            raise ValueError(f"a ring of {capacity} steps is too small. hint: use at least 1")
        self.capacity = capacity
        self._slots: list[tuple[int, StepTuple] | None] = [None] * capacity
        self._next_seq = 0

    def append(self, step: StepTuple) -> None:
        """Store a step under the next number; when full, it overwrites the oldest one."""
        seq = self._next_seq
        self._slots[seq % self.capacity] = (seq, step)
        self._next_seq = seq + 1

    @property
    def next_seq(self) -> int:
        """The number the next step will get."""
        return self._next_seq

    @property
    def oldest_seq(self) -> int:
        """The lowest number still held (equal to next_seq when empty)."""
        return max(0, self._next_seq - self.capacity)

    def first_seq_at(self, unix_s: float) -> int:
        """The number of the first held step that ended at or after a time (next_seq when none did).

        By bisection: steps are appended in the order of their ends. A step that is overwritten during the
        search counts as earlier, like every dropped step.
        """
        return bisect_left(range(self._next_seq), unix_s, lo=self.oldest_seq, key=self._ended_unix_s)

    def _ended_unix_s(self, seq: int) -> float:
        slot = self._slots[seq % self.capacity]
        return slot[1][0] if slot is not None and slot[0] == seq else float("-inf")

    def since(self, seq: int, limit: int) -> Iterator[tuple[int, StepTuple]]:
        """The held steps numbered `seq` and up, oldest first, at most `limit`, up to the newest one now."""
        first = max(seq, self.oldest_seq)
        for wanted in range(first, min(self._next_seq, first + limit)):
            slot = self._slots[wanted % self.capacity]
            if slot is not None and slot[0] == wanted:
                yield slot
