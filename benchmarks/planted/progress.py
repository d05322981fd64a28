"""How long a set of runs will go on: what is planned, held against the clock as runs end."""

from __future__ import annotations

from dataclasses import dataclass

START_S = 30.0
"""What a start takes: engine and gateway up, a first long prompt, and down again."""
BESIDE_S = 6.0
"""What a run takes beside settling and watching: commands that begin, and an engine that empties."""


@dataclass(slots=True)
class Progress:
    """Seconds that were planned, of which so many are behind us."""

    planned_s: float
    done_s: float = 0.0

    def left_s(self, elapsed_s: float) -> float:
        """What is still to come, if the rest keeps to the plan as well or as badly as what is done."""
        pace = elapsed_s / self.done_s if self.done_s else 1.0
        return max(0.0, self.planned_s - self.done_s) * pace
