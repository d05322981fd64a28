"""Runs the rules in order over each slow phase and ranks what they claimed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from phasewise.core.slo import Slo
from phasewise.diagnosis.analysis.engine_load import SeenBy
from phasewise.diagnosis.analysis.streams import StreamSummary
from phasewise.diagnosis.analysis.ttft import StartSummary
from phasewise.diagnosis.analysis.window_summary import WindowSummary
from phasewise.diagnosis.finding import Cause, Confidence, Finding, Phase, least
from phasewise.diagnosis.rules.affected import slow_phases
from phasewise.diagnosis.rules.calibration import at_most
from phasewise.diagnosis.rules.case import Claim, StartCase, StreamCase, Taken, open_start, open_stream
from phasewise.diagnosis.rules.every_token import batch_cap_high, decode_floor, kv_reads, speculation_unpaid
from phasewise.diagnosis.rules.failing import failures
from phasewise.diagnosis.rules.machine import (
    cold_start,
    cold_stream,
    front_end_start,
    front_end_stream,
    number_format_start,
    number_format_stream,
    starved_start,
    starved_stream,
    threads_stream,
)
from phasewise.diagnosis.rules.network import (
    caveats,
    gateway_wait,
    generator_lag_start,
    generator_lag_stream,
    network_start,
    network_stream,
)
from phasewise.diagnosis.rules.prompts import (
    chunks_small,
    chunks_small_by_gaps,
    kv_not_transferred,
    long_prompts,
    prefix_not_reused,
    prefix_not_reused_stream,
)
from phasewise.diagnosis.rules.queueing import (
    batch_cap_low,
    bursts,
    kv_exhausted,
    overload,
    overload_stream,
)
from phasewise.diagnosis.rules.stalls import chunks_stall, kv_exhausted_stream, slow_client
from phasewise.diagnosis.rules.standstill import hung_start, hung_stream, paused_start, paused_stream
from phasewise.diagnosis.rules.uneven import uneven_load, uneven_load_stream

# --- The shares of the claims in a phase's loss.

NEEDED = frozenset({Cause.LONG_PROMPTS, Cause.DECODE_FLOOR, Cause.DECODE_WEIGHTS, Cause.DECODE_OVERHEAD})
"""The parts that a request needs even alone on the engine: its own prompt, and steps."""
LOAD = frozenset({Cause.OVERLOAD, Cause.BATCH_CAP_HIGH})
"""What is left without the other causes; it only makes it worse if a request is too slow even alone."""
LOAD_IF_SMALLER = frozenset({Cause.CHUNKS_STALL})
"""Causes that count as load where they are the smaller part."""
WORTH_SPEAKING_OF = 0.25
"""If the other parts are a smaller share of the latency than this, they do not explain a slow phase."""


@dataclass(frozen=True, slots=True)
class Loss:
    """The shares of the lost time: one per claim, in their order, and the rest."""

    shares: tuple[float, ...]
    unexplained: float


def share_out(claims: Sequence[Claim], unclaimed: Taken, objective_s: float, by_stalls: float = 0.0) -> Loss:
    """Split the loss: the part `by_stalls` by stalls, the rest by the time beyond the objective.

    The objective pays for what a request needs by itself first: a floor of 65 ms within an objective of
    100 ms is not what is lost, however large a part of a token of 115 ms it is.
    """
    seconds = [claim.taken.seconds for claim in claims]
    whole_s = sum(seconds) + unclaimed.seconds
    needed_s = sum(claim.taken.seconds for claim in claims if claim.cause in NEEDED)
    paid_s = min(objective_s, needed_s)
    if whole_s <= objective_s or whole_s - needed_s < WORTH_SPEAKING_OF * whole_s:
        paid_s = 0.0
    beyond = [
        value * (1.0 - paid_s / needed_s) if claim.cause in NEEDED and needed_s > 0 else value
        for claim, value in zip(claims, seconds, strict=True)
    ]
    if needed_s > objective_s:
        beyond = _slow_alone(claims, beyond, needed_s)
    per_second = (1.0 - by_stalls) / (whole_s - paid_s) if whole_s > paid_s else 0.0
    return Loss(
        shares=tuple(
            value * per_second + by_stalls * claim.taken.stall_share
            for claim, value in zip(claims, beyond, strict=True)
        ),
        unexplained=unclaimed.seconds * per_second + by_stalls * unclaimed.stall_share,
    )


def _slow_alone(claims: Sequence[Claim], beyond: Sequence[float], needed_s: float) -> list[float]:
    """The same if a request alone misses the objective: what others add to it is then no cause of its own."""
    added = [
        value
        if claim.cause in LOAD or (claim.cause in LOAD_IF_SMALLER and claim.taken.seconds < needed_s)
        else 0.0
        for claim, value in zip(claims, beyond, strict=True)
    ]
    own = [claim.taken.seconds / needed_s if claim.cause in NEEDED else 0.0 for claim in claims]
    return [value - less + share * sum(added) for value, less, share in zip(beyond, added, own, strict=True)]


def with_silent(loss: Loss, claims: Sequence[Claim], unseen: float, held: float) -> Loss:
    """The same, if claims cover only a part of the loss.

    Unanswered requests lost the share `held` in the gateway and the share `unseen` elsewhere: in an engine
    that stands still, if one does.
    """
    causes = [claim.cause for claim in claims]
    if Cause.GATEWAY not in causes:
        unseen, held = unseen + held, 0.0
    known = 1.0 - unseen - held
    hung = Cause.ENGINE_HUNG in causes
    more = {Cause.GATEWAY: held, Cause.ENGINE_HUNG: unseen}
    return Loss(
        shares=tuple(
            share * known + more.get(cause, 0.0) for cause, share in zip(causes, loss.shares, strict=True)
        ),
        unexplained=loss.unexplained * known + (0.0 if hung else unseen),
    )


# --- The confidence of a finding: limited by its number of requests and by its rule's evidence.

ENOUGH_REQUESTS = 8
"""The fewest requests for a confident finding."""
MOST = 0.7


def seen(requests: int, timed: int, step_timed: int) -> Confidence:
    """High confidence needs enough requests, mostly matched to steps; engine timings alone count half."""
    if step_timed >= MOST * requests:
        return _many(requests)
    return Confidence.MEDIUM if timed >= MOST * requests and requests >= ENOUGH_REQUESTS else Confidence.LOW


def _many(requests: int) -> Confidence:
    return Confidence.HIGH if requests >= ENOUGH_REQUESTS else Confidence.MEDIUM


# --- Whether a phase is slow: causes are searched only then.


def starts_late(summary: WindowSummary) -> bool:
    """Whether enough requests missed the TTFT objective to call it slow to start."""
    return _slow_phases(summary)[0]


def streams_slowly(summary: WindowSummary) -> bool:
    """Whether enough streams missed the TPOT objective, or stalled, to call it slow to stream."""
    return _slow_phases(summary)[1]


def _slow_phases(summary: WindowSummary) -> tuple[bool, bool]:
    start, stream = summary.start, summary.stream
    late, starts = (0, 0) if start is None else (start.late, start.requests)
    slow, streams = (0, 0) if stream is None else (stream.slow, stream.streams)
    return slow_phases(late, starts, slow, streams)


MIN_SHARE = 0.25
"""A cause that makes up less of what a phase lost than this is not reported."""

StartRule = Callable[[StartCase], Claim | None]
StreamRule = Callable[[StreamCase], Claim | None]

START_RULES: tuple[StartRule, ...] = (
    generator_lag_start,
    gateway_wait,
    hung_start,
    cold_start,
    paused_start,
    starved_start,
    number_format_start,
    kv_exhausted,
    uneven_load,
    kv_not_transferred,
    prefix_not_reused,
    chunks_small,
    batch_cap_low,
    bursts,
    chunks_small_by_gaps,
    long_prompts,
    overload,
    front_end_start,
    network_start,
)
"""Special causes before general ones: what a rule has claimed is gone for those after it."""
STREAM_RULES: tuple[StreamRule, ...] = (
    slow_client,
    generator_lag_stream,
    cold_stream,
    threads_stream,
    starved_stream,
    number_format_stream,
    kv_exhausted_stream,
    hung_stream,
    paused_stream,
    uneven_load_stream,
    prefix_not_reused_stream,
    overload_stream,
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


def explain(summary: WindowSummary, slo: Slo) -> Explanation:
    """The findings of each slow phase, and the caveats about the measurement."""
    found: list[Finding] = []
    unexplained: dict[Phase, float] = {}
    if summary.start is not None and starts_late(summary):
        start = summary.start
        opened = open_start(summary, start, slo)
        claims = _claims(rule(opened) for rule in START_RULES)
        loss = share_out(claims, opened.account.unclaimed, slo.ttft_s)
        loss = _with_silent(loss, claims, start)
        sure = seen(start.requests, start.timed, start.step_timed)
        claims = [_calibrated(claim, Phase.START, summary.seen_by) for claim in claims]
        found += _findings(
            Phase.START, claims, loss, opened.account.whole_s, start.lost_s, (sure, _many(start.requests))
        )
        unexplained[Phase.START] = loss.unexplained
    if summary.stream is not None and streams_slowly(summary):
        stream = summary.stream
        streaming = open_stream(summary, stream, slo)
        claims = _claims(rule(streaming) for rule in STREAM_RULES)
        loss = share_out(claims, streaming.account.unclaimed, slo.tpot_s, _lost_by_stalls(stream))
        claims = [_calibrated(claim, Phase.STREAM, summary.seen_by) for claim in claims]
        timed = 0 if streaming.guessed_step else stream.streams
        sure = seen(stream.streams, timed, stream.step_timed)
        found += _findings(
            Phase.STREAM,
            claims,
            loss,
            streaming.account.whole_s,
            stream.lost_s,
            (sure, _many(stream.streams)),
        )
        unexplained[Phase.STREAM] = loss.unexplained
    found.sort(key=_rank)
    return Explanation((*found, *failures(summary), *caveats(summary.trust, slo)), unexplained)


LOAD_WEIGHS = 2 / 3
"""In the ranking, load stands behind a cause of two thirds of its loss."""


def _rank(finding: Finding) -> float:
    return -finding.lost_s * (LOAD_WEIGHS if finding.cause in LOAD else 1.0)


BY_EXCLUSION = frozenset({Cause.OVERLOAD, Cause.BATCH_CAP_HIGH, Cause.KV_EXHAUSTED})
"""Causes that take what others leave, or that a larger load makes look like others: nobody has seen what is
left without them, so that their rivals are not excluded."""


def _calibrated(claim: Claim, phase: Phase, seen_by: SeenBy) -> Claim:
    """As sure as its kind may be; one that names its rival has said what cannot be excluded."""
    if claim.cause in BY_EXCLUSION:
        claim = replace(claim, at_most=least(claim.at_most, Confidence.MEDIUM))
    if claim.rival is not None:
        return claim
    return replace(claim, at_most=least(claim.at_most, at_most(phase, claim.cause, seen_by)))


def _claims(said: Iterator[Claim | None]) -> list[Claim]:
    """The claims that took something. Requests in an engine that stands still now are not among those that
    were answered, so that claim takes nothing of theirs.
    """
    made = [claim for claim in said if claim is not None]
    return [claim for claim in made if claim.taken.is_something or claim.cause is Cause.ENGINE_HUNG]


def _with_silent(loss: Loss, claims: Sequence[Claim], start: StartSummary) -> Loss:
    if start.lost_s <= 0:
        return loss
    return with_silent(
        loss, claims, start.silent_lost_s / start.lost_s, start.silent_gateway_s / start.lost_s
    )


def _lost_by_stalls(stream: StreamSummary) -> float:
    """The part of the loss that is in stalls; the rest is in streams that are slow on average.

    A stall counts in full, even if a long stream's average hides it.
    """
    if not stream.stalls or stream.lost_s <= 0:
        return 0.0
    return min(1.0, stream.stall_lost_s / stream.lost_s)


CLEAR_SHARE = 0.5
"""A cause of less of the loss than this has rivals that are not excluded,"""
CLEAR_RATIO = 2.0
"""as has one that explains less than this many times what the next one does."""


def _excluded(share: float, rival: float, unexplained: float) -> Confidence:
    """How far rivals are excluded: the next cause, and what is not explained."""
    if share >= CLEAR_SHARE and share >= CLEAR_RATIO * max(rival, unexplained):
        return Confidence.HIGH
    return Confidence.MEDIUM if share > max(rival, unexplained) else Confidence.LOW


def _findings(
    phase: Phase,
    claims: Sequence[Claim],
    loss: Loss,
    whole_s: float,
    lost_s: float,
    sure: tuple[Confidence, Confidence],
) -> Iterator[Finding]:
    """The findings to report. Confidence is at most `sure`: of what is inferred, and of what is observed."""
    for index, (claim, share) in enumerate(zip(claims, loss.shares, strict=True)):
        if share < MIN_SHARE:
            continue
        rivals = [other for place, other in enumerate(loss.shares) if place != index]
        doubt = _excluded(share, max(rivals, default=0.0), loss.unexplained)
        yield Finding(
            phase=phase,
            cause=claim.cause,
            share=claim.taken.seconds / whole_s if whole_s > 0 else 0.0,
            lost_s=lost_s * share,
            facts=claim.facts,
            confidence=least(sure[claim.seen_itself], claim.at_most, doubt),
            refuted_by=claim.refuted_by,
            rival=claim.rival,
        )
