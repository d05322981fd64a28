"""Where the time of an output token goes: a stream's time after its first token, by its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from phasewise.core.steps import CLOCK_SLACK_S, EngineMoments, TimedStep
from phasewise.core.timeline import Part, Timeline
from phasewise.diagnosis.analysis.attribution import Readings, reading_of
from phasewise.diagnosis.analysis.stall_causes import ExplainedStall, StallCause
from phasewise.diagnosis.analysis.step_reading import StepReading, StepSplit

MOST_OF_STEPS = 0.5
"""Decode time is split by cost only if costs are known for this share of the steps' time."""


@dataclass(frozen=True, slots=True)
class TokenLedger:
    """The parts of the time of an output token after the first: of one stream's mean token, or of several.

    `floor_s`, `batch_s` and `kv_read_s` split `step_s`, the time of decode steps, by the fitted costs; None
    without a fit. `prompts_s` is what prompts computed in the same steps added,
    `preempted_s` the time lost by preempted streams and by computing them again, `paused_s` the pauses of the
    engine, `client_s` the time that the gateway waited for its client to read, `cold_s` the excess of cold
    steps over later ones. The parts add up to `total_s`.
    """

    step_s: float = 0.0
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
    def explained_s(self) -> float:
        return self.step_s + self.prompts_s + self.preempted_s + self.paused_s + self.client_s + self.cold_s

    @property
    def total_s(self) -> float:
        return self.explained_s + self.unexplained_s

    @property
    def unexplained_share(self) -> float:
        """The unexplained part of the time, whether streams took longer than their steps or shorter."""
        return abs(self.unexplained_s) / self.total_s if self.total_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class StreamStretch:
    """A stream after its first token: its duration, its tokens and its stalls."""

    timeline: Timeline
    seconds: float
    tokens: float
    stalls: tuple[ExplainedStall, ...] = ()

    @property
    def began_unix_s(self) -> float:
        """When the first content came."""
        return self.timeline.started_unix_s + self.timeline.content_times_s[0]

    @property
    def per_token_s(self) -> float:
        return self.seconds / self.tokens


def recorded_streams(stretches: Sequence[StreamStretch], readings: Readings) -> tuple[StreamStretch, ...]:
    """The streams whose decode steps are on record."""
    return tuple(stretch for stretch in stretches if _reading(stretch, readings) is not None)


def stream_ledgers(stretches: Sequence[StreamStretch], readings: Readings) -> tuple[TokenLedger, ...]:
    """The mean token of each stream: from step records if there are any, else from the engines' reports.

    Empty without either.
    """
    recorded = [
        _of_steps(stretch, reading)
        for stretch in stretches
        if (reading := _reading(stretch, readings)) is not None
    ]
    if recorded:
        return tuple(recorded)
    return tuple(
        _of_report(stretch, decode_s)
        for stretch in stretches
        if (decode_s := _reported_s(stretch.timeline)) is not None
    )


def _reading(stretch: StreamStretch, readings: Readings) -> StepReading | None:
    """The record of the stream's steps, if complete: missing steps would look like lost time."""
    found = reading_of(stretch.timeline, readings)
    if found is None or found.log.usual_decode_step_s is None:
        return None
    recorded_since_s = found.log.steps[0].step.ended_unix_s
    return found if stretch.began_unix_s >= recorded_since_s - CLOCK_SLACK_S else None


def token_ledger(
    ledgers: Sequence[TokenLedger], weights: Sequence[float] | None = None
) -> TokenLedger | None:
    """The mean token of all these streams, equally weighted if no weights are given."""
    if not ledgers:
        return None
    mean = TokenLedger(
        *(fmean([getattr(each, name) or 0.0 for each in ledgers], weights) for name in TokenLedger.__slots__)
    )
    split = {name: getattr(mean, name) for name in ("floor_s", "batch_s", "kv_read_s")}
    split_s = sum(split.values())
    if split_s <= 0 or split_s < MOST_OF_STEPS * mean.step_s:
        return replace(mean, floor_s=None, batch_s=None, kv_read_s=None)
    scale = mean.step_s / split_s
    return replace(mean, **{name: seconds * scale for name, seconds in split.items()})


def _of_report(stretch: StreamStretch, decode_s: float) -> TokenLedger:
    """The engine's reported decode time, and the time that the gateway waited for its client beyond it."""
    return _mean_token(stretch, {"step_s": decode_s, "client_s": _client_s(stretch, decode_s)})


def _of_steps(stretch: StreamStretch, reading: StepReading) -> TokenLedger:
    """The parts of every step behind the stream's tokens."""
    seen = _moments(stretch.timeline, reading)
    parts_s = dict.fromkeys(TokenLedger.__slots__, 0.0)
    parts_s["client_s"] = _client_s(stretch, None if seen is None else seen.decode_s)
    preempted = [found for found in stretch.stalls if found.cause is StallCause.PREEMPTION]
    for timed in _steps(stretch, seen, reading, stretch.seconds - parts_s["client_s"]):
        kept = _kept_share(timed, preempted, stretch.timeline)
        _book(parts_s, reading.split(timed, stretch.began_unix_s), kept)
    return _mean_token(stretch, parts_s)


def _mean_token(stretch: StreamStretch, parts_s: Mapping[str, float]) -> TokenLedger:
    """The stream's mean token, from the seconds of its parts; what they leave is unexplained."""
    whole = TokenLedger(**parts_s)
    shares = {name: seconds / stretch.tokens for name, seconds in parts_s.items()}
    unexplained_s = (stretch.seconds - whole.explained_s) / stretch.tokens
    return TokenLedger(**(shares | {"unexplained_s": unexplained_s}))


def _book(parts_s: dict[str, float], split: StepSplit, kept: float) -> None:
    """Add a step; of one that ran while the stream was preempted, only the share `kept` is the stream's."""
    whole_s = split.decode_s + split.prompts_s + split.recomputed_s + split.paused_s + split.cold_s
    parts_s["preempted_s"] += whole_s * (1.0 - kept) + split.recomputed_s * kept
    parts_s["step_s"] += split.decode_s * kept
    for name in ("prompts_s", "paused_s", "cold_s", "floor_s", "batch_s", "kv_read_s"):
        parts_s[name] += (getattr(split, name) or 0.0) * kept


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
    found = None if serving is None else reading.log.finished(serving.engine_request_id or "")
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
