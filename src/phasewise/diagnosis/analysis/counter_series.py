"""What readings of engines' gauges within a window add to the change of their counters over it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from phasewise.core.engine_metrics import LoadReading
from phasewise.diagnosis.analysis.engine_load import YOUNG_S, Window
from phasewise.diagnosis.analysis.open_requests import InEngine, waiting_since
from phasewise.diagnosis.analysis.standstill import Standstill, StepGap, cold_gaps, pace_of, step_gaps

NOTICED_PROMPT_TOKENS = 128
"""A step of fewer prompt tokens is mostly weight reads and overhead."""


@dataclass(frozen=True, slots=True)
class ReadingSeries:
    """What readings within the window add to its counters: pauses, and steps that were long for their
    prompts. `cold_gaps` are those of an engine that was started shortly before. `waited_s` is the time that
    requests waited in queues, summed over them; `decode_step_s` the usual step without prompts;
    `prompts_share` the part of the engines' working time that went into prompts. `waits_s` is how long each
    request has waited that is without a first token when the window closes.
    """

    standstills: tuple[Standstill, ...] = ()
    prompt_gaps: tuple[StepGap, ...] = ()
    cold_gaps: tuple[StepGap, ...] = ()
    running_max: int = 0
    output_tokens: float = 0.0
    waited_s: float | None = None
    waiting_since_s: float = 0.0
    waiting_now: int = 0
    waits_s: tuple[float, ...] = ()
    open_now: int = 0
    prompt_token_s: float = 0.0
    decode_step_s: float | None = None
    prompts_share: float = 0.0


def series_of(
    loads: Mapping[str, Sequence[LoadReading]],
    window: Window,
    standstills: tuple[Standstill, ...] = (),
    ages: Mapping[str, float] = MappingProxyType({}),
) -> ReadingSeries:
    """The readings of all engines, of which the standstills are known, and how old they are in seconds."""
    young = [own for name, own in loads.items() if ages.get(name, YOUNG_S) < YOUNG_S]
    cold = tuple(gap for own in young for gap in cold_gaps(own))
    gaps = [gap for own in loads.values() for gap in step_gaps(own)]
    paces = [pace_of(own) for own in loads.values()]
    return ReadingSeries(
        standstills=() if cold else standstills,
        cold_gaps=cold,
        prompt_gaps=tuple(
            gap
            for gap in gaps
            if not gap.paused_s and gap.prompt_tokens >= NOTICED_PROMPT_TOKENS and gap not in cold
        ),
        running_max=sum(max((load.running for load in own), default=0) for own in loads.values()),
        output_tokens=sum(
            (own[-1].output_tokens or 0.0) - (own[0].output_tokens or 0.0) for own in loads.values() if own
        ),
        waited_s=_waited_s(loads.values()),
        waiting_since_s=max((_waiting_since_s(own, window) for own in loads.values()), default=0.0),
        waiting_now=sum(own[-1].waiting for own in loads.values() if own),
        waits_s=tuple(window[1] - at_s for own in loads.values() for at_s in waiting_since(_counts(own))),
        open_now=sum(own[-1].waiting + own[-1].running for own in loads.values() if own),
        prompt_token_s=max((pace.prompt_token_s for pace in paces), default=0.0),
        decode_step_s=min((pace.step_s for pace in paces if pace.step_s), default=None),
        prompts_share=max((pace.prompts_share for pace in paces), default=0.0),
    )


def _counts(loads: Sequence[LoadReading]) -> list[InEngine]:
    """How many requests were there over time; nothing if the engine does not count those that end."""
    return [
        InEngine(load.at_unix_s, load.waiting, load.running, load.finished)
        for load in loads
        if load.finished is not None
    ]


def _waiting_since_s(loads: Sequence[LoadReading], window: Window) -> float:
    """How long requests have been waiting without a break when the window closes."""
    since_s = window[1]
    for load in reversed(loads):
        if not load.waiting:
            break
        since_s = load.at_unix_s
    return window[1] - since_s


def _waited_s(loads: Iterable[Sequence[LoadReading]]) -> float | None:
    """The number that waited, over time: by Little's law this is what all of them waited together."""
    pairs = [pair for own in loads for pair in pairwise(own)]
    if not pairs:
        return None
    return sum(
        (earlier.waiting + later.waiting) / 2 * (later.at_unix_s - earlier.at_unix_s)
        for earlier, later in pairs
    )
