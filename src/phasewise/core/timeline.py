"""The timeline of a request: a tree of attempts and spans, each span with the clock that measured it.

The gateway, the load generator and the simulator produce timelines; metrics, diagnosis and costs read
only them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from enum import StrEnum

from phasewise.core.caching import CacheNote
from phasewise.core.decision import Option
from phasewise.core.trace_context import TraceContext
from phasewise.core.value import value
from phasewise.core.worker import WorkerRef

TIMELINE_VERSION = 1


class Source(StrEnum):
    """Which clock measured a span."""

    CLIENT_CLOCK = "client_clock"
    GATEWAY_CLOCK = "gateway_clock"
    ENGINE_REPORT = "engine_report"
    STEP_RECORD = "step_record"
    DERIVED = "derived"


class Part(StrEnum):
    """What a span is a part of. All parts but `decode` make up TTFT."""

    CLIENT_LAG = "client_lag"
    GATEWAY_WAIT = "gateway_wait"
    CACHE_LOOK_UP = "cache_look_up"
    EARLIER_ATTEMPTS = "earlier_attempts"
    STEP_IN_FLIGHT = "step_in_flight"
    ENGINE_QUEUE = "engine_queue"
    PREFILL = "prefill"
    PREFILL_OTHERS = "prefill_others"
    KV_TRANSFER = "kv_transfer"
    DECODE = "decode"


TTFT_PARTS = tuple(part for part in Part if part is not Part.DECODE)


class AttemptKind(StrEnum):
    """What an attempt was for. A decode side directly follows the prefill side that computed its KV."""

    LOCAL = "local"
    PREFILL_SIDE = "prefill_side"
    DECODE_SIDE = "decode_side"
    RESUMED = "resumed"


class Outcome(StrEnum):
    """How an attempt or a whole request ended; `unfinished` ones are shown, but never recorded."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    REJECTED = "rejected"
    UNFINISHED = "unfinished"


@value
class Span:
    """A stretch of time that belongs to a part.

    `start_s` counts from the timeline's start and is None where only the duration is known. `within` names
    the part whose reported duration contains this span: its time then counts here, and not there.
    """

    part: Part
    source: Source
    duration_s: float
    start_s: float | None = None
    within: Part | None = None


@value
class EngineAccount:
    """What an engine and its stream report about one attempt; None where it was not observed.

    `cached_tokens` may need a setting of the engine; a cold prompt is then 0. `queue_s`, `prefill_s` and
    `decode_s` are as the engine reports them: on a worker that fetched its KV, `queue_s` contains the KV
    transfer. `gap_s` is the median gap between two tokens, which stalls hardly affect.
    """

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    gap_s: float | None = None

    @property
    def spans(self) -> tuple[Span, ...]:
        """The phases that the engine timed. It reports durations, not start times."""
        phases = (
            (Part.ENGINE_QUEUE, self.queue_s),
            (Part.PREFILL, self.prefill_s),
            (Part.DECODE, self.decode_s),
        )
        return tuple(
            Span(part, Source.ENGINE_REPORT, seconds) for part, seconds in phases if seconds is not None
        )


NO_ACCOUNT = EngineAccount()


@value
class Attempt:
    """One try at one worker."""

    kind: AttemptKind
    worker: WorkerRef
    started_s: float
    ended_s: float
    outcome: Outcome
    engine_request_id: str | None = None
    spans: tuple[Span, ...] = ()
    note: str | None = None


@value
class Placement:
    """Why the request went where it did: the rule, its reason, and what was expected of each option.

    The chosen option comes first. It belongs to the first attempt; later attempts had fewer options.
    """

    policy: str
    reason: str
    options: tuple[Option, ...] = ()


@value
class GatewayTimes:
    """How long a request's stages in the gateway took: the limits of its key, the reading of its body as its
    client sent it, parsing, and the wait for a slot before its first attempt. The rest of the gateway's wait
    is placement and connecting.
    """

    limits_s: float = 0.0
    reading_s: float = 0.0
    parsing_s: float = 0.0
    queue_s: float = 0.0

    @property
    def stages(self) -> tuple[tuple[str, float], ...]:
        """Each stage's name and seconds, in order."""
        times_s = (self.limits_s, self.reading_s, self.parsing_s, self.queue_s)
        return tuple(zip(("limits", "reading", "parsing", "queue"), times_s, strict=True))


@value
class Timeline:
    """Everything known about one request's time. Offsets are seconds since `started_unix_s`.

    The start is the *intended* arrival: when the load generator meant to send, or when the gateway had read
    the request's head. `content_times_s` holds one offset per chunk that carried content (of long streams an
    array); tokens are counted separately, because chunks are not tokens. `prefix_marks` identify equal prompt
    prefixes, `text_marks` equal text anywhere in prompts. `finished_s` is the time of the chunk that
    announced the end, which may carry no text. With several `choices`, their streams are interleaved.
    `client_request_id` is the client's own name for its request and need not be unique. `client_blocked_s` is
    how long the stream waited for its client to read, None where that was not observed. A reply that was not
    `streamed` arrives as a whole and has no first-token time. A request that does not `generate`, an
    embedding, has no output tokens. `cache` is the outcome of its cache lookup, None without a cache; an
    answer from the cache has no attempts, and has a single content time if it was sent in one piece. `trace`
    is what its client or the gateway traces. `in_gateway` is None where the stages were not measured.
    """

    request_id: str
    started_unix_s: float
    model: str
    outcome: Outcome
    ended_s: float
    attempts: tuple[Attempt, ...] = ()
    spans: tuple[Span, ...] = ()
    content_times_s: Sequence[float] = ()
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    tenant: str = "default"
    slo_class: str = "default"
    reason: str | None = None
    prefix_marks: tuple[str, ...] = ()
    prompt_bytes: int | None = None
    finished_s: float | None = None
    choices: int = 1
    client_request_id: str | None = None
    text_marks: tuple[str, ...] = ()
    client_blocked_s: float | None = None
    streamed: bool = True
    generates: bool = True
    placement: Placement | None = None
    cache: CacheNote | None = None
    trace: TraceContext | None = None
    in_gateway: GatewayTimes | None = None
    version: int = field(default=TIMELINE_VERSION)

    @property
    def serving_attempt(self) -> Attempt | None:
        """The attempt that produced the first content, or the last one if none did.

        For a resumed answer this is the attempt that began it. After a KV transfer it is the decode side.
        """
        serving: Attempt | None = None
        for attempt in self.attempts:
            if attempt.kind is AttemptKind.RESUMED:
                break
            serving = attempt
            if attempt.outcome is Outcome.SUCCEEDED and attempt.kind is not AttemptKind.PREFILL_SIDE:
                break
        return serving

    @property
    def from_cache(self) -> bool:
        """Whether no worker computed this answer: it was stored, or generated for another request."""
        return not self.attempts and self.cache is not None and self.cache.result.served

    @property
    def prefill_attempt(self) -> Attempt | None:
        """The attempt that computed the prompt for the serving one; None where that computed it itself."""
        serving = self.serving_attempt
        if serving is None or serving.kind is not AttemptKind.DECODE_SIDE:
            return None
        before: Attempt | None = None
        for attempt in self.attempts:
            if attempt is serving:
                break
            before = attempt
        return before if before is not None and before.kind is AttemptKind.PREFILL_SIDE else None

    @property
    def reading_attempt(self) -> Attempt | None:
        """The attempt that computed the prompt, and whose engine's prefix cache applied."""
        return self.prefill_attempt or self.serving_attempt

    @property
    def tries(self) -> int:
        """How often the request was tried; both sides of a KV transfer count as one."""
        return sum(attempt.kind is not AttemptKind.DECODE_SIDE for attempt in self.attempts)
