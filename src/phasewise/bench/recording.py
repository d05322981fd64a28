"""Collects what happens to one request while it happens, and makes its timeline, however it ended.

It is handed every time it writes down; talking to the engine is left to the generator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from phasewise.adapters.engine_report import read_report
from phasewise.adapters.sse import Chunk
from phasewise.model.prefix_marks import prefix_marks, text_marks
from phasewise.model.timeline import Attempt, AttemptKind, Outcome, Part, Source, Span, Timeline
from phasewise.model.worker import WorkerRef
from phasewise.workload.prompts import Message


@dataclass(slots=True)
class RequestRecording:
    """One request's notes. Times are of one monotonic clock, which `unix_offset_s` puts on the wall."""

    request_id: str
    model: str
    url: str
    intended_s: float
    unix_offset_s: float
    messages: Sequence[Message] = ()
    keeps_reply: bool = False
    reply: str = ""
    outcome: Outcome = Outcome.FAILED
    reason: str | None = None
    engine_request_id: str | None = None
    finish_reason: str | None = None
    _sent_s: float | None = None
    _content_times_s: list[float] = field(default_factory=list)
    _usage: Mapping[str, Any] | None = None
    _metrics: Mapping[str, Any] | None = None
    _finished_s: float | None = None
    _closed_s: float = 0.0

    @property
    def ttft_s(self) -> float | None:
        """The time to first token so far as one was seen."""
        return self._content_times_s[0] - self.intended_s if self._content_times_s else None

    @property
    def mean_gap_s(self) -> float | None:
        """The mean gap between the chunks seen so far."""
        times_s = self._content_times_s
        return (times_s[-1] - times_s[0]) / (len(times_s) - 1) if len(times_s) > 1 else None

    def sent(self, now_s: float) -> None:
        """The request goes out."""
        self._sent_s = now_s

    def saw(self, chunk: Chunk, now_s: float) -> None:
        """A chunk came."""
        if chunk.has_content:
            self._content_times_s.append(now_s)
        if chunk.finish_reason is not None:
            self.finish_reason, self._finished_s = chunk.finish_reason, now_s
        self._usage = chunk.usage or self._usage
        self._metrics = chunk.metrics or self._metrics

    def end(self, outcome: Outcome, reason: str | None = None) -> None:
        """The request is over."""
        self.outcome, self.reason = outcome, reason

    def close(self, now_s: float) -> None:
        """Nothing more will come."""
        self._closed_s = now_s

    def timeline(self) -> Timeline:
        """What is known of the request now that it is over.

        Worked out after the run: hashing a long prompt would hold up the requests that are due.
        """
        run_id, _, _ = self.request_id.rpartition("-")
        marks_key = run_id.encode()[:64]
        prompt = orjson.dumps(self.messages)
        text = "\n".join(message.content for message in self.messages).encode()
        report = read_report(self._usage, self._metrics)
        return Timeline(
            request_id=self.request_id,
            started_unix_s=self.intended_s + self.unix_offset_s,
            model=self.model,
            outcome=self.outcome,
            ended_s=self._closed_s - self.intended_s,
            attempts=self._attempts(report.spans),
            spans=self._own_spans(),
            content_times_s=tuple(at_s - self.intended_s for at_s in self._content_times_s),
            prompt_tokens=report.prompt_tokens,
            cached_tokens=report.cached_tokens,
            output_tokens=report.output_tokens,
            finish_reason=self.finish_reason,
            reason=self.reason,
            prefix_marks=prefix_marks(prompt, marks_key),
            prompt_bytes=len(prompt),
            finished_s=None if self._finished_s is None else self._finished_s - self.intended_s,
            text_marks=text_marks(text, marks_key),
        )

    def _attempts(self, spans: tuple[Span, ...]) -> tuple[Attempt, ...]:
        if self._sent_s is None:
            return ()
        attempt = Attempt(
            kind=AttemptKind.LOCAL,
            worker=WorkerRef(self.url, ""),
            started_s=self._sent_s - self.intended_s,
            ended_s=self._closed_s - self.intended_s,
            outcome=self.outcome,
            engine_request_id=self.engine_request_id,
            spans=spans,
        )
        return (attempt,)

    def _own_spans(self) -> tuple[Span, ...]:
        if self._sent_s is None:
            return ()
        lag_s = max(self._sent_s - self.intended_s, 0.0)
        return (Span(Part.CLIENT_LAG, Source.CLIENT_CLOCK, lag_s, start_s=0.0),)
