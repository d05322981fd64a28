"""How far another host's wall clock is from ours, learned from what it says during exchanges with it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ClockShift:
    """Seconds to take off their times to have ours; clocks are taken to agree until shown otherwise."""

    seconds: float = 0.0

    def learn(self, theirs_s: float, asked_s: float, answered_s: float) -> None:
        """They read their clock at some moment between our question and their answer.

        A shift that could be true is kept, so that noise does not move times about.
        """
        seen_s = theirs_s - (asked_s + answered_s) / 2
        if abs(seen_s - self.seconds) > (answered_s - asked_s) / 2:
            self.seconds = seen_s
