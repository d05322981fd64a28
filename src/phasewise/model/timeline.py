"""The timeline of a request: a tree of attempts and spans, each span with the clock that saw it.

Producers are the gateway, the load generator and, later, the simulator; metrics, diagnosis and costs read
only this. Latency definitions (TTFT, TPOT, ...) stand in latency.py, the stored form in timeline_record.py.
"""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum

from phasewise.model.caching import CacheNote
from phasewise.model.decision import Option
from phasewise.model.noun import noun
from phasewise.model.worker import WorkerRef

TIMELINE_VERSION = 1


class Source(StrEnum):
    """Who saw a span."""

    CLIENT_CLOCK = "client_clock"
    GATEWAY_CLOCK = "gateway_clock"
    ENGINE_REPORT = "engine_report"
    STEP_RECORD = "step_record"
    DERIVED = "derived"


class Part(StrEnum):
    """What a span is a part of. All but `decode`, which is what comes after, make up TTFT."""

    CLIENT_LAG = "client_lag"
    GATEWAY_WAIT = "gateway_wait"
    CACHE_LOOK_UP = "cache_look_up"
    EARLIER_ATTEMPTS = "earlier_attempts"
    STEP_IN_FLIGHT = "step_in_flight"
    ENGINE_QUEUE = "engine_queue"
    PREFILL = "prefill"
    PREFILL_OTHERS = "prefill_others"
    HAND_OVER = "hand_over"
    DECODE = "decode"


TTFT_PARTS = tuple(part for part in Part if part is not Part.DECODE)


class AttemptKind(StrEnum):
    """What an attempt was for. A decode side stands right after the prefill side that it has its KV from."""

    LOCAL = "local"
    PREFILL_SIDE = "prefill_side"
    DECODE_SIDE = "decode_side"
    RESUMED = "resumed"


class Outcome(StrEnum):
    """How an attempt or a whole request ended; one that is `unfinished` is looked at, never recorded."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    REJECTED = "rejected"
    UNFINISHED = "unfinished"


@noun
class Span:
    """A stretch of time that belongs to a part.

    `start_s` counts from the timeline's start and is None where only the duration is known. `within` names
    the part whose reported duration contains this span: there, this span's time is counted once, here.
    """

    part: Part
    source: Source
    duration_s: float
    start_s: float | None = None
    within: Part | None = None


@noun
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


@noun
class Placement:
    """Why the request went where it went: the rule, its reason, and what was expected of the ways it had.

    The way that was taken stands first; it is the first attempt's, later ones had fewer to choose from.
    """

    policy: str
    reason: str
    options: tuple[Option, ...] = ()


@noun
class Timeline:
    """Everything known of one request's time. Offsets are seconds since `started_unix_s`.

    The start is the *intended* arrival: when the load generator meant to send, or when the gateway had read
    the request's head. `content_times_s` holds one offset per chunk that carried content; tokens are counted
    apart, because chunks are not tokens. `prefix_marks` tell equal beginnings of prompts, `text_marks` equal
    text anywhere in them (prefix_marks.py). `finished_s` is the chunk that announced the end, which may carry
    no text; with several `choices` the streams of all of them are interleaved. `client_request_id` is what
    the client called its request; nothing makes it unique. `client_blocked_s` is how long the stream waited
    for its client to take what had come, None where nobody could see it. A reply that was not `streamed`
    comes as a whole: nobody waited for its first token, and none was seen. One that does not `generate`, an
    embedding, has no token at all. `cache` is what it had of the answer cache, None where there is none; an
    answer from there has no attempts, and one that was sent in one piece a single content time.
    """

    request_id: str
    started_unix_s: float
    model: str
    outcome: Outcome
    ended_s: float
    attempts: tuple[Attempt, ...] = ()
    spans: tuple[Span, ...] = ()
    content_times_s: tuple[float, ...] = ()
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
    version: int = field(default=TIMELINE_VERSION)

    @property
    def serving_attempt(self) -> Attempt | None:
        """The attempt that produced the first content, or the last one if none did.

        What was resumed had been begun by the attempt before. Of a pair that handed KV over it is the decode
        side.
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
        """Whether no worker had a part in the answer: it was there, or was made for somebody else."""
        return not self.attempts and self.cache is not None and self.cache.result.served

    @property
    def prefill_attempt(self) -> Attempt | None:
        """The attempt that computed the prompt for the serving one; None where that did so itself."""
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
        """The attempt that computed the prompt: its engine's prefix cache is the one that counted."""
        return self.prefill_attempt or self.serving_attempt

    @property
    def tries(self) -> int:
        """How often the request was tried; both sides of a hand-over are one try."""
        return sum(attempt.kind is not AttemptKind.DECODE_SIDE for attempt in self.attempts)
