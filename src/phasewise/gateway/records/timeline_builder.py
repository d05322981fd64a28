"""Builds a Timeline from the milestones of one request, with the driver's times."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from threading import Thread

from phasewise.core import content_times
from phasewise.core.decision import Decision
from phasewise.core.errors import FailureKind
from phasewise.core.request import GenerationRequest
from phasewise.core.timeline import (
    Attempt,
    AttemptKind,
    GatewayTimes,
    Outcome,
    Part,
    Placement,
    Source,
    Span,
    Timeline,
)
from phasewise.core.trace_context import TraceContext
from phasewise.core.worker import WorkerRef
from phasewise.gateway.answer_cache.lookup import CacheLookup
from phasewise.gateway.upstream.response import Answer

_NO_ANSWER = Answer()
_CLOCK = Source.GATEWAY_CLOCK


def _content_times(answer: Answer, origin_s: float) -> Sequence[float]:
    if not answer.content_times_s:
        return ()
    if len(answer.content_times_s) >= content_times.LONG:
        load_numpy()
    return content_times.offsets(answer.content_times_s, origin_s)


@cache
def load_numpy() -> Thread:
    """Load it in a thread, once: it takes long, and few gateways have long streams."""
    thread = Thread(target=lambda: content_times.use(importlib.import_module("numpy")), daemon=True)
    thread.start()
    return thread


class TimelineBuilder:
    """Collects one request's milestones. Times are monotonic seconds and become offsets at the end.

    `worker` has the request now, and `answer` is what the last worker has sent so far. `stage_ends_s` are
    the ends of its limits, reading and parsing, as far as it came; None if not measured.
    """

    __slots__ = (
        "_attempt_started_s",
        "_attempts",
        "_cache",
        "_client_request_id",
        "_kind",
        "_look_up",
        "_placement",
        "_prefill_answer",
        "_prefill_sent_s",
        "_queue_s",
        "_sent_s",
        "_stage_ends_s",
        "_started_unix_s",
        "answer",
        "request",
        "trace",
        "worker",
    )

    def __init__(
        self,
        request: GenerationRequest,
        started_unix_s: float,
        client_request_id: str | None = None,
        trace: TraceContext | None = None,
        stage_ends_s: Sequence[float] | None = None,
    ) -> None:
        self.request = request
        self._started_unix_s = started_unix_s
        self._client_request_id = client_request_id
        self.trace = trace
        self._stage_ends_s = stage_ends_s
        self._queue_s = 0.0
        self._attempts: list[Attempt] = []
        self.worker: WorkerRef | None = None
        self._kind = AttemptKind.LOCAL
        self._attempt_started_s = 0.0
        self._sent_s: float | None = None
        self.answer: Answer | None = None
        self._placement: Placement | None = None
        # Of the prefill attempt before a decode attempt.
        self._prefill_sent_s: float | None = None
        self._prefill_answer: Answer | None = None
        self._cache: CacheLookup | None = None
        self._look_up: Span | None = None

    @property
    def attempt_number(self) -> int:
        """The number of the attempt that runs, counted from 1."""
        return len(self._attempts) + 1

    @property
    def content_chunks(self) -> int:
        """How many chunks with content the last worker has sent."""
        return 0 if self.answer is None else len(self.answer.content_times_s)

    def begin_attempt(self, worker: WorkerRef, at_s: float, kind: AttemptKind = AttemptKind.LOCAL) -> None:
        """A worker is about to get the request."""
        self.worker = worker
        self._kind = kind
        self._attempt_started_s = at_s
        if kind is not AttemptKind.RESUMED:
            # A resumed answer adds nothing to the wait for its first token.
            self._prefill_sent_s = self._sent_s if kind is AttemptKind.DECODE_SIDE else None
            self._sent_s = None
        self._prefill_answer = self.answer if kind is AttemptKind.DECODE_SIDE else None
        self.answer = None

    def note_placement(self, decision: Decision) -> None:
        """Keep the decision of the first attempt, if it has priced options."""
        if decision.options and not self._attempts:
            self._placement = Placement(decision.policy, decision.reason, decision.options)

    def note_cache(self, lookup: CacheLookup) -> None:
        """Keep the request's cache look-up, which may still change."""
        self._cache = lookup

    def note_look_up(self, from_s: float, to_s: float) -> None:
        """A stored answer was looked for."""
        self._look_up = Span(
            Part.CACHE_LOOK_UP,
            _CLOCK,
            to_s - from_s,
            from_s - self.request.arrived_s,
            within=Part.GATEWAY_WAIT,
        )

    def note_queue(self, seconds: float) -> None:
        """It waited for a slot; between two attempts that counts as earlier attempts."""
        if not self._attempts:
            self._queue_s += seconds

    def note_sent(self, at_s: float) -> None:
        """The request was written to the worker."""
        self._sent_s = at_s

    def note_answer(self, answer: Answer) -> None:
        """Keep the worker's answer, which may still grow."""
        self.answer = answer

    def end_attempt(self, outcome: Outcome, at_s: float, note: str | None = None) -> None:
        """The worker's part is over."""
        if self.worker is None:
            raise RuntimeError("an attempt ended that had not begun")
        self._attempts.append(self._attempt(self.worker, outcome, at_s, note))
        self.worker = None

    def build(
        self,
        outcome: Outcome,
        at_s: float,
        reason: str | None = None,
        client_blocked_s: float | None = None,
    ) -> Timeline:
        """The request has ended."""
        return self._timeline(tuple(self._attempts), outcome, at_s, reason, client_blocked_s)

    def so_far(self, at_s: float, client_blocked_s: float | None = None) -> Timeline:
        """The timeline of a running request, with its running attempt."""
        return self._timeline(self._attempts_so_far(at_s), Outcome.UNFINISHED, at_s, None, client_blocked_s)

    def parts_so_far(self, at_s: float) -> tuple[float, tuple[Span, ...]]:
        """The age of a request that is about to be answered, and the spans of the attempt that answers it."""
        attempts = self._attempts_so_far(at_s)
        # Of a KV transfer, both sides answer it.
        sides = 2 if self._kind is AttemptKind.DECODE_SIDE else 1
        reply = tuple(span for attempt in attempts[-sides:] for span in attempt.spans)
        return at_s - self.request.arrived_s, self._spans(attempts, at_s) + reply

    def _attempts_so_far(self, at_s: float) -> tuple[Attempt, ...]:
        running = () if self.worker is None else (self._attempt(self.worker, Outcome.UNFINISHED, at_s),)
        return (*self._attempts, *running)

    def _attempt(self, worker: WorkerRef, outcome: Outcome, at_s: float, note: str | None = None) -> Attempt:
        answer, origin_s = self.answer, self.request.arrived_s
        return Attempt(
            kind=self._kind,
            worker=worker,
            started_s=self._attempt_started_s - origin_s,
            ended_s=at_s - origin_s,
            outcome=outcome,
            engine_request_id=None if answer is None else answer.engine_request_id,
            spans=() if answer is None else _spans_of(self._kind, answer.account.spans),
            note=note,
        )

    def _timeline(
        self,
        attempts: tuple[Attempt, ...],
        outcome: Outcome,
        at_s: float,
        reason: str | None,
        client_blocked_s: float | None,
    ) -> Timeline:
        request, answer = self.request, self.answer or _NO_ANSWER
        origin_s = request.arrived_s
        # A worker that fetched its KV reports no cached tokens and computed no prompt.
        read = (self._prefill_answer or answer).account
        if self._kind is AttemptKind.PREFILL_SIDE:
            answer = _NO_ANSWER  # the client's answer has not begun
        return Timeline(
            request_id=request.request_id,
            started_unix_s=self._started_unix_s,
            model=request.model,
            outcome=outcome,
            ended_s=at_s - origin_s,
            attempts=attempts,
            spans=self._spans(attempts, at_s),
            content_times_s=_content_times(answer, origin_s),
            prompt_tokens=read.prompt_tokens,
            cached_tokens=read.cached_tokens,
            output_tokens=answer.account.output_tokens,
            finish_reason=answer.finish_reason,
            tenant=request.tenant,
            slo_class=request.slo_class,
            reason=reason,
            prefix_marks=request.prefix_marks,
            client_request_id=self._client_request_id,
            prompt_bytes=request.prompt_bytes,
            finished_s=None if answer.finished_s is None else answer.finished_s - origin_s,
            choices=request.choices,
            text_marks=request.text_marks,
            client_blocked_s=client_blocked_s,
            streamed=request.stream,
            generates=request.endpoint.generates,
            placement=self._placement,
            cache=None if self._cache is None else self._cache.note,
            trace=self.trace,
            in_gateway=self._in_gateway(at_s),
        )

    def _in_gateway(self, at_s: float) -> GatewayTimes | None:
        if self._stage_ends_s is None:
            return None
        # A request that was rejected before its flow ended in one of the stages.
        limited_s, read_s, parsed_s = (*self._stage_ends_s, at_s, at_s, at_s)[:3]
        arrived_s = self.request.arrived_s
        return GatewayTimes(limited_s - arrived_s, read_s - limited_s, parsed_s - read_s, self._queue_s)

    def _spans(self, attempts: tuple[Attempt, ...], ended_s: float) -> tuple[Span, ...]:
        looked_up = () if self._look_up is None else (self._look_up,)
        return (*self._waits(attempts, ended_s), *looked_up)

    def _waits(self, attempts: tuple[Attempt, ...], ended_s: float) -> list[Span]:
        origin_s = self.request.arrived_s
        if attempts and attempts[-1].kind is AttemptKind.RESUMED:
            attempts = tuple(attempt for attempt in attempts if attempt.kind is not AttemptKind.RESUMED)
        if not attempts:
            # A stored answer needs no worker: until its first content, all time is the gateway's.
            times_s = () if self.answer is None else self.answer.content_times_s
            until_s = times_s[0] if times_s else ended_s
            return [Span(Part.GATEWAY_WAIT, _CLOCK, until_s - origin_s, 0.0)]
        if is_pair := attempts[-1].kind is AttemptKind.DECODE_SIDE and len(attempts) > 1:
            attempts, decode = attempts[:-1], attempts[-1]
        serving_s = attempts[-1].started_s
        sent_s = self._prefill_sent_s if is_pair else self._sent_s
        waited_s = serving_s if sent_s is None else sent_s - origin_s
        spans = [Span(Part.GATEWAY_WAIT, _CLOCK, waited_s, 0.0)]
        if is_pair:
            # From the prefill worker's reply until the decode worker got the request.
            replied_s = attempts[-1].ended_s
            asked_s = decode.started_s if self._sent_s is None else self._sent_s - origin_s
            spans.append(Span(Part.GATEWAY_WAIT, _CLOCK, asked_s - replied_s, replied_s))
        if len(attempts) > 1:
            first_s = attempts[0].started_s
            earlier = Span(Part.EARLIER_ATTEMPTS, _CLOCK, serving_s - first_s, first_s, Part.GATEWAY_WAIT)
            spans.append(earlier)
        return spans


def _spans_of(kind: AttemptKind, reported: tuple[Span, ...]) -> tuple[Span, ...]:
    """The engine's spans, named for the attempt's kind.

    The queue time of a decode attempt is the fetch of its KV, and its prefill is the step of the first token.
    What a prefill attempt reports after its first token is dropped.
    """
    if kind is AttemptKind.DECODE_SIDE:
        return tuple(
            replace(span, part=Part.KV_TRANSFER) if span.part is Part.ENGINE_QUEUE else span
            for span in reported
        )
    if kind is AttemptKind.PREFILL_SIDE:
        return tuple(span for span in reported if span.part is not Part.DECODE)
    return reported


def attempt_outcome(kind: FailureKind) -> Outcome:
    """The outcome of an attempt with this failure."""
    return Outcome.TIMED_OUT if kind is FailureKind.TIMED_OUT else Outcome.FAILED
