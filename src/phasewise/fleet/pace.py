"""How often a supervisor looks and how long it waits, as one value that tests can make quick.

What follows when time runs out is the supervisor's to decide.
"""

from __future__ import annotations

from dataclasses import dataclass

STREAMS_MAY_FINISH_S = 30.0
"""What the gateway gives its running streams after SIGTERM; its own setting, held equal by a test."""


@dataclass(frozen=True)
class Pace:
    """The times of one supervisor."""

    poll_s: float = 0.2
    health_every_s: float = 2.0
    health_timeout_s: float = 5.0
    silent_after_s: float = 10.0
    hopeless_after_s: float = 90.0
    # The gateway ends by itself when its streams' time is up; it is killed only if it does not.
    drain_grace_s: float = STREAMS_MAY_FINISH_S + 5.0
    stop_grace_s: float = 10.0
    cleanup_grace_s: float = 1.0
    kill_grace_s: float = 5.0

    @property
    def longest_stop_s(self) -> float:
        """How long stopping every process may take at most."""
        return self.drain_grace_s + self.stop_grace_s + self.cleanup_grace_s + self.kill_grace_s
