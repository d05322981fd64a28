"""Rejects prompts that have ended engines: each time one comes again it would end two more.

A prompt is guilty if it was on two engines, one after the other, and both died before its first token.
Whatever ran beside it may have gone the same way. So where more than a few did, a prompt is only suspect, and
guilty once it was there again when two others died. Only keyed fingerprints are kept, one tenant's apart from
another's.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import time
from collections.abc import Callable

from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.core.timeline import Outcome, Timeline
from phasewise.core.worker import WorkerRef

logger = logging.getLogger("phasewise.gateway")

SURE_AFTER_S = 3.0
"""By then health checks have seen whether an engine died."""
FEW = 3
SUSPECT_S = 3_600.0
MOST_KEPT = 1_000


class Quarantine:
    """Fingerprints of prompts. `died` says whether a worker's engine is gone; `for_s` of 0 keeps nothing.

    `guilty` says until when each is rejected. It is mostly empty, and then nothing needs to be checked.
    """

    def __init__(
        self, for_s: float, died: Callable[[WorkerRef], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._for_s = for_s
        self._died = died
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self.guilty: dict[bytes, float] = {}
        self._suspect: dict[bytes, float] = {}
        self._pending: dict[frozenset[WorkerRef], set[bytes]] = {}

    def check(self, tenant: str, body: bytes) -> None:
        """Reject a request whose prompt is guilty."""
        mark = self._mark(tenant, body)
        until_s = self.guilty.get(mark)
        if until_s is None:
            return
        if self._clock() >= until_s:
            del self.guilty[mark]
            return
        raise RequestRejected(
            RejectionKind.QUARANTINED,
            "two engines died while they computed this prompt, so it is not tried again for a while",
            hint="change the request; the operator finds why in the engines' logs",
        )

    def failed(self, tenant: str, body: bytes, timeline: Timeline) -> frozenset[WorkerRef] | None:
        """A request failed for good. Returns the engines that may have died of it, for `judge` later on."""
        engines = frozenset(tried.worker for tried in timeline.attempts if tried.outcome is Outcome.FAILED)
        if not self._for_s or timeline.content_times_s or len(engines) < 2:
            return None
        self._pending.setdefault(engines, set()).add(self._mark(tenant, body))
        return engines

    def judge(self, engines: frozenset[WorkerRef]) -> None:
        """Decide about the prompts that were on these engines, some seconds after they failed."""
        marks = self._pending.pop(engines, set())
        if not marks or not all(map(self._died, engines)):
            return
        now_s = self._clock()
        for mark in marks:
            if len(marks) <= FEW or self._suspect.get(mark, 0.0) > now_s:
                self.guilty[mark] = now_s + self._for_s
            else:
                self._suspect[mark] = now_s + SUSPECT_S
        _keep_newest(self.guilty)
        _keep_newest(self._suspect)
        names = ", ".join(sorted(ref.name for ref in engines))
        counts = len(marks), len(self.guilty)
        logger.warning("%s died with the same %d requests; %d in quarantine", names, *counts)

    def _mark(self, tenant: str, body: bytes) -> bytes:
        keyed = hmac.new(self._secret, tenant.encode() + b"\0", "sha256")
        keyed.update(body)
        return keyed.digest()


def _keep_newest(kept: dict[bytes, float]) -> None:
    for mark in sorted(kept, key=kept.__getitem__)[: max(0, len(kept) - MOST_KEPT)]:
        del kept[mark]
