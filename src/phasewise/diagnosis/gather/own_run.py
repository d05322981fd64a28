"""Watches a load of our own: the client's timelines, joined with those of the gateway and the engines.

The client's clock counts, so that the load generator's own delay is included.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from phasewise.benchmark.run import BenchRun
from phasewise.benchmark.session import RunSpec
from phasewise.benchmark.workload.arrivals import ClosedLoop
from phasewise.core.timeline import Attempt, Outcome, Span, Timeline
from phasewise.diagnosis.analysis.engine_load import SeenBy
from phasewise.diagnosis.evidence import Evidence, evidence_of
from phasewise.diagnosis.gather.target import WatchTarget
from phasewise.diagnosis.gather.watch import Watch
from phasewise.diagnosis.observed.observation import TargetKind


@dataclass(frozen=True, slots=True)
class OwnRunWatch:
    """An open watch of a target under our own load."""

    watch: Watch
    kind: TargetKind

    async def evidence(self, run: BenchRun) -> Evidence:
        return own_evidence(run, evidence_of(await self.watch.end(run.timelines)), self.kind)


@asynccontextmanager
async def observed(target: WatchTarget, admin_key: str | None) -> AsyncIterator[OwnRunWatch]:
    """Watch a target for the length of a block, in which a load is run."""
    watch = Watch(target, admin_key)
    try:
        await watch.begin()
        yield OwnRunWatch(watch, target.kind)
    finally:
        watch.close()


def concurrency_of(spec: RunSpec) -> int | None:
    """The clients of a closed loop; None for an open loop."""
    load = spec.plan.load
    return load.concurrency if isinstance(load, ClosedLoop) else None


def own_evidence(run: BenchRun, evidence: Evidence, kind: TargetKind) -> Evidence:
    """The evidence as our client observed it. Other clients' requests through the same gateway are counted in
    a note, but not judged."""
    if kind is not TargetKind.GATEWAY:
        return replace(evidence, timelines=run.timelines, seen_by=SeenBy.GENERATOR)
    others = _of_others(run, evidence.timelines)
    notes = (f"{others} requests of other clients during the run",) if others else ()
    return replace(
        evidence,
        timelines=joined(run.timelines, evidence.timelines),
        seen_by=SeenBy.GENERATOR_AND_GATEWAY,
        not_observed=evidence.not_observed + notes,
    )


def _of_others(run: BenchRun, gateway: Sequence[Timeline]) -> int:
    """How many requests of other clients arrived during our run."""
    ours = {timeline.request_id for timeline in run.timelines}
    began_s = min((timeline.started_unix_s for timeline in run.timelines), default=0.0)
    return sum(
        timeline.client_request_id not in ours and timeline.started_unix_s >= began_s for timeline in gateway
    )


def joined(own: Sequence[Timeline], gateway: Sequence[Timeline]) -> tuple[Timeline, ...]:
    """Our timelines, each joined with the gateway's timeline of the same request.

    Times of arrival and of tokens are ours; the worker and the waits behind the gateway are the gateway's.
    The time between client and gateway stays unexplained.
    """
    seen = {
        timeline.client_request_id: timeline for timeline in gateway if timeline.client_request_id is not None
    }
    return tuple(
        timeline if (passed := seen.get(timeline.request_id)) is None else _join(timeline, passed)
        for timeline in own
    )


def _join(own: Timeline, passed: Timeline) -> Timeline:
    later_s = passed.started_unix_s - own.started_unix_s
    unserved = own.outcome is Outcome.FAILED and passed.reason is not None
    return replace(
        own,
        # The gateway knows more than its status code says.
        outcome=passed.outcome if unserved else own.outcome,
        reason=passed.reason if unserved else own.reason,
        attempts=tuple(_moved_attempt(attempt, later_s) for attempt in passed.attempts),
        spans=own.spans + tuple(_moved_span(span, later_s) for span in passed.spans),
        prompt_tokens=_first_known(own.prompt_tokens, passed.prompt_tokens),
        # With disaggregated prefill, the client sees the cached tokens of the decode engine.
        cached_tokens=passed.cached_tokens
        if passed.prefill_attempt is not None
        else _first_known(own.cached_tokens, passed.cached_tokens),
        output_tokens=_first_known(own.output_tokens, passed.output_tokens),
        client_blocked_s=passed.client_blocked_s,
    )


def _moved_attempt(attempt: Attempt, later_s: float) -> Attempt:
    return replace(
        attempt,
        started_s=attempt.started_s + later_s,
        ended_s=attempt.ended_s + later_s,
        spans=tuple(_moved_span(span, later_s) for span in attempt.spans),
    )


def _moved_span(span: Span, later_s: float) -> Span:
    return span if span.start_s is None else replace(span, start_s=span.start_s + later_s)


def _first_known(one: int | None, other: int | None) -> int | None:
    return other if one is None else one
