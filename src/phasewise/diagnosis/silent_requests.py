"""Requests that nobody answered, weighed among those that were: leaving them out would flatter the server.

A request that was given up, cut off or is still open waited at least so long; how long it would have waited
nobody knows. Counting which requests these are is start_picture.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phasewise.model.quantiles import quantile

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class WaitQuantile:
    """A quantile of waits; with `at_least`, so many were never answered that it lies beyond this."""

    seconds: float
    at_least: bool


def wait_quantile(answered_s: Sequence[float], silent_s: Sequence[float], share: float) -> WaitQuantile:
    """The wait that `share` of all requests stay below; one of both sequences must not be empty.

    By Kaplan and Meier: whoever left without an answer counts until then as waiting, and afterwards like
    those who still waited. Where too few were answered, it lies beyond the longest wait that was seen.
    """
    if not silent_s:
        return WaitQuantile(quantile(answered_s, share), at_least=False)
    waiting = len(answered_s) + len(silent_s)
    unanswered_share = 1.0
    # Of those that ended at the same time, the answered ones first: the others still waited then.
    for wait_s, silent in sorted([(it, False) for it in answered_s] + [(it, True) for it in silent_s]):
        if not silent:
            unanswered_share *= 1.0 - 1.0 / waiting
            if 1.0 - unanswered_share >= share - _ROUNDING:
                return WaitQuantile(wait_s, at_least=False)
        waiting -= 1
    return WaitQuantile(max([*answered_s, *silent_s]), at_least=True)
