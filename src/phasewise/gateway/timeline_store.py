"""The last so many timelines in memory, encoded, by id and by age. Lost with the process."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice, takewhile

from phasewise.model.timeline import Timeline
from phasewise.model.timeline_record import encode


class TimelineStore:
    """A ring of encoded timelines; a TimelineSink. An id that comes again replaces the older timeline."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        # Oldest first. Not a dict: finding a dict's first key again steps over every key deleted before it.
        self._kept: OrderedDict[str, tuple[float, bytes]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def record(self, timeline: Timeline) -> None:
        """Keep the timeline, in place of the oldest if there is no room."""
        kept = self._kept
        kept.pop(timeline.request_id, None)
        if len(kept) >= self._capacity:
            kept.popitem(last=False)
        kept[timeline.request_id] = (timeline.started_unix_s + timeline.ended_s, encode(timeline))

    def get(self, request_id: str) -> bytes | None:
        """One timeline as JSON."""
        entry = self._kept.get(request_id)
        return entry[1] if entry else None

    def recent(self, limit: int, ended_since_unix_s: float = 0.0) -> list[bytes]:
        """The newest timelines of requests that ended at or after a time, oldest first."""
        newest_first = takewhile(lambda entry: entry[0] >= ended_since_unix_s, reversed(self._kept.values()))
        return [line for _, line in islice(newest_first, limit)][::-1]
