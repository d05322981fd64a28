"""From when on a phase is slow: the same for a verdict and for the live view."""

from __future__ import annotations

from phasewise.core.timeline import Outcome

AFFECTED_SHARE = 0.1
"""A phase is slow when at least this share of its requests missed the objective."""
AFFECTED_BY_BOTH = 0.15
"""Requests that start late and those that stream slowly, added up, if each share alone is smaller."""
UNSERVED = frozenset({Outcome.FAILED, Outcome.TIMED_OUT, Outcome.REJECTED})
"""Requests fail if at least that share of them ended so."""


def slow_phases(late: int, starts: int, slow: int, streams: int) -> tuple[bool, bool]:
    """Whether it is slow to start, and slow to stream: `late` of so many starts, `slow` of so many streams.

    Half of the usual share is enough if both phases together affect many.
    """
    both = (late / starts if starts else 0.0) + (slow / streams if streams else 0.0)
    share = AFFECTED_SHARE / 2 if both >= AFFECTED_BY_BOTH else AFFECTED_SHARE
    return late >= max(1, share * starts), slow >= max(1, share * streams)


def too_many_fail(failed: int, requests: int) -> bool:
    """Whether too many requests were not served."""
    return failed > 0 and failed >= AFFECTED_SHARE * requests
