"""Engine steps as recorded in the engine's process, the requests that ended in them, and a log to search.

Times are on the *reader's* wall clock: the client that fetches steps shifts them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isnan
from statistics import median

STEP_RECORD_VERSION = 1
RECORDED_AS_NAMED = (
    *("running", "waiting", "prompt_tokens", "prompt_requests", "decode_tokens", "decode_requests"),
    *("preempted", "first_tokens"),
)
"""What a record of a step has under the names of the step's fields; likewise of a request that ended:"""
ENDED_AS_NAMED = ("reason", "prompt_tokens", "cached_tokens", "output_tokens", "preemptions")
ENDED_PHASES = ("queue_s", "prefill_s", "decode_s", "e2e_s")
CLOCK_SLACK_S = 0.005
"""The engine's core and its front end timestamp events a few milliseconds apart."""
FIRST_SEQ = 0
"""The number of the first step after an engine's start."""


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """What the engine knows about a request when it ends.

    `e2e_s` runs from the request's arrival at the engine's front end; the others are spans between events
    in the engine's core: queued -> scheduled -> first token -> last token. A phase that was not reached is
    NaN, so that no sum hides it.
    """

    request_id: str
    reason: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    queue_s: float
    prefill_s: float
    decode_s: float
    e2e_s: float
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class KvTransfer:
    """KV that an engine fetched from another: the duration of the transfer, and its size."""

    seconds: float
    kv_bytes: int


@dataclass(frozen=True, slots=True)
class EngineStep:
    """One forward pass of the engine: what it carried and when it ended.

    Token counts are None where the engine does not record them. `running` and
    `waiting` are counted after the step. `transfers` are those that the engine saw complete in this step.
    """

    seq: int
    ended_unix_s: float
    running: int
    waiting: int
    kv_usage: float
    prompt_tokens: int | None = None
    prompt_requests: int | None = None
    decode_tokens: int | None = None
    decode_requests: int | None = None
    preempted: int = 0
    first_tokens: int = 0
    engine_index: int = 0
    finished: tuple[FinishedRequest, ...] = ()
    transfers: tuple[KvTransfer, ...] = ()

    @property
    def leaves_work(self) -> bool:
        """Whether the engine continues without a pause after this step."""
        return self.running + self.waiting > 0


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step with its start. `started_unix_s` is None after idleness, when the start is unknown."""

    step: EngineStep
    started_unix_s: float | None

    @property
    def duration_s(self) -> float | None:
        """How long the step took; None where its start is unknown."""
        if self.started_unix_s is None:
            return None
        return self.step.ended_unix_s - self.started_unix_s


def time_steps(steps: Sequence[EngineStep]) -> tuple[TimedStep, ...]:
    """Give each step its start: the end of the step before it, if that one left work."""
    timed: list[TimedStep] = []
    previous: dict[int, EngineStep] = {}
    for step in steps:
        before = previous.get(step.engine_index)
        busy = before is not None and before.leaves_work
        timed.append(TimedStep(step, before.ended_unix_s if before is not None and busy else None))
        previous[step.engine_index] = step
    return tuple(timed)


# --- Steps in order of time, searchable for what ran when.


@dataclass(frozen=True, slots=True)
class EngineMoments:
    """A finished request's milestones on the step record's clock, and the phases between them."""

    arrived_unix_s: float
    queued_unix_s: float
    scheduled_unix_s: float
    first_token_unix_s: float
    last_token_unix_s: float

    @property
    def queue_s(self) -> float:
        """Queued until scheduled."""
        return self.scheduled_unix_s - self.queued_unix_s

    @property
    def prefill_s(self) -> float:
        """Scheduled until the first token."""
        return self.first_token_unix_s - self.scheduled_unix_s

    @property
    def decode_s(self) -> float:
        """First token until the last."""
        return self.last_token_unix_s - self.first_token_unix_s


def moments(step: EngineStep, ended: FinishedRequest) -> EngineMoments | None:
    """Count back from the step that a request ended in; None if it skipped a phase."""
    if isnan(ended.queue_s + ended.prefill_s + ended.decode_s + ended.e2e_s):
        return None
    last_s = step.ended_unix_s
    first_s = last_s - ended.decode_s
    scheduled_s = first_s - ended.prefill_s
    return EngineMoments(
        arrived_unix_s=last_s - ended.e2e_s,
        queued_unix_s=scheduled_s - ended.queue_s,
        scheduled_unix_s=scheduled_s,
        first_token_unix_s=first_s,
        last_token_unix_s=last_s,
    )


def logs_by_rank(steps: Sequence[EngineStep]) -> tuple[StepLog, ...]:
    """One log for each data-parallel rank of an engine; ranks step concurrently."""
    ranks: dict[int, list[EngineStep]] = {}
    for step in steps:
        ranks.setdefault(step.engine_index, []).append(step)
    return tuple(StepLog(ranks[index]) for index in sorted(ranks))


class StepLog:
    """The steps of one rank of one engine, in order, searchable by time and by request."""

    def __init__(self, steps: Sequence[EngineStep]) -> None:
        ordered = sorted(steps, key=lambda step: step.seq)
        self._ended_in = {ended.request_id: (step, ended) for step in ordered for ended in step.finished}
        self._ends = [step.ended_unix_s for step in ordered]
        self.steps = self._with_known_starts(time_steps(ordered))

    def __len__(self) -> int:
        return len(self.steps)

    def finished(self, request_id: str) -> tuple[EngineMoments, FinishedRequest] | None:
        """The milestones of a request, if it ended within the log and went through every phase."""
        found = self._ended_in.get(request_id)
        seen = None if found is None else moments(*found)
        return None if found is None or seen is None else (seen, found[1])

    def ending_between(self, after_s: float, until_s: float) -> tuple[TimedStep, ...]:
        """Steps that ended in the half-open interval (after, until]."""
        return self.steps[bisect_right(self._ends, after_s) : bisect_right(self._ends, until_s)]

    @cached_property
    def usual_decode_step_s(self) -> float | None:
        """The median duration of a step without prompt tokens."""
        durations = [
            timed.duration_s
            for timed in self.steps
            if timed.duration_s is not None and timed.step.prompt_tokens == 0 and timed.step.decode_tokens
        ]
        return median(durations) if durations else None

    def _with_known_starts(self, timed: tuple[TimedStep, ...]) -> tuple[TimedStep, ...]:
        """A step after idleness starts when the first request it carried was scheduled.

        The start of a log's first step stays unknown if the log begins during traffic: requests that were
        scheduled earlier may have been in many steps before it.
        """
        starts: dict[int, float] = {}
        known = (seen for found in self._ended_in.values() if (seen := moments(*found)) is not None)
        for scheduled_s in (seen.scheduled_unix_s for seen in known):
            index = bisect_right(self._ends, scheduled_s + CLOCK_SLACK_S)
            if index == 0 and timed[0].step.seq != FIRST_SEQ:
                continue
            if index < len(timed) and timed[index].started_unix_s is None:
                starts[index] = min(scheduled_s, starts.get(index, scheduled_s))
        return tuple(
            replace(item, started_unix_s=starts[index]) if index in starts else item
            for index, item in enumerate(timed)
        )
