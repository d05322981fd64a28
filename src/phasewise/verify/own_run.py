"""Watches a load that we put on ourselves: what our client saw, joined with what the gateway and engines saw.

The client's clock counts, as it is the users'; how late we sent ourselves is therefore seen too. Putting the
load on is the bench's, gathering the rest is observe's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from phasewise.bench.run import BenchRun
from phasewise.diagnosis.seen_by import GENERATOR, GENERATOR_AND_GATEWAY
from phasewise.model.timeline import Attempt, Span, Timeline
from phasewise.observe.evidence import Evidence
from phasewise.observe.target import TargetKind, WatchTarget
from phasewise.observe.watch import Watch


@dataclass(frozen=True, slots=True)
class OwnRunWatch:
    """A watch that is open while we put a load on its target."""

    watch: Watch
    kind: TargetKind

    async def evidence(self, run: BenchRun) -> Evidence:
        """What was seen of the run, now that it is over."""
        return own_evidence(run, await self.watch.end(run.timelines), self.kind)


@asynccontextmanager
async def observed(target: WatchTarget, admin_key: str | None) -> AsyncIterator[OwnRunWatch]:
    """Watch a target for the length of a block, in which a load is run."""
    watch = Watch(target, admin_key)
    try:
        await watch.begin()
        yield OwnRunWatch(watch, target.kind)
    finally:
        watch.close()


def own_evidence(run: BenchRun, evidence: Evidence, kind: TargetKind) -> Evidence:
    """The evidence as our client saw it. Requests of others went through the same gateway: they are told of,
    but the verdict is on our own."""
    if kind is not TargetKind.GATEWAY:
        return replace(evidence, timelines=run.timelines, seen_by=GENERATOR)
    others = _of_others(run, evidence.timelines)
    notes = (f"how {others} requests of others fared meanwhile",) if others else ()
    return replace(
        evidence,
        timelines=joined(run.timelines, evidence.timelines),
        seen_by=GENERATOR_AND_GATEWAY,
        not_known=evidence.not_known + notes,
    )


def _of_others(run: BenchRun, gateway: Sequence[Timeline]) -> int:
    """Requests that came while ours were under way. What we sent before, to ask or to warm, is over."""
    ours = {timeline.request_id for timeline in run.timelines}
    began_s = min((timeline.started_unix_s for timeline in run.timelines), default=0.0)
    return sum(it.client_request_id not in ours and it.started_unix_s >= began_s for it in gateway)


def joined(own: Sequence[Timeline], gateway: Sequence[Timeline]) -> tuple[Timeline, ...]:
    """Our timelines, each with what the gateway saw of the same request on its way.

    Times of arrival and of tokens are ours; who served it, and the waits behind the gateway, are the
    gateway's. The way between us and the gateway stays in the residual.
    """
    seen = {it.client_request_id: it for it in gateway if it.client_request_id is not None}
    return tuple(
        timeline if (passed := seen.get(timeline.request_id)) is None else _join(timeline, passed)
        for timeline in own
    )


def _join(own: Timeline, passed: Timeline) -> Timeline:
    later_s = passed.started_unix_s - own.started_unix_s
    return replace(
        own,
        attempts=tuple(_moved_attempt(attempt, later_s) for attempt in passed.attempts),
        spans=own.spans + tuple(_moved_span(span, later_s) for span in passed.spans),
        prompt_tokens=_first_known(own.prompt_tokens, passed.prompt_tokens),
        # Of two engines that share a request, a client hears of the cache of the one that did not need it.
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
