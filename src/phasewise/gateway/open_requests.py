"""The requests that are being served, and how each stands: timelines are kept only of those that have ended.

Who may look, and over what, is the routes' matter.
"""

from __future__ import annotations

from itertools import islice

from phasewise.gateway.call import Call
from phasewise.model.timeline_record import encode


class OpenRequests:
    """Every request between being read and being answered; the pipeline writes, others look."""

    def __init__(self) -> None:
        # In the order in which they came, which a dict keeps.
        self._calls: dict[str, Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: Call) -> None:
        """The request is taken in."""
        self._calls[call.request_id] = call

    def discard(self, call: Call) -> None:
        """The request has ended."""
        self._calls.pop(call.request_id, None)

    def oldest(self, limit: int) -> list[str]:
        """The ids of those that have been open longest, oldest first."""
        return list(islice(self._calls, limit))

    def line(self, request_id: str, now_s: float) -> bytes | None:
        """The timeline of one as it stands, as JSON; None if it has ended meanwhile."""
        call = self._calls.get(request_id)
        if call is None:
            return None
        return encode(call.timeline.so_far(now_s, call.client.blocked_until(now_s)))
