"""Where the time of an output token goes: a stream's time after its first token, by its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from phasewise.core.step_log import CLOCK_SLACK_S, EngineMoments
from phasewise.core.steps import TimedStep
from phasewise.core.timeline import Part, Timeline
from phasewise.diagnosis.analysis.attribution import Readings, reading_of
from phasewise.diagnosis.analysis.stall_causes import ExplainedStall, StallCause
from phasewise.diagnosis.analysis.step_reading import StepReading

MOST_OF_STEPS = 0.5
"""Decode time is split by cost only if costs are known for this share of the steps' time."""


@dataclass(frozen=True, slots=True)
class TokenLedger:
    """The parts of the mean time of an output token after the first; they add up.

    `floor_s`, `batch_s` and `kv_read_s` split `step_s`, the time of decode steps, by the fitted costs; None
    without a fit. `prompts_s` is what prompts computed in the same steps added,
    `preempted_s` the time lost by preempted streams and by computing them again, `paused_s` the pauses of the
    engine, `client_s` the time that the gateway waited for its client to read, `cold_s` the excess of cold
    steps over later ones.
    """

    step_s: float
    floor_s: float | None = None
    batch_s: float | None = None
    kv_read_s: float | None = None
    prompts_s: float = 0.0
    preempted_s: float = 0.0
    paused_s: float = 0.0
    client_s: float = 0.0
    cold_s: float = 0.0
    unexplained_s: float = 0.0

    @property
    def total_s(self) -> float:
        """The mean time per output token of these streams."""
        return (
            self.step_s
            + self.prompts_s
            + self.preempted_s
            + self.paused_s
            + self.client_s
            + self.cold_s
            + self.unexplained_s
        )


@dataclass(frozen=True, slots=True)
class StreamStretch:
    """A stream after its first token: its duration, its tokens and its stalls."""

    timeline: Timeline
    seconds: float
    tokens: float
    stalls: tuple[ExplainedStall, ...] = ()

    @property
    def began_unix_s(self) -> float:
        """When its first content came."""
        return self.timeline.started_unix_s + self.timeline.content_times_s[0]

    @property
    def per_token_s(self) -> float:
        """The mean time of a token."""
        return self.seconds / self.tokens


@dataclass(slots=True)
class Tally:
    """Seconds of one stream, of its mean token, or of the mean token of several."""

    step_s: float = 0.0
    floor_s: float = 0.0
    batch_s: float = 0.0
    kv_read_s: float = 0.0
    prompts_s: float = 0.0
    preempted_s: float = 0.0
    paused_s: float = 0.0
    client_s: float = 0.0
    cold_s: float = 0.0
    unexplained_s: float = 0.0

    def per(self, tokens: float) -> Tally:
        """The mean of so many tokens."""
        return Tally(*(getattr(self, name) / tokens for name in self.__slots__))

    @property
    def explained_s(self) -> float:
        """The sum of all measured parts."""
        return self.step_s + self.prompts_s + self.preempted_s + self.paused_s + self.client_s + self.cold_s

    @property
    def unexplained_share(self) -> float:
        """The unexplained share of the time, positive or negative."""
        total_s = self.explained_s + self.unexplained_s
        return abs(self.unexplained_s) / total_s if total_s > 0 else 0.0


def recorded_streams(stretches: Sequence[StreamStretch], readings: Readings) -> tuple[StreamStretch, ...]:
    """The streams whose decode steps are on record."""
    return tuple(it for it in stretches if _reading(it, readings) is not None)


def stream_tallies(stretches: Sequence[StreamStretch], readings: Readings) -> tuple[Tally, ...]:
    """The mean token of each stream: from step records if there are any, else from the engines' reports.

    Empty without either.
    """
    recorded = [_of_steps(it, reading) for it in stretches if (reading := _reading(it, readings)) is not None]
    if recorded:
        return tuple(recorded)
    return tuple(
        _of_report(it, decode_s) for it in stretches if (decode_s := _reported_s(it.timeline)) is not None
    )


def _reading(stretch: StreamStretch, readings: Readings) -> StepReading | None:
    """The record of the stream's steps, if complete: missing steps would look like lost time."""
    found = reading_of(stretch.timeline, readings)
    if found is None or found.log.usual_decode_step_s is None:
        return None
    recorded_since_s = found.log.steps[0].step.ended_unix_s
    return found if stretch.began_unix_s >= recorded_since_s - CLOCK_SLACK_S else None


def token_ledger(tallies: Sequence[Tally], weights: Sequence[float] | None = None) -> TokenLedger | None:
    """The mean token of all these streams, equally weighted if no weights are given."""
    if not tallies:
        return None
    mean = Tally(*(fmean([getattr(it, name) for it in tallies], weights) for name in Tally.__slots__))
    ledger = TokenLedger(
        step_s=mean.step_s,
        prompts_s=mean.prompts_s,
        preempted_s=mean.preempted_s,
        paused_s=mean.paused_s,
        client_s=mean.client_s,
        cold_s=mean.cold_s,
        unexplained_s=mean.unexplained_s,
    )
    reported_s = mean.floor_s + mean.batch_s + mean.kv_read_s
    if reported_s <= 0 or reported_s < MOST_OF_STEPS * mean.step_s:
        return ledger
    scale = mean.step_s / reported_s
    return replace(
        ledger,
        floor_s=mean.floor_s * scale,
        batch_s=mean.batch_s * scale,
        kv_read_s=mean.kv_read_s * scale,
    )


def _of_report(stretch: StreamStretch, decode_s: float) -> Tally:
    """The engine's reported decode time, and the time that the gateway waited for its client beyond it."""
    tally = Tally(step_s=decode_s, client_s=_client_s(stretch, decode_s))
    tally.unexplained_s = stretch.seconds - tally.explained_s
    return tally.per(stretch.tokens)


def _of_steps(stretch: StreamStretch, reading: StepReading) -> Tally:
    """The parts of every step behind the stream's tokens."""
    seen = _moments(stretch.timeline, reading)
    tally = Tally(client_s=_client_s(stretch, None if seen is None else seen.decode_s))
    preempted = [found for found in stretch.stalls if found.cause is StallCause.PREEMPTION]
    since_s = stretch.began_unix_s
    for timed in _steps(stretch, seen, reading, stretch.seconds - tally.client_s):
        _book(tally, timed, reading, since_s, _kept_share(timed, preempted, stretch.timeline))
    tally.unexplained_s = stretch.seconds - tally.explained_s
    return tally.per(stretch.tokens)


def _book(tally: Tally, timed: TimedStep, reading: StepReading, since_s: float, kept: float) -> None:
    """Add a step; of one that ran while the stream was preempted, only the share `kept` is the stream's."""
    split = reading.split(timed, since_s)
    whole_s = split.decode_s + split.prompts_s + split.recomputed_s + split.paused_s + split.cold_s
    tally.preempted_s += whole_s * (1.0 - kept) + split.recomputed_s * kept
    tally.step_s += split.decode_s * kept
    tally.prompts_s += split.prompts_s * kept
    tally.paused_s += split.paused_s * kept
    tally.cold_s += split.cold_s * kept
    tally.floor_s += (split.floor_s or 0.0) * kept
    tally.batch_s += (split.batch_s or 0.0) * kept
    tally.kv_read_s += (split.kv_read_s or 0.0) * kept


def _kept_share(timed: TimedStep, preempted: Sequence[ExplainedStall], timeline: Timeline) -> float:
    """In a preemption stall, the stream's share of the steps is one ordinary gap; the rest is lost."""
    at_s = timed.step.ended_unix_s - timeline.started_unix_s
    for found in preempted:
        stall = found.stall
        if stall.start_s < at_s <= stall.start_s + stall.duration_s:
            return stall.median_gap_s / stall.duration_s
    return 1.0


def _moments(timeline: Timeline, reading: StepReading) -> EngineMoments | None:
    serving = timeline.serving_attempt
    request_id = serving.engine_request_id if serving is not None else None
    found = None if request_id is None else reading.log.finished(request_id)
    return None if found is None else found[0]


def _steps(
    stretch: StreamStretch, seen: EngineMoments | None, reading: StepReading, engine_s: float
) -> tuple[TimedStep, ...]:
    """The steps after the one that gave the first token, up to that of the last.

    By the engine's own clock if it recorded the request; else those that ended during the stream.
    """
    if seen is None:
        return reading.log.ending_between(stretch.began_unix_s, stretch.began_unix_s + engine_s)
    return reading.decode_steps(seen)


def _client_s(stretch: StreamStretch, decode_s: float | None) -> float:
    """The time that the gateway waited for its client, at most the excess over the engine's decode time."""
    blocked_s = stretch.timeline.client_blocked_s or 0.0
    spare_s = stretch.seconds if decode_s is None else max(0.0, stretch.seconds - decode_s)
    return min(blocked_s, spare_s)


def _reported_s(timeline: Timeline) -> float | None:
    serving = timeline.serving_attempt
    spans = serving.spans if serving is not None else ()
    return next((span.duration_s for span in spans if span.part is Part.DECODE), None)
