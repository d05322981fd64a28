"""One second of the live view: a state, not a verdict. The terminal and the page show the same snapshot."""

from __future__ import annotations

from dataclasses import fields, replace
from enum import StrEnum
from typing import Any

from phasewise.core.slo import DEFAULT_SLO, Slo
from phasewise.core.value import value
from phasewise.diagnosis.rules.affected import slow_phases, too_many_fail

LIVE_VERSION = 1
UNEXPLAINED = "unexplained"
MIN_REQUESTS = 3
"""Fewer requests than this have no state, as in a verdict."""


class LiveState(StrEnum):
    """What is slow now, in the words of a verdict."""

    SLOW_TO_START = "slow_to_start"
    SLOW_TO_STREAM = "slow_to_stream"
    FAILING = "failing"
    HEALTHY = "healthy"
    NOT_ENOUGH_TRAFFIC = "not_enough_traffic"


class RequestStatus(StrEnum):
    """Where a request is."""

    WAITS = "waits"
    STREAMS = "streams"
    STANDS_STILL = "stands still"
    ENDED = "ended"
    FAILED = "failed"


@value
class LivePart:
    """A part of a mean latency."""

    part: str
    seconds: float


@value
class LivePhase:
    """One phase over the window. `over` of `requests` missed the objective; the parts add up to `mean_s`.

    With `at_least` the quantiles are lower bounds, because too many requests have no first token yet.
    """

    requests: int
    over: int
    p50_s: float
    p90_s: float
    mean_s: float
    parts: tuple[LivePart, ...] = ()
    at_least: bool = False

    @property
    def largest(self) -> LivePart | None:
        return max(self.parts, key=lambda part: part.seconds, default=None)


@value
class LiveEngine:
    """An engine now. What it does not report is None. `ttft_s` and `tpot_s` are means over the window.

    `open_requests` are those that the gateway has there; `prefix_hits` is the share of prompt tokens from the
    prefix cache and `step_s` the mean time of a step, both over some seconds; `read_unix_s` is when it was
    asked.
    """

    name: str
    health: str = "up"
    note: str = ""
    open_requests: int | None = None
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    prefix_hits: float | None = None
    step_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    read_unix_s: float | None = None


@value
class LiveTenant:
    """A tenant's open requests, and how many of them wait in the gateway's queue."""

    tenant: str
    open_requests: int
    waiting: int


@value
class LiveRequest:
    """A request worth a look. `pace_s` is the recent time between chunks of its stream, `silent_s` the time
    since the last one; `held_by` is what holds a stream that stands still.
    """

    request_id: str
    status: RequestStatus
    tenant: str
    engine: str
    age_s: float
    ttft_s: float | None = None
    tpot_s: float | None = None
    silent_s: float | None = None
    held_by: str = ""


@value
class LiveFailure:
    """How many requests were not served for this reason: the gateway's code, or how they ended."""

    reason: str
    requests: int


@value
class LivePoint:
    """One second of the past: medians of the first tokens and of the streams in it, and how many requests
    ended.
    """

    at_unix_s: float
    ttft_s: float | None
    tpot_s: float | None
    requests: int


@value
class LiveSnapshot:
    """Everything that the live view shows. Latencies are over the last `window_s`.

    `phase_part` is the largest part of the slow phase. `failures` are the `failed` requests by reason, most
    frequent first. `not_observed` says what this source cannot show.
    """

    at_unix_s: float
    source: str
    window_s: float = 0.0
    slo_ttft_s: float = DEFAULT_SLO.ttft_s
    slo_tpot_s: float = DEFAULT_SLO.tpot_s
    state: LiveState = LiveState.NOT_ENOUGH_TRAFFIC
    also_slow: LiveState | None = None
    phase_part: LivePart | None = None
    start: LivePhase | None = None
    stream: LivePhase | None = None
    requests_per_s: float | None = None
    tokens_per_s: float | None = None
    open_requests: int = 0
    waiting: int = 0
    ended: int = 0
    failed: int = 0
    failures: tuple[LiveFailure, ...] = ()
    engines: tuple[LiveEngine, ...] = ()
    tenants: tuple[LiveTenant, ...] = ()
    requests: tuple[LiveRequest, ...] = ()
    still: int = 0
    history: tuple[LivePoint, ...] = ()
    not_observed: tuple[str, ...] = ()
    version: int = LIVE_VERSION


def judged(
    counted: LiveSnapshot, start: LivePhase | None, stream: LivePhase | None, slo: Slo
) -> LiveSnapshot:
    """The same snapshot with both phases and the state that they make, by the thresholds of a verdict."""
    state, also = _states(start, stream, counted.failed, counted.ended + counted.open_requests)
    slow = {LiveState.SLOW_TO_START: start, LiveState.SLOW_TO_STREAM: stream}.get(state)
    return replace(
        counted,
        slo_ttft_s=slo.ttft_s,
        slo_tpot_s=slo.tpot_s,
        state=state,
        also_slow=also,
        phase_part=None if slow is None else slow.largest,
        start=start,
        stream=stream,
    )


def _states(
    start: LivePhase | None, stream: LivePhase | None, failed: int, requests: int
) -> tuple[LiveState, LiveState | None]:
    """The state, and the other phase if that is slow too. The one that more requests suffer from is first."""
    starts, late = (0, 0) if start is None else (start.requests, start.over)
    streams, slow = (0, 0) if stream is None else (stream.requests, stream.over)
    if max(starts, streams, requests) < MIN_REQUESTS:
        return LiveState.NOT_ENOUGH_TRAFFIC, None
    starts_late, streams_slowly = slow_phases(late, starts, slow, streams)
    both = LiveState.SLOW_TO_START, LiveState.SLOW_TO_STREAM
    if starts_late and streams_slowly:
        return both if late * streams >= slow * starts else both[::-1]
    if starts_late or streams_slowly:
        return both[streams_slowly], None
    return (LiveState.FAILING if too_many_fail(failed, requests) else LiveState.HEALTHY), None


_NESTED: dict[str, Any] = {
    "start": LivePhase,
    "stream": LivePhase,
    "phase_part": LivePart,
    "parts": LivePart,
    "engines": LiveEngine,
    "tenants": LiveTenant,
    "requests": LiveRequest,
    "history": LivePoint,
    "failures": LiveFailure,
}
_ENUMS: dict[str, Any] = {"state": LiveState, "also_slow": LiveState, "status": RequestStatus}


def snapshot_from(record: dict[str, Any]) -> LiveSnapshot:
    """The snapshot from plain JSON types; unknown keys are ignored."""
    return _read(LiveSnapshot, record)  # type: ignore[no-any-return]


def _read(cls: Any, record: dict[str, Any]) -> Any:  # noqa: ANN401 - one of the classes above
    known = {field.name for field in fields(cls)}
    return cls(**{name: _value(name, given) for name, given in record.items() if name in known})


def _value(name: str, given: Any) -> Any:  # noqa: ANN401 - a field of any of the classes above
    if isinstance(given, list):
        nested = _NESTED.get(name)
        return tuple(given if nested is None else (_read(nested, item) for item in given))
    if isinstance(given, dict):
        return _read(_NESTED[name], given)
    return _ENUMS[name](given) if name in _ENUMS and given is not None else given
