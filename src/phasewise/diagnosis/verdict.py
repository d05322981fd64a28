"""The verdict: slow to start, slow to stream, both or neither, with the costliest cause."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from phasewise.core.slo import Slo
from phasewise.core.timeline import Outcome
from phasewise.diagnosis.advice.fix import Advice
from phasewise.diagnosis.analysis.engine_load import SeenBy
from phasewise.diagnosis.analysis.streams import StreamSummary
from phasewise.diagnosis.analysis.ttft import StartSummary
from phasewise.diagnosis.analysis.window_summary import WindowSummary
from phasewise.diagnosis.finding import Cause, Confidence, Finding, Phase, least
from phasewise.diagnosis.rules.failing import are_cancelled, fails
from phasewise.diagnosis.rules.find import explain, starts_late, streams_slowly

MIN_REQUESTS = 3
"""Fewer requests than this get no verdict."""
MIN_FINISHED_TO_BE_HEALTHY = 5
"""A few slow requests show that a server is slow; fewer fast ones do not show that it is healthy."""
MIN_TOKENS_TO_BE_HEALTHY = 150
"""Fewer requests suffice if their answers have this many tokens in all."""
MOST_STOLEN = 0.4
"""A probe from a machine that loses more of its processor time to others is not judged."""


class Ruling(StrEnum):
    """The outcome of a diagnosis."""

    SLOW_TO_START = "slow_to_start"
    SLOW_TO_STREAM = "slow_to_stream"
    FAILING = "failing"
    HEALTHY = "healthy"
    NOT_ENOUGH_TRAFFIC = "not_enough_traffic"
    MACHINE_BUSY = "machine_too_busy"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The ruling, its findings, and the advice.

    `findings` of the phase that lost more time come first, caveats about the measurement last.
    `unexplained_share` is the share of that phase's loss without a cause. `advice` is what helps against the
    top finding, and what does not.
    """

    ruling: Ruling
    slo: Slo
    summary: WindowSummary
    findings: tuple[Finding, ...]
    also_slow: Phase | None = None
    unexplained_share: float | None = None
    advice: Advice | None = None

    @property
    def top(self) -> Finding | None:
        """The finding behind the ruling; None if no rule explains it."""
        return next((found for found in self.findings if found.phase.value == self.ruling.value), None)

    @property
    def caveats(self) -> tuple[Finding, ...]:
        return tuple(found for found in self.findings if found.phase is Phase.MEASUREMENT)


def judge(summary: WindowSummary, slo: Slo) -> Verdict:
    """Compare the phases by the seconds lost in them, then name the cause in the one that lost more."""
    nothing_seen = summary.start is None and summary.stream is None and not fails(summary)
    # An interrupted probe ran only some of its scenes, so its verdict would be biased.
    too_few = summary.workload.requests < MIN_REQUESTS and summary.streamed_tokens < MIN_TOKENS_TO_BE_HEALTHY
    hangs = any(standstill.hangs for standstill in summary.standstills)
    if summary.probe_cut_short or ((too_few or nothing_seen) and not hangs):
        return Verdict(Ruling.NOT_ENOUGH_TRAFFIC, slo, summary, ())
    if summary.synthetic and (summary.stolen_share or 0.0) > MOST_STOLEN:
        return Verdict(Ruling.MACHINE_BUSY, slo, summary, ())
    explained = explain(summary, slo)
    late, slow = starts_late(summary), streams_slowly(summary)
    if not late and not slow:
        if fails(summary) or are_cancelled(summary) or hangs:
            return Verdict(Ruling.FAILING, slo, summary, explained.findings)
        if not _seen_enough(summary):
            return Verdict(Ruling.NOT_ENOUGH_TRAFFIC, slo, summary, ())
        return Verdict(Ruling.HEALTHY, slo, summary, explained.findings)
    start_lost_s = summary.start.lost_s if summary.start is not None and late else 0.0
    stream_lost_s = summary.stream.lost_s if summary.stream is not None and slow else 0.0
    heavier, lighter = Phase.START, Phase.STREAM
    if not late or (slow and _streaming_first(explained.findings, start_lost_s, stream_lost_s)):
        heavier, lighter = lighter, heavier
    silent = heavier is Phase.START and _mostly_silent(summary)
    unserved = fails(summary) and (silent or _none_left(summary))
    rank = {heavier: 0, Phase.MEASUREMENT: 2}
    findings = tuple(sorted(explained.findings, key=lambda finding: rank.get(finding.phase, 1)))
    return Verdict(
        ruling=Ruling.FAILING if unserved else Ruling(heavier.value),
        slo=slo,
        summary=summary,
        findings=_sure_of_phase(findings, both=_nearly_equal(start_lost_s, stream_lost_s)),
        also_slow=lighter if late and slow else None,
        unexplained_share=explained.unexplained.get(heavier),
    )


NEARLY_EQUAL = 0.4
"""Two phases that each lost this share of the time are equally slow: then the costliest cause decides."""
ONE_CAUSE = {Cause.CHUNKS_STALL: Cause.LONG_PROMPTS, Cause.BATCH_CAP_HIGH: Cause.OVERLOAD}
"""Names of one cause in two phases: prompts that are computed, and requests that are there at once."""
QUEUES = frozenset({Cause.OVERLOAD, Cause.BURSTS})


def _streaming_first(findings: tuple[Finding, ...], start_lost_s: float, stream_lost_s: float) -> bool:
    """Whether streaming is the phase to name: it lost more or, if both lost about as much, the cause that
    costs most over both phases is found there. One that is found in both is named by its streams, which lose
    more after the window, unless it is what makes requests wait.
    """
    if not _nearly_equal(start_lost_s, stream_lost_s):
        return stream_lost_s > start_lost_s
    lost_s: dict[Cause, float] = {}
    phases: dict[Cause, set[Phase]] = {}
    for finding in findings:
        if finding.phase in {Phase.START, Phase.STREAM}:
            cause = ONE_CAUSE.get(finding.cause, finding.cause)
            lost_s[cause] = lost_s.get(cause, 0.0) + finding.lost_s
            phases.setdefault(cause, set()).add(finding.phase)
    if not lost_s:
        return stream_lost_s > start_lost_s
    costliest = max(lost_s, key=lambda cause: lost_s[cause])
    if len(phases[costliest]) == 1:
        return phases[costliest] == {Phase.STREAM}
    return costliest not in QUEUES


def _nearly_equal(start_lost_s: float, stream_lost_s: float) -> bool:
    return min(start_lost_s, stream_lost_s) >= NEARLY_EQUAL * (start_lost_s + stream_lost_s)


def _sure_of_phase(findings: tuple[Finding, ...], *, both: bool) -> tuple[Finding, ...]:
    """The first with less confidence if `both` phases lost about as much: another window may name the other
    one first.
    """
    if not both or not findings:
        return findings
    first, *others = findings
    return (replace(first, confidence=least(first.confidence, Confidence.MEDIUM)), *others)


def _seen_enough(summary: WindowSummary) -> bool:
    """Whether enough requests finished, or few long ones wrote enough tokens, to call a server healthy."""
    finished = dict(summary.outcomes).get(Outcome.SUCCEEDED, 0)
    if not finished and summary.seen_by is SeenBy.COUNTERS and summary.profile is not None:
        outputs = summary.profile.output_tokens
        finished = 0 if outputs is None else outputs.count
    return finished >= MIN_FINISHED_TO_BE_HEALTHY or summary.streamed_tokens >= MIN_TOKENS_TO_BE_HEALTHY


def _none_left(summary: WindowSummary) -> bool:
    """Whether the gateway uses none of its engines: how fast they were before is then no question."""
    return bool(summary.engines) and all(engine.out_of_service for engine in summary.engines)


def _mostly_silent(summary: WindowSummary) -> bool:
    """Whether most of the time lost before first tokens was lost by unanswered requests."""
    start = summary.start
    return start is not None and 2 * (start.silent_lost_s + start.silent_gateway_s) > start.lost_s


# --- A verdict as plain JSON types, versioned; times in milliseconds.

VERDICT_VERSION = 3


def verdict_record(verdict: Verdict) -> dict[str, Any]:
    summary = verdict.summary
    return {
        "v": VERDICT_VERSION,
        "verdict": verdict.ruling,
        "cause": verdict.top.cause if verdict.top is not None else None,
        "also_slow": verdict.also_slow,
        "unexplained_share": _rounded(verdict.unexplained_share),
        "slo": {"ttft_ms": verdict.slo.ttft_s * 1000, "tpot_ms": verdict.slo.tpot_s * 1000},
        "window_s": round(summary.window_s, 3),
        "seen_by": summary.seen_by,
        "synthetic": summary.synthetic,
        "probe": None if summary.probe is None else asdict(summary.probe),
        "stolen_share": _rounded(summary.stolen_share),
        "outcomes": dict(summary.outcomes),
        "workload": asdict(summary.workload),
        "profile": None if summary.profile is None else asdict(summary.profile),
        "prefix": None if summary.prefix is None else asdict(summary.prefix),
        "kv_transfer": None if summary.kv_transfer is None else asdict(summary.kv_transfer),
        "trust": asdict(summary.trust),
        "engines": [asdict(engine) for engine in summary.engines],
        "start": None if summary.start is None else _start(summary.start),
        "stream": None if summary.stream is None else _stream(summary.stream),
        "findings": [_finding(finding) for finding in verdict.findings],
        "advice": None if verdict.advice is None else _advice(verdict.advice),
        "not_observed": list(summary.not_observed),
    }


_START_FIGURES = (
    *("requests", "unanswered", "unfinished", "timed", "step_timed", "ttft_p50_s", "ttft_p90_s"),
    *("ttft_p50_at_least", "ttft_p90_at_least", "late", "parts_mean_s", "unexplained_s"),
    *("unexplained_share_p50", "unexplained_abs_p50_s", "cold_s"),
)
_STREAM_FIGURES = (
    *("streams", "broken_off", "step_timed", "tpot_mean_s", "tpot_p50_s", "tpot_p90_s"),
    *("gap_p50_s", "gap_p99_s", "gap_max_s", "step_s", "chunk_excess_s", "unexplained_s"),
    *("unexplained_share_p50", "unexplained_abs_p50_s", "slow"),
)


def _figures(of: object, names: Iterable[str]) -> dict[str, Any]:
    """The figures of these names; those in seconds as milliseconds."""
    found = {}
    for name in names:
        in_seconds, value = name.endswith("_s"), getattr(of, name)
        found[f"{name.removesuffix('_s')}_ms" if in_seconds else name] = _ms(value) if in_seconds else value
    return found


def _start(start: StartSummary) -> dict[str, Any]:
    return {
        **_figures(start, _START_FIGURES),
        "lost_s": round(start.lost_s, 3),
        "parts": [
            {"part": entry.part, "source": entry.source, "ms": _ms(entry.seconds)} for entry in start.parts
        ],
        "by_engine": [_figures(entry, entry.__slots__) for entry in start.by_engine],
    }


def _stream(stream: StreamSummary) -> dict[str, Any]:
    return {
        **_figures(stream, _STREAM_FIGURES),
        "lost_s": round(stream.lost_s, 3),
        "ledger": None if stream.ledger is None else _figures(stream.ledger, stream.ledger.__slots__),
        "stalls": [
            {
                "request": found.request_id,
                "ms": _ms(found.stall.duration_s),
                "count": found.count,
                "cause": found.cause,
                "engine": found.engine,
                "steps": [timed.step.seq for timed in found.steps],
                "guilty": [asdict(prompt) for prompt in found.guilty],
            }
            for found in stream.stalls
        ],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "phase": finding.phase,
        "cause": finding.cause,
        "share": round(finding.share, 3),
        "lost_s": round(finding.lost_s, 3),
        "confidence": finding.confidence,
        "facts": [{"words": fact.words, "source": fact.source} for fact in finding.facts],
        "refuted_by": finding.refuted_by,
        "rival": finding.rival,
    }


def _advice(advice: Advice) -> dict[str, Any]:
    return {
        "fixes": [asdict(fix) for fix in advice.fixes],
        "would_not_help": list(advice.would_not_help),
        "do_not_pay": [asdict(fix) for fix in advice.do_not_pay],
    }


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 3)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
