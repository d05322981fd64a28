"""A window's requests as a replay needs them: when they came, how long they were, what their prompts shared.

Prompts themselves are never known here; what they have in common is, by their marks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from phasewise.model.latency import TtftBreakdown, ttft_breakdown
from phasewise.model.quantiles import quantile
from phasewise.model.timeline import Outcome, Part, Source, Timeline
from phasewise.predict.figures import Figures, measured_figures

BETWEEN_STEPS = 0.1
"""Without a step record, what no clock saw contains the wait for the running step. So many requests, at
least, came when none was running."""
_OUTSIDE = frozenset(
    {Part.CLIENT_LAG, Part.GATEWAY_WAIT, Part.CACHE_LOOK_UP, Part.EARLIER_ATTEMPTS, Part.HAND_OVER}
)


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request of the window: `came_s` and `went_s` count from the window's first arrival."""

    request_id: str
    came_s: float
    went_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    prompt_bytes: int = 0
    marks: tuple[str, ...] = ()
    engine: str = ""


@dataclass(frozen=True, slots=True)
class Traffic:
    """The window's traffic, oldest first, and what was measured of it.

    `outside_s` is what a first token takes outside the engine's steps. A closed loop of `concurrency` clients
    sends a request when another ends, whatever the recorded times; None is an open loop. The first `warm_up`
    requests of a block were measured but do not count. `unusable` requests told too little to be replayed.
    """

    requests: tuple[RecordedRequest, ...]
    measured: Figures
    outside_s: float = 0.0
    concurrency: int | None = None
    warm_up: int = 0
    unusable: int = 0

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines that served it, in the order in which they came first."""
        return tuple(dict.fromkeys(request.engine for request in self.requests))

    @property
    def longest_tokens(self) -> int:
        """The longest prompt with its answer."""
        return max((each.prompt_tokens + each.output_tokens for each in self.requests), default=0)


def recorded_traffic(
    timelines: Iterable[Timeline], *, concurrency: int | None = None, warm_up: int = 0
) -> Traffic:
    """The traffic of these timelines. Requests without lengths, or without an answer, cannot be replayed."""
    ordered = sorted(timelines, key=lambda each: each.started_unix_s)
    usable = [each for each in ordered if each.prompt_tokens and each.output_tokens]
    began_s = usable[0].started_unix_s if usable else 0.0
    counted = [each for each in usable[warm_up:] if each.outcome is Outcome.SUCCEEDED]
    return Traffic(
        requests=tuple(_recorded(each, began_s, index) for index, each in enumerate(usable)),
        measured=measured_figures(counted),
        outside_s=_outside_s(counted),
        concurrency=concurrency,
        warm_up=warm_up,
        unusable=len(ordered) - len(usable),
    )


def _recorded(timeline: Timeline, began_s: float, index: int) -> RecordedRequest:
    came_s = timeline.started_unix_s - began_s
    serving = timeline.serving_attempt
    return RecordedRequest(
        # Clients may repeat their ids, and two gateways theirs.
        request_id=f"{index}-{timeline.request_id}",
        came_s=came_s,
        went_s=came_s + timeline.ended_s,
        prompt_tokens=timeline.prompt_tokens or 1,
        output_tokens=timeline.output_tokens or 1,
        cached_tokens=timeline.cached_tokens or 0,
        prompt_bytes=timeline.prompt_bytes or 0,
        marks=timeline.prefix_marks if timeline.prompt_bytes else (),
        engine="" if serving is None else serving.worker.name,
    )


def _outside_s(timelines: Sequence[Timeline]) -> float:
    """What TTFT holds beside the engine's queue and steps, in an ordinary request."""
    told = [
        found for each in timelines if (found := ttft_breakdown(each)) is not None and _engine_told(found)
    ]
    by_steps = [each for each in told if any(entry.source is Source.STEP_RECORD for entry in each.parts)]
    outside = [
        each.residual_s + sum(entry.seconds for entry in each.parts if entry.part in _OUTSIDE)
        for each in by_steps or told
    ]
    return max(0.0, quantile(outside, 0.5 if by_steps else BETWEEN_STEPS)) if outside else 0.0


def _engine_told(found: TtftBreakdown) -> bool:
    return any(entry.part in {Part.ENGINE_QUEUE, Part.PREFILL} for entry in found.parts)
