"""A stream for a client that asked where its time went: the same bytes, and a comment before `[DONE]`.

What the comment says is server_timing.py's, what may pass at all the relay's behind it.
"""

from __future__ import annotations

from collections.abc import Callable

from phasewise.adapters.sse import DONE
from phasewise.gateway.server_timing import timing_comment
from phasewise.gateway.splice import Relay
from phasewise.model.timeline import Timeline


class TimedRelay:
    """Stands before a relay; `timeline_at` is the request's timeline as it stands at a time."""

    __slots__ = ("_relay", "_timeline_at", "takes_usual")

    def __init__(self, relay: Relay, timeline_at: Callable[[float], Timeline]) -> None:
        self._relay = relay
        self._timeline_at = timeline_at
        # An ordinary chunk of content is never the end.
        self.takes_usual = relay.takes_usual

    def feed(self, data: bytes, at_s: float) -> bytes:
        """What may be sent to the client now that `data` has come."""
        out = self._relay.feed(data, at_s)
        at = out.rfind(DONE)
        # Only whole events pass, so the end begins a line; within a chunk's text line ends are escaped.
        if at == 0 or (at > 0 and out[at - 1 : at] == b"\n"):
            return out[:at] + timing_comment(self._timeline_at(at_s)) + out[at:]
        return out
