"""The requests of the last seconds, each taken once when it ends, and the snapshot that they make."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import nlargest
from itertools import takewhile
from operator import attrgetter, sub

from phasewise.core.latency import STALL_MIN_GAPS, longest_stall_s, tpot_s, ttft_part_seconds, ttft_s
from phasewise.core.slo import Slo
from phasewise.core.statistics import quantile, wait_quantile
from phasewise.core.timeline import Outcome, Part, Timeline
from phasewise.core.value import value
from phasewise.diagnosis.live.snapshot import (
    UNEXPLAINED,
    LiveEngine,
    LiveFailure,
    LivePart,
    LivePhase,
    LivePoint,
    LiveRequest,
    LiveSnapshot,
    RequestStatus,
    judged,
)
from phasewise.diagnosis.rules.affected import UNSERVED

WINDOW_S = 30
RATES_OVER_S = 10
HISTORY_S = 120
NAMED_REASONS = 3
MOST_KEPT = 8_000
"""Requests of the window that are kept: at a higher rate it is shorter, and says so."""
MOST_RANKED = 500
"""Quantiles and means of more requests than this are those of an even sample."""
MOST_SPLIT = 200
"""The same for the parts of a mean."""
MOST_REQUESTS = 20
PACE_GAPS = 32
"""The last gaps of a stream that make up its pace."""
STILL_TIMES = 10.0
"""A stream stands still if it has been silent for this many times its own pace."""
STILL_LEAST_S = 1.0
"""A stream that has been silent for less than this does not stand still."""
NOTICED_STALL_TOKENS = 10
"""A stall as long as this many tokens of the objective makes a stream slow, as in a verdict."""
DECODE, CLIENT = "decode", "client did not read"
KV_FULL = 0.95
_HEALTH = {
    "suspect": "stands still",
    "hung": "stands still",
    "down": "is down",
    "circuit open": "has an open circuit",
}


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
        """The recent time per chunk; with the silence, if the stream stands still."""
        if self.pace_s is None or not self.stands_still:
            return self.pace_s
        return self.pace_s + self.silent_s / PACE_GAPS

    def row(self, held_by: str) -> LiveRequest:
        """The request's row; `held_by` matters only if it stands still."""
        status = RequestStatus.WAITS if self.ttft_s is None else RequestStatus.STREAMS
        status = RequestStatus.STANDS_STILL if self.stands_still else status
        who = (self.request_id, status, self.tenant, self.engine)
        silent_s = None if self.ttft_s is None else self.silent_s
        return LiveRequest(*who, self.age_s, self.ttft_s, self.per_token_s, silent_s, held_by)


def pace(times_s: Sequence[float]) -> float | None:
    """The mean of a stream's last gaps; None if it has too few."""
    gaps = min(len(times_s) - 1, PACE_GAPS)
    return (times_s[-1] - times_s[-1 - gaps]) / gaps if gaps >= STALL_MIN_GAPS else None


def held_by(request: OpenRequest, engine: LiveEngine | None, prefilling: int) -> str:
    """What holds a stream that stands still, in words; `prefilling` prompts are computed on its engine."""
    if request.blocked:
        return "its client does not read"
    if engine is None:
        return "no engine has it"
    if engine.health != "up":
        return f"{engine.name} {_HEALTH.get(engine.health, engine.health)}"
    if engine.kv_usage is not None and engine.kv_usage >= KV_FULL:
        return f"the KV cache of {engine.name} is full"
    if prefilling:
        return f"{prefilling} other prompt{'s' * (prefilling != 1)} in prefill on {engine.name}"
    return "not observed"


@value
class _Ended:
    """A request that has ended. `waited_s` is until it ended without a first token, if it did, and `failed`
    why it was not served, if it was not.
    """

    at_s: float
    row: LiveRequest
    tokens: int
    failed: str | None
    late: bool
    slow: bool
    waited_s: float | None
    parts: Mapping[str, float]
    stream_parts: Mapping[str, float]


class LiveWindow:
    """Takes every request that ended, and makes snapshots of the last seconds; `slo_of` a class."""

    def __init__(self, slo_of: Callable[[str], Slo]) -> None:
        self._slo_of = slo_of
        self._ended: deque[_Ended] = deque()
        self._late = self._slow = 0
        self._failed: Counter[str] = Counter()
        self._points: deque[LivePoint] = deque(maxlen=HISTORY_S)
        self._since_s = 0.0

    def begin(self, since_unix_s: float) -> None:
        """Forget all requests: those that ended before this time are not given."""
        self._ended.clear()
        self._late = self._slow = 0
        self._failed.clear()
        self._points.clear()
        self._since_s = since_unix_s

    def add(self, timeline: Timeline) -> None:
        """Take a request that has ended; they come in the order of their ends."""
        if not timeline.generates or timeline.from_cache:
            return
        slo, serving = self._slo_of(timeline.slo_class), timeline.serving_attempt
        first_s, per_token_s = ttft_s(timeline), tpot_s(timeline)
        silent = first_s is None and timeline.streamed and timeline.outcome is not Outcome.SUCCEEDED
        waited_s = timeline.ended_s if silent else None
        status = RequestStatus.ENDED if timeline.outcome is Outcome.SUCCEEDED else RequestStatus.FAILED
        engine = "" if serving is None else serving.worker.name
        who = (timeline.request_id, status, timeline.tenant, engine)
        if len(self._ended) == MOST_KEPT:
            self._forget_oldest()
        late = (first_s or waited_s or 0.0) > slo.ttft_s
        slow = per_token_s is not None and (per_token_s > slo.tpot_s or _stalled(timeline, slo))
        failed = timeline.reason or timeline.outcome.value if timeline.outcome in UNSERVED else None
        self._late, self._slow = self._late + late, self._slow + slow
        if failed is not None:
            self._failed[failed] += 1
        self._ended.append(
            _Ended(
                timeline.started_unix_s + timeline.ended_s,
                LiveRequest(*who, timeline.ended_s, first_s, per_token_s),
                timeline.output_tokens or 0,
                failed,
                late,
                slow,
                waited_s,
                {} if first_s is None else _start_parts(timeline, first_s),
                {} if per_token_s is None else _stream_parts(timeline, per_token_s),
            )
        )

    def check_invariants(self) -> None:
        """The counts match the requests that are kept, and those are not too many."""
        counts = [sum(getattr(request, name) for request in self._ended) for name in ("late", "slow")]
        counts.append(sum(request.failed is not None for request in self._ended))
        if counts != [self._late, self._slow, self._failed.total()] or len(self._ended) > MOST_KEPT:
            raise AssertionError(f"{counts} of {len(self._ended)} requests are late, slow and failed")

    def snapshot(
        self,
        around: LiveSnapshot,
        open_requests: Sequence[OpenRequest],
        held: Callable[[OpenRequest], str] = lambda _request: "",
        slo: Slo | None = None,
    ) -> LiveSnapshot:
        """The snapshot with the requests of its last seconds; `around` has what stands around them.

        Each request is held to the objective of its class, or all of them to `slo`.
        """
        now_unix_s = around.at_unix_s
        self._make_points(now_unix_s, open_requests)
        while self._ended and self._ended[0].at_s < now_unix_s - WINDOW_S:
            self._forget_oldest()
        since_s = self._ended[0].at_s if len(self._ended) == MOST_KEPT else self._since_s
        window_s = max(1.0, min(float(WINDOW_S), now_unix_s - since_s))
        over_s = min(float(RATES_OVER_S), window_s)
        lately = list(takewhile(lambda request: request.at_s >= now_unix_s - over_s, reversed(self._ended)))
        # An even sample is enough for quantiles and means.
        sample = list(self._ended)[:: -(-len(self._ended) // MOST_RANKED) or 1]
        means = _means(sample)
        counted = replace(
            around,
            window_s=window_s,
            engines=tuple([_with_means(engine, means.get(engine.name)) for engine in around.engines]),
            ended=len(self._ended),
            failed=self._failed.total(),
            failures=tuple(LiveFailure(*each) for each in self._failed.most_common(NAMED_REASONS)),
            requests_per_s=len(lately) / over_s,
            tokens_per_s=sum([request.tokens for request in lately]) / over_s,
            requests=self._worth_a_look(sample, open_requests, held),
            still=sum(request.stands_still for request in open_requests),
            history=tuple(self._points),
        )
        start, stream = self._start(sample, open_requests, slo), self._stream(sample, open_requests, slo)
        return judged(counted, start, stream, slo or self._slo_of("default"))

    def _forget_oldest(self) -> None:
        oldest = self._ended.popleft()
        if oldest.failed is not None:
            self._failed -= Counter((oldest.failed,))
        self._late -= oldest.late
        self._slow -= oldest.slow

    def _start(
        self, sample: list[_Ended], open_requests: Iterable[OpenRequest], slo: Slo | None
    ) -> LivePhase | None:
        of_all = len(self._ended) / len(sample) if sample else 1.0
        answered = [request.row.ttft_s for request in sample if request.row.ttft_s is not None]
        silent = [request.waited_s for request in sample if request.waited_s is not None]
        starts, late = (len(answered) + len(silent)) * of_all, float(self._late)
        if slo is not None:
            late = of_all * sum(wait_s > slo.ttft_s for wait_s in (*answered, *silent))
        for request in open_requests:
            bound_s = (slo or self._slo_of(request.slo_class)).ttft_s
            if request.ttft_s is not None and request.age_s - request.ttft_s <= WINDOW_S:
                answered.append(request.ttft_s)
            elif request.ttft_s is None and request.streamed and request.age_s > bound_s:
                # As in a verdict: neither late nor in time before the objective has passed.
                silent.append(request.age_s)
            else:
                continue
            starts += 1
            late += (request.age_s if request.ttft_s is None else request.ttft_s) > bound_s
        if not answered and not silent:
            return None
        p50, p90 = (wait_quantile(answered, silent, share) for share in (0.5, 0.9))
        mean_s = sum(answered) / len(answered) if answered else 0.0
        parts = _parts([request.parts for request in sample], mean_s)
        counts = (round(starts), round(late))
        return LivePhase(*counts, p50.seconds, p90.seconds, mean_s, parts, p50.at_least)

    def _stream(
        self, sample: list[_Ended], open_requests: Iterable[OpenRequest], slo: Slo | None
    ) -> LivePhase | None:
        of_all = len(self._ended) / len(sample) if sample else 1.0
        per_token = [request.row.tpot_s for request in sample if request.row.tpot_s is not None]
        streams, slow = len(per_token) * of_all, float(self._slow)
        if slo is not None:
            slow = of_all * sum(seconds > slo.tpot_s for seconds in per_token)
        for request in open_requests:
            if (seconds := request.per_token_s) is not None:
                per_token.append(seconds)
                streams += 1
                slow += seconds > (slo or self._slo_of(request.slo_class)).tpot_s or request.stands_still
        if not per_token:
            return None
        mean_s = sum(per_token) / len(per_token)
        parts = _parts([request.stream_parts for request in sample], mean_s)
        p50_s, p90_s = quantile(per_token, 0.5), quantile(per_token, 0.9)
        return LivePhase(round(streams), round(slow), p50_s, p90_s, mean_s, parts)

    def _worth_a_look(
        self,
        sample: list[_Ended],
        open_requests: Sequence[OpenRequest],
        held: Callable[[OpenRequest], str],
    ) -> tuple[LiveRequest, ...]:
        """Streams that stand still, requests that wait longest, and the slowest of the window."""
        still = [request for request in open_requests if request.stands_still]
        waiting = [request for request in open_requests if request.ttft_s is None]
        rows = [
            request.row(held(request)) for request in nlargest(MOST_REQUESTS, still, attrgetter("silent_s"))
        ]
        rows += [request.row("") for request in nlargest(MOST_REQUESTS // 2, waiting, attrgetter("age_s"))]
        missed = (
            [request for request in self._ended if request.late or request.slow]
            if self._late + self._slow
            else sample
        )
        for by in ("ttft_s", "tpot_s"):
            timed = [request.row for request in missed if getattr(request.row, by) is not None]
            rows += nlargest(MOST_REQUESTS // 2, timed, attrgetter(by))
        return tuple({row.request_id: row for row in rows}.values())

    def _make_points(self, now_unix_s: float, open_requests: Sequence[OpenRequest]) -> None:
        """Add the seconds that have passed since the last point; the running one is not complete."""
        now = int(now_unix_s)
        oldest = int(self._ended[0].at_s) if self._ended else now
        first = int(self._points[-1].at_unix_s) + 1 if self._points else max(now - HISTORY_S, oldest)
        seconds: dict[int, list[LiveRequest]] = {at: [] for at in range(first, now)}
        firsts: dict[int, list[float]] = {}
        for ended in reversed(self._ended) if seconds else ():
            if ended.at_s < first:
                break
            seconds.get(int(ended.at_s), []).append(ended.row)
            _note_first(firsts, ended.row, ended.at_s)
        for each in open_requests:
            _note_first(firsts, each, now_unix_s)
        under_way = [request.per_token_s for request in open_requests if request.per_token_s is not None]
        for at, rows in seconds.items():
            tpots = [row.tpot_s for row in rows if row.tpot_s is not None] + (
                under_way if at == now - 1 else []
            )
            ttfts = firsts.get(at)
            self._points.append(
                LivePoint(
                    float(at),
                    quantile(ttfts, 0.5) if ttfts else None,
                    quantile(tpots, 0.5) if tpots else None,
                    len(rows),
                )
            )


def _note_first(firsts: dict[int, list[float]], request: LiveRequest | OpenRequest, at_unix_s: float) -> None:
    """Note a TTFT at the second in which its first token came; `at_unix_s` is when it had this age."""
    if request.ttft_s is not None:
        firsts.setdefault(int(at_unix_s - request.age_s + request.ttft_s), []).append(request.ttft_s)


def _stalled(timeline: Timeline, slo: Slo) -> bool:
    """Whether a noticeable stall was in the stream; the median is looked at only if a gap is long enough."""
    times, bound_s = timeline.content_times_s, NOTICED_STALL_TOKENS * slo.tpot_s
    if times[-1] - times[0] < bound_s or max(map(sub, times[1:], times), default=0.0) < bound_s:
        return False
    return (longest_stall_s(timeline) or 0.0) >= bound_s


def _start_parts(timeline: Timeline, first_s: float) -> dict[str, float]:
    parts: dict[str, float] = {}
    for (part, _), seconds in ttft_part_seconds(timeline, first_s).items():
        parts[part] = parts.get(part, 0.0) + seconds
    parts[UNEXPLAINED] = first_s - sum(parts.values())
    return parts


def _stream_parts(timeline: Timeline, per_token_s: float) -> dict[str, float]:
    """The parts of a token: the engine's decode time, the client that did not read, and the rest."""
    gaps, serving = (timeline.output_tokens or 2) - 1, timeline.serving_attempt
    spans = () if serving is None else serving.spans
    decode_s = sum([span.duration_s for span in spans if span.part is Part.DECODE]) / gaps
    client_s = (timeline.client_blocked_s or 0.0) / gaps
    return {DECODE: decode_s, CLIENT: client_s, UNEXPLAINED: per_token_s - decode_s - client_s}


def _parts(each: Sequence[Mapping[str, float]], mean_s: float) -> tuple[LivePart, ...]:
    """The parts of the mean, in the order of a request's life; the unexplained one is last."""
    sums: dict[str, float] = {}
    for parts in each[:: -(-len(each) // MOST_SPLIT) or 1]:
        for part, seconds in parts.items():
            sums[part] = sums.get(part, 0.0) + seconds
    whole_s = sum(sums.values())
    scale = mean_s / whole_s if whole_s > 0 else 0.0
    unexplained_s = sums.pop(UNEXPLAINED, 0.0)
    known = [
        LivePart(str(part).replace("_", " "), seconds * scale) for part, seconds in sums.items() if seconds
    ]
    return (*known, LivePart(UNEXPLAINED, unexplained_s * scale)) if whole_s > 0 else ()


def _means(ended: Iterable[_Ended]) -> dict[str, tuple[list[float], list[float]]]:
    """The TTFTs and the TPOTs by engine."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for request in ended:
        ttfts, tpots = found.setdefault(request.row.engine, ([], []))
        if request.row.ttft_s is not None:
            ttfts.append(request.row.ttft_s)
        if request.row.tpot_s is not None:
            tpots.append(request.row.tpot_s)
    return found


def _with_means(engine: LiveEngine, seen: tuple[list[float], list[float]] | None) -> LiveEngine:
    ttft_mean_s, tpot_mean_s = (sum(values) / len(values) if values else None for values in seen or ((), ()))
    return replace(engine, ttft_s=ttft_mean_s, tpot_s=tpot_mean_s)
