"""Logs what the gateway rejects: a line for each kind and tenant every few seconds, with a count.

A line has no text of a client: the tenant's name is the configuration's, and a request without a known key
has none.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

from phasewise.core.decision import RejectReason
from phasewise.core.errors import RejectionKind
from phasewise.core.own_rejections import OWN_REJECTIONS
from phasewise.core.timeline import Outcome, Timeline
from phasewise.core.units import counted

logger = logging.getLogger("phasewise.gateway")

EVERY_S = 5.0
MOST_LINES = 20
"""Of one moment; the tenants with fewer rejections then share a line for each kind."""


class RejectionLog:
    """A TimelineSink; requests without a timeline are counted by their kind, in the metrics too."""

    def __init__(
        self, count_in_metrics: Callable[[RejectReason | RejectionKind], None], every_s: float = EVERY_S
    ) -> None:
        self._count_in_metrics = count_in_metrics
        self._every_s = every_s
        self._pending: Counter[tuple[str, str | None]] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def record(self, timeline: Timeline) -> None:
        """A request has ended; what an engine rejected is not the gateway's."""
        if timeline.outcome is Outcome.REJECTED and timeline.reason in OWN_REJECTIONS:
            self._add(timeline.reason or "", timeline.tenant)

    def count(self, kind: RejectReason | RejectionKind) -> None:
        """A request was rejected that has no timeline."""
        self._count_in_metrics(kind)
        self._add(kind, None)

    def write(self) -> None:
        """Log what is pending now; called when the time is over, and when the gateway stops."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending, self._pending = self._pending, Counter()
        lines = pending.most_common()
        for (reason, tenant), count in lines[:MOST_LINES]:
            self._write_line(reason, count, "" if tenant is None else f" of tenant {tenant}")
        others: Counter[str] = Counter()
        for (reason, _), count in lines[MOST_LINES:]:
            others[reason] += count
        for reason, count in others.items():
            self._write_line(reason, count, " of other tenants")

    def _add(self, reason: str, tenant: str | None) -> None:
        self._pending[reason, tenant] += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._every_s, self.write)

    def _write_line(self, reason: str, count: int, whose: str) -> None:
        own, what = OWN_REJECTIONS[reason], counted(count, "request")
        words = "rejected %s%s in the last %g s: %s, %s. hint: %s"
        logger.warning(words, what, whose, self._every_s, reason, own.meaning, own.fix)
