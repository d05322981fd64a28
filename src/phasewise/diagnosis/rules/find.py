"""Runs the rules in order over each slow phase and ranks what they claimed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from phasewise.diagnosis.cause import Confidence, Phase
from phasewise.diagnosis.finding import Finding
from phasewise.diagnosis.picture import Picture, StartPicture, StreamPicture
from phasewise.diagnosis.rules.case import Claim, StartCase, StreamCase, open_start, open_stream
from phasewise.diagnosis.rules.confidence import least, seen
from phasewise.diagnosis.rules.every_token import batch_cap_high, decode_floor, kv_reads, speculation_unpaid
from phasewise.diagnosis.rules.hand_over import kv_not_handed_over
from phasewise.diagnosis.rules.machine import (
    cold_start,
    cold_stream,
    front_end_start,
    front_end_stream,
    starved_start,
    starved_stream,
)
from phasewise.diagnosis.rules.measurement import caveats
from phasewise.diagnosis.rules.objective import starts_late, streams_slowly
from phasewise.diagnosis.rules.places import batch_cap_low, kv_exhausted, overload, uneven_load
from phasewise.diagnosis.rules.prefixes import prefix_not_reused
from phasewise.diagnosis.rules.prompts import chunks_small, long_prompts
from phasewise.diagnosis.rules.standing_still import (
    chunks_stall,
    engine_pauses,
    kv_exhausted_stream,
    slow_client,
)
from phasewise.diagnosis.rules.way import (
    gateway_wait,
    generator_lag_start,
    generator_lag_stream,
    network_start,
    network_stream,
)
from phasewise.diagnosis.rules.weighing import Loss, share_out, with_silent
from phasewise.model.slo import Slo

MIN_SHARE = 0.25
"""A cause that makes up less of what a phase lost than this is not reported."""

StartRule = Callable[[StartCase], Claim | None]
StreamRule = Callable[[StreamCase], Claim | None]

START_RULES: tuple[StartRule, ...] = (
    generator_lag_start,
    gateway_wait,
    cold_start,
    starved_start,
    kv_exhausted,
    uneven_load,
    batch_cap_low,
    kv_not_handed_over,
    prefix_not_reused,
    chunks_small,
    long_prompts,
    overload,
    front_end_start,
    network_start,
)
STREAM_RULES: tuple[StreamRule, ...] = (
    slow_client,
    generator_lag_stream,
    cold_stream,
    starved_stream,
    kv_exhausted_stream,
    engine_pauses,
    chunks_stall,
    speculation_unpaid,
    batch_cap_high,
    kv_reads,
    decode_floor,
    front_end_stream,
    network_stream,
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The findings, most costly first, and the share of each slow phase's loss that no rule claimed."""

    findings: tuple[Finding, ...]
    unexplained: Mapping[Phase, float] = field(default_factory=dict)


def find(picture: Picture, slo: Slo) -> tuple[Finding, ...]:
    """Every cause that is there, the most costly first; caveats last."""
    return explain(picture, slo).findings


def explain(picture: Picture, slo: Slo) -> Explanation:
    """What the rules say of each phase that misses its objective, and of the measurement always."""
    found: list[Finding] = []
    unexplained: dict[Phase, float] = {}
    if picture.start is not None and starts_late(picture):
        start = picture.start
        opened = open_start(picture, start, slo)
        claims = _claims(rule(opened) for rule in START_RULES)
        loss = _with_silent(share_out(claims, opened.account.unclaimed, slo.ttft_s), claims, start)
        sure = seen(start.requests, start.timed, start.step_timed)
        found += _findings(Phase.START, claims, loss, opened.account.whole_s, start.lost_s, sure)
        unexplained[Phase.START] = loss.unexplained
    if picture.stream is not None and streams_slowly(picture):
        stream = picture.stream
        streaming = open_stream(picture, stream, slo)
        claims = _claims(rule(streaming) for rule in STREAM_RULES)
        loss = share_out(claims, streaming.account.unclaimed, slo.tpot_s, _lost_by_stalls(stream))
        timed = 0 if streaming.guessed_step else stream.streams
        sure = seen(stream.streams, timed, stream.step_timed)
        found += _findings(Phase.STREAM, claims, loss, streaming.account.whole_s, stream.lost_s, sure)
        unexplained[Phase.STREAM] = loss.unexplained
    found.sort(key=lambda finding: -finding.lost_s)
    return Explanation((*found, *caveats(picture.trust, slo)), unexplained)


def _claims(said: Iterator[Claim | None]) -> list[Claim]:
    return [claim for claim in said if claim is not None and claim.taken.is_something]


def _with_silent(loss: Loss, claims: Sequence[Claim], start: StartPicture) -> Loss:
    if start.lost_s <= 0:
        return loss
    return with_silent(
        loss, claims, start.silent_lost_s / start.lost_s, start.silent_gateway_s / start.lost_s
    )


def _lost_by_stalls(stream: StreamPicture) -> float:
    """The part of the loss that lies in stalls; the rest lies in streams that are slow on average.

    A stall counts in full though a long stream's average hides it.
    """
    if not stream.stalls or stream.lost_s <= 0:
        return 0.0
    return min(1.0, stream.stall_lost_s / stream.lost_s)


def _findings(
    phase: Phase, claims: Sequence[Claim], loss: Loss, whole_s: float, lost_s: float, sure: Confidence
) -> Iterator[Finding]:
    """What is worth reporting. No cause is sure while more is unexplained than it explains."""
    for claim, share in zip(claims, loss.shares, strict=True):
        if share < MIN_SHARE:
            continue
        doubt = Confidence.LOW if loss.unexplained > share else Confidence.HIGH
        yield Finding(
            phase=phase,
            cause=claim.cause,
            share=claim.taken.seconds / whole_s if whole_s > 0 else 0.0,
            lost_s=lost_s * share,
            facts=claim.facts,
            confidence=least(sure, claim.at_most, doubt),
            refuted_by=claim.refuted_by,
        )
