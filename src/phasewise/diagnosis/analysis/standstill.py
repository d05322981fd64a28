"""Times in which an engine had requests and made no progress: in the past, or still at the window's end.

From its step record, or without one from counters that are read several times a second. A long step is no
standstill: the time that its tokens need by the pace of other steps is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from phasewise.core.engine_metrics import LoadReading
from phasewise.core.timeline import Outcome, Timeline
from phasewise.diagnosis.analysis.engine_load import Window
from phasewise.diagnosis.analysis.step_reading import StepReading

LEAST_S = 1.5
"""Shorter pauses are part of any engine's life."""
HUNG_S = 5.0
"""An engine that stands still for this long at the window's end is called hung; for less, it pauses."""
CERTAIN_S = 8.0
LONGEST_STEPS = 2.0
"""A silence of CERTAIN_S or more is a standstill from this many times the longest step."""
LONGEST_STEPS_OF_PAUSE = 4.0
"""A shorter silence is a standstill from this many times the longest step."""
SEVERAL_STEPS, ENOUGH_STEPS = 3, 10
COLD_FACTOR = 3.0
"""A cold step takes this many times as long as a later one of the same size."""
GAP_READINGS = 1.8
"""A time without progress spans at least two intervals between readings."""


@dataclass(frozen=True, slots=True)
class Standstill:
    """An engine with open requests made no progress for so long; with `lasts`, until the window's end.

    `requests` were open in it. `first_tokens` are those that came when it ended, `ttft_sum_s` their TTFTs in
    all; both are known only from counters.
    """

    engine: str
    began_unix_s: float
    seconds: float
    requests: int
    lasts: bool = False
    first_tokens: float = 0.0
    ttft_sum_s: float = 0.0

    @property
    def hangs(self) -> bool:
        """Whether it has lasted so long that it may never end."""
        return self.lasts and self.seconds >= HUNG_S


def _is_long(seconds: float, longest_step_s: float) -> bool:
    """Whether a time without progress at the window's end is more than a long step."""
    if seconds >= CERTAIN_S:
        return seconds >= LONGEST_STEPS * longest_step_s
    return seconds >= max(LEAST_S, LONGEST_STEPS_OF_PAUSE * longest_step_s)


def standstills_of_steps(
    engine: str, reading: StepReading, timelines: Sequence[Timeline], window: Window
) -> tuple[Standstill, ...]:
    """Long pauses within steps that ended in the window, and the time since the last step if requests are
    open.
    """
    found = []
    longest_s = 0.0
    for timed in reading.log.ending_between(*window):
        paused_s = reading.paused_s(timed) if timed.duration_s is not None else 0.0
        longest_s = max(longest_s, (timed.duration_s or 0.0) - paused_s)
        if paused_s >= LEAST_S:
            began_s = timed.step.ended_unix_s - paused_s
            found.append(Standstill(engine, began_s, paused_s, timed.step.running + len(timed.step.finished)))
    if (still := _since_last_step(engine, reading, timelines, window, longest_s)) is not None:
        found.append(still)
    return tuple(found)


def _since_last_step(
    engine: str, reading: StepReading, timelines: Sequence[Timeline], window: Window, longest_s: float
) -> Standstill | None:
    """The engine's silence at the window's end, if requests were sent to it and are open."""
    open_since = [_sent_unix_s(timeline) for timeline in timelines if _is_open_at(timeline, engine)]
    if not open_since:
        return None
    steps = reading.log.steps
    last_s = steps[-1].step.ended_unix_s if steps else window[0]
    # An idle engine's silence counts from the first request that it should have begun.
    began_s = last_s if steps and steps[-1].step.leaves_work else max(last_s, min(open_since))
    seconds = window[1] - began_s
    if not _is_long(seconds, longest_s):
        return None
    return Standstill(engine, began_s, seconds, len(open_since), lasts=True)


def _is_open_at(timeline: Timeline, engine: str) -> bool:
    serving = timeline.serving_attempt
    return (
        timeline.outcome is Outcome.UNFINISHED
        and serving is not None
        and serving.worker.name == engine
        and serving.outcome is Outcome.UNFINISHED
    )


def _sent_unix_s(timeline: Timeline) -> float:
    serving = timeline.serving_attempt
    return timeline.started_unix_s + (0.0 if serving is None else serving.started_s)


# --- From counters.


@dataclass(frozen=True, slots=True)
class StepGap:
    """A time between two readings in which no step ended though requests were in the engine.

    `prompt_tokens` are those of the prompts that were ready when it ended, `needed_s` what its tokens take by
    the engine's usual pace. `streams` were running.
    """

    began_unix_s: float
    seconds: float
    streams: int
    requests: int
    prompt_tokens: float
    needed_s: float
    first_tokens: float
    ttft_sum_s: float

    @property
    def paused_s(self) -> float:
        """How much longer it took than its work needed; 0 for a long step."""
        over_s = self.seconds - self.needed_s
        return over_s if over_s >= max(LEAST_S, self.seconds / 2) else 0.0


@dataclass(frozen=True, slots=True)
class UsualPace:
    """What steps and prompt tokens usually take, and the part of the working time that went into prompts."""

    step_s: float
    prompt_token_s: float
    prompts_share: float


def pace_of(loads: Sequence[LoadReading]) -> UsualPace:
    """The engine's pace between readings; zero where nothing of the kind was seen."""
    marks = progress_of(loads)
    step_s = _decode_step_s(marks)
    with_prompts = [mark for mark in marks if mark.prompt_tokens]
    rates = [(mark.seconds - mark.steps * step_s) / mark.prompt_tokens for mark in with_prompts]
    token_s = max(0.0, median(rates)) if rates else 0.0
    whole_s = sum(mark.seconds for mark in marks)
    # A long gap may be a pause: what prompts took is counted by their tokens.
    prompts_s = sum(min(mark.seconds, mark.prompt_tokens * token_s) for mark in with_prompts)
    return UsualPace(step_s, token_s, prompts_s / whole_s if whole_s > 0 else 0.0)


def _decode_step_s(marks: Sequence[Progress]) -> float:
    """The usual step without prompts. Between readings beside a prompt, a part of its step may have run."""
    apart = [
        mark
        for before, mark, after in zip(marks, marks[1:], marks[2:], strict=False)
        if mark.steps and not (before.prompt_tokens or mark.prompt_tokens or after.prompt_tokens)
    ]
    if sum(mark.steps for mark in apart) >= ENOUGH_STEPS:
        usual_s = median(mark.seconds / mark.steps for mark in apart)
        usual = [mark for mark in apart if mark.seconds <= COLD_FACTOR * mark.steps * usual_s]
        return sum(mark.seconds for mark in usual) / sum(mark.steps for mark in usual)
    return min((mark.seconds / mark.steps for mark in marks if mark.steps >= SEVERAL_STEPS), default=0.0)


def step_gaps(loads: Sequence[LoadReading]) -> tuple[StepGap, ...]:
    """All gaps that span several readings, or in which the engine did not answer one."""
    marks, pace = progress_of(loads), pace_of(loads)
    usual_s = median([later.at_unix_s - earlier.at_unix_s for earlier, later in pairwise(loads)] or [0.0])
    return tuple(
        mark.gap(mark.steps * pace.step_s + mark.prompt_tokens * pace.prompt_token_s)
        for mark in marks
        if mark.seconds > GAP_READINGS * usual_s
    )


def cold_gaps(loads: Sequence[LoadReading]) -> tuple[StepGap, ...]:
    """Times in the first half of the readings that took several times as long as the same work did later;
    none if that happens later too.
    """
    if not loads:
        return ()
    middle_s = (loads[0].at_unix_s + loads[-1].at_unix_s) / 2
    pace = pace_of([load for load in loads if load.at_unix_s >= middle_s])
    usual_s = median([later.at_unix_s - earlier.at_unix_s for earlier, later in pairwise(loads)] or [0.0])
    if not pace.step_s:
        return ()
    slow = []
    for mark in progress_of(loads):
        needed_s = mark.steps * pace.step_s + mark.prompt_tokens * pace.prompt_token_s
        if mark.seconds > COLD_FACTOR * needed_s + usual_s:
            slow.append(mark.gap(needed_s))
    early = tuple(gap for gap in slow if gap.began_unix_s < middle_s)
    return early if len(early) >= COLD_FACTOR * (len(slow) - len(early)) else ()


def progress_of(loads: Sequence[LoadReading]) -> list[Progress]:
    """From one sign of progress to the next, as long as the engine has work."""
    return [Progress(*pair) for pair in _progress(loads)]


def _progress(loads: Sequence[LoadReading]) -> Iterator[tuple[LoadReading, LoadReading]]:
    last: LoadReading | None = None
    for earlier, later in pairwise(loads):
        if last is None or not (_has_work(last) and _has_work(earlier)):
            last = earlier
        if _has_work(last) and _moved(later, last):
            yield last, later
            last = later


@dataclass(frozen=True, slots=True)
class Progress:
    """What the engine did between two readings."""

    last: LoadReading
    later: LoadReading

    @property
    def seconds(self) -> float:
        """How long that took."""
        return self.later.at_unix_s - self.last.at_unix_s

    @property
    def steps(self) -> float:
        """Its steps."""
        return self._grown("steps")

    @property
    def output_tokens(self) -> float:
        """Tokens of answers."""
        return self._grown("output_tokens")

    @property
    def first_tokens(self) -> float:
        """Those of them that were the first."""
        return self._grown("first_tokens")

    @property
    def prompt_tokens(self) -> float:
        """Tokens of its steps that are not answers: those of prompts, finished or not."""
        return max(0.0, self._grown("step_tokens") - self.output_tokens)

    def gap(self, needed_s: float) -> StepGap:
        """The same as a gap whose work needs so long."""
        return StepGap(
            began_unix_s=self.last.at_unix_s,
            seconds=self.seconds,
            streams=self.last.running,
            requests=max(self.last.running + self.last.waiting, self.later.running + self.later.waiting),
            prompt_tokens=self.prompt_tokens,
            needed_s=needed_s,
            first_tokens=self.first_tokens,
            ttft_sum_s=self._grown("ttft_sum_s"),
        )

    def _grown(self, name: str) -> float:
        return max(0.0, (getattr(self.later, name) or 0.0) - (getattr(self.last, name) or 0.0))


def standstills_of_loads(engine: str, loads: Sequence[LoadReading], window: Window) -> tuple[Standstill, ...]:
    """Gaps that no work explains, and the time without progress at the window's end.

    An engine that does not answer gives no readings: that is a standstill too, if it had requests before.
    """
    gaps = step_gaps(loads)
    past = tuple(
        Standstill(
            engine,
            gap.began_unix_s,
            gap.paused_s,
            gap.requests,
            first_tokens=gap.first_tokens,
            ttft_sum_s=gap.ttft_sum_s,
        )
        for gap in gaps
        if gap.paused_s
    )
    still = _still(engine, loads, window, max((gap.seconds - gap.paused_s for gap in gaps), default=0.0))
    return past if still is None else (*past, still)


def _still(engine: str, loads: Sequence[LoadReading], window: Window, longest_s: float) -> Standstill | None:
    """No progress from some reading on until the window's end, for longer than the longest step explains."""
    if not loads or not _has_work(loads[-1]):
        return None
    since = loads[-1]
    for earlier in reversed(loads):
        if not _has_work(earlier) or _moved(since, earlier):
            break
        since = earlier
    seconds = window[1] - since.at_unix_s
    if not _is_long(seconds, longest_s):
        return None
    return Standstill(engine, since.at_unix_s, seconds, loads[-1].running + loads[-1].waiting, lasts=True)


def _has_work(load: LoadReading) -> bool:
    return load.running + load.waiting > 0


def _moved(later: LoadReading, earlier: LoadReading) -> bool:
    """Whether the engine did anything in between."""
    names = ("steps", "output_tokens", "prompt_tokens", "finished")
    return any((getattr(later, name) or 0.0) > (getattr(earlier, name) or 0.0) for name in names)
