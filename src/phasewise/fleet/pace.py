"""How often a supervisor looks and how long it waits, as one value that tests can make quick.

What follows when time runs out is the supervisor's to decide.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """The times of one supervisor."""

    poll_s: float = 0.2
    health_every_s: float = 2.0
    health_timeout_s: float = 5.0
    silent_after_s: float = 10.0
    hopeless_after_s: float = 90.0
    # Beyond the gateway's own drain_s, at whose end it ends by itself; it is killed only if it does not.
    drain_grace_s: float = 5.0
    stop_grace_s: float = 10.0
    cleanup_grace_s: float = 1.0
    kill_grace_s: float = 5.0

    def longest_stop_s(self, drain_s: float) -> float:
        """How long stopping every process may take at most if running requests have `drain_s` to finish."""
        return drain_s + self.drain_grace_s + self.stop_grace_s + self.cleanup_grace_s + self.kill_grace_s
