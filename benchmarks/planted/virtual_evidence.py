"""What a watcher would have gathered from a stage: the same evidence that a live window gives.

Only what no virtual engine has is made up here, by what the scene says of it: its processor, its network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from phasewise.core.engine_metrics import MetricsSnapshot, delta
from phasewise.core.prefixes import prefix_marks, text_marks
from phasewise.core.step_log import logs_by_rank
from phasewise.core.timeline import Attempt, AttemptKind, Outcome, Part, Source, Span, Timeline
from phasewise.core.worker import WorkerRef
from phasewise.diagnosis.evidence import Evidence
from phasewise.diagnosis.observed.observation import EngineSeen, WatchedEngine
from phasewise.diagnosis.observed.surroundings import surroundings_of
from phasewise.engines.vllm import parse_metrics
from phasewise.fake_engine.metrics import EngineMetrics
from phasewise.simulator.stage import EPOCH_S, MODEL, SimulatedRequest, Stage, VirtualHost

MARKS_KEY = b"planted"
OLD_ENGINE_S = 3600.0


@dataclass(frozen=True, slots=True)
class Way:
    """What lies between clients and engines, and what a watcher is told of the machines.

    `there_s` and `back_s` are what a request and each piece of its answer take; `taken_s` is what a client
    needs to take a piece, of which `buffered` fit between it and the gateway. `generator` tells that the
    timelines are the load generator's own. `drafts` are guesses, guessed tokens and right ones per token.
    """

    there_s: float = 0.001
    back_s: float = 0.001
    taken_s: float = 0.0
    buffered: int = 8
    generator: bool = False
    wait_share: float = 0.01
    age_s: float = OLD_ENGINE_S
    drafts: tuple[float, float, float] | None = None

    @property
    def round_trip_s(self) -> float:
        """An empty request's way there and back."""
        return self.there_s + self.back_s


def watched(stage: Stage, way: Way, begins_s: float, ends_s: float) -> Evidence:
    """Play the stage and gather what happens between two moments."""
    before: list[MetricsSnapshot] = []
    stage.at(begins_s, lambda now_s: before.extend(_snapshots(stage, way, now_s)))
    stage.play(ends_s)
    after = _snapshots(stage, way, ends_s)
    deltas = tuple(delta(early, late) for early, late in zip(before, after, strict=True))
    timelines = tuple(
        timeline
        for exchange in stage.exchanges
        if begins_s
        < (timeline := _timeline(exchange, way, ends_s)).started_unix_s + timeline.ended_s - EPOCH_S
    )
    logs = {_name(number): logs_by_rank(host.steps) for number, host in enumerate(stage.hosts)}
    seen = [
        EngineSeen(
            WatchedEngine(_name(number), f"http://127.0.0.1/{_name(number)}", None),
            deltas[number],
            tuple(host.steps),
            details=True,
            dropped=0,
            loads=(),
            round_trip_s=way.round_trip_s,
        )
        for number, host in enumerate(stage.hosts)
    ]
    window = (EPOCH_S + begins_s, EPOCH_S + ends_s)
    surroundings = tuple(
        replace(
            surroundings_of(engine, None, timelines, logs[engine.engine.name], window),
            cpu_wait_share=way.wait_share,
            cpu_source="run queue",
            host_busy_share=max(0.2, way.wait_share),
            front_end_cores=0.1,
        )
        for engine in seen
    )
    return Evidence(
        began_unix_s=window[0],
        window_s=ends_s - begins_s,
        seen_by="the load generator" if way.generator else "the gateway",
        timelines=timelines,
        logs=logs,
        metrics=deltas,
        not_observed=(),
        surroundings=surroundings,
        setups=dict.fromkeys(logs, MODEL),
    )


def _name(number: int) -> str:
    return f"engine-{number}"


def _snapshots(stage: Stage, way: Way, now_s: float) -> list[MetricsSnapshot]:
    return [parse_metrics(_metrics_text(host, way), EPOCH_S + now_s) for host in stage.hosts]


def _metrics_text(host: VirtualHost, way: Way) -> str:
    metrics = EngineMetrics(MODEL, host.shape)
    for report in host.reports:
        metrics.record(report)
    lines = [metrics.text().decode(), "# TYPE process_start_time_seconds gauge"]
    lines.append(f"process_start_time_seconds {EPOCH_S - way.age_s}")
    if way.drafts is not None:
        tokens = sum(step.decode_requests or 0 for step in host.steps)
        for name, each in zip(("drafts", "draft_tokens", "accepted_tokens"), way.drafts, strict=True):
            series = f"vllm:spec_decode_num_{name}_total"
            lines += [f"# TYPE {series} counter", f'{series}{{engine="0"}} {each * tokens}']
    return "\n".join(lines) + "\n"


def _timeline(exchange: SimulatedRequest, way: Way, now_s: float) -> Timeline:
    """The exchange as it stands now; one whose last token has not come back is under way."""
    came_s, blocked_s = taken_at(exchange.token_times_s, way)
    came_s = [at_s for at_s in came_s if at_s <= now_s]
    done = exchange.finished if len(came_s) == exchange.ask.output_tokens else None
    started_s = exchange.due_s - way.there_s
    ended_s = came_s[-1] if done is not None else now_s
    outcome = Outcome.UNFINISHED if done is None else Outcome.SUCCEEDED
    spans = () if done is None else _engine_spans(done.queue_s, done.prefill_s, done.decode_s)
    attempt = Attempt(
        AttemptKind.LOCAL,
        WorkerRef(_name(exchange.engine), "1"),
        exchange.sent_s - started_s,
        ended_s - started_s,
        outcome,
        engine_request_id=exchange.request_id,
        spans=spans,
    )
    prompt = exchange.ask.text.encode()
    return Timeline(
        request_id=exchange.request_id,
        started_unix_s=EPOCH_S + started_s,
        model=MODEL,
        outcome=outcome,
        ended_s=ended_s - started_s,
        attempts=(attempt,),
        spans=_own_spans(exchange, way),
        content_times_s=tuple(at_s - started_s for at_s in came_s),
        prompt_tokens=None if done is None else done.prompt_tokens,
        cached_tokens=None if done is None else done.cached_tokens,
        output_tokens=None if done is None else done.output_tokens,
        finish_reason=None if done is None else done.reason,
        prefix_marks=prefix_marks(prompt, MARKS_KEY),
        text_marks=text_marks(prompt, MARKS_KEY),
        prompt_bytes=len(prompt),
        client_blocked_s=None if way.generator else blocked_s,
    )


def _engine_spans(queue_s: float, prefill_s: float, decode_s: float) -> tuple[Span, ...]:
    parts = ((Part.ENGINE_QUEUE, queue_s), (Part.PREFILL, prefill_s), (Part.DECODE, decode_s))
    return tuple(Span(part, Source.ENGINE_REPORT, seconds) for part, seconds in parts)


def _own_spans(exchange: SimulatedRequest, way: Way) -> tuple[Span, ...]:
    if way.generator:
        lag_s = exchange.sent_s - exchange.due_s
        return (Span(Part.CLIENT_LAG, Source.CLIENT_CLOCK, lag_s, start_s=0.0),)
    return (Span(Part.GATEWAY_WAIT, Source.GATEWAY_CLOCK, 0.0002, start_s=0.0),)


def taken_at(token_times_s: Sequence[float], way: Way) -> tuple[list[float], float]:
    """When pieces were read at the gateway, and how long it could not read because its client did not."""
    came: list[float] = []
    taken: list[float] = []
    blocked_s = 0.0
    for number, at_s in enumerate(token_times_s):
        arrives_s = at_s + way.back_s
        # The gateway reads on only while the pieces that its client has not taken fit the buffers.
        room_s = taken[number - way.buffered] if way.taken_s and number >= way.buffered else arrives_s
        read_s = max(arrives_s, room_s)
        blocked_s += max(0.0, read_s - max(arrives_s, came[-1] if came else arrives_s))
        came.append(read_s)
        taken.append(max(read_s, taken[-1] if taken else read_s) + way.taken_s)
    return came, blocked_s
