"""A verdict as plain JSON types, versioned; times in milliseconds. How a person sees it is the cli's."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from phasewise.diagnosis.finding import Finding
from phasewise.diagnosis.fix import Advice
from phasewise.diagnosis.picture import StartPicture, StreamPicture, TokenLedger, WorkloadShape
from phasewise.diagnosis.verdict import Verdict

VERDICT_VERSION = 2


def verdict_record(verdict: Verdict) -> dict[str, Any]:
    """The whole verdict."""
    picture = verdict.picture
    return {
        "v": VERDICT_VERSION,
        "verdict": verdict.ruling,
        "cause": verdict.top.cause if verdict.top is not None else None,
        "also_slow": verdict.also_slow,
        "unexplained_share": _rounded(verdict.unexplained_share),
        "slo": {"ttft_ms": verdict.slo.ttft_s * 1000, "tpot_ms": verdict.slo.tpot_s * 1000},
        "window_s": round(picture.window_s, 3),
        "seen_by": picture.seen_by,
        "outcomes": dict(picture.outcomes),
        "workload": _workload(picture.workload),
        "profile": None if picture.profile is None else asdict(picture.profile),
        "prefix": None if picture.prefix is None else asdict(picture.prefix),
        "hand_over": None if picture.hand_over is None else asdict(picture.hand_over),
        "trust": asdict(picture.trust),
        "engines": [asdict(engine) for engine in picture.engines],
        "start": None if picture.start is None else _start(picture.start),
        "stream": None if picture.stream is None else _stream(picture.stream),
        "findings": [_finding(finding) for finding in verdict.findings],
        "advice": None if verdict.advice is None else _advice(verdict.advice),
        "not_known": list(picture.not_known),
    }


def _workload(shape: WorkloadShape) -> dict[str, Any]:
    return {name: getattr(shape, name) for name in shape.__slots__}


def _start(start: StartPicture) -> dict[str, Any]:
    return {
        "requests": start.requests,
        "unanswered": start.unanswered,
        "unfinished": start.unfinished,
        "timed": start.timed,
        "step_timed": start.step_timed,
        "ttft_p50_ms": _ms(start.ttft_p50_s),
        "ttft_p90_ms": _ms(start.ttft_p90_s),
        "ttft_p50_at_least": start.ttft_p50_at_least,
        "ttft_p90_at_least": start.ttft_p90_at_least,
        "late": start.late,
        "lost_s": round(start.lost_s, 3),
        "parts": [
            {"part": entry.part, "source": entry.source, "ms": _ms(entry.seconds)} for entry in start.parts
        ],
        "parts_mean_ms": _ms(start.parts_mean_s),
        "residual_ms": _ms(start.residual_s),
        "residual_share_p50": start.residual_share_p50,
        "residual_abs_p50_ms": _ms(start.residual_abs_p50_s),
        "cold_ms": _ms(start.cold_s),
        "by_engine": [
            {
                "engine": entry.engine,
                "requests": entry.requests,
                "ttft_mean_ms": _ms(entry.ttft_mean_s),
                "queue_mean_ms": _ms(entry.queue_mean_s),
            }
            for entry in start.by_engine
        ],
    }


def _stream(stream: StreamPicture) -> dict[str, Any]:
    return {
        "streams": stream.streams,
        "broken_off": stream.broken_off,
        "step_timed": stream.step_timed,
        "tpot_mean_ms": _ms(stream.tpot_mean_s),
        "tpot_p50_ms": _ms(stream.tpot_p50_s),
        "tpot_p90_ms": _ms(stream.tpot_p90_s),
        "gap_p50_ms": _ms(stream.gap_p50_s),
        "gap_p99_ms": _ms(stream.gap_p99_s),
        "gap_max_ms": _ms(stream.gap_max_s),
        "step_ms": _ms(stream.step_s),
        "chunk_excess_ms": _ms(stream.chunk_excess_s),
        "residual_ms": _ms(stream.residual_s),
        "residual_share_p50": stream.residual_share_p50,
        "residual_abs_p50_ms": _ms(stream.residual_abs_p50_s),
        "ledger": None if stream.ledger is None else _ledger(stream.ledger),
        "slow": stream.slow,
        "lost_s": round(stream.lost_s, 3),
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


def _ledger(ledger: TokenLedger) -> dict[str, float | None]:
    """Milliseconds of the mean output token, by where they went."""
    return {f"{name.removesuffix('_s')}_ms": _ms(seconds) for name, seconds in asdict(ledger).items()}


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "phase": finding.phase,
        "cause": finding.cause,
        "share": round(finding.share, 3),
        "lost_s": round(finding.lost_s, 3),
        "confidence": finding.confidence,
        "facts": [{"words": fact.words, "source": fact.source} for fact in finding.facts],
        "refuted_by": finding.refuted_by,
    }


def _advice(advice: Advice) -> dict[str, Any]:
    return {
        "fixes": [asdict(fix) for fix in advice.fixes],
        "would_not_help": list(advice.would_not_help),
    }


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 3)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
