"""One picture of a window of traffic: how requests started, how they streamed, what they looked like.

Its parts are made by the modules beside it, from timelines, and by counter_picture.py from engine counters;
the rules read only the picture. What a number could not be known from stays None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from phasewise.costs.step_fit import StepFit
from phasewise.diagnosis.attribution import explained
from phasewise.diagnosis.hand_over_use import HandOverUse
from phasewise.diagnosis.prefix_use import PrefixUse, prefix_use
from phasewise.diagnosis.start_picture import EngineStart, StartPicture, start_picture
from phasewise.diagnosis.stream_picture import NOTICED_STALL_TOKENS, StreamPicture, stream_picture
from phasewise.diagnosis.surroundings import EngineSurroundings
from phasewise.diagnosis.token_ledger import TokenLedger
from phasewise.diagnosis.trust import Trust
from phasewise.diagnosis.workload_profile import WorkloadProfile, arrivals
from phasewise.model.quantiles import quantile
from phasewise.model.steps import EngineStep
from phasewise.model.timeline import Outcome, Timeline

__all__ = [
    "NOTICED_STALL_TOKENS",
    "EngineStart",
    "HandOverUse",
    "Picture",
    "PrefixUse",
    "StartPicture",
    "StreamPicture",
    "TokenLedger",
    "Trust",
    "WorkloadProfile",
    "WorkloadShape",
    "explained",
    "outcome_counts",
    "start_picture",
    "stream_picture",
    "workload_shape",
]


@dataclass(frozen=True, slots=True)
class WorkloadShape:
    """What the traffic looked like."""

    requests: int
    rate_per_s: float | None
    prompt_p50_tokens: float | None
    prompt_p90_tokens: float | None
    output_p50_tokens: float | None
    output_p90_tokens: float | None
    cached_share: float | None
    shared_share: float | None
    running_mean: float | None = None
    waiting_max: int | None = None
    kv_usage_max: float | None = None
    preemptions: int | None = None
    prefix_cache_on: bool | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything the findings may look at."""

    window_s: float
    seen_by: str
    start: StartPicture | None
    stream: StreamPicture | None
    workload: WorkloadShape
    outcomes: tuple[tuple[str, int], ...]
    not_known: tuple[str, ...] = ()
    engines: tuple[EngineSurroundings, ...] = ()
    prefix: PrefixUse | None = None
    trust: Trust = field(default_factory=Trust)
    fit: StepFit | None = None
    profile: WorkloadProfile | None = None
    hand_over: HandOverUse | None = None


def workload_shape(
    timelines: Sequence[Timeline],
    steps: Sequence[EngineStep],
    window_s: float,
    began_unix_s: float | None = None,
) -> WorkloadShape:
    """What the traffic looked like, from the requests themselves and the steps of the window."""
    prompts = [float(it.prompt_tokens) for it in timelines if it.prompt_tokens is not None]
    outputs = [float(it.output_tokens) for it in timelines if it.output_tokens is not None]
    counted = [it for it in timelines if it.prompt_tokens and it.cached_tokens is not None]
    cached = sum(it.cached_tokens or 0 for it in counted)
    prefix = prefix_use(timelines)
    return WorkloadShape(
        requests=len(timelines),
        rate_per_s=len(arrivals(timelines, began_unix_s)) / window_s if window_s > 0 else None,
        prompt_p50_tokens=quantile(prompts, 0.5) if prompts else None,
        prompt_p90_tokens=quantile(prompts, 0.9) if prompts else None,
        output_p50_tokens=quantile(outputs, 0.5) if outputs else None,
        output_p90_tokens=quantile(outputs, 0.9) if outputs else None,
        cached_share=cached / sum(it.prompt_tokens or 0 for it in counted) if counted else None,
        shared_share=None if prefix is None else prefix.shared,
        running_mean=fmean(step.running for step in steps) if steps else None,
        waiting_max=max((step.waiting for step in steps), default=None),
        kv_usage_max=max((step.kv_usage for step in steps), default=None),
        preemptions=sum(step.preempted for step in steps) if steps else None,
    )


def outcome_counts(timelines: Sequence[Timeline]) -> tuple[tuple[str, int], ...]:
    """How requests ended, all of them."""
    counts = {outcome: sum(it.outcome is outcome for it in timelines) for outcome in Outcome}
    return tuple((outcome.value, count) for outcome, count in counts.items() if count)
