"""Engine steps as recorded in the engine's process, and the requests that ended in them.

Times are on the *reader's* wall clock: the client that fetches steps shifts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

STEP_RECORD_VERSION = 1


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
