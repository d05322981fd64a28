"""What is recorded of a run: each request while it happens, and how well the generator itself kept up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import orjson

from phasewise.benchmark.engine_watch import EngineRecord
from phasewise.benchmark.target import Target
from phasewise.benchmark.workload.arrivals import ClosedLoop
from phasewise.benchmark.workload.plan import Plan
from phasewise.benchmark.workload.prompts import Message
from phasewise.clients.host import CpuTimes
from phasewise.clients.http_client import HttpClient
from phasewise.clients.sse import Chunk
from phasewise.core.errors import UpstreamError
from phasewise.core.prefixes import prefix_marks, text_marks
from phasewise.core.request import Endpoint
from phasewise.core.timeline import (
    NO_ACCOUNT,
    Attempt,
    AttemptKind,
    EngineAccount,
    Outcome,
    Part,
    Source,
    Span,
    Timeline,
)
from phasewise.core.worker import WorkerRef


@dataclass(slots=True)
class RequestRecording:
    """The record of one request. Times are monotonic; `unix_offset_s` converts them to Unix time."""

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
    _account: EngineAccount = NO_ACCOUNT
    _finished_s: float | None = None
    _closed_s: float = 0.0

    @property
    def ttft_s(self) -> float | None:
        """The time to first token, if there was one."""
        return self._content_times_s[0] - self.intended_s if self._content_times_s else None

    @property
    def mean_gap_s(self) -> float | None:
        """The mean gap between the chunks seen so far."""
        times_s = self._content_times_s
        return (times_s[-1] - times_s[0]) / (len(times_s) - 1) if len(times_s) > 1 else None

    def sent(self, now_s: float) -> None:
        """The request was sent."""
        self._sent_s = now_s

    def saw(self, chunk: Chunk, now_s: float) -> None:
        """A chunk arrived."""
        if chunk.has_content:
            self._content_times_s.append(now_s)
        if chunk.finish_reason is not None:
            self.finish_reason, self._finished_s = chunk.finish_reason, now_s
        self._account = chunk.account or self._account

    def end(self, outcome: Outcome, reason: str | None = None) -> None:
        """The request has ended."""
        self.outcome, self.reason = outcome, reason

    def close(self, now_s: float) -> None:
        """No more chunks will arrive."""
        self._closed_s = now_s

    def timeline(self) -> Timeline:
        """The timeline of the request after its end.

        It is computed after the run: hashing a long prompt would delay the requests that are due.
        """
        run_id, _, _ = self.request_id.rpartition("-")
        marks_key = run_id.encode()[:64]
        prompt = orjson.dumps(self.messages)
        text = "\n".join(message.content for message in self.messages).encode()
        return Timeline(
            request_id=self.request_id,
            started_unix_s=self.intended_s + self.unix_offset_s,
            model=self.model,
            outcome=self.outcome,
            ended_s=self._closed_s - self.intended_s,
            attempts=self._attempts(),
            spans=self._own_spans(),
            content_times_s=tuple(at_s - self.intended_s for at_s in self._content_times_s),
            prompt_tokens=self._account.prompt_tokens,
            cached_tokens=self._account.cached_tokens,
            output_tokens=self._account.output_tokens,
            finish_reason=self.finish_reason,
            reason=self.reason,
            prefix_marks=prefix_marks(prompt, marks_key),
            prompt_bytes=len(prompt),
            finished_s=None if self._finished_s is None else self._finished_s - self.intended_s,
            text_marks=text_marks(text, marks_key),
        )

    def _attempts(self) -> tuple[Attempt, ...]:
        if self._sent_s is None:
            return ()
        attempt = Attempt(
            kind=AttemptKind.LOCAL,
            worker=WorkerRef(self.url, ""),
            started_s=self._sent_s - self.intended_s,
            ended_s=self._closed_s - self.intended_s,
            outcome=self.outcome,
            engine_request_id=self.engine_request_id,
            spans=self._account.spans,
        )
        return (attempt,)

    def _own_spans(self) -> tuple[Span, ...]:
        if self._sent_s is None:
            return ()
        lag_s = max(self._sent_s - self.intended_s, 0.0)
        return (Span(Part.CLIENT_LAG, Source.CLIENT_CLOCK, lag_s, start_s=0.0),)


# --- The body of one planned request, and whether a server accepts a fixed answer length.

REJECTIONS = frozenset({400, 422})
REPLY_LIMIT_BYTES = 1024 * 1024


def request_body(model: str, messages: Sequence[Message], max_tokens: int, *, fixed: bool) -> bytes:
    """A streamed chat request; `fixed` requires exactly `max_tokens`, which vLLM supports."""
    body: dict[str, object] = {
        "model": model,
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if fixed:
        body |= {"ignore_eos": True, "min_tokens": max_tokens}
    return orjson.dumps(body)


async def allows_fixed_lengths(client: HttpClient, target: Target) -> bool:
    """Request one token with the fields that fix a length: not every server accepts them.

    Checked once before the run, because a rejection during it may have other reasons. If the server rejects
    the same request without the fields as well, the check is inconclusive.
    """
    return not (
        await _status(client, target, fixed=True) in REJECTIONS
        and await _status(client, target, fixed=False) == 200
    )


async def _status(client: HttpClient, target: Target, *, fixed: bool) -> int:
    body = request_body(target.model, (Message("user", "Hello"),), 1, fixed=fixed)
    try:
        reply = await client.send("POST", Endpoint.CHAT, headers=target.headers, body=body)
        async with reply:
            await reply.read_all(REPLY_LIMIT_BYTES)
            return reply.status
    except UpstreamError:
        return 0


CUT_SHORT = "cut_short"
"""The reason recorded for a request that was in flight when the run was stopped."""


@dataclass(frozen=True, slots=True)
class GeneratorHealth:
    """How well the generator worked, apart from what it measured.

    `loop_lags_s` are samples of how late the event loop was to a timer: chunks are stamped that late.
    `held_back` requests were sent late because the limit of open requests was reached.
    """

    loop_lags_s: tuple[float, ...] = ()
    cpu_s: float = 0.0
    held_back: int = 0


@dataclass(frozen=True, slots=True)
class BenchRun:
    """What a run measured.

    `unsent` requests of the plan were never due or never sent. `fixed_lengths` says that the engine accepted
    fixed output lengths, `primed` that every prompt was sent once before, to warm the prefix cache.
    `rejections` has the gateway's words for each of its codes.
    """

    target: Target
    plan: Plan
    timelines: tuple[Timeline, ...]
    wall_s: float
    started_unix_s: float = 0.0
    cut_short: bool = False
    fixed_lengths: bool = True
    primed: bool = False
    health: GeneratorHealth = field(default_factory=GeneratorHealth)
    engine: EngineRecord | None = None
    cpu_samples: Sequence[CpuTimes] = ()
    rejections: Mapping[str, str] = field(default_factory=dict)

    @property
    def unsent(self) -> int:
        """How many planned requests were not sent."""
        return len(self.plan.requests) - len(self.timelines)

    @property
    def used_up(self) -> bool:
        """Whether a closed loop ran out of requests before its time was over."""
        limit_s = self.plan.duration_s
        closed = isinstance(self.plan.load, ClosedLoop)
        return closed and limit_s is not None and self.unsent == 0 and self.wall_s < limit_s
