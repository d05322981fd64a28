"""What there is to claim in a phase: the parts of its mean latency, and the stalls of its streams.

A part is claimed at most once: what a rule took is not there for the rules after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Taken:
    """What was claimed: seconds of the mean latency, and a share of all time that streams stalled."""

    seconds: float = 0.0
    stall_share: float = 0.0

    @property
    def is_something(self) -> bool:
        """Whether anything was there to take."""
        return self.seconds > 0 or self.stall_share > 0

    def __add__(self, other: Taken) -> Taken:
        return Taken(self.seconds + other.seconds, self.stall_share + other.stall_share)


class Account:
    """The parts of one phase. Rules are its only writers, one after the other."""

    def __init__(self, parts: Mapping[str, Taken]) -> None:
        self._whole = dict(parts)
        self._left = dict(parts)

    @property
    def whole_s(self) -> float:
        """All parts together, claimed or not."""
        return sum(part.seconds for part in self._whole.values())

    @property
    def unclaimed(self) -> Taken:
        """What nobody has claimed."""
        return sum(self._left.values(), Taken())

    def seconds(self, *parts: str) -> float:
        """What is left of these parts."""
        return sum(self._left[part].seconds for part in parts if part in self._left)

    def take(self, fraction: float, *parts: str) -> Taken:
        """Claim this fraction of what is left of each part."""
        fraction = min(max(fraction, 0.0), 1.0)
        taken = Taken()
        for part in parts:
            if part not in self._left:
                continue
            left = self._left[part]
            claimed = Taken(left.seconds * fraction, left.stall_share * fraction)
            self._left[part] = Taken(left.seconds - claimed.seconds, left.stall_share - claimed.stall_share)
            taken += claimed
        return taken

    def take_seconds(self, seconds: float, *parts: str) -> Taken:
        """Claim so many seconds, from each part in proportion to what is left of it."""
        there_s = self.seconds(*parts)
        return self.take(seconds / there_s, *parts) if there_s > 0 else Taken()

    def check_invariants(self) -> None:
        """Nothing is claimed twice, and nothing that was never there."""
        for part, whole in self._whole.items():
            left = self._left[part]
            if not -1e-9 <= left.seconds <= whole.seconds + 1e-9:
                raise AssertionError(f"{left.seconds} s left of {part}, which had {whole.seconds} s")
            if not -1e-9 <= left.stall_share <= whole.stall_share + 1e-9:
                raise AssertionError(
                    f"{left.stall_share} of all stalls left in {part} of {whole.stall_share}"
                )
        if sum(part.stall_share for part in self._whole.values()) > 1 + 1e-9:
            raise AssertionError("there are more stalls than all")
