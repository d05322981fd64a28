"""What a window's evidence does not show, and how to observe it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phasewise.core.engine_metrics import EngineSeries
from phasewise.core.timeline import Outcome, Part, Timeline
from phasewise.diagnosis.analysis.attribution import Logs
from phasewise.diagnosis.analysis.engine_load import EngineSurroundings
from phasewise.diagnosis.observed.observation import EngineSeen, Observed, TargetKind
from phasewise.engines.known import USUAL, engine_named

NO_ANSWER = "no answer from"
NAMED = 3
"""The most engines that are named."""


def not_observed(
    observed: Observed,
    timelines: Sequence[Timeline],
    logs: Logs,
    surroundings: Sequence[EngineSurroundings],
) -> tuple[str, ...]:
    """What was not observed, the most important first."""
    return (
        *_of_engines(observed),
        *_of_steps(observed.engines, logs),
        *_of_requests(observed, timelines, logs),
        *_of_hosts(surroundings),
    )


def _of_engines(observed: Observed) -> Iterator[str]:
    for out in [seen for seen in observed.engines if seen.out_of_service][:NAMED]:
        yield f"{out.engine.name}, which the gateway does not use: it is {out.out_of_service}"
    if observed.kept:
        yield "the engines' counters: the window was judged afterwards, from what the gateway kept of it"
        return
    without = [seen for seen in observed.engines if seen.metrics is None and not seen.out_of_service]
    if uncounted := [seen.engine for seen in without if _lists_only(seen)]:
        hint = engine_named(uncounted[0].kind).WITHOUT_METRICS
        yield f"how many requests wait in {uncounted[0].name}, and for how long: {hint}"
    silent = [seen.engine.name for seen in without if seen.engine not in uncounted]
    if silent:
        yield (
            f"the counters of {len(silent)} of {len(observed.engines)} engines: {NO_ANSWER} "
            f"{', '.join(silent[:NAMED])} (hung, dead, or out of reach from here)"
        )
    restarted = sum(
        seen.metrics is not None and not seen.metrics.same_incarnation for seen in observed.engines
    )
    if restarted:
        many = f"{restarted} of {len(observed.engines)} engines"
        yield f"the counters of {many}: they restarted within the window"


def _lists_only(seen: EngineSeen) -> bool:
    """Whether it lists its requests, and served no metrics at any time."""
    return seen.recorded and not seen.loads and engine_named(seen.engine.kind).LISTING_PATH is not None


def _of_steps(engines: Sequence[EngineSeen], logs: Logs) -> Iterator[str]:
    used = [seen for seen in engines if not seen.out_of_service]
    if unrecorded := sum(not seen.recorded for seen in used):
        where = "" if unrecorded == len(used) else f" in {unrecorded} of {len(used)} engines"
        kind = next(seen.engine.kind for seen in used if not seen.recorded)
        yield (
            f"which steps stalled a stream and which requests shared a prefill{where}: "
            f"{engine_named(kind).WITHOUT_STEPS}"
        )
    if dropped := sum(seen.dropped for seen in engines):
        yield f"{dropped} steps that the recorder overwrote before they were read"
    if logs and not all(seen.details for seen in engines if seen.steps):
        yield f"tokens per step: start the engine with {USUAL.FLAGS['step_tokens']}"


def _of_requests(observed: Observed, timelines: Sequence[Timeline], logs: Logs) -> Iterator[str]:
    behind_gateway = observed.kind is TargetKind.GATEWAY
    marked = bool(observed.probed) or behind_gateway
    if observed.missed.dropped:
        yield (
            f"{observed.missed.dropped} finished requests, replaced by newer ones before they "
            "were read (raise gateway.keep_timelines)"
        )
    if observed.missed.still_open:
        yield f"{observed.missed.still_open} open requests: only those open the longest are read"
    # An engine reports its times with the end of an answer: open and cancelled requests show no setting.
    finished = [
        timeline
        for timeline in timelines
        if not timeline.from_cache and timeline.outcome is Outcome.SUCCEEDED
    ]
    if finished and not any(map(_has_engine_times, finished)):
        yield (
            "queue and prefill of single requests (means are used): start the engine with "
            f"{USUAL.FLAGS['phase_times']}"
        )
    yield from _of_kinds(timelines)
    if not marked:
        yield "whether prompts share prefixes: only a gateway or --probe shows it"
    if logs and not marked:
        yield "cancelled requests: the engine has no record of them"
    if not behind_gateway:
        yield "time before the engine: send the traffic through `phasewise gateway`"
    under_way = _under_way(observed.engines)
    if under_way and not any(timeline.outcome is Outcome.UNFINISHED for timeline in timelines):
        yield f"the end of {under_way} requests that were open when the window closed"


def _of_kinds(timelines: Sequence[Timeline]) -> Iterator[str]:
    """Notes on requests whose tokens cannot be timed one by one."""
    if silent := sum(not timeline.generates for timeline in timelines):
        yield f"{silent} requests for embeddings or counts of tokens: only generation is diagnosed"
    if cached := sum(timeline.from_cache for timeline in timelines):
        yield f"{cached} requests that the answer cache served: only engines are diagnosed"
    timelines = [timeline for timeline in timelines if timeline.generates and not timeline.from_cache]
    asked = len(timelines)
    if plain := sum(not timeline.streamed for timeline in timelines):
        yield f"the TTFT of {plain} of {asked} requests: their replies were not streamed"
    if several := sum(timeline.streamed and timeline.choices != 1 for timeline in timelines):
        yield f"the time per token of {several} of {asked} requests: several answers at once (n > 1)"


def _of_hosts(surroundings: Sequence[EngineSurroundings]) -> Iterator[str]:
    used = [engine for engine in surroundings if not engine.out_of_service]
    hidden = sum(engine.host_busy_share is None for engine in used)
    if hidden:
        yield (
            f"the CPU waits of {hidden} of {len(used)} engines: "
            "only processes on this machine can be inspected"
        )


def _under_way(engines: Sequence[EngineSeen]) -> int:
    afters = [seen.metrics.after for seen in engines if seen.metrics is not None]
    names = (EngineSeries.RUNNING, EngineSeries.WAITING)
    return round(sum(after.gauge(name) or 0.0 for after in afters for name in names))


def _has_engine_times(timeline: Timeline) -> bool:
    serving = timeline.serving_attempt
    parts = {span.part for span in serving.spans} if serving is not None else set()
    return bool(parts & {Part.ENGINE_QUEUE, Part.PREFILL})
