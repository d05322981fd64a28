"""Where the time to first token goes for a request in the middle of the field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phasewise.model import latency
from phasewise.model.latency import PartTime
from phasewise.model.timeline import Part, Source, Timeline

TYPICAL_BAND = (0.4, 0.6)
"""Requests whose TTFT ranks in this band are called typical."""


@dataclass(frozen=True, slots=True)
class TypicalTtft:
    """The mean TTFT of the requests around the median one, split so that parts and residual add up to it.

    Medians of parts would not add up; means over the same few requests do.
    """

    requests: int
    ttft_s: float
    parts: tuple[PartTime, ...]
    residual_s: float


def typical_ttft(timelines: Sequence[Timeline]) -> TypicalTtft | None:
    """Split the TTFT of the requests around the median.

    Where some requests have the engine's timings, the others (cancelled, failed) are left out: they would
    only dilute the parts.
    """
    timed = [timeline for timeline in timelines if reported_by_engine(timeline)] or timelines
    split = [found for timeline in timed if (found := latency.ttft_breakdown(timeline)) is not None]
    if not split:
        return None
    split.sort(key=lambda breakdown: breakdown.ttft_s)
    low, high = (share * (len(split) - 1) for share in TYPICAL_BAND)
    band = [found for rank, found in enumerate(split) if low - 0.5 <= rank <= high + 0.5]
    seconds: dict[tuple[Part, Source], float] = {}
    for entry in (entry for breakdown in band for entry in breakdown.parts):
        key = (entry.part, entry.source)
        seconds[key] = seconds.get(key, 0.0) + entry.seconds / len(band)
    order = list(Part)
    return TypicalTtft(
        requests=len(band),
        ttft_s=sum(breakdown.ttft_s for breakdown in band) / len(band),
        parts=tuple(
            PartTime(part, source, value)
            for (part, source), value in sorted(seconds.items(), key=lambda item: order.index(item[0][0]))
        ),
        residual_s=sum(breakdown.residual_s for breakdown in band) / len(band),
    )


def reported_by_engine(timeline: Timeline) -> bool:
    """Whether the engine told how long the request's phases took."""
    serving = timeline.serving_attempt
    return serving is not None and any(span.source is Source.ENGINE_REPORT for span in serving.spans)
