"""Where the time of an output token goes: a stream's seconds after its first token, by the steps behind it.

Which streams are looked at is stream_picture.py's; what one step's seconds went into is step_reading.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from phasewise.diagnosis.attribution import Readings, reading_of
from phasewise.diagnosis.stall_causes import ExplainedStall, StallCause
from phasewise.diagnosis.step_reading import StepReading
from phasewise.model.step_log import CLOCK_SLACK_S, EngineMoments
from phasewise.model.steps import TimedStep
from phasewise.model.timeline import Part, Timeline

MOST_OF_STEPS = 0.5
"""Costs are told apart only where they are known for so much of the steps' time."""


@dataclass(frozen=True, slots=True)
class TokenLedger:
    """The mean time of an output token after the first, by where it went; with the residual it adds up.

    `floor_s`, `batch_s` and `kv_read_s` are what decode steps need, told apart by the fitted costs, and make
    up `step_s`; None without a fit. `prompts_s` is what prompts computed in the same steps added,
    `preempted_s` what streams lost that had to give up their place, and what it took to compute them again,
    `paused_s` time in which the engine stood still, `client_s` what the gateway waited for its client to
    read, `cold_s` what first steps of their kind took more than later ones.
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
    residual_s: float = 0.0

    @property
    def total_s(self) -> float:
        """All of it: the mean time per output token of the streams that the ledger is about."""
        return (
            self.step_s
            + self.prompts_s
            + self.preempted_s
            + self.paused_s
            + self.client_s
            + self.cold_s
            + self.residual_s
        )


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stream after its first token: how long it took, for how many tokens more, and where it stalled."""

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
    residual_s: float = 0.0

    def per(self, tokens: float) -> Tally:
        """The mean of so many tokens."""
        return Tally(*(getattr(self, name) / tokens for name in self.__slots__))

    @property
    def explained_s(self) -> float:
        """What somebody's clock accounts for."""
        return self.step_s + self.prompts_s + self.preempted_s + self.paused_s + self.client_s + self.cold_s

    @property
    def residual_share(self) -> float:
        """What nobody accounts for, too much or too little, as a share of all the time."""
        total_s = self.explained_s + self.residual_s
        return abs(self.residual_s) / total_s if total_s > 0 else 0.0


def recorded_streams(stretches: Sequence[Stretch], readings: Readings) -> tuple[Stretch, ...]:
    """The streams whose decode steps are on record."""
    return tuple(it for it in stretches if _reading(it, readings) is not None)


def stream_tallies(stretches: Sequence[Stretch], readings: Readings) -> tuple[Tally, ...]:
    """The mean token of each stream: of those on a step record if any is, else by the engines' reports.

    None of them where neither tells.
    """
    recorded = [_of_steps(it, reading) for it in stretches if (reading := _reading(it, readings)) is not None]
    if recorded:
        return tuple(recorded)
    return tuple(
        _of_report(it, decode_s) for it in stretches if (decode_s := _reported_s(it.timeline)) is not None
    )


def _reading(stretch: Stretch, readings: Readings) -> StepReading | None:
    """The record of the stream's steps, if it has all of them: what is missing would look like lost time."""
    found = reading_of(stretch.timeline, readings)
    if found is None or found.log.usual_decode_step_s is None:
        return None
    recorded_since_s = found.log.steps[0].step.ended_unix_s
    return found if stretch.began_unix_s >= recorded_since_s - CLOCK_SLACK_S else None


def token_ledger(tallies: Sequence[Tally]) -> TokenLedger | None:
    """The mean token of all these streams, each counting alike."""
    if not tallies:
        return None
    mean = Tally(*(fmean(getattr(it, name) for it in tallies) for name in Tally.__slots__))
    ledger = TokenLedger(
        step_s=mean.step_s,
        prompts_s=mean.prompts_s,
        preempted_s=mean.preempted_s,
        paused_s=mean.paused_s,
        client_s=mean.client_s,
        cold_s=mean.cold_s,
        residual_s=mean.residual_s,
    )
    told_s = mean.floor_s + mean.batch_s + mean.kv_read_s
    if told_s <= 0 or told_s < MOST_OF_STEPS * mean.step_s:
        return ledger
    scale = mean.step_s / told_s
    return replace(
        ledger,
        floor_s=mean.floor_s * scale,
        batch_s=mean.batch_s * scale,
        kv_read_s=mean.kv_read_s * scale,
    )


def _of_report(stretch: Stretch, decode_s: float) -> Tally:
    """What the engine said of its decoding, and what the gateway waited for its client beyond it."""
    tally = Tally(step_s=decode_s, client_s=_client_s(stretch, decode_s))
    tally.residual_s = stretch.seconds - tally.explained_s
    return tally.per(stretch.tokens)


def _of_steps(stretch: Stretch, reading: StepReading) -> Tally:
    """Every step behind the stream's tokens, by what its seconds went into."""
    seen = _moments(stretch.timeline, reading)
    tally = Tally(client_s=_client_s(stretch, None if seen is None else seen.decode_s))
    preempted = [found for found in stretch.stalls if found.cause is StallCause.PREEMPTION]
    since_s = stretch.began_unix_s
    for timed in _steps(stretch, seen, reading, stretch.seconds - tally.client_s):
        _book(tally, timed, reading, since_s, _kept_share(timed, preempted, stretch.timeline))
    tally.residual_s = stretch.seconds - tally.explained_s
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
    """In a stall by preemption, an ordinary gap's share of the steps is the stream's; the rest is lost."""
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
    stretch: Stretch, seen: EngineMoments | None, reading: StepReading, engine_s: float
) -> tuple[TimedStep, ...]:
    """The steps after the one that gave the first token, up to that of the last.

    By the engine's own clock where it knew the request; else those that ended while the stream flowed.
    """
    if seen is None:
        return reading.log.ending_between(stretch.began_unix_s, stretch.began_unix_s + engine_s)
    return reading.decode_steps(seen)


def _client_s(stretch: Stretch, decode_s: float | None) -> float:
    """What the gateway waited for its client, as far as the stream was longer than the engine's decoding."""
    blocked_s = stretch.timeline.client_blocked_s or 0.0
    spare_s = stretch.seconds if decode_s is None else max(0.0, stretch.seconds - decode_s)
    return min(blocked_s, spare_s)


def _reported_s(timeline: Timeline) -> float | None:
    serving = timeline.serving_attempt
    spans = serving.spans if serving is not None else ()
    return next((span.duration_s for span in spans if span.part is Part.DECODE), None)
