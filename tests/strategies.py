"""Hypothesis strategies for the nouns."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import strategies as st

from phasewise.core.caching import CacheNote, CacheResult
from phasewise.core.timeline import TTFT_PARTS, Attempt, AttemptKind, Outcome, Source, Span, Timeline
from phasewise.core.trace_context import TraceContext
from phasewise.core.worker import WorkerRef

seconds = st.floats(min_value=0.0, max_value=100.0, allow_nan=False)
spans = st.builds(
    Span,
    part=st.sampled_from(TTFT_PARTS),
    source=st.sampled_from(Source),
    duration_s=seconds,
    start_s=st.none() | seconds,
    within=st.none() | st.sampled_from(TTFT_PARTS),
)
attempts = st.builds(
    Attempt,
    kind=st.sampled_from(AttemptKind),
    worker=st.builds(WorkerRef, name=st.text(max_size=8), incarnation=st.text(max_size=8)),
    started_s=seconds,
    ended_s=seconds,
    outcome=st.sampled_from(Outcome),
    engine_request_id=st.none() | st.text(max_size=20),
    spans=st.lists(spans, max_size=5).map(tuple),
    note=st.none() | st.text(max_size=20),
)
content_times = st.lists(st.floats(min_value=0.0, max_value=3.0), max_size=30).map(
    lambda gaps: tuple(accumulate(gaps))
)
marks = st.lists(st.text("0123456789abcdef", min_size=10, max_size=10), max_size=4).map(tuple)
counts = st.none() | st.integers(min_value=0, max_value=10_000)
cache_notes = st.builds(
    CacheNote,
    result=st.sampled_from(CacheResult),
    reason=st.none() | st.sampled_from(["tools", "negation"]),
    similarity=st.none() | st.floats(0.0, 1.0),
    age_s=st.none() | seconds,
    look_up_s=seconds,
    embed_s=st.none() | seconds,
    saved_start_s=st.none() | seconds,
    saved_stream_s=st.none() | seconds,
    saved_tokens=counts,
)
traces = st.builds(
    TraceContext,
    trace_id=st.just("4bf92f3577b34da6a3ce929d0e0e4736"),
    parent_id=st.none() | st.just("00f067aa0ba902b7"),
    flags=st.integers(min_value=0, max_value=255),
    spans=st.booleans(),
    operation=st.sampled_from(["chat", "embeddings"]),
    state=st.sampled_from(["", "vendor=1"]),
)
timelines = st.builds(
    Timeline,
    request_id=st.text(max_size=40),
    started_unix_s=st.floats(min_value=0, max_value=4e9),
    model=st.text(max_size=20),
    outcome=st.sampled_from(Outcome),
    ended_s=seconds,
    attempts=st.lists(attempts, max_size=3).map(tuple),
    spans=st.lists(spans, max_size=4).map(tuple),
    content_times_s=content_times,
    prompt_tokens=counts,
    cached_tokens=counts,
    output_tokens=counts,
    finish_reason=st.none() | st.sampled_from(["stop", "length"]),
    tenant=st.sampled_from(["default", "team-a"]),
    slo_class=st.sampled_from(["default", "batch"]),
    reason=st.none() | st.text(max_size=10),
    prompt_bytes=counts,
    finished_s=st.none() | seconds,
    choices=st.integers(min_value=1, max_value=4),
    client_request_id=st.none() | st.text(max_size=10),
    prefix_marks=marks,
    text_marks=marks,
    client_blocked_s=st.none() | seconds,
    streamed=st.booleans(),
    cache=st.none() | cache_notes,
    trace=st.none() | traces,
)
