"""How the requests of a window started: the mean time to first token by its parts, and who never got one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from phasewise.costs.step_fit import StepFit
from phasewise.diagnosis.attribution import Logs, Readings, reading_of, readings_of
from phasewise.diagnosis.silent_requests import wait_quantile
from phasewise.diagnosis.step_reading import StepReading
from phasewise.model.latency import PartTime, TtftBreakdown, ttft_breakdown, ttft_s
from phasewise.model.slo import Slo
from phasewise.model.timeline import Outcome, Part, Source, Timeline

GAVE_UP = frozenset({Outcome.CANCELLED, Outcome.TIMED_OUT, Outcome.FAILED, Outcome.REJECTED})


@dataclass(frozen=True, slots=True)
class EngineStart:
    """How the requests of one engine started: how many, and their mean TTFT and wait in its queue.

    Those that never answered count with what they waited.
    """

    engine: str
    requests: int
    ttft_mean_s: float
    queue_mean_s: float


@dataclass(frozen=True, slots=True)
class StartPicture:
    """How requests started.

    Parts are means over the `timed` requests, those whose engine told its phases; with the residual they add
    up to `parts_mean_s`. `late` and `lost_s` count every request, those that never answered among them.
    `unfinished` are those that were still open without any content when the window closed: late once they
    are older than the objective, and until then neither late nor on time, so not among `requests`.
    A quantile is `at_least` what it says where too few requests were answered to know more. `cold_s` is what
    first steps of their kind took more than later ones, in the mean of the timed requests; with
    `cold_from_its_start` they were the first of an engine's life, and not only of the record.

    The parts say nothing of those that waited longer than anybody who was answered. Of `lost_s`, theirs
    beyond that are `silent_gateway_s` while the gateway held them, and `silent_lost_s` elsewhere.
    """

    requests: int
    unanswered: int
    timed: int
    step_timed: int
    ttft_p50_s: float
    ttft_p90_s: float
    parts: tuple[PartTime, ...]
    parts_mean_s: float
    residual_s: float
    residual_share_p50: float | None
    residual_abs_p50_s: float | None
    late: int
    lost_s: float
    unfinished: int = 0
    cold_s: float | None = None
    by_engine: tuple[EngineStart, ...] = ()
    ttft_p50_at_least: bool = False
    ttft_p90_at_least: bool = False
    silent_lost_s: float = 0.0
    silent_gateway_s: float = 0.0
    cold_from_its_start: bool = False

    def seconds(self, *parts: Part) -> float:
        """Mean seconds per request spent in these parts; a part nobody saw adds nothing."""
        return sum(entry.seconds for entry in self.parts if entry.part in parts)


def start_picture(
    timelines: Sequence[Timeline], slo: Slo, logs: Logs | None = None, fit: StepFit | None = None
) -> StartPicture | None:
    """How these requests started, or None when none did or waited to."""
    answered = [(it, found) for it in timelines if (found := ttft_breakdown(it)) is not None]
    silent = [it for it in timelines if _waited_in_vain(it, slo)]
    if not answered and not silent:
        return None
    values = [found.ttft_s for _, found in answered]
    waits = [it.ended_s for it in silent]
    timed = [each for each in answered if _engine_told(each[1])] or answered
    p50, p90 = (wait_quantile(values, waits, share) for share in (0.5, 0.9))
    readings = readings_of(logs or {}, fit)
    means = _Means.of([found for _, found in timed], silent)
    unseen = _unseen_losses([*values, slo.ttft_s], silent)
    return StartPicture(
        requests=len(values) + len(waits),
        unanswered=len(waits),
        timed=sum(_engine_told(found) for _, found in answered),
        step_timed=sum(_told_by_steps(found) for _, found in answered),
        ttft_p50_s=p50.seconds,
        ttft_p90_s=p90.seconds,
        parts=means.parts,
        parts_mean_s=means.ttft_s,
        residual_s=means.residual_s,
        residual_share_p50=means.residual_share_p50,
        residual_abs_p50_s=means.residual_abs_p50_s,
        late=sum(value > slo.ttft_s for value in values + waits),
        lost_s=sum(max(0.0, value - slo.ttft_s) for value in values + waits),
        unfinished=sum(_is_open(it) for it in timelines),
        cold_s=_cold_s([it for it, _ in timed], readings),
        by_engine=_by_engine([it for it, _ in answered] + silent),
        ttft_p50_at_least=p50.at_least,
        ttft_p90_at_least=p90.at_least,
        silent_lost_s=sum(lost_s - held_s for lost_s, held_s in unseen),
        silent_gateway_s=sum(held_s for _, held_s in unseen),
        cold_from_its_start=any(rank.cold_from_its_start for ranks in readings.values() for rank in ranks),
    )


def _unseen_losses(seen_s: Sequence[float], silent: Sequence[Timeline]) -> list[tuple[float, float]]:
    """For each silent request what it lost beyond all that was seen, and how much of it in the gateway."""
    longest_s = max(seen_s)
    lost = [(it, max(0.0, it.ended_s - longest_s)) for it in silent]
    return [(lost_s, min(lost_s, _held_s(it))) for it, lost_s in lost]


def _held_s(timeline: Timeline) -> float:
    """How long the gateway kept the request, attempts that it gave up included."""
    return sum(span.duration_s for span in timeline.spans if span.part is Part.GATEWAY_WAIT)


def _is_open(timeline: Timeline) -> bool:
    return timeline.streamed and timeline.outcome is Outcome.UNFINISHED and not timeline.content_times_s


def _waited_in_vain(timeline: Timeline, slo: Slo) -> bool:
    """Whether the request ended without an answer, or has waited for one beyond the objective.

    A plain reply's first token is seen by nobody: how long the whole of it took says nothing of its start.
    """
    if not timeline.streamed:
        return False
    if _is_open(timeline):
        return timeline.ended_s > slo.ttft_s
    return not timeline.content_times_s and timeline.outcome in GAVE_UP


def _engine_told(found: TtftBreakdown) -> bool:
    return any(entry.part in {Part.ENGINE_QUEUE, Part.PREFILL} for entry in found.parts)


def _told_by_steps(found: TtftBreakdown) -> bool:
    return any(entry.part is Part.PREFILL and entry.source is Source.STEP_RECORD for entry in found.parts)


@dataclass(frozen=True, slots=True)
class _Means:
    """The mean breakdown; where nobody was answered, only what the gateway took of the wait is known."""

    parts: tuple[PartTime, ...]
    ttft_s: float
    residual_s: float
    residual_share_p50: float | None
    residual_abs_p50_s: float | None

    @classmethod
    def of(cls, timed: Sequence[TtftBreakdown], silent: Sequence[Timeline]) -> _Means:
        if not timed:
            wait_s = fmean(it.ended_s for it in silent)
            held_s = fmean(min(it.ended_s, _held_s(it)) for it in silent)
            held = (PartTime(Part.GATEWAY_WAIT, Source.GATEWAY_CLOCK, held_s),) if held_s > 0 else ()
            return cls(held, wait_s, wait_s - held_s, None, None)
        shares = [abs(found.residual_s) / found.ttft_s for found in timed if found.ttft_s > 0]
        return cls(
            parts=_mean_parts(timed),
            ttft_s=fmean(found.ttft_s for found in timed),
            residual_s=fmean(found.residual_s for found in timed),
            residual_share_p50=median(shares) if shares else None,
            residual_abs_p50_s=median(abs(found.residual_s) for found in timed),
        )


def _mean_parts(breakdowns: Sequence[TtftBreakdown]) -> tuple[PartTime, ...]:
    totals: dict[tuple[Part, Source], float] = {}
    for found in breakdowns:
        for entry in found.parts:
            key = (entry.part, entry.source)
            totals[key] = totals.get(key, 0.0) + entry.seconds
    order = list(Part)
    ranked = sorted(totals.items(), key=lambda item: order.index(item[0][0]))
    return tuple(PartTime(part, source, total / len(breakdowns)) for (part, source), total in ranked)


def _cold_s(timelines: Sequence[Timeline], readings: Readings) -> float | None:
    """Mean seconds that requests waited in cold steps; None where no record tells of any of them."""
    recorded = [reading_of(it, readings) for it in timelines]
    if all(reading is None for reading in recorded):
        return None
    pairs = zip(timelines, recorded, strict=True)
    return fmean(0.0 if reading is None else _waited_cold_s(it, reading) for it, reading in pairs)


def _waited_cold_s(timeline: Timeline, reading: StepReading) -> float:
    """Cold steps that ran before the first token: a request waits for those of others as for its own."""
    begin_s = timeline.started_unix_s
    end_s = begin_s + (ttft_s(timeline) or 0.0)
    return sum(
        min(reading.cold_s(timed), timed.step.ended_unix_s - max(begin_s, timed.started_unix_s or begin_s))
        for timed in reading.cold_steps
        if begin_s < timed.step.ended_unix_s <= end_s
    )


def _by_engine(timelines: Sequence[Timeline]) -> tuple[EngineStart, ...]:
    engines: dict[str, list[Timeline]] = {}
    for timeline in timelines:
        if timeline.serving_attempt is not None:
            engines.setdefault(timeline.serving_attempt.worker.name, []).append(timeline)
    return tuple(
        EngineStart(
            engine=name,
            requests=len(own),
            ttft_mean_s=fmean(_waited_s(it) for it in own),
            queue_mean_s=fmean(_queued_s(it) for it in own),
        )
        for name, own in sorted(engines.items())
    )


def _waited_s(timeline: Timeline) -> float:
    first_s = ttft_s(timeline)
    return timeline.ended_s if first_s is None else first_s


def _queued_s(timeline: Timeline) -> float:
    found = ttft_breakdown(timeline)
    return 0.0 if found is None else found.seconds(Part.ENGINE_QUEUE) or 0.0
