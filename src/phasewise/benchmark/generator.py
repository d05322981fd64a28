"""Executes a plan against one address and turns every request, however it ends, into a timeline."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import orjson

from phasewise.benchmark.run import CUT_SHORT, BenchRun, GeneratorHealth, RequestRecording, request_body
from phasewise.benchmark.target import Target
from phasewise.benchmark.workload.arrivals import ClosedLoop
from phasewise.benchmark.workload.drafts import PlannedRequest
from phasewise.benchmark.workload.plan import Plan, Thread
from phasewise.benchmark.workload.prompts import Message
from phasewise.clients.http_client import HttpClient, StreamedReply
from phasewise.clients.sse import EventSplitter, chunk_id, content_text, parse_chunk
from phasewise.core.decision import RejectReason
from phasewise.core.errors import FailureKind, RejectionKind, UpstreamError
from phasewise.core.request import Endpoint
from phasewise.core.statistics import quantile
from phasewise.core.timeline import Outcome

# --- The generator's clock: waiting until a moment, and measuring how late the event loop is.

HEARTBEAT_S = 0.02
TIMER_S = 0.001
"""Event loops keep timers in whole milliseconds, so this much delay is normal."""


def now_s() -> float:
    """Seconds of a clock that never jumps.

    Not the event loop's clock: uvloop's stands still within an iteration and counts milliseconds.
    """
    return time.perf_counter()


async def wait_until(due_s: float) -> None:
    """Return at `due_s` or as soon after it as possible, never before."""
    while (ahead_s := due_s - now_s()) > 0:  # noqa: ASYNC110 - there is no event for a time
        # Timers are in whole milliseconds and may fire early; the rest is too short to sleep.
        await asyncio.sleep(ahead_s if ahead_s > 0.0005 else 0)


async def watch_loop(lags_s: list[float]) -> None:
    """Record, until cancelled, how late the event loop is to a timer: chunks are stamped as late."""
    while True:
        asked_s = now_s()
        await asyncio.sleep(HEARTBEAT_S)
        lags_s.append(max(now_s() - asked_s - HEARTBEAT_S - TIMER_S, 0.0))


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keep Python's garbage collector from stopping the generator for milliseconds during a run."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


ERROR_BODY_LIMIT_BYTES = 1024 * 1024
GATEWAY_CODES = frozenset(map(str, (*RejectReason, *RejectionKind)))
RECENT_REQUESTS = 64
"""Figures shown during a run are medians over this many of the last requests."""


@dataclass(frozen=True, slots=True)
class RunLimits:
    """How long one request may take, and how many may be open at once.

    An open loop that reaches `in_flight` sends late, which shows as the generator's lag and voids the run.
    """

    request_s: float = 600.0
    in_flight: int = 4096


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The progress of a run; the two latencies are medians over the latest requests."""

    planned: int
    done: int
    failed: int
    in_flight: int
    elapsed_s: float
    ttft_s: float | None = None
    itl_s: float | None = None


@dataclass(slots=True)
class LoadGenerator:
    """One run. `stop` ends it early; what was measured until then is kept."""

    client: HttpClient
    target: Target
    plan: Plan
    run_id: str
    limits: RunLimits = field(default_factory=RunLimits)
    fixed_lengths: bool = True
    _ended: list[RequestRecording] = field(default_factory=list, init=False)
    _rejections: dict[str, str] = field(default_factory=dict, init=False)
    _failed: int = field(default=0, init=False)
    _open: int = field(default=0, init=False)
    _held_back: int = field(default=0, init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _stopped: bool = field(default=False, init=False)
    _planned: int = field(default=0, init=False)
    _started_s: float = field(default=0.0, init=False)
    _unix_offset_s: float = field(default=0.0, init=False)

    async def run(self) -> BenchRun:
        """Send everything that is due, wait for the replies, and return what was measured."""
        # Encoded before the clock starts; later turns need the replies before them.
        bodies = {first.index: self._body(first, first.messages) for first, *_ in self.plan.threads}
        self._planned = len(self.plan.requests)
        loop_lags_s: list[float] = []
        with no_garbage_collection():
            heartbeat = asyncio.create_task(watch_loop(loop_lags_s))
            cpu_started_s = time.process_time()
            self._started_s = now_s()
            self._unix_offset_s = time.time() - self._started_s
            try:
                await self._work_off(bodies)
            finally:
                heartbeat.cancel()
            wall_s = now_s() - self._started_s
            cpu_s = time.process_time() - cpu_started_s
        timelines = (recording.timeline() for recording in self._ended)
        return BenchRun(
            target=self.target,
            plan=self.plan,
            timelines=tuple(sorted(timelines, key=lambda timeline: timeline.started_unix_s)),
            wall_s=wall_s,
            started_unix_s=self._started_s + self._unix_offset_s,
            cut_short=self._stopped,
            fixed_lengths=self.fixed_lengths,
            health=GeneratorHealth(tuple(loop_lags_s), cpu_s, self._held_back),
            rejections=self._rejections,
        )

    def stop(self) -> None:
        """End the run: nothing more is sent, and what is in flight is cancelled and recorded as such."""
        self._stopped = True
        for task in tuple(self._tasks):
            task.cancel()

    def progress(self) -> RunProgress:
        """The progress of the run."""
        recent = self._ended[-RECENT_REQUESTS:]
        return RunProgress(
            planned=self._planned,
            done=len(self._ended),
            failed=self._failed,
            in_flight=self._open,
            elapsed_s=now_s() - self._started_s if self._started_s else 0.0,
            ttft_s=_median(recording.ttft_s for recording in recent),
            itl_s=_median(recording.mean_gap_s for recording in recent),
        )

    async def _work_off(self, bodies: dict[int, bytes]) -> None:
        # `stop` cancels the tasks one by one, which does not affect the group and this method.
        async with asyncio.TaskGroup() as group:
            if isinstance(self.plan.load, ClosedLoop):
                waiting = iter(self.plan.threads)
                for _ in range(min(self.plan.load.concurrency, len(self.plan.threads))):
                    self._start(group, self._fill_slot(waiting, bodies))
            else:
                self._start(group, self._send_when_due(group, bodies))

    def _start(self, group: asyncio.TaskGroup, work: Coroutine[None, None, None]) -> None:
        task = group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fill_slot(self, waiting: Iterator[Thread], bodies: dict[int, bytes]) -> None:
        end_s = self._started_s + (self.plan.duration_s or float("inf"))
        while now_s() < end_s and (thread := next(waiting, None)) is not None:
            await self._hold(thread, now_s(), bodies)

    async def _send_when_due(self, group: asyncio.TaskGroup, bodies: dict[int, bytes]) -> None:
        for thread in self.plan.threads:
            due_s = self._started_s + (thread[0].at_s or 0.0)
            await wait_until(due_s)
            if self._open >= self.limits.in_flight:
                self._held_back += 1
                while self._open >= self.limits.in_flight:  # noqa: ASYNC110 - the run is void: no hurry
                    await asyncio.sleep(0.001)
            self._start(group, self._hold(thread, due_s, bodies))
            # Lets the request start, and so be counted, before the next one is due.
            await asyncio.sleep(0)

    async def _hold(self, thread: Thread, due_s: float, bodies: dict[int, bytes]) -> None:
        """Hold a conversation: each later turn follows the real reply to the one before it."""
        history: tuple[Message, ...] = ()
        end_s = self._started_s + (self.plan.duration_s or float("inf"))
        for planned in thread:
            if planned.turn:
                due_s = now_s() + planned.think_s
                if due_s >= end_s:
                    return
                await wait_until(due_s)
            messages = (*history, *planned.messages)
            body = bodies.pop(planned.index, None) or self._body(planned, messages)
            recording = RequestRecording(
                request_id=f"{self.run_id}-{planned.index}",
                model=self.target.model,
                url=self.target.url,
                intended_s=due_s,
                unix_offset_s=self._unix_offset_s,
                messages=messages,
                keeps_reply=len(thread) > 1,
            )
            await self._perform(body, recording)
            if recording.outcome is not Outcome.SUCCEEDED:
                return
            history = (*messages, Message("assistant", recording.reply))

    def _body(self, planned: PlannedRequest, messages: Sequence[Message]) -> bytes:
        return request_body(self.target.model, messages, planned.max_tokens, fixed=self.fixed_lengths)

    async def _perform(self, body: bytes, recording: RequestRecording) -> None:
        self._open += 1
        try:
            async with asyncio.timeout(self.limits.request_s):
                await self._converse(body, recording)
        except TimeoutError:
            recording.end(Outcome.TIMED_OUT, FailureKind.TIMED_OUT)
        except UpstreamError as error:
            timed_out = error.kind is FailureKind.TIMED_OUT
            recording.end(Outcome.TIMED_OUT if timed_out else Outcome.FAILED, error.kind)
        except asyncio.CancelledError:
            recording.end(Outcome.CANCELLED, CUT_SHORT)
            raise
        finally:
            recording.close(now_s())
            self._ended.append(recording)
            self._failed += recording.outcome is not Outcome.SUCCEEDED
            self._open -= 1

    async def _converse(self, body: bytes, recording: RequestRecording) -> None:
        headers = (*self.target.headers, (b"x-request-id", recording.request_id.encode()))
        recording.sent(now_s())
        reply = await self.client.send("POST", Endpoint.CHAT, headers=headers, body=body)
        async with reply:
            if reply.status == 200:
                await _read_stream(reply, recording)
            else:
                code, words = _rejection(await reply.read_all(ERROR_BODY_LIMIT_BYTES))
                reason = code or f"http_{reply.status}"
                recording.end(Outcome.FAILED, reason)
                if words:
                    self._rejections.setdefault(reason, words)


def _rejection(body: bytes) -> tuple[str, str]:
    """The gateway's own code and words for a rejection; empty for any other server's.

    Another server's words may quote a prompt.
    """
    try:
        error = orjson.loads(body)["error"]
        code, words = error["code"], error["message"]
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return "", ""
    return (code, str(words)) if code in GATEWAY_CODES else ("", "")


class _Listener:
    """Records the events of a stream as they arrive."""

    __slots__ = ("_recording", "_splitter", "broken", "done")

    def __init__(self, recording: RequestRecording) -> None:
        self._recording = recording
        self._splitter = EventSplitter()
        self.broken = False
        self.done = False

    def __call__(self, data: bytes) -> None:
        at_s = now_s()
        recording = self._recording
        for event in self._splitter.feed(data):
            if recording.engine_request_id is None:
                recording.engine_request_id = chunk_id(event)
            chunk = parse_chunk(event)
            recording.saw(chunk, at_s)
            if recording.keeps_reply and chunk.has_content:
                recording.reply += content_text(event)
            self.broken |= chunk.error is not None
            self.done |= chunk.done


async def _read_stream(reply: StreamedReply, recording: RequestRecording) -> None:
    listener = _Listener(recording)
    await reply.pour(listener)
    if listener.broken:
        recording.end(Outcome.FAILED, "engine_error")
    elif listener.done or recording.finish_reason is not None:
        recording.end(Outcome.SUCCEEDED)
    else:
        recording.end(Outcome.FAILED, "cut_off")


def _median(values: Iterable[float | None]) -> float | None:
    known = sorted(value for value in values if value is not None)
    return quantile(known, 0.5) if known else None
