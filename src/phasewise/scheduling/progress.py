"""Whether workers that have requests make progress, and when one counts as hung.

An engine whose core stands still goes on answering /health. What it cannot do is end a step: then no counter
moves and no byte comes. How long that may last depends on the engine: a step with a long prompt may take a
minute. So the longest silence that ended well is learned for each incarnation, by how many prompt tokens were
booked, and a worker is hung after six times that, scaled up if more are booked than ever before.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from phasewise.core.value import value
from phasewise.core.worker import Worker, WorkerRef

SOONEST_S = 10.0
TIMES = 6.0
"""Four times the longest step that is to be expected: half as long again as the longest one so far."""
NOT_FITTED_S = 120.0
"""The limit of a worker whose steps are yet unknown, or of a prompt far longer than any before it."""
FEWEST_LOOKS = 8
"""Looks at which there was progress, before a worker's longest silence is believed."""
FAR_LONGER = 4.0
LEARNED_OF_A_HANG = 2.0
"""A silence in which a worker counted as hung was hardly a step: it doubles the limit at most, so that a
worker that hangs again is not given minutes."""
LONGEST_LOOK_S = 2.0
"""The most that one look adds to a silence. Two looks that are further apart show that we were late."""
FADES = 0.999
"""What is left of a longest silence after a look with as many prompt tokens: half in ten minutes."""


class Pace(StrEnum):
    """How a worker's requests get on."""

    MOVES = "moves"
    SUSPECT = "suspect"
    HUNG = "hung"


@value
class PromptsBooked:
    """The prompts in prefill on a worker, in tokens, and the largest of both that it has ever got through."""

    unread: int = 0
    longest: int = 0
    unread_before: int = 0
    longest_before: int = 0

    @property
    def growth(self) -> float:
        """How many times as large as anything before it a step may be now."""
        return max(1.0, _times(self.unread, self.unread_before), _times(self.longest, self.longest_before))


def _times(now: int, before: int) -> float:
    return 1.0 if now <= before else now / before if before else inf


@dataclass(slots=True)
class WorkerProgress:
    """The progress of one incarnation of a worker, from one look to the next.

    `silent_s` is how long it has been without any, leaving out the time in which we did not look, or in which
    it had nothing to do.
    """

    ref: WorkerRef
    silent_s: float = 0.0
    _signs: Hashable = None
    _looked_s: float | None = None
    _booked: int = 0
    _longest_s: dict[int, float] = field(default_factory=dict)
    _looks: int = 0
    _most_learned_s: float = inf

    def look(self, signs: Hashable, *, works: bool, now_s: float, unread: int = 0) -> None:
        """What the worker shows now; any change of `signs` is progress. `works`: it has something to do.

        `unread` are the prompt tokens booked on it.
        """
        passed_s = 0.0 if self._looked_s is None else min(now_s - self._looked_s, LONGEST_LOOK_S)
        self._looked_s = now_s
        if works and signs == self._signs:
            self.silent_s += passed_s
            self._booked = max(self._booked, unread)
            return
        if works and self._signs is not None:
            # The silence ended at some time since the last look.
            size = max(self._booked, unread).bit_length()
            before_s = self._longest_s.get(size, 0.0) * FADES
            self._longest_s[size] = max(before_s, min(self.silent_s + passed_s, self._most_learned_s))
            self._looks += 1
        self._signs = signs
        self._booked = unread
        self.silent_s = 0.0
        self._most_learned_s = inf

    @property
    def is_silent(self) -> bool:
        """Whether it has been silent so long that it may not move."""
        return self.silent_s >= SOONEST_S / 2

    def limit_s(self, prompts: PromptsBooked) -> float:
        """How long it may be silent."""
        growth, size = prompts.growth, prompts.unread.bit_length()
        within = [longest_s for of, longest_s in self._longest_s.items() if of <= size + 1]
        longest_s = max(within or self._longest_s.values(), default=0.0)
        if self._looks < FEWEST_LOOKS or growth == inf:
            return NOT_FITTED_S
        if growth > FAR_LONGER:
            return max(NOT_FITTED_S, TIMES * longest_s * growth)
        # Attention makes a prompt of twice the length take up to four times as long.
        return max(SOONEST_S, TIMES * longest_s * growth**2)

    def pace(self, prompts: PromptsBooked) -> Pace:
        """Whether it moves. If it is called hung, little is learned of its silence when that ends."""
        limit_s = self.limit_s(prompts)
        if self.silent_s >= limit_s:
            self._most_learned_s = min(self._most_learned_s, LEARNED_OF_A_HANG * limit_s / TIMES)
            return Pace.HUNG
        return Pace.SUSPECT if self.silent_s >= limit_s / 2 else Pace.MOVES


def may_take_out(worker: Worker, pool: Iterable[tuple[Worker, bool]]) -> bool:
    """Whether a worker without progress may be taken out of service: never more than half of its pool, so
    never the last one. `pool` are all workers, each with whether it is out for that reason already.
    """
    alike = [
        (other, is_out)
        for other, is_out in pool
        if (other.pool, other.model, other.role) == (worker.pool, worker.model, worker.role)
    ]
    out = sum(is_out for other, is_out in alike if other.name != worker.name)
    return 2 * (out + 1) <= len(alike)
