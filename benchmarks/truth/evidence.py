"""What watchers gather of a run, at the level at which the scene is observed.

`gateway`: timelines with marks, the engines' step records and counters. `recorder`: the same without the
gateway, so that timelines come from step records. `stock`: /metrics text at both ends of
the window and four times a second.
"""

from __future__ import annotations

from collections.abc import Sequence

from phasewise.clients.processes import CpuSource, CpuUse
from phasewise.core.engine_metrics import LoadReading, MetricsDelta, delta
from phasewise.core.prefixes import prefix_marks, text_marks
from phasewise.core.timeline import Attempt, AttemptKind, Outcome, Part, Source, Span, Timeline
from phasewise.core.worker import WorkerRef
from phasewise.diagnosis.evidence import Evidence, evidence_of
from phasewise.diagnosis.observed.observation import EngineSeen, HostCpu, Observed, TargetKind, WatchedEngine
from phasewise.engines.vllm import parse_load, parse_metrics
from phasewise.fake_engine.metrics import EngineMetrics
from phasewise.simulator.engine import StepReport
from phasewise.simulator.stage import EPOCH_S, MODEL

from .play import Exchange, Played
from .traffic import text_of

SAMPLE_S = 0.25
MARKS_KEY = b"truth"
GATEWAY_S = 0.0002


def observe(played: Played, level: str) -> Evidence:
    """The evidence that a watch of this level would have gathered."""
    stock = level == "stock"
    engines = []
    for number, reports in enumerate(played.reports):
        metrics, loads = _scrape(played, reports, sampled=stock)
        engines.append(
            EngineSeen(
                WatchedEngine(_name(number), f"http://127.0.0.1/{_name(number)}", None, MODEL),
                metrics,
                () if stock else tuple(report.step for report in reports),
                details=not stock,
                dropped=0,
                loads=loads,
                round_trip_s=played.setting.there_s + played.setting.back_s,
                recorded=not stock,
            )
        )
    behind_gateway = level == "gateway"
    return evidence_of(
        Observed(
            url="http://127.0.0.1",
            kind=TargetKind.GATEWAY if behind_gateway else TargetKind.ENGINE,
            began_unix_s=EPOCH_S + played.begins_s,
            ended_unix_s=EPOCH_S + played.ends_s,
            engines=tuple(engines),
            hosts=dict.fromkeys(map(_name, range(len(engines))), _host(played)),
            reported=_timelines(played) if behind_gateway else (),
        )
    )


def _host(played: Played) -> HostCpu:
    """What a look at the engine's processes shows."""
    waits = max(0.01, 1.0 - played.setting.share)
    return HostCpu(CpuUse(1.0, 0.1, waits, None, CpuSource.RUN_QUEUE, max(0.2, waits)), None)


def _name(number: int) -> str:
    return f"engine-{number}"


# --- Counters, as Prometheus text.


def _scrape(
    played: Played, reports: Sequence[StepReport], *, sampled: bool
) -> tuple[MetricsDelta, tuple[LoadReading, ...]]:
    """The counters' change over the window, and the gauges in between if they are sampled."""
    metrics = EngineMetrics(MODEL, played.shape)
    moments = [played.begins_s]
    while sampled and moments[-1] + SAMPLE_S < played.ends_s:
        moments.append(moments[-1] + SAMPLE_S)
    texts: list[tuple[float, str]] = []
    upcoming = iter(reports)
    report = next(upcoming, None)
    for at_s in (*moments, played.ends_s):
        while report is not None and report.step.ended_unix_s <= EPOCH_S + at_s:
            metrics.record(report)
            report = next(upcoming, None)
        texts.append((EPOCH_S + at_s, _text(metrics, played)))
    (first_s, first), (last_s, last) = texts[0], texts[-1]
    loads = [parse_load(text.encode(), at_s) for at_s, text in texts] if sampled else []
    change = delta(parse_metrics(first, first_s), parse_metrics(last, last_s))
    return change, tuple(load for load in loads if load is not None)


def _text(metrics: EngineMetrics, played: Played) -> str:
    started_s = EPOCH_S - played.setting.age_s
    process = f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {started_s}\n"
    return metrics.text().decode() + process


# --- Requests, as the gateway records them or as step records show them.


def _timelines(played: Played) -> tuple[Timeline, ...]:
    seen = (_timeline(exchange, played) for exchange in played.exchanges)
    begins_s = EPOCH_S + played.begins_s
    return tuple(it for it in seen if it.started_unix_s + it.ended_s >= begins_s)


def _timeline(exchange: Exchange, played: Played) -> Timeline:
    came = exchange.came_s
    sent_s = exchange.sent_s
    done = exchange.finished if len(came) == exchange.planned.output_tokens else None
    outcome = _outcome(exchange, done is not None, played.ends_s)
    over_s = {Outcome.SUCCEEDED: came[-1] if came else sent_s, Outcome.UNFINISHED: played.ends_s}.get(
        outcome, exchange.left_s if exchange.left_s is not None else played.ends_s
    )
    attempt = Attempt(
        AttemptKind.LOCAL,
        WorkerRef(_name(exchange.engine), "1"),
        GATEWAY_S,
        over_s - sent_s,
        outcome,
        note="HTTP 400" if exchange.rejected else None,
        engine_request_id=exchange.request_id,
        spans=()
        if done is None
        else (
            Span(Part.ENGINE_QUEUE, Source.ENGINE_REPORT, done.queue_s),
            Span(Part.PREFILL, Source.ENGINE_REPORT, done.prefill_s),
            Span(Part.DECODE, Source.ENGINE_REPORT, done.decode_s),
        ),
    )
    prompt = b"".join(map(text_of, exchange.planned.pieces))
    return Timeline(
        request_id=exchange.request_id,
        started_unix_s=EPOCH_S + sent_s,
        model=MODEL,
        outcome=outcome,
        ended_s=over_s - sent_s,
        attempts=(attempt,),
        spans=(Span(Part.GATEWAY_WAIT, Source.GATEWAY_CLOCK, GATEWAY_S, start_s=0.0),),
        content_times_s=tuple(at_s - sent_s for at_s in came),
        prompt_tokens=None if done is None else done.prompt_tokens,
        cached_tokens=None if done is None else done.cached_tokens,
        output_tokens=None if done is None else done.output_tokens,
        finish_reason=None if done is None else done.reason,
        tenant=exchange.planned.tenant,
        reason="engine_rejected" if exchange.rejected else None,
        prefix_marks=prefix_marks(prompt, MARKS_KEY),
        text_marks=text_marks(prompt, MARKS_KEY),
        prompt_bytes=len(prompt),
        client_blocked_s=exchange.blocked_s,
    )


def _outcome(exchange: Exchange, done: bool, now_s: float) -> Outcome:
    if exchange.rejected:
        return Outcome.REJECTED
    if done:
        return Outcome.SUCCEEDED
    left = exchange.left_s is not None and exchange.left_s <= now_s
    return Outcome.CANCELLED if left else Outcome.UNFINISHED
