"""How the requests of a window started: the parts of the mean TTFT, and requests without a first token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from phasewise.core.latency import PartTime, TtftBreakdown, ttft_breakdown, ttft_s, wait_so_far
from phasewise.core.slo import Slo
from phasewise.core.statistics import wait_quantile
from phasewise.core.steps import CLOCK_SLACK_S
from phasewise.core.timeline import Outcome, Part, Source, Timeline
from phasewise.diagnosis.analysis.attribution import Readings, reading_of
from phasewise.diagnosis.analysis.standstill import Standstill
from phasewise.diagnosis.analysis.step_reading import StepReading

# --- Unanswered requests count too: leaving them out would make the server look better.
#
# A request that was aborted or is still open waited at least that long (a censored value).

NOTICED_PAUSE_S = 0.25
"""A shorter one is within the noise of what steps take."""


GAVE_UP = frozenset({Outcome.CANCELLED, Outcome.TIMED_OUT, Outcome.FAILED, Outcome.REJECTED})


@dataclass(frozen=True, slots=True)
class EngineStart:
    """How the requests of one engine started: how many, and their mean TTFT and wait in its queue.

    Unanswered requests count with their wait.
    """

    engine: str
    requests: int
    ttft_mean_s: float
    queue_mean_s: float


@dataclass(frozen=True, slots=True)
class StartSummary:
    """How requests started.

    Parts are means over the `timed` requests, whose engine reported its phases, or over unanswered ones if
    none was answered; with the unexplained part they add up to `parts_mean_s`. `late` and `lost_s` count
    every request, including unanswered ones. `unfinished` are those that were still open without any content
    when the window closed: late once they are older than the objective, and until then neither late nor on
    time, so not among `requests`. `gave_up` are the unanswered ones that ended. A quantile with `at_least` is
    a lower bound, because too few requests were answered.

    Causes are searched in the late requests alone: `late_parts` and `late_unexplained_s` are their means,
    weighted by what each lost, as are `cold_s`, their time in cold steps, and `paused_s`, while the engine
    stood still. With `cold_from_its_start` cold steps were the first since the engine's start, not only of
    the record.

    The parts do not cover unanswered requests that waited longer than every answered one. Of `lost_s`, their
    excess is `silent_gateway_s` while the gateway held them, and `silent_lost_s` elsewhere.
    """

    requests: int
    unanswered: int
    timed: int
    step_timed: int
    ttft_p50_s: float
    ttft_p90_s: float
    parts: tuple[PartTime, ...]
    parts_mean_s: float
    unexplained_s: float
    unexplained_share_p50: float | None
    unexplained_abs_p50_s: float | None
    late: int
    lost_s: float
    unfinished: int = 0
    gave_up: int = 0
    cold_s: float | None = None
    by_engine: tuple[EngineStart, ...] = ()
    ttft_p50_at_least: bool = False
    ttft_p90_at_least: bool = False
    silent_lost_s: float = 0.0
    silent_gateway_s: float = 0.0
    cold_from_its_start: bool = False
    late_parts: tuple[PartTime, ...] = ()
    late_unexplained_s: float = 0.0
    paused_s: float = 0.0

    def seconds(self, *parts: Part) -> float:
        """Mean seconds per request in these parts; a part that was not observed adds nothing."""
        return sum(entry.seconds for entry in self.parts if entry.part in parts)


def start_summary(
    timelines: Sequence[Timeline], slo: Slo, readings: Readings, standstills: Sequence[Standstill] = ()
) -> StartSummary | None:
    """How these requests started, or None when none did or waited to."""
    answered = [
        (timeline, found) for timeline in timelines if (found := ttft_breakdown(timeline)) is not None
    ]
    silent = [timeline for timeline in timelines if _waited_in_vain(timeline, slo)]
    if not answered and not silent:
        return None
    values = [found.ttft_s for _, found in answered]
    waits = [timeline.ended_s for timeline in silent]
    timed = [each for each in answered if _engine_reported(each[1])] or answered
    p50, p90 = (wait_quantile(values, waits, share) for share in (0.5, 0.9))
    placed = [(timeline, so_far) for timeline in silent if _engine_reported(so_far := wait_so_far(timeline))]
    means = _Means.of([found for _, found in timed or placed], silent)
    late = [each for each in timed if each[1].ttft_s > slo.ttft_s] + placed or timed
    lost_s = [max(0.0, found.ttft_s - slo.ttft_s) for _, found in late]
    lost_s = lost_s if any(lost_s) else [1.0] * len(late)
    late_means = _Means.of([found for _, found in late], silent, lost_s)
    known = {timeline.request_id for timeline, _ in placed}
    unseen = _unseen_losses(
        [*values, slo.ttft_s], [timeline for timeline in silent if timeline.request_id not in known]
    )
    return StartSummary(
        requests=len(values) + len(waits),
        unanswered=len(waits),
        timed=sum(_engine_reported(found) for _, found in answered),
        step_timed=sum(_reported_by_steps(found) for _, found in answered),
        ttft_p50_s=p50.seconds,
        ttft_p90_s=p90.seconds,
        parts=means.parts,
        parts_mean_s=means.ttft_s,
        unexplained_s=means.unexplained_s,
        unexplained_share_p50=means.unexplained_share_p50,
        unexplained_abs_p50_s=means.unexplained_abs_p50_s,
        late=sum(value > slo.ttft_s for value in values + waits),
        lost_s=sum(max(0.0, value - slo.ttft_s) for value in values + waits),
        unfinished=sum(_is_open(timeline) for timeline in timelines),
        gave_up=sum(not _is_open(timeline) for timeline in silent),
        cold_s=_cold_s([timeline for timeline, _ in late], lost_s, readings),
        by_engine=_by_engine([timeline for timeline, _ in answered] + silent),
        ttft_p50_at_least=p50.at_least,
        ttft_p90_at_least=p90.at_least,
        silent_lost_s=sum(lost_s - held_s for lost_s, held_s in unseen),
        silent_gateway_s=sum(held_s for _, held_s in unseen),
        cold_from_its_start=any(rank.cold_from_its_start for ranks in readings.values() for rank in ranks),
        late_parts=late_means.parts,
        late_unexplained_s=late_means.unexplained_s,
        paused_s=_paused_s([timeline for timeline, _ in late], lost_s, readings, standstills),
    )


def _unseen_losses(seen_s: Sequence[float], silent: Sequence[Timeline]) -> list[tuple[float, float]]:
    """For each unanswered request its loss beyond the longest answered wait, and the part of it in the
    gateway.
    """
    longest_s = max(seen_s)
    lost = [(timeline, max(0.0, timeline.ended_s - longest_s)) for timeline in silent]
    return [(lost_s, min(lost_s, _held_s(timeline))) for timeline, lost_s in lost]


def _held_s(timeline: Timeline) -> float:
    """How long the gateway held the request, including failed attempts."""
    return sum(span.duration_s for span in timeline.spans if span.part is Part.GATEWAY_WAIT)


def _is_open(timeline: Timeline) -> bool:
    return timeline.streamed and timeline.outcome is Outcome.UNFINISHED and not timeline.content_times_s


def _waited_in_vain(timeline: Timeline, slo: Slo) -> bool:
    """Whether the request ended without an answer, or has waited for one beyond the objective.

    A reply that is not streamed has no observed first token, and its total time says nothing about its start.
    """
    if not timeline.streamed:
        return False
    if _is_open(timeline):
        return timeline.ended_s > slo.ttft_s
    return not timeline.content_times_s and timeline.outcome in GAVE_UP


def _engine_reported(found: TtftBreakdown) -> bool:
    return any(entry.part in {Part.ENGINE_QUEUE, Part.PREFILL} for entry in found.parts)


def _reported_by_steps(found: TtftBreakdown) -> bool:
    return any(entry.part is Part.PREFILL and entry.source is Source.STEP_RECORD for entry in found.parts)


@dataclass(frozen=True, slots=True)
class _Means:
    """The mean breakdown; without a breakdown of any request, only the gateway's part is known."""

    parts: tuple[PartTime, ...]
    ttft_s: float
    unexplained_s: float
    unexplained_share_p50: float | None
    unexplained_abs_p50_s: float | None

    @classmethod
    def of(
        cls,
        timed: Sequence[TtftBreakdown],
        silent: Sequence[Timeline],
        weights: Sequence[float] | None = None,
    ) -> _Means:
        if not timed:
            wait_s = fmean(timeline.ended_s for timeline in silent)
            held_s = fmean(min(timeline.ended_s, _held_s(timeline)) for timeline in silent)
            held = (PartTime(Part.GATEWAY_WAIT, Source.GATEWAY_CLOCK, held_s),) if held_s > 0 else ()
            return cls(held, wait_s, wait_s - held_s, None, None)
        shares = [abs(found.unexplained_s) / found.ttft_s for found in timed if found.ttft_s > 0]
        return cls(
            parts=_mean_parts(timed, weights),
            ttft_s=fmean([found.ttft_s for found in timed], weights),
            unexplained_s=fmean([found.unexplained_s for found in timed], weights),
            unexplained_share_p50=median(shares) if shares else None,
            unexplained_abs_p50_s=median(abs(found.unexplained_s) for found in timed),
        )


def _mean_parts(breakdowns: Sequence[TtftBreakdown], weights: Sequence[float] | None) -> tuple[PartTime, ...]:
    parts: dict[tuple[Part, Source], list[float]] = {}
    for index, found in enumerate(breakdowns):
        for entry in found.parts:
            values = parts.setdefault((entry.part, entry.source), [0.0] * len(breakdowns))
            values[index] += entry.seconds
    order = list(Part)
    ranked = sorted(parts.items(), key=lambda item: order.index(item[0][0]))
    return tuple(PartTime(part, source, fmean(each, weights)) for (part, source), each in ranked)


def _cold_s(timelines: Sequence[Timeline], weights: Sequence[float], readings: Readings) -> float | None:
    """Mean seconds that requests waited in cold steps; None without a record of them."""
    recorded = [reading_of(timeline, readings) for timeline in timelines]
    if all(reading is None for reading in recorded):
        return None
    pairs = zip(timelines, recorded, strict=True)
    return fmean(
        [0.0 if reading is None else _waited_cold_s(timeline, reading) for timeline, reading in pairs],
        weights,
    )


def _waited_cold_s(timeline: Timeline, reading: StepReading) -> float:
    """Cold steps before the first token, including those of other requests."""
    begin_s = timeline.started_unix_s
    end_s = begin_s + (ttft_s(timeline) or 0.0)
    return sum(
        min(reading.cold_s(timed), timed.step.ended_unix_s - max(begin_s, timed.started_unix_s or begin_s))
        for timed in reading.cold_steps
        if begin_s < timed.step.ended_unix_s <= end_s
    )


def _paused_s(
    timelines: Sequence[Timeline],
    weights: Sequence[float],
    readings: Readings,
    standstills: Sequence[Standstill],
) -> float:
    """Mean seconds before the first token in which the engine had work and did none."""
    recorded = [reading_of(timeline, readings) for timeline in timelines]
    pairs = zip(timelines, recorded, strict=True)
    waited_s = [
        0.0 if reading is None else _waited_paused_s(timeline, reading) + _waits_now_s(timeline, standstills)
        for timeline, reading in pairs
    ]
    return fmean(waited_s, weights) if any(recorded) else 0.0


def _waits_now_s(timeline: Timeline, standstills: Sequence[Standstill]) -> float:
    """For how long its engine has stood still, if the request is without a first token."""
    serving = timeline.serving_attempt
    if timeline.content_times_s or serving is None:
        return 0.0
    ended_s = timeline.started_unix_s + timeline.ended_s
    return sum(
        max(0.0, ended_s - max(timeline.started_unix_s, standstill.began_unix_s))
        for standstill in standstills
        if standstill.lasts and standstill.engine == serving.worker.name
    )


def _waited_paused_s(timeline: Timeline, reading: StepReading) -> float:
    begin_s = timeline.started_unix_s
    steps = reading.log.ending_between(begin_s, begin_s + (ttft_s(timeline) or 0.0) + CLOCK_SLACK_S)
    # Of the step in which the request arrived, only the time since then.
    paused = (
        min(reading.split(timed, begin_s).paused_s, max(0.0, timed.step.ended_unix_s - begin_s))
        for timed in steps
    )
    return sum(seconds for seconds in paused if seconds >= NOTICED_PAUSE_S)


def _by_engine(timelines: Sequence[Timeline]) -> tuple[EngineStart, ...]:
    engines: dict[str, list[Timeline]] = {}
    for timeline in timelines:
        if timeline.serving_attempt is not None:
            engines.setdefault(timeline.serving_attempt.worker.name, []).append(timeline)
    return tuple(
        EngineStart(
            engine=name,
            requests=len(own),
            ttft_mean_s=fmean(_waited_s(timeline) for timeline in own),
            queue_mean_s=fmean(_queued_s(timeline) for timeline in own),
        )
        for name, own in sorted(engines.items())
    )


def _waited_s(timeline: Timeline) -> float:
    first_s = ttft_s(timeline)
    return timeline.ended_s if first_s is None else first_s


def _queued_s(timeline: Timeline) -> float:
    found = ttft_breakdown(timeline)
    return 0.0 if found is None else found.seconds(Part.ENGINE_QUEUE) or 0.0
