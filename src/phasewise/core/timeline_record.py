"""The stored form of a timeline: versioned, compact JSON.

Times are whole units of 100 microseconds and content times are differences, so that a stream of 200 tokens
stays under 2 KB. Fields that hold their default are left out; unknown fields are ignored.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import orjson

from phasewise.core.caching import CacheNote, CacheResult
from phasewise.core.content_times import differences
from phasewise.core.decision import Option, Terms
from phasewise.core.errors import ConfigError
from phasewise.core.timeline import (
    TIMELINE_VERSION,
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

UNIT_S = 1e-4
_UNITS_PER_S = 10_000
_OPTIONAL = {
    "in": "prompt_tokens",
    "cached": "cached_tokens",
    "out": "output_tokens",
    "finish": "finish_reason",
    "why": "reason",
    "bytes": "prompt_bytes",
    "client_id": "client_request_id",
}
_OPTIONAL_TIMES = {"finished": "finished_s", "blocked": "client_blocked_s"}
_CACHE_TIMES = {
    "look_up": "look_up_s",
    "embed": "embed_s",
    "start": "saved_start_s",
    "stream": "saved_stream_s",
}
_CACHE_OPTIONAL = {"why": "reason", "near": "similarity", "age": "age_s", "tokens": "saved_tokens"}
_DEFAULTED = ("tenant", "slo_class", "choices", "streamed", "generates")

Record = dict[str, Any]


def encode(timeline: Timeline) -> bytes:
    """The timeline as one line of JSON."""
    return orjson.dumps(to_record(timeline))


def decode(line: bytes) -> Timeline:
    """The timeline that `encode` wrote."""
    return from_record(orjson.loads(line))


def to_record(timeline: Timeline) -> Record:
    """The timeline as plain JSON types."""
    record: Record = {
        "v": timeline.version,
        "id": timeline.request_id,
        "at": timeline.started_unix_s,
        "model": timeline.model,
        "outcome": timeline.outcome,
        "end": _units(timeline.ended_s),
        "attempts": [_attempt_record(attempt) for attempt in timeline.attempts],
        "spans": [_span_record(span) for span in timeline.spans],
        "content": differences(timeline.content_times_s, _UNITS_PER_S) if timeline.content_times_s else [],
    }
    _add_optional(record, timeline)
    _add_unusual(record, timeline)
    return record


# The tables above, unrolled: a gateway writes a record of every request, and loops take twice as long.


def _add_optional(record: Record, timeline: Timeline) -> None:
    if timeline.prompt_tokens is not None:
        record["in"] = timeline.prompt_tokens
    if timeline.cached_tokens is not None:
        record["cached"] = timeline.cached_tokens
    if timeline.output_tokens is not None:
        record["out"] = timeline.output_tokens
    if timeline.finish_reason is not None:
        record["finish"] = timeline.finish_reason
    if timeline.reason is not None:
        record["why"] = timeline.reason
    if timeline.prompt_bytes is not None:
        record["bytes"] = timeline.prompt_bytes
    if timeline.client_request_id is not None:
        record["client_id"] = timeline.client_request_id
    if timeline.finished_s is not None:
        record["finished"] = _units(timeline.finished_s)
    if timeline.client_blocked_s is not None:
        record["blocked"] = _units(timeline.client_blocked_s)


def _add_unusual(record: Record, timeline: Timeline) -> None:
    if timeline.prefix_marks:
        record["marks"] = timeline.prefix_marks
    if timeline.text_marks:
        record["text"] = timeline.text_marks
    if timeline.tenant != "default":
        record["tenant"] = timeline.tenant
    if timeline.slo_class != "default":
        record["slo_class"] = timeline.slo_class
    if timeline.choices != 1:
        record["choices"] = timeline.choices
    if not timeline.streamed:
        record["streamed"] = False
    if not timeline.generates:
        record["generates"] = False
    _add_nested(record, timeline)


def _add_nested(record: Record, timeline: Timeline) -> None:
    if (placement := timeline.placement) is not None:
        options = [_option_record(option) for option in placement.options]
        record["placement"] = {"policy": placement.policy, "reason": placement.reason, "options": options}
    if timeline.cache is not None:
        record["cache"] = _cache_record(timeline.cache)
    if timeline.trace is not None:
        record["trace"] = _trace_record(timeline.trace)
    if (times := timeline.in_gateway) is not None:
        units = [_units(seconds) for _, seconds in times.stages]
        if any(units):
            record["in_gateway"] = units


def from_record(record: Record) -> Timeline:
    """The timeline from plain JSON types; a record of another version is rejected."""
    if record.get("v") != TIMELINE_VERSION:
        raise ConfigError(
            f"a timeline record of version {record.get('v')!r} cannot be read",
            hint=f"this phasewise reads version {TIMELINE_VERSION}; use the phasewise that wrote it",
        )
    placement = record.get("placement")
    options = () if placement is None else tuple(map(_option, placement["options"]))
    return Timeline(
        request_id=record["id"],
        started_unix_s=record["at"],
        model=record["model"],
        outcome=Outcome(record["outcome"]),
        ended_s=record["end"] * UNIT_S,
        attempts=tuple(_attempt(item) for item in record["attempts"]),
        spans=tuple(_span(item) for item in record["spans"]),
        content_times_s=tuple(units * UNIT_S for units in accumulate(record["content"])),
        **{name: record[key] for key, name in _OPTIONAL.items() if key in record},
        **{name: record[key] * UNIT_S for key, name in _OPTIONAL_TIMES.items() if key in record},
        prefix_marks=tuple(record.get("marks", ())),
        text_marks=tuple(record.get("text", ())),
        **{name: record[name] for name in _DEFAULTED if name in record},
        placement=None if placement is None else Placement(placement["policy"], placement["reason"], options),
        cache=_cache(record["cache"]) if "cache" in record else None,
        trace=TraceContext(**record["trace"]) if "trace" in record else None,
        in_gateway=GatewayTimes(*(units * UNIT_S for units in record["in_gateway"]))
        if "in_gateway" in record
        else None,
    )


def _units(seconds: float) -> int:
    return round(seconds * _UNITS_PER_S)


def _attempt_record(attempt: Attempt) -> Record:
    record: Record = {
        "kind": attempt.kind,
        "worker": [attempt.worker.name, attempt.worker.incarnation],
        "from": _units(attempt.started_s),
        "to": _units(attempt.ended_s),
        "outcome": attempt.outcome,
        "spans": [_span_record(span) for span in attempt.spans],
    }
    if attempt.engine_request_id is not None:
        record["engine_id"] = attempt.engine_request_id
    if attempt.note is not None:
        record["note"] = attempt.note
    return record


def _attempt(record: Record) -> Attempt:
    return Attempt(
        kind=AttemptKind(record["kind"]),
        worker=WorkerRef(*record["worker"]),
        started_s=record["from"] * UNIT_S,
        ended_s=record["to"] * UNIT_S,
        outcome=Outcome(record["outcome"]),
        engine_request_id=record.get("engine_id"),
        spans=tuple(_span(item) for item in record["spans"]),
        note=record.get("note"),
    )


def _trace_record(trace: TraceContext) -> Record:
    record: Record = {"trace_id": trace.trace_id, "parent_id": trace.parent_id, "flags": trace.flags}
    record |= {"spans": trace.spans, "operation": trace.operation}
    if trace.state:
        record["state"] = trace.state
    return record


def _cache_record(note: CacheNote) -> Record:
    record: Record = {"result": note.result}
    if note.reason is not None:
        record["why"] = note.reason
    if note.similarity is not None:
        record["near"] = round(note.similarity, 4)
    if note.age_s is not None:
        record["age"] = round(note.age_s)
    if look_up := _units(note.look_up_s):
        record["look_up"] = look_up
    if note.embed_s is not None:
        record["embed"] = _units(note.embed_s)
    if note.saved_start_s is not None:
        record["start"] = _units(note.saved_start_s)
    if note.saved_stream_s is not None:
        record["stream"] = _units(note.saved_stream_s)
    if note.saved_tokens is not None:
        record["tokens"] = note.saved_tokens
    return record


def _cache(record: Record) -> CacheNote:
    return CacheNote(
        result=CacheResult(record["result"]),
        **{name: record[key] for key, name in _CACHE_OPTIONAL.items() if key in record},
        **{name: record[key] * UNIT_S for key, name in _CACHE_TIMES.items() if key in record},
    )


def _option_record(option: Option) -> Record:
    terms = option.terms
    record: Record = {
        "worker": [option.worker.name, option.worker.incarnation],
        "terms": [
            _units(seconds)
            for seconds in (
                terms.wait_s,
                terms.prefill_s,
                terms.kv_transfer_s,
                terms.decode_s,
                terms.delay_s,
            )
        ],
        "in": option.prompt_tokens,
        "cached": option.cached_tokens,
    }
    if option.prefill is not None:
        record["prefill"] = [option.prefill.name, option.prefill.incarnation]
    return record


def _option(record: Record) -> Option:
    return Option(
        worker=WorkerRef(*record["worker"]),
        prefill=WorkerRef(*record["prefill"]) if "prefill" in record else None,
        terms=Terms(*(units * UNIT_S for units in record["terms"])),
        prompt_tokens=record["in"],
        cached_tokens=record["cached"],
    )


def _span_record(span: Span) -> list[Any]:
    fields: list[Any] = [span.part, span.source, _units(span.duration_s)]
    if span.start_s is not None or span.within is not None:
        fields.append(None if span.start_s is None else _units(span.start_s))
    if span.within is not None:
        fields.append(span.within)
    return fields


def _span(fields: list[Any]) -> Span:
    part, source, duration, start, within = [*fields, None, None][:5]
    return Span(
        part=Part(part),
        source=Source(source),
        duration_s=duration * UNIT_S,
        start_s=None if start is None else start * UNIT_S,
        within=None if within is None else Part(within),
    )
