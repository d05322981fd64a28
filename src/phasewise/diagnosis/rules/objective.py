"""When a phase is slow: only then is a cause looked for."""

from __future__ import annotations

from phasewise.diagnosis.picture import Picture

AFFECTED_SHARE = 0.1
"""A phase is slow when at least this share of its requests missed the objective."""


def starts_late(picture: Picture) -> bool:
    """Whether enough requests missed the TTFT objective to speak of a slow start."""
    start = picture.start
    return start is not None and start.late >= max(1, AFFECTED_SHARE * start.requests)


def streams_slowly(picture: Picture) -> bool:
    """Whether enough streams missed the TPOT objective, or stalled, to speak of slow streaming."""
    stream = picture.stream
    return stream is not None and stream.slow >= max(1, AFFECTED_SHARE * stream.streams)
