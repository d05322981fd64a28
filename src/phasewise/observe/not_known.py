"""What a window's evidence cannot tell, in words, and what would make it tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from phasewise.adapters.timeline_feed import Missed
from phasewise.diagnosis.attribution import Logs
from phasewise.diagnosis.surroundings import EngineSurroundings
from phasewise.model.timeline import Outcome, Part, Timeline
from phasewise.observe.engine_watch import EngineSeen
from phasewise.observe.target import TargetKind


@dataclass(frozen=True, slots=True)
class Gathered:
    """What a watch has gathered, and what it missed; `probed` says that the requests were our own."""

    kind: TargetKind
    seen: Sequence[EngineSeen]
    timelines: Sequence[Timeline]
    logs: Logs
    surroundings: Sequence[EngineSurroundings]
    probed: bool
    missed: Missed = field(default_factory=Missed)


def not_known(gathered: Gathered) -> tuple[str, ...]:
    """What stays unknown, the most telling first."""
    return (
        *_of_engines(gathered),
        *_of_steps(gathered),
        *_of_requests(gathered),
        *_of_hosts(gathered),
    )


def _of_engines(gathered: Gathered) -> Iterator[str]:
    silent = sum(seen.metrics is None for seen in gathered.seen)
    if silent:
        yield f"the counters of {silent} of {len(gathered.seen)} engines: no answer from here"
    restarted = sum(seen.metrics is not None and not seen.metrics.same_incarnation for seen in gathered.seen)
    if restarted:
        yield f"what {restarted} of {len(gathered.seen)} engines counted: restarted within the window"


def _of_steps(gathered: Gathered) -> Iterator[str]:
    if unrecorded := sum(not seen.recorded for seen in gathered.seen):
        engines = len(gathered.seen)
        where = "" if unrecorded == engines else f" in {unrecorded} of {engines} engines"
        yield (
            f"which steps stalled a stream and whose tokens filled a prefill{where}: no step recorder "
            "answers (`phasewise engine install --plugin-only` adds it)"
        )
    if dropped := sum(seen.dropped for seen in gathered.seen):
        yield f"what happened in {dropped} steps that the recorder had overwritten before we came"
    if gathered.logs and not all(seen.details for seen in gathered.seen if seen.steps):
        yield "tokens per step: start the engine with --enable-logging-iteration-details"


def _of_requests(gathered: Gathered) -> Iterator[str]:
    behind_gateway = gathered.kind is TargetKind.GATEWAY
    marked = gathered.probed or behind_gateway
    if gathered.missed.dropped:
        yield (
            f"how {gathered.missed.dropped} requests fared that had ended: newer ones took their room before "
            "we came (gateway.keep_timelines)"
        )
    if gathered.missed.still_open:
        yield f"how {gathered.missed.still_open} requests under way stood: only the longest open are read"
    computed = [it for it in gathered.timelines if not it.from_cache]
    if computed and not any(map(_has_engine_times, computed)):
        yield (
            "queue and prefill of single requests (means are used): start the engine with "
            "--enable-per-request-metrics"
        )
    yield from _of_kinds(gathered.timelines)
    if not marked:
        yield "whether prompts share their beginnings: only the gateway and a probe can tell"
    if gathered.logs and not marked:
        yield "requests that were cancelled: an engine keeps no record of them"
    if not behind_gateway:
        yield "what happens before the engine: send the traffic through `phasewise gateway`"
    under_way = _under_way(gathered)
    if under_way and not any(it.outcome is Outcome.UNFINISHED for it in gathered.timelines):
        yield f"how {under_way} requests end that were under way when the window closed"


def _of_kinds(timelines: Sequence[Timeline]) -> Iterator[str]:
    """Requests of a kind whose tokens nobody can time one by one."""
    if embeddings := sum(not it.generates for it in timelines):
        yield f"what {embeddings} requests for embeddings took: only generation is looked at"
    if cached := sum(it.from_cache for it in timelines):
        yield f"how {cached} requests fared that the answer cache served: only what engines did is looked at"
    timelines = [it for it in timelines if it.generates and not it.from_cache]
    asked = len(timelines)
    if plain := sum(not it.streamed for it in timelines):
        yield f"when {plain} of {asked} requests got their first token: their replies were not streamed"
    if several := sum(it.streamed and it.choices != 1 for it in timelines):
        yield f"the time per token of {several} of {asked} requests: several answers at once (n > 1)"


def _of_hosts(gathered: Gathered) -> Iterator[str]:
    hidden = sum(engine.host_busy_share is None for engine in gathered.surroundings)
    if hidden:
        yield (
            f"whether their hosts starved {hidden} of {len(gathered.surroundings)} engines of CPU: "
            "only processes on this machine can be looked into"
        )


def _under_way(gathered: Gathered) -> int:
    afters = [seen.metrics.after for seen in gathered.seen if seen.metrics is not None]
    names = ("num_requests_running", "num_requests_waiting")
    return round(sum(after.gauge(name) or 0.0 for after in afters for name in names))


def _has_engine_times(timeline: Timeline) -> bool:
    serving = timeline.serving_attempt
    parts = {span.part for span in serving.spans} if serving is not None else set()
    return bool(parts & {Part.ENGINE_QUEUE, Part.PREFILL})
