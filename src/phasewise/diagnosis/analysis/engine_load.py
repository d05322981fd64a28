"""The state of each engine in a window: its settings, its load and its host.

A reading is None if it was not observed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from math import ceil
from operator import attrgetter
from statistics import median

from phasewise.core.engine_metrics import LoadReading
from phasewise.core.steps import EngineStep, StepLog, TimedStep
from phasewise.diagnosis.analysis.step_reading import recomputed_tokens
from phasewise.diagnosis.finding import FactSource

SLOTS_TAKEN = 0.6
"""An engine that runs as many requests as it ever does for this share of its working time has no free slot.
"""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The load of an engine, over the steps of the window (or over readings of its gauges).

    Of the time in which requests waited, `kv_full_share` is the part in which the KV cache had no space for
    another typical request, and `capped_share` the part in which it had space and the engine ran as many as
    it ever did. `growth` is how many more requests were in the engine in the last third than in the first.
    `full_share` is the part of its working time in which it ran as many as it ever did, `idle_share` the part
    of the window in which it had nothing to do.
    """

    running_mean: float
    running_max: int
    waiting_mean: float
    waiting_max: int
    kv_usage_max: float | None
    waited_share: float
    kv_full_share: float
    capped_share: float
    growth: float
    full_share: float = 0.0
    idle_share: float = 0.0

    @property
    def requests_mean(self) -> float:
        return self.running_mean + self.waiting_mean


@dataclass(frozen=True, slots=True)
class StepShape:
    """What an engine's steps were like, from its recorder.

    `busy_share` is the part of the window in which a step ran. `chunk_p50_tokens` is over steps that carried
    prompt tokens. `budget_tokens` is the most tokens of any step, where several prompts were cut at it.
    `decode_step_p50_s` is over steps without prompt tokens, `lone_step_s` over those of at most two streams.
    """

    steps: int
    busy_share: float
    chunk_p50_tokens: float | None
    budget_tokens: int | None
    decode_step_p50_s: float | None
    lone_step_s: float | None
    tokens_per_stream_step: float | None


@dataclass(frozen=True, slots=True)
class Drafts:
    """Speculative decoding in the window: drafts, draft tokens and accepted tokens."""

    drafts: float
    drafted_tokens: float
    accepted_tokens: float


@dataclass(frozen=True, slots=True)
class EngineSurroundings:
    """One engine in the window.

    `age_s` is the age of its process when the window began. `front_end_cores` are the cores that its API
    process kept busy; `cpu_wait_share` is the part of its working time in which it waited for a core
    that others used, and `cpu_source` says how that was measured. `round_trip_s` is the shortest time of an
    empty request from here to it and back. `weights_read_s` is the time to read the model's
    weights once. Of several data-parallel ranks, `engine_load` and `steps` are those of the most loaded one,
    and `ranks_busy_share` is the sum of the parts of the window in which each computed. `fetched_tokens` are
    prompt tokens whose KV came from another engine, `own_hit_tokens` those that its own cache had.
    `slow_format` is its number format, if its processor has no instructions for that. `out_of_service` is why
    its gateway does not use it; empty if it does. `kind` is the title of its kind of engine. `settings` are
    those on its command line, by our names, and `cores` are those that it may use.
    """

    name: str
    requests: int
    kv_tokens: int | None = None
    block_tokens: int | None = None
    prefix_cache_on: bool | None = None
    prefix_queries_tokens: float | None = None
    prefix_hits_tokens: float | None = None
    preemptions: float | None = None
    engine_load: EngineLoad | None = None
    steps: StepShape | None = None
    drafts: Drafts | None = None
    age_s: float | None = None
    front_end_cores: float | None = None
    cpu_wait_share: float | None = None
    cpu_source: str | None = None
    host_busy_share: float | None = None
    round_trip_s: float | None = None
    weights_read_s: float | None = None
    model: str | None = None
    ranks_busy_share: float | None = None
    fetched_tokens: float | None = None
    own_hit_tokens: float | None = None
    slow_format: str | None = None
    out_of_service: str = ""
    kind: str = ""
    settings: Mapping[str, int] = field(default_factory=dict)
    cores: int | None = None


# --- The observer of a window, and what its clock includes.


class SeenBy(StrEnum):
    """Whose clock timed the requests of a window."""

    GATEWAY = "the gateway"
    PROBE = "our own probe"
    GENERATOR = "the load generator"
    GENERATOR_AND_GATEWAY = "the load generator and the gateway"
    STEP_RECORD = "the engine's step record"
    COUNTERS = "engine counters"

    @property
    def is_within_engine(self) -> bool:
        """Whether the clock starts at the engine, so that no network time is included."""
        return self in {SeenBy.STEP_RECORD, SeenBy.COUNTERS}

    @property
    def is_straight_from_here(self) -> bool:
        """Whether the requests took the same way to the engine as our round trips."""
        return self in {SeenBy.PROBE, SeenBy.GENERATOR}

    @property
    def is_ours(self) -> bool:
        """Whether all requests are ours, so that those before the window are known too."""
        return self in {SeenBy.PROBE, SeenBy.GENERATOR, SeenBy.GENERATOR_AND_GATEWAY}

    @property
    def clock(self) -> FactSource:
        """The source of the times of starts and gaps."""
        sources = {
            SeenBy.GATEWAY: FactSource.GATEWAY,
            SeenBy.STEP_RECORD: FactSource.STEP_RECORD,
            SeenBy.COUNTERS: FactSource.COUNTERS,
        }
        return sources.get(self, FactSource.CLIENT)


# --- The load and the steps of an engine, from its step record or from its gauges.

YOUNG_S = 300.0
"""An older engine has run its usual steps before: a step that looks cold may only be the first recorded one.
"""
KV_FULL_USAGE = 0.95
"""Without a known cache size: the usage at which a typical request does not fit."""
CUT_STEPS = 3
"""This many steps with the same number of tokens show a budget."""
LONE_STREAMS = 2

Window = tuple[float, float]
"""The window on the wall clock of the step record."""


@dataclass(frozen=True, slots=True)
class _Moment:
    """The engine's load, and how long it lasted."""

    at_s: float
    lasted_s: float
    running: float
    waiting: float
    kv_usage: float | None
    preempted: bool = False

    @property
    def requests(self) -> float:
        return self.running + self.waiting


def engine_load_of(
    steps: Sequence[EngineStep],
    window: Window,
    typical_prompt_tokens: float | None,
    kv_tokens: int | None,
    block_tokens: int = 1,
) -> EngineLoad | None:
    """The engine's load, from the steps of one rank; None if none ended in the window.

    Requests that ended in a step ran in it, so a step carried what it left running and those. Between a step
    that left no work and the next one, the engine was empty.
    """
    within = [timed for timed in StepLog(steps).steps if window[0] < timed.step.ended_unix_s <= window[1]]
    moments: list[_Moment] = []
    until_s, usage = window[0], 0.0
    for timed in within:
        step = timed.step
        began_s = max(until_s, _began_unix_s(timed))
        moments.append(_Moment(until_s, began_s - until_s, 0.0, 0.0, usage))
        moments.append(_during(step, began_s))
        until_s, usage = step.ended_unix_s, step.kv_usage
    if within and not within[-1].step.leaves_work:
        moments.append(_Moment(until_s, window[1] - until_s, 0.0, 0.0, usage))
    return _engine_load(moments, _space_for(typical_prompt_tokens, kv_tokens, block_tokens))


def _began_unix_s(timed: TimedStep) -> float:
    return timed.step.ended_unix_s if timed.started_unix_s is None else timed.started_unix_s


def _during(step: EngineStep, began_s: float) -> _Moment:
    return _Moment(
        at_s=began_s,
        lasted_s=step.ended_unix_s - began_s,
        running=step.running + len(step.finished),
        waiting=step.waiting,
        kv_usage=step.kv_usage,
        preempted=step.preempted > 0,
    )


def engine_load_of_gauges(
    samples: Sequence[LoadReading],
    typical_prompt_tokens: float | None = None,
    kv_tokens: int | None = None,
    block_tokens: int = 1,
) -> EngineLoad | None:
    """The engine's load, from readings of its gauges, each of which holds until the next."""
    ordered = sorted(samples, key=lambda load: load.at_unix_s)
    moments = [
        _Moment(
            here.at_unix_s,
            there.at_unix_s - here.at_unix_s,
            here.running,
            here.waiting,
            here.kv_usage,
            preempted=(there.preemptions or 0.0) > (here.preemptions or 0.0),
        )
        for here, there in pairwise(ordered)
    ]
    if ordered:
        last = ordered[-1]
        # The last reading lasts as long as the others on average.
        usual_s = median(moment.lasted_s for moment in moments) if moments else 1.0
        moments.append(_Moment(last.at_unix_s, usual_s, last.running, last.waiting, last.kv_usage))
    return _engine_load(moments, _space_for(typical_prompt_tokens, kv_tokens, block_tokens))


def _space_for(
    typical_prompt_tokens: float | None, kv_tokens: int | None, block_tokens: int
) -> Callable[[_Moment], bool]:
    if typical_prompt_tokens is None or not kv_tokens:
        return lambda moment: (moment.kv_usage or 0.0) < KV_FULL_USAGE and not moment.preempted
    # An engine admits a request when its uncached prompt fits, in whole blocks; its output comes later.
    blocks = max(1, kv_tokens // block_tokens)
    needed = min(blocks - 1, ceil(max(1.0, typical_prompt_tokens) / block_tokens))
    # One block more than a prompt: requests that a full engine has to take back have grown.
    return lambda moment: round(blocks * (1.0 - (moment.kv_usage or 0.0))) > needed and not moment.preempted


def _engine_load(seen: Sequence[_Moment], has_space: Callable[[_Moment], bool]) -> EngineLoad | None:
    moments = [moment for moment in seen if moment.lasted_s > 0]
    if not moments:
        return None
    running_max = max(moment.running for moment in moments)
    waited = [moment for moment in moments if moment.waiting > 0]
    full = [moment for moment in waited if not has_space(moment)]
    capped = [moment for moment in waited if has_space(moment) and moment.running >= running_max]
    waited_s = _lasted_s(waited)
    working = [moment for moment in moments if moment.requests > 0]
    return EngineLoad(
        running_mean=_mean(moments, attrgetter("running")),
        running_max=round(running_max),
        waiting_mean=_mean(moments, attrgetter("waiting")),
        waiting_max=round(max(moment.waiting for moment in moments)),
        kv_usage_max=max(
            (moment.kv_usage for moment in moments if moment.kv_usage is not None), default=None
        ),
        waited_share=waited_s / _lasted_s(moments),
        kv_full_share=_lasted_s(full) / waited_s if waited_s > 0 else 0.0,
        capped_share=_lasted_s(capped) / waited_s if waited_s > 0 else 0.0,
        growth=_growth(moments),
        full_share=_share([moment for moment in working if moment.running >= running_max], working),
        idle_share=1.0 - _share(working, moments),
    )


def _share(part: Sequence[_Moment], whole: Sequence[_Moment]) -> float:
    return _lasted_s(part) / _lasted_s(whole) if whole else 0.0


def _lasted_s(moments: Sequence[_Moment]) -> float:
    return sum(moment.lasted_s for moment in moments)


def _mean(moments: Sequence[_Moment], value: Callable[[_Moment], float]) -> float:
    return sum(value(moment) * moment.lasted_s for moment in moments) / _lasted_s(moments)


def _growth(moments: Sequence[_Moment]) -> float:
    """How many more requests were in the engine in the last third of the time than in the first."""
    begin_s = moments[0].at_s
    third_s = (moments[-1].at_s + moments[-1].lasted_s - begin_s) / 3
    first = [moment for moment in moments if moment.at_s < begin_s + third_s]
    last = [moment for moment in moments if moment.at_s >= begin_s + 2 * third_s]
    if not first or not last:
        return 0.0
    return _mean(last, attrgetter("requests")) - _mean(first, attrgetter("requests"))


def step_shape_of(log: StepLog, window: Window) -> StepShape | None:
    """The steps of one rank in the window; None if none ended in it."""
    steps = log.ending_between(*window)
    if not steps:
        return None
    streaming = [timed for timed in steps if timed.step.decode_tokens and timed.step.prompt_tokens == 0]
    chunks = [timed.step.prompt_tokens for timed in steps if timed.step.prompt_tokens]
    return StepShape(
        steps=len(steps),
        busy_share=_busy_s(steps, window) / (window[1] - window[0]) if window[1] > window[0] else 0.0,
        chunk_p50_tokens=float(median(chunks)) if chunks else None,
        budget_tokens=_budget_tokens(steps),
        decode_step_p50_s=_median_s(streaming),
        lone_step_s=_median_s([timed for timed in streaming if _streams(timed.step) <= LONE_STREAMS]),
        tokens_per_stream_step=_tokens_per_stream(steps),
    )


def _busy_s(steps: Sequence[TimedStep], window: Window) -> float:
    return sum(
        timed.step.ended_unix_s - max(timed.started_unix_s, window[0])
        for timed in steps
        if timed.started_unix_s is not None
    )


def _streams(step: EngineStep) -> int:
    return step.decode_requests or step.decode_tokens or 0


def _median_s(steps: Sequence[TimedStep]) -> float | None:
    durations = [timed.duration_s for timed in steps if timed.duration_s is not None]
    return median(durations) if durations else None


def _budget_tokens(steps: Sequence[TimedStep]) -> int | None:
    """The token budget: many steps that cut a prompt carry exactly as many tokens, and none carries more."""

    def tokens(step: EngineStep) -> int:
        return (step.prompt_tokens or 0) + (step.decode_tokens or 0)

    full = Counter(tokens(one.step) for one, after in pairwise(steps) if _is_cut(one.step, after.step))
    most = max((tokens(timed.step) for timed in steps), default=0)
    return most if full[most] >= CUT_STEPS else None


def _is_cut(step: EngineStep, after: EngineStep) -> bool:
    """Whether the step did not finish a prompt, and the next step continues it."""
    if not step.prompt_tokens or not after.prompt_tokens:
        return False
    return step.prompt_requests is None or step.prompt_requests > step.first_tokens


def _tokens_per_stream(steps: Sequence[TimedStep]) -> float | None:
    counted = [
        timed.step
        for timed in steps
        if timed.step.decode_tokens and timed.step.decode_requests and not recomputed_tokens(timed.step)
    ]
    streams = sum(step.decode_requests or 0 for step in counted)
    return sum(step.decode_tokens or 0 for step in counted) / streams if streams else None
