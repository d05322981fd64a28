"""The evidence of a window: whose timelines count, each engine's state, and what was not observed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from phasewise.core.engine_metrics import LoadReading, MetricsDelta
from phasewise.core.steps import EngineStep, FinishedRequest, logs_by_rank
from phasewise.core.timeline import Timeline
from phasewise.diagnosis.analysis.attribution import Logs
from phasewise.diagnosis.analysis.engine_load import EngineSurroundings, SeenBy, Window
from phasewise.diagnosis.analysis.engine_view import timelines_from_steps
from phasewise.diagnosis.observed.not_observed import not_observed
from phasewise.diagnosis.observed.observation import EngineSeen, Observed, TargetKind
from phasewise.diagnosis.observed.surroundings import setup_of, surroundings_of
from phasewise.engines.known import engine_named

ENDS_WITHIN_S = 0.5
"""How far the end of a request in a listed step is from the end of its reply, at most."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence of a window. `seen_by` is the source of the timelines.

    `surroundings` has every engine, in the order of the target. `setups` names the set-up of each engine:
    equal ones have equal costs. `loads` are the readings of each engine within the window. `synthetic` says
    that the requests are our own probe's, `probe_cut_short` that it was interrupted. `stolen_share` is the
    share of this machine's processor time that its hypervisor gave to others. `numbered` says that the
    requests have numbers instead of their ids, as in an evidence file.
    """

    began_unix_s: float
    window_s: float
    seen_by: SeenBy
    timelines: tuple[Timeline, ...]
    logs: Logs
    metrics: tuple[MetricsDelta, ...]
    not_observed: tuple[str, ...]
    surroundings: tuple[EngineSurroundings, ...] = ()
    setups: Mapping[str, Hashable] = field(default_factory=dict)
    synthetic: bool = False
    probe_cut_short: bool = False
    stolen_share: float | None = None
    loads: Mapping[str, tuple[LoadReading, ...]] = field(default_factory=dict)
    numbered: bool = False

    @property
    def explainable(self) -> bool:
        """Whether a gateway keeps the requests by these ids, so that `phasewise explain` finds them."""
        return not self.numbered and self.seen_by in {SeenBy.GATEWAY, SeenBy.GENERATOR_AND_GATEWAY}

    @property
    def window(self) -> Window:
        return self.began_unix_s, self.began_unix_s + self.window_s


def evidence_of(observed: Observed) -> Evidence:
    """What was seen, put together: whose timelines count, each engine's state, and what was not observed."""
    window = (observed.began_unix_s, observed.ended_unix_s)
    logs = {
        each.engine.name: logs_by_rank(_named_steps(each, observed))
        for each in observed.engines
        if each.steps
    }
    timelines, seen_by = _timelines(observed, logs)
    surroundings = tuple(
        surroundings_of(
            each,
            observed.hosts.get(each.engine.name),
            timelines,
            logs.get(each.engine.name, ()),
            window,
        )
        for each in observed.engines
    )
    return Evidence(
        began_unix_s=window[0],
        window_s=window[1] - window[0],
        seen_by=seen_by,
        timelines=tuple(timeline for timeline in timelines if timeline.generates and not timeline.from_cache),
        logs=logs,
        metrics=tuple(each.metrics for each in observed.engines if each.metrics is not None),
        not_observed=not_observed(observed, timelines, logs, surroundings),
        surroundings=surroundings,
        setups={each.engine.name: setup_of(each) for each in observed.engines},
        synthetic=observed.synthetic,
        probe_cut_short=observed.cut_short,
        stolen_share=observed.stolen_share,
        loads={each.engine.name: each.loads for each in observed.engines},
    )


def _named_steps(seen: EngineSeen, observed: Observed) -> tuple[EngineStep, ...]:
    """An engine's steps, with the ids of requests that its replies have.

    An engine that lists its requests numbers them, and its replies do not have that number. But both end at
    about the same time, with prompts of the same length. Without a reply, a request keeps its number.
    """
    if engine_named(seen.engine.kind).LISTING_PATH is None:
        return seen.steps
    timelines = observed.reported + observed.probed
    replies = [reply for timeline in timelines if (reply := _reply(seen.engine.name, timeline)) is not None]

    def named(step: EngineStep, ended: FinishedRequest) -> FinishedRequest:
        alike = [
            reply
            for reply in replies
            if reply.prompt_tokens == ended.prompt_tokens
            and abs(reply.ended_unix_s - step.ended_unix_s) < ENDS_WITHIN_S
        ]
        if not alike:
            return ended
        nearest = min(alike, key=lambda reply: abs(reply.ended_unix_s - step.ended_unix_s))
        replies.remove(nearest)
        return replace(ended, request_id=nearest.request_id)

    return tuple(
        replace(step, finished=tuple(named(step, ended) for ended in step.finished))
        if step.finished
        else step
        for step in seen.steps
    )


class _Reply(NamedTuple):
    """When its last token came, the tokens of its prompt, and its id."""

    ended_unix_s: float
    prompt_tokens: int
    request_id: str


def _reply(engine: str, timeline: Timeline) -> _Reply | None:
    serving = timeline.serving_attempt
    if serving is None or serving.worker.name != engine or not serving.engine_request_id:
        return None
    if timeline.prompt_tokens is None:
        return None
    last_s = timeline.content_times_s[-1] if timeline.content_times_s else timeline.ended_s
    return _Reply(timeline.started_unix_s + last_s, timeline.prompt_tokens, serving.engine_request_id)


def _timelines(observed: Observed, logs: Logs) -> tuple[tuple[Timeline, ...], SeenBy]:
    """The requests of the window, from the best source there is, and who saw them."""
    if observed.kind is TargetKind.GATEWAY:
        if not (observed.synthetic and observed.probed):
            return observed.reported, SeenBy.GATEWAY
        # A probe's verdict is about its own requests, whoever else sends some.
        ours = {timeline.request_id for timeline in observed.probed}
        probed = tuple(timeline for timeline in observed.reported if timeline.client_request_id in ours)
        return probed, SeenBy.GATEWAY
    if observed.probed:
        return observed.probed, SeenBy.PROBE
    seen = tuple(
        timeline
        for name, ranks in logs.items()
        for log in ranks
        for timeline in timelines_from_steps(log, name, observed.ended_unix_s)
        if timeline.started_unix_s + timeline.ended_s >= observed.began_unix_s
    )
    return seen, SeenBy.STEP_RECORD if seen else SeenBy.COUNTERS
