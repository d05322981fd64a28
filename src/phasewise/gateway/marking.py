"""Marks the prompts of requests, as many as there is time for.

A mark costs a pass over the prompt, which for a long one is more than all else a request costs. Whoever reads
marks takes a request without any for one of which nothing is known, so under a heavy load some go without.
What marks are is model/prefix_marks.py's.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from phasewise.gateway.fields import Parsed, prompt_bytes
from phasewise.model.prefix_marks import MARK_SIZES_BYTES, TEXT_FROM_BYTES, prefix_marks, text_marks
from phasewise.model.request import Endpoint

SHARE_OF_TIME = 0.02
"""So much of the time goes at most into marking beginnings, and as much into marking texts."""
SHORT_BYTES = 2048
"""The beginning of a shorter request is marked always: that takes hardly longer than asking for the time."""
SAVED_UP_S = 0.25
"""After a quiet time some hundred long prompts in a row are marked all the same."""

Marks = tuple[str, ...]


class TimeBudget:
    """Time that may be spent on what can be left out: a share of all time, some of which is saved up."""

    def __init__(self, share: float, saved_up_s: float) -> None:
        self._share = share
        self._most_s = self._left_s = saved_up_s
        self._seen_s = 0.0

    def allows(self, now_s: float) -> bool:
        """Whether there is any left."""
        self._left_s = min(self._most_s, self._left_s + (now_s - self._seen_s) * self._share)
        self._seen_s = now_s
        return self._left_s > 0

    def spend(self, seconds: float) -> None:
        """So long it took; what was not left is owed."""
        self._left_s -= seconds


class Marking:
    """Marks prompts under a key that never leaves the process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._key = secrets.token_bytes(32)
        self._clock = clock
        self._beginnings = TimeBudget(SHARE_OF_TIME, SAVED_UP_S)
        self._texts = TimeBudget(SHARE_OF_TIME, SAVED_UP_S)

    def prefix_marks(self, endpoint: Endpoint, body: bytes) -> Marks:
        """Marks of the prompt's beginning; none where there is no time."""
        if len(body) < MARK_SIZES_BYTES[0]:
            return ()
        if len(body) < SHORT_BYTES:
            return prefix_marks(prompt_bytes(endpoint, body), self._key)
        return self._within(self._beginnings, lambda: prefix_marks(prompt_bytes(endpoint, body), self._key))

    def text_marks(self, parsed: Parsed) -> Marks:
        """Marks of the prompt's text; none where there is no time."""
        if len(parsed.text) < TEXT_FROM_BYTES:
            return ()
        return self._within(self._texts, lambda: text_marks(parsed.text, self._key))

    def _within(self, budget: TimeBudget, mark: Callable[[], Marks]) -> Marks:
        began_s = self._clock()
        if not budget.allows(began_s):
            return ()
        marks = mark()
        budget.spend(self._clock() - began_s)
        return marks
