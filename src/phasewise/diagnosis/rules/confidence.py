"""How sure a finding may be: as sure as its requests were seen, and no surer than its rule's evidence."""

from __future__ import annotations

from phasewise.diagnosis.cause import Confidence

ENOUGH_REQUESTS = 8
"""Fewer may be chance."""
MOST = 0.7

_ORDER = (Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH)


def seen(requests: int, timed: int, step_timed: int) -> Confidence:
    """High needs enough requests, most of them matched to steps; engine timings alone carry half as far."""
    if step_timed >= MOST * requests:
        return Confidence.HIGH if requests >= ENOUGH_REQUESTS else Confidence.MEDIUM
    return Confidence.MEDIUM if timed >= MOST * requests and requests >= ENOUGH_REQUESTS else Confidence.LOW


def least(*confidences: Confidence) -> Confidence:
    """The weakest of them."""
    return min(confidences, key=_ORDER.index)
