"""Decides what follows a death: another start after a pause, or giving up.

It is told what happened and returns a decision; waiting and starting are the supervisor's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
# Having served this long, a process is taken to have been well: its death starts the count anew.
STEADY_AFTER_S = 60.0
HOPELESS_STARTS = 3


@dataclass(frozen=True)
class Death:
    """The end of one run of a process; `ready_for_s` is None when it never became ready.

    `refused` is set when it refused its own command line: it would refuse it again.
    """

    at_s: float
    ready_for_s: float | None
    refused: bool = False


@dataclass(frozen=True)
class RestartAt:
    """Start again at this time."""

    at_s: float


@dataclass(frozen=True)
class GiveUp:
    """Do not start again: it has never been ready and another try would fail like the ones before."""

    failures: int


def after_death(deaths: Sequence[Death], *, has_served: bool) -> RestartAt | GiveUp:
    """What to do after the last of `deaths` (oldest first, at least one; the oldest may be forgotten).

    Only a process that has never once been ready is given up: its command is wrong. One that served before
    is tried for ever, since what keeps it down (memory, a busy port) may pass. So `has_served` is told apart
    from the deaths: the run that served may be among the forgotten ones.
    """
    if not has_served and (len(deaths) >= HOPELESS_STARTS or deaths[-1].refused):
        return GiveUp(len(deaths))
    row = 0
    for death in reversed(deaths):
        if death.ready_for_s is not None and death.ready_for_s >= STEADY_AFTER_S:
            # A death after long service is the first of its row, not part of the row before it.
            row += 1
            break
        row += 1
    pause_s = min(FIRST_PAUSE_S * 2.0 ** min(row - 1, 10), LONGEST_PAUSE_S)
    return RestartAt(deaths[-1].at_s + pause_s)
