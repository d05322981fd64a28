"""The last seconds of traffic, kept as sums per second, so that a snapshot costs little at any rate."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappush, heapreplace, nlargest
from operator import sub

from phasewise.core.latency import STALL_MIN_GAPS, longest_stall_s, tpot_s, ttft_part_seconds, ttft_s
from phasewise.core.slo import Slo
from phasewise.core.statistics import quantile, wait_quantile
from phasewise.core.timeline import Outcome, Part, Timeline
from phasewise.core.value import value
from phasewise.diagnosis.live.snapshot import (
    UNEXPLAINED,
    LivePart,
    LivePhase,
    LivePoint,
    LiveRequest,
    LiveState,
    RequestStatus,
)
from phasewise.diagnosis.rules.affected import UNSERVED, slow_phases, too_many_fail

WINDOW_S = 30
RATES_OVER_S = 10
HISTORY_S = 120
PACE_GAPS = 32
"""The last gaps of a stream that make up its pace."""
STILL_TIMES = 10.0
"""A stream stands still if it has been silent for this many times its own pace,"""
STILL_LEAST_S = 1.0
"""and for at least so long."""
NOTICED_STALL_TOKENS = 10
"""A stall as long as this many tokens of the objective makes a stream slow, as in a verdict."""
SLOWEST_PER_S = 3
MOST_REQUESTS = 20
MOST_RANKED = 1_000
"""Quantiles of more values than this are those of an even sample."""
MIN_REQUESTS = 3
"""Fewer requests than this have no state."""
DECODE, CLIENT = "decode", "client did not read"


@value
class OpenRequest:
    """A request that has not ended. `ttft_s` is None before its first chunk, `pace_s` before enough of them.

    `blocked`: its client does not read.
    """

    request_id: str
    tenant: str
    slo_class: str
    engine: str
    age_s: float
    ttft_s: float | None = None
    pace_s: float | None = None
    silent_s: float = 0.0
    blocked: bool = False
    streamed: bool = True

    @property
    def stands_still(self) -> bool:
        """Whether it has had no chunk for many times its own pace."""
        return self.pace_s is not None and self.silent_s >= max(STILL_LEAST_S, STILL_TIMES * self.pace_s)

    @property
    def per_token_s(self) -> float | None:
        """Its recent time per chunk; of one that stands still, with its silence."""
        if self.pace_s is None or not self.stands_still:
            return self.pace_s
        return self.pace_s + self.silent_s / PACE_GAPS

    def as_live(self, held_by: Callable[[OpenRequest], str]) -> LiveRequest:
        """Its row."""
        status = RequestStatus.WAITS if self.ttft_s is None else RequestStatus.STREAMS
        held = ""
        if self.stands_still:
            status, held = RequestStatus.STANDS_STILL, held_by(self)
        per_token_s, silent_s = self.per_token_s, None if self.ttft_s is None else self.silent_s
        who = (self.request_id, status, self.tenant, self.engine)
        return LiveRequest(*who, self.age_s, self.ttft_s, per_token_s, silent_s, held)


def pace(times_s: Sequence[float]) -> float | None:
    """The mean of a stream's last gaps; None if it has too few."""
    gaps = min(len(times_s) - 1, PACE_GAPS)
    return (times_s[-1] - times_s[-1 - gaps]) / gaps if gaps >= STALL_MIN_GAPS else None


class _EngineSums:
    """The sums of one engine's requests in one second."""

    __slots__ = ("starts", "streams", "tpot_s", "ttft_s")

    def __init__(self) -> None:
        self.starts = self.streams = 0
        self.ttft_s = self.tpot_s = 0.0


class _Second:
    """The requests of one second: first tokens that came in it, requests that ended in it."""

    __slots__ = (
        "ended",
        "engines",
        "failed",
        "late",
        "parts",
        "silent",
        "slow",
        "slowest",
        "stream_parts",
        "tokens",
        "tpots",
        "ttfts",
    )

    def __init__(self) -> None:
        self.ttfts: list[float] = []
        self.tpots: list[float] = []
        self.silent: list[float] = []
        self.parts: dict[str, float] = {}
        self.stream_parts: dict[str, float] = {}
        self.ended = self.failed = self.late = self.slow = self.tokens = 0
        self.engines: dict[str, _EngineSums] = {}
        self.slowest: dict[str, list[tuple[float, str, LiveRequest]]] = {"ttft": [], "tpot": []}

    def engine(self, name: str) -> _EngineSums:
        """The sums of one engine."""
        found = self.engines.get(name)
        if found is None:
            found = self.engines[name] = _EngineSums()
        return found

    def keep(self, by: str, seconds: float, row: Callable[[], LiveRequest]) -> None:
        """Keep the row of a request that is among the slowest of this second."""
        kept = self.slowest[by]
        if len(kept) < SLOWEST_PER_S:
            heappush(kept, (seconds, (made := row()).request_id, made))
        elif seconds > kept[0][0]:
            heapreplace(kept, (seconds, (made := row()).request_id, made))


@dataclass(slots=True)
class Totals:
    """The window as it is now, before it is compared with an objective.

    `silent` are waits for a first token that have passed the objective, or ended without an answer. `engines`
    have the means of TTFT and TPOT.
    """

    window_s: float
    ttfts: list[float] = field(default_factory=list)
    tpots: list[float] = field(default_factory=list)
    silent: list[float] = field(default_factory=list)
    start_sums: dict[str, float] = field(default_factory=dict)
    stream_sums: dict[str, float] = field(default_factory=dict)
    ttft_sum_s: float = 0.0
    tpot_sum_s: float = 0.0
    starts: int = 0
    streams: int = 0
    late: int = 0
    slow: int = 0
    ended: int = 0
    failed: int = 0
    requests_per_s: float = 0.0
    tokens_per_s: float = 0.0
    engines: dict[str, tuple[float | None, float | None]] = field(default_factory=dict)
    requests: tuple[LiveRequest, ...] = ()
    still: int = 0


class LiveWindow:
    """Takes every request that ended, and gives totals of the last seconds. `slo_of` a class of requests."""

    def __init__(self, slo_of: Callable[[str], Slo]) -> None:
        self._slo_of = slo_of
        self._seconds: dict[int, _Second] = {}
        self._points: deque[LivePoint] = deque(maxlen=HISTORY_S)
        self._began_s: float | None = None

    @property
    def history(self) -> tuple[LivePoint, ...]:
        """The last seconds, oldest first."""
        return tuple(self._points)

    def begin(self, unix_s: float) -> None:
        """Requests are taken since this time; what was before is unknown."""
        self._seconds.clear()
        self._points.clear()
        self._began_s = unix_s

    def covers_since(self, unix_s: float) -> None:
        """Requests that ended before this time are missing."""
        self._began_s = unix_s

    def add(self, timeline: Timeline) -> None:
        """A request has ended."""
        if not timeline.generates or timeline.from_cache:
            return
        ended_s = timeline.started_unix_s + timeline.ended_s
        at_end = self._second(ended_s)
        at_end.ended += 1
        at_end.tokens += timeline.output_tokens or 0
        at_end.failed += timeline.outcome in UNSERVED
        slo = self._slo_of(timeline.slo_class)
        first_s, serving = ttft_s(timeline), timeline.serving_attempt
        engine = "" if serving is None else serving.worker.name
        if first_s is None:
            if timeline.streamed and timeline.outcome is not Outcome.SUCCEEDED:
                at_end.silent.append(timeline.ended_s)
                at_end.late += timeline.ended_s > slo.ttft_s
            return
        self._add_start(timeline, first_s, engine, slo)
        per_token_s = tpot_s(timeline)
        if per_token_s is not None:
            at_end.tpots.append(per_token_s)
            _add_stream(at_end, timeline, per_token_s)
            sums = at_end.engine(engine)
            sums.streams += 1
            sums.tpot_s += per_token_s
            at_end.slow += per_token_s > slo.tpot_s or _stalled(timeline, slo)
            at_end.keep("tpot", per_token_s, lambda: _row(timeline, engine))

    def _add_start(self, timeline: Timeline, first_s: float, engine: str, slo: Slo) -> None:
        second = self._second(timeline.started_unix_s + first_s)
        second.ttfts.append(first_s)
        second.late += first_s > slo.ttft_s
        parts, explained_s = second.parts, 0.0
        for (part, _), seconds in ttft_part_seconds(timeline, first_s).items():
            parts[part] = parts.get(part, 0.0) + seconds
            explained_s += seconds
        parts[UNEXPLAINED] = parts.get(UNEXPLAINED, 0.0) + first_s - explained_s
        sums = second.engine(engine)
        sums.starts += 1
        sums.ttft_s += first_s
        second.keep("ttft", first_s, lambda: _row(timeline, engine))

    def _second(self, unix_s: float) -> _Second:
        found = self._seconds.get(int(unix_s))
        if found is None:
            found = self._seconds[int(unix_s)] = _Second()
        return found

    def totals(
        self,
        now_unix_s: float,
        open_requests: Sequence[OpenRequest],
        held_by: Callable[[OpenRequest], str] = lambda _request: "",
    ) -> Totals:
        """The window at this moment, with the requests that are open."""
        for old in [at for at in self._seconds if at < now_unix_s - HISTORY_S]:
            del self._seconds[old]
        self._make_points(now_unix_s, open_requests)
        first_s = now_unix_s - WINDOW_S
        since_s = first_s if self._began_s is None else max(first_s, self._began_s)
        totals = Totals(max(1.0, now_unix_s - since_s))
        seconds = [it for at, it in self._seconds.items() if at >= int(first_s)]
        engines: dict[str, _EngineSums] = {}
        for second in seconds:
            _sum_up(totals, second, engines)
        self._add_open(totals, open_requests)
        lately = [it for at, it in self._seconds.items() if at >= int(now_unix_s) - RATES_OVER_S]
        rates_over_s = min(float(RATES_OVER_S), totals.window_s)
        totals.requests_per_s = sum(it.ended for it in lately) / rates_over_s
        totals.tokens_per_s = sum(it.tokens for it in lately) / rates_over_s
        totals.starts, totals.streams = len(totals.ttfts) + len(totals.silent), len(totals.tpots)
        totals.ttft_sum_s, totals.tpot_sum_s = sum(totals.ttfts), sum(totals.tpots)
        totals.engines = {
            name: (
                it.ttft_s / it.starts if it.starts else None,
                it.tpot_s / it.streams if it.streams else None,
            )
            for name, it in engines.items()
        }
        totals.requests = _worth_a_look(seconds, open_requests, held_by)
        return totals

    def _add_open(self, totals: Totals, open_requests: Iterable[OpenRequest]) -> None:
        for it in open_requests:
            slo = self._slo_of(it.slo_class)
            if it.ttft_s is None:
                # As in a verdict: neither late nor in time before the objective has passed.
                if it.streamed and it.age_s > slo.ttft_s:
                    totals.silent.append(it.age_s)
                    totals.late += 1
                continue
            if it.age_s - it.ttft_s <= WINDOW_S:
                totals.ttfts.append(it.ttft_s)
                totals.late += it.ttft_s > slo.ttft_s
            still = it.stands_still
            if (per_token_s := it.per_token_s) is not None:
                totals.tpots.append(per_token_s)
                totals.slow += per_token_s > slo.tpot_s or still
            totals.still += still

    def _make_points(self, now_unix_s: float, open_requests: Sequence[OpenRequest]) -> None:
        """Add the seconds that have passed since the last point; the running one is not complete."""
        last = self._points[-1].at_unix_s if self._points else now_unix_s - HISTORY_S
        if not self._points and self._seconds:
            last = max(last, min(self._seconds) - 1)
        elif not self._points:
            last = now_unix_s - 2
        for at in range(int(last) + 1, int(now_unix_s)):
            second = self._seconds.get(at)
            firsts = [
                it.ttft_s
                for it in open_requests
                if it.ttft_s is not None and int(now_unix_s - it.age_s + it.ttft_s) == at
            ]
            ttfts = firsts if second is None else second.ttfts + firsts
            tpots = [] if second is None else list(second.tpots)
            if at == int(now_unix_s) - 1:
                tpots += [it.per_token_s for it in open_requests if it.per_token_s is not None]
            self._points.append(
                LivePoint(
                    float(at),
                    quantile(ttfts, 0.5) if ttfts else None,
                    quantile(tpots, 0.5) if tpots else None,
                    0 if second is None else second.ended,
                )
            )


def _stalled(timeline: Timeline, slo: Slo) -> bool:
    """Whether a noticeable stall was in the stream; the median is looked at only if a gap is long enough."""
    times, bound_s = timeline.content_times_s, NOTICED_STALL_TOKENS * slo.tpot_s
    if times[-1] - times[0] < bound_s or max(map(sub, times[1:], times), default=0.0) < bound_s:
        return False
    return (longest_stall_s(timeline) or 0.0) >= bound_s


def _add_stream(second: _Second, timeline: Timeline, per_token_s: float) -> None:
    """The parts of a token: the engine's decode time, the client that did not read, and the rest."""
    gaps = (timeline.output_tokens or 2) - 1
    serving = timeline.serving_attempt
    decode_s = sum(it.duration_s for it in serving.spans if it.part is Part.DECODE) if serving else 0.0
    client_s = timeline.client_blocked_s or 0.0
    known = {DECODE: decode_s / gaps, CLIENT: client_s / gaps}
    known[UNEXPLAINED] = per_token_s - sum(known.values())
    for part, seconds in known.items():
        second.stream_parts[part] = second.stream_parts.get(part, 0.0) + seconds


def _row(timeline: Timeline, engine: str) -> LiveRequest:
    status = RequestStatus.ENDED if timeline.outcome is Outcome.SUCCEEDED else RequestStatus.FAILED
    who = (timeline.request_id, status, timeline.tenant, engine)
    return LiveRequest(*who, timeline.ended_s, ttft_s(timeline), tpot_s(timeline))


def _sum_up(totals: Totals, second: _Second, engines: dict[str, _EngineSums]) -> None:
    totals.ttfts += second.ttfts
    totals.tpots += second.tpots
    totals.silent += second.silent
    for name in ("ended", "failed", "late", "slow"):
        setattr(totals, name, getattr(totals, name) + getattr(second, name))
    for sums, added in ((totals.start_sums, second.parts), (totals.stream_sums, second.stream_parts)):
        for part, seconds in added.items():
            sums[part] = sums.get(part, 0.0) + seconds
    for name, it in second.engines.items():
        whole = engines.get(name)
        if whole is None:
            whole = engines[name] = _EngineSums()
        whole.starts += it.starts
        whole.ttft_s += it.ttft_s
        whole.streams += it.streams
        whole.tpot_s += it.tpot_s


def _worth_a_look(
    seconds: Sequence[_Second], open_requests: Sequence[OpenRequest], held_by: Callable[[OpenRequest], str]
) -> tuple[LiveRequest, ...]:
    """Streams that stand still, requests that wait longest, and the slowest of the window."""
    still = nlargest(MOST_REQUESTS, (it for it in open_requests if it.stands_still), lambda it: it.silent_s)
    waiting = nlargest(
        MOST_REQUESTS // 2, (it for it in open_requests if it.ttft_s is None), lambda it: it.age_s
    )
    rows = {it.request_id: it.as_live(held_by) for it in (*still, *waiting)}
    for by in ("ttft", "tpot"):
        slowest = nlargest(MOST_REQUESTS // 2, (it for second in seconds for it in second.slowest[by]))
        rows.update((request_id, row) for _, request_id, row in slowest)
    return tuple(rows.values())[: 2 * MOST_REQUESTS]


# --- The phases and the state by an objective.


def start_phase(totals: Totals, slo: Slo | None = None) -> LivePhase | None:
    """How requests started; by another objective than their own, if one is given."""
    if not totals.starts:
        return None
    ttfts, silent = (_sample(it, totals.starts) for it in (totals.ttfts, totals.silent))
    late = totals.late
    if slo is not None:
        late = sum(it > slo.ttft_s for it in (*totals.ttfts, *totals.silent))
    p50, p90 = (wait_quantile(ttfts, silent, share) for share in (0.5, 0.9))
    timed = sum(totals.start_sums.values())
    mean_s = totals.ttft_sum_s / len(totals.ttfts) if totals.ttfts else 0.0
    parts = _parts(totals.start_sums, mean_s / timed if timed > 0 else 0.0)
    return LivePhase(totals.starts, late, p50.seconds, p90.seconds, mean_s, parts, p50.at_least)


def stream_phase(totals: Totals, slo: Slo | None = None) -> LivePhase | None:
    """How requests streamed; by another objective than their own, if one is given."""
    if not totals.streams:
        return None
    tpots = _sample(totals.tpots, totals.streams)
    slow = totals.slow if slo is None else sum(it > slo.tpot_s for it in totals.tpots)
    timed = sum(totals.stream_sums.values())
    mean_s = totals.tpot_sum_s / totals.streams
    parts = _parts(totals.stream_sums, mean_s / timed if timed > 0 else 0.0)
    return LivePhase(totals.streams, slow, quantile(tpots, 0.5), quantile(tpots, 0.9), mean_s, parts)


def state_of(
    start: LivePhase | None, stream: LivePhase | None, failed: int, requests: int
) -> tuple[LiveState, LiveState | None]:
    """The state, and the other phase if that is slow too. The one that more requests suffer from is first."""
    starts, late = (0, 0) if start is None else (start.requests, start.over)
    streams, slow = (0, 0) if stream is None else (stream.requests, stream.over)
    if max(starts, streams, requests) < MIN_REQUESTS:
        return LiveState.NOT_ENOUGH_TRAFFIC, None
    starts_late, streams_slowly = slow_phases(late, starts, slow, streams)
    if starts_late and streams_slowly:
        first = late * streams >= slow * starts
        both = LiveState.SLOW_TO_START, LiveState.SLOW_TO_STREAM
        return both if first else both[::-1]
    if starts_late or streams_slowly:
        return (LiveState.SLOW_TO_START if starts_late else LiveState.SLOW_TO_STREAM), None
    return (LiveState.FAILING if too_many_fail(failed, requests) else LiveState.HEALTHY), None


def _sample(values: list[float], of: int) -> list[float]:
    return values[:: max(1, -(-of // MOST_RANKED))]


def _parts(sums: dict[str, float], scale: float) -> tuple[LivePart, ...]:
    def made() -> Iterator[LivePart]:
        for part, seconds in sums.items():
            if part != UNEXPLAINED:
                yield LivePart(str(part).replace("_", " "), seconds * scale)
        if UNEXPLAINED in sums:
            yield LivePart(UNEXPLAINED, sums[UNEXPLAINED] * scale)

    return tuple(it for it in made() if it.seconds)
