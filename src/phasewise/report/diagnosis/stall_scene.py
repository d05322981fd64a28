"""Chooses the part of the step record to draw: engine, time and streams of the worst stalls.

A window may hold hours of steps: the choice is bounded, and what is left out is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from phasewise.core.steps import StepLog, TimedStep
from phasewise.core.timeline import Timeline
from phasewise.diagnosis.analysis.attribution import reading_of, readings_of
from phasewise.diagnosis.analysis.stall_causes import ExplainedStall, StallCause
from phasewise.diagnosis.evidence import Evidence
from phasewise.diagnosis.verdict import Verdict
from phasewise.report.charts import even_sample

SPAN_S = 60.0
"""The longest time drawn; in a longer one a step would be thinner than a pixel."""
LEAD_S = 2.0
"""The time shown before the first stall."""
STEP_LIMIT = 2000
STREAM_LIMIT = 14
TICK_LIMIT = 4000
"""With more tokens than this, only the streams' extent and their stalls are drawn."""
EVENT_LIMIT = 8
CLOSE_UP = 0.7
"""A close-up shows at least this much of the stall's own length on each side of it."""
CLOSE_UP_GAPS = 8
"""A close-up shows at least this many median gaps on each side of the stall."""


@dataclass(frozen=True, slots=True)
class DrawnStall:
    """Streams that stalled in the same step; the step is None if none ended during the stall."""

    begin_unix_s: float
    end_unix_s: float
    cause: StallCause
    step: TimedStep | None
    stalls: tuple[ExplainedStall, ...]

    @property
    def excess_s(self) -> float:
        return sum(found.stall.excess_s for found in self.stalls)


@dataclass(frozen=True, slots=True)
class DrawnStream:
    """A stream's tokens within the scene, and where it stalled, all in seconds since the epoch."""

    request_id: str
    tokens_unix_s: tuple[float, ...]
    stalls_unix_s: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class StallScene:
    """A stretch of one engine's time: its steps, the streams they served, the stalls, worst first."""

    engine: str
    begin_unix_s: float
    end_unix_s: float
    steps: tuple[TimedStep, ...]
    streams: tuple[DrawnStream, ...]
    events: tuple[DrawnStall, ...]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Rank:
    """One rank's log with the requests it served and what stalled them."""

    engine: str
    log: StepLog
    timelines: tuple[Timeline, ...]
    events: tuple[DrawnStall, ...]

    @property
    def excess_s(self) -> float:
        return sum(event.excess_s for event in self.events)


def worst_scenes(verdict: Verdict, evidence: Evidence) -> tuple[StallScene, ...]:
    """The engine with the worst stalls: its worst minute, and a close-up of its worst stall.

    Empty without a step record; no close-up without a stall or if the whole scene is as short.
    """
    ranks = _ranks(verdict, evidence)
    if not ranks:
        return ()
    worst = max(ranks, key=lambda rank: (rank.excess_s, len(rank.log)))
    whole = _scene(worst, *_span(worst, evidence))
    near = _close_up(whole, worst)
    return (whole,) if near is None else (whole, near)


def _ranks(verdict: Verdict, evidence: Evidence) -> list[_Rank]:
    readings = readings_of(evidence.logs)
    served: dict[int, list[Timeline]] = {}
    for timeline in evidence.timelines:
        found = reading_of(timeline, readings)
        if found is not None:
            served.setdefault(id(found.log), []).append(timeline)
    stalls = verdict.summary.stream.stalls if verdict.summary.stream is not None else ()
    return [
        _Rank(name, log, tuple(its := served.get(id(log), [])), stall_events(stalls, its))
        for name, logs in sorted(evidence.logs.items())
        for log in logs
        if log.steps
    ]


def _close_up(whole: StallScene, rank: _Rank) -> StallScene | None:
    if not whole.events:
        return None
    event = whole.events[0]
    usual_s = max(found.stall.median_gap_s for found in event.stalls)
    around_s = max(CLOSE_UP * (event.end_unix_s - event.begin_unix_s), CLOSE_UP_GAPS * usual_s)
    begin_s = max(event.begin_unix_s - around_s, whole.begin_unix_s)
    end_s = min(event.end_unix_s + around_s, whole.end_unix_s)
    if end_s - begin_s > (whole.end_unix_s - whole.begin_unix_s) / 2:
        return None
    # Numbered as in the whole scene: the worst comes first in both.
    return replace(_scene(rank, begin_s, end_s), events=(event,))


def stall_events(stalls: Iterable[ExplainedStall], timelines: Sequence[Timeline]) -> tuple[DrawnStall, ...]:
    """Stalls grouped by step, the costliest first; stalls of other requests are left out."""
    started = {timeline.request_id: timeline.started_unix_s for timeline in timelines}
    groups: dict[object, list[ExplainedStall]] = {}
    for found in stalls:
        if found.request_id in started:
            step = _longest(found.steps)
            own = (found.request_id, found.stall.start_s)
            groups.setdefault(own if step is None else step.step.seq, []).append(found)
    events = []
    for group in groups.values():
        begins = [started[found.request_id] + found.stall.start_s for found in group]
        ends = [begin_s + found.stall.duration_s for begin_s, found in zip(begins, group, strict=True)]
        step = _longest(group[0].steps)
        events.append(DrawnStall(min(begins), max(ends), group[0].cause, step, tuple(group)))
    return tuple(sorted(events, key=lambda event: -event.excess_s))


def _longest(steps: Sequence[TimedStep]) -> TimedStep | None:
    return max(steps, key=lambda timed: timed.duration_s or 0.0, default=None)


def _span(rank: _Rank, evidence: Evidence) -> tuple[float, float]:
    """The window if it is short, else the part of it with the costliest stalls."""
    ends = [timed.step.ended_unix_s for timed in rank.log.steps]
    first_s = max(evidence.began_unix_s, min(ends) - LEAD_S)
    last_s = max(min(evidence.began_unix_s + evidence.window_s, max(ends)), first_s)
    if last_s - first_s <= SPAN_S:
        return first_s, last_s
    if not rank.events:
        return last_s - SPAN_S, last_s
    begins = [max(first_s, event.begin_unix_s - LEAD_S) for event in rank.events]

    def held_s(begin_s: float) -> float:
        return sum(
            event.excess_s
            for event in rank.events
            if begin_s <= event.begin_unix_s and event.end_unix_s <= begin_s + SPAN_S
        )

    begin_s = min(max(begins, key=held_s), last_s - SPAN_S)
    return begin_s, begin_s + SPAN_S


def _scene(rank: _Rank, begin_s: float, end_s: float) -> StallScene:
    inside = [
        timed
        for timed in rank.log.ending_between(begin_s, end_s + SPAN_S)
        if timed.started_unix_s is not None and timed.started_unix_s < end_s
    ]
    events = tuple(
        event for event in rank.events if event.begin_unix_s < end_s and event.end_unix_s > begin_s
    )
    steps = _thinned(inside, events)
    running = [
        timeline
        for timeline in rank.timelines
        if len(times := timeline.content_times_s) > 1
        and timeline.started_unix_s + times[0] < end_s
        and timeline.started_unix_s + times[-1] > begin_s
    ]
    streams = _streams(running, events, begin_s, end_s)
    counts = (
        (len(steps), len(inside), "steps, evenly among the ordinary ones"),
        (len(streams), len(running), "streams, none that stalled more"),
        (min(len(events), EVENT_LIMIT), len(events), "stalls, the smaller ones"),
    )
    left_out = (f"{every - kept:,} of {every:,} {what}" for kept, every, what in counts if kept < every)
    return StallScene(rank.engine, begin_s, end_s, steps, streams, events[:EVENT_LIMIT], tuple(left_out))


def _thinned(steps: Sequence[TimedStep], events: Sequence[DrawnStall]) -> tuple[TimedStep, ...]:
    """At most `STEP_LIMIT` steps; those that caused a stall are always kept."""
    if len(steps) <= STEP_LIMIT:
        return tuple(steps)
    guilty = {event.step.step.seq for event in events[:EVENT_LIMIT] if event.step is not None}
    kept = [timed for timed in steps if timed.step.seq in guilty]
    others = even_sample([timed for timed in steps if timed.step.seq not in guilty], STEP_LIMIT - len(kept))
    return tuple(sorted(chain(kept, others), key=lambda timed: timed.step.seq))


def _streams(
    running: Sequence[Timeline], events: Sequence[DrawnStall], begin_s: float, end_s: float
) -> tuple[DrawnStream, ...]:
    """The streams that stalled most, then an even sample of the others, in the order of their arrival."""
    stalled: dict[str, list[ExplainedStall]] = {}
    for found in chain.from_iterable(event.stalls for event in events):
        stalled.setdefault(found.request_id, []).append(found)
    lost_s = {name: sum(found.stall.excess_s for found in stalls) for name, stalls in stalled.items()}
    hit = [timeline for timeline in running if timeline.request_id in stalled]
    hit = sorted(hit, key=lambda timeline: -lost_s[timeline.request_id])[:STREAM_LIMIT]
    spared = [timeline for timeline in running if timeline.request_id not in stalled]
    left = STREAM_LIMIT - len(hit)
    chosen = [*hit, *(even_sample(spared, left) if left > 1 else spared[:left])]
    streams = []
    for timeline in sorted(chosen, key=lambda timeline: timeline.started_unix_s):
        origin_s = timeline.started_unix_s
        times = (origin_s + at_s for at_s in timeline.content_times_s)
        stalls = [found.stall for found in stalled.get(timeline.request_id, ())]
        streams.append(
            DrawnStream(
                timeline.request_id,
                tuple(at_s for at_s in times if begin_s <= at_s <= end_s),
                tuple((origin_s + at.start_s, origin_s + at.start_s + at.duration_s) for at in stalls),
            )
        )
    return tuple(streams)
