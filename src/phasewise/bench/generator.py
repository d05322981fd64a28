"""Works a plan off against one address and turns every request, however it ends, into a timeline.

Statistics over the timelines are left to the report.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson

from phasewise.adapters.http_client import HttpClient, StreamedReply
from phasewise.adapters.sse import EventSplitter, chunk_id, parse_chunk
from phasewise.bench.recording import RequestRecording
from phasewise.bench.target import Target
from phasewise.errors import FailureKind, UpstreamError
from phasewise.model.prefix_marks import prefix_marks
from phasewise.model.request import Endpoint
from phasewise.model.timeline import Outcome, Timeline
from phasewise.workload.arrivals import ClosedLoop
from phasewise.workload.plan import Plan, PlannedRequest

CUT_SHORT = "cut_short"
"""The reason of a request that was in flight when the run was stopped."""
ERROR_BODY_LIMIT_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class RunLimits:
    """How long one request may take, and how many may be open at once.

    An open loop that reaches `in_flight` sends late, which shows as the generator's lag.
    """

    request_s: float = 600.0
    in_flight: int = 512


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come."""

    planned: int
    done: int
    failed: int
    in_flight: int
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class BenchRun:
    """What a run saw.

    `unsent` requests of the plan were never due or never sent. `fixed_lengths` says that the engine let us
    fix the outputs' lengths.
    """

    target: Target
    plan: Plan
    timelines: tuple[Timeline, ...]
    wall_s: float
    cut_short: bool = False
    fixed_lengths: bool = True

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


@dataclass(slots=True)
class LoadGenerator:
    """One run. `stop` ends it early; what was measured until then is kept."""

    client: HttpClient
    target: Target
    plan: Plan
    run_id: str
    limits: RunLimits = field(default_factory=RunLimits)
    on_progress: Callable[[Progress], None] | None = None
    _timelines: list[Timeline] = field(default_factory=list, init=False)
    _in_flight: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _fixed_lengths: bool = field(default=True, init=False)
    _failed: int = field(default=0, init=False)
    _started_s: float = field(default=0.0, init=False)
    _unix_offset_s: float = field(default=0.0, init=False)

    async def run(self) -> BenchRun:
        """Send everything that is due, wait for the replies, and hand over what was seen."""
        self._started_s = _now_s()
        self._unix_offset_s = time.time() - self._started_s
        async with asyncio.TaskGroup() as tasks:
            if isinstance(self.plan.load, ClosedLoop):
                self._start_slots(tasks, self.plan.load.concurrency)
            else:
                await self._send_when_due(tasks)
        return BenchRun(
            target=self.target,
            plan=self.plan,
            timelines=tuple(sorted(self._timelines, key=lambda timeline: timeline.started_unix_s)),
            wall_s=_now_s() - self._started_s,
            cut_short=self._stopping.is_set(),
            fixed_lengths=self._fixed_lengths,
        )

    def stop(self) -> None:
        """End the run: nothing more is sent, and what is in flight is cancelled and recorded as such."""
        self._stopping.set()
        for task in tuple(self._in_flight):
            task.cancel()

    def _start_slots(self, tasks: asyncio.TaskGroup, concurrency: int) -> None:
        waiting = iter(self.plan.requests)
        end_s = self._started_s + (self.plan.duration_s or float("inf"))

        async def work_off() -> None:
            while not self._stopping.is_set() and _now_s() < end_s:
                planned = next(waiting, None)
                if planned is None:
                    return
                await self._spawn(tasks, planned, _now_s())

        for _ in range(min(concurrency, len(self.plan.requests))):
            tasks.create_task(work_off())

    async def _send_when_due(self, tasks: asyncio.TaskGroup) -> None:
        for planned in self.plan.requests:
            due_s = self._started_s + (planned.at_s or 0.0)
            if not await self._still_running_at(due_s):
                return
            while len(self._in_flight) >= self.limits.in_flight:
                await asyncio.wait(self._in_flight, return_when=asyncio.FIRST_COMPLETED)
            self._spawn(tasks, planned, due_s)

    async def _still_running_at(self, due_s: float) -> bool:
        try:
            async with asyncio.timeout(max(due_s - _now_s(), 0.0)):
                await self._stopping.wait()
        except TimeoutError:
            # Timers are kept in whole milliseconds and may fire early.
            while _now_s() < due_s:  # noqa: ASYNC110 - no event tells that half a millisecond has passed
                await asyncio.sleep(0)
        return not self._stopping.is_set()

    def _spawn(self, tasks: asyncio.TaskGroup, planned: PlannedRequest, due_s: float) -> asyncio.Task[None]:
        task = tasks.create_task(self._perform(planned, due_s))
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)
        return task

    async def _perform(self, planned: PlannedRequest, due_s: float) -> None:
        prompt = orjson.dumps(planned.messages)
        recording = RequestRecording(
            request_id=f"{self.run_id}-{planned.index}",
            model=self.target.model,
            url=self.target.url,
            intended_s=due_s,
            unix_offset_s=self._unix_offset_s,
            prefix_marks=prefix_marks(prompt, self.run_id.encode()[:64]),
            prompt_bytes=len(prompt),
        )
        try:
            async with asyncio.timeout(self.limits.request_s):
                await self._converse(planned, recording)
        except TimeoutError:
            recording.end(Outcome.TIMED_OUT, FailureKind.TIMED_OUT)
        except UpstreamError as error:
            timed_out = error.kind is FailureKind.TIMED_OUT
            recording.end(Outcome.TIMED_OUT if timed_out else Outcome.FAILED, error.kind)
        except asyncio.CancelledError:
            recording.end(Outcome.CANCELLED, CUT_SHORT)
            raise
        finally:
            self._keep(recording)

    def _keep(self, recording: RequestRecording) -> None:
        self._timelines.append(recording.timeline(_now_s()))
        self._failed += recording.outcome is not Outcome.SUCCEEDED
        if self.on_progress is not None:
            self.on_progress(
                Progress(
                    planned=len(self.plan.requests),
                    done=len(self._timelines),
                    failed=self._failed,
                    in_flight=len(self._in_flight) - 1,
                    elapsed_s=_now_s() - self._started_s,
                )
            )

    async def _converse(self, planned: PlannedRequest, recording: RequestRecording) -> None:
        fixed = self._fixed_lengths
        refused = await self._ask(planned, recording, fixed)
        if refused == 400 and fixed:
            # Perhaps it was the fields that fix the length: not every server before an engine takes them.
            recording.refused(_now_s(), "http_400")
            refused = await self._ask(planned, recording, fixed=False)
            self._fixed_lengths = self._fixed_lengths and refused is not None
        if refused is not None:
            recording.end(Outcome.FAILED, f"http_{refused}")

    async def _ask(self, planned: PlannedRequest, recording: RequestRecording, fixed: bool) -> int | None:
        """Send a request and read its stream; returns the status code of a refusal, None without one."""
        body = _request_body(self.target.model, planned, fixed)
        headers = (*self.target.headers, (b"x-request-id", recording.request_id.encode()))
        recording.sent(_now_s())
        reply = await self.client.send("POST", Endpoint.CHAT, headers=headers, body=body)
        async with reply:
            if reply.status != 200:
                await reply.read_all(ERROR_BODY_LIMIT_BYTES)
                return reply.status
            await _read_stream(reply, recording)
        return None


async def _read_stream(reply: StreamedReply, recording: RequestRecording) -> None:
    splitter = EventSplitter()
    broken = None
    done = False
    while data := await reply.read():
        now_s = _now_s()
        for event in splitter.feed(data):
            if recording.engine_request_id is None:
                recording.engine_request_id = chunk_id(event)
            chunk = parse_chunk(event)
            recording.saw(chunk, now_s)
            broken, done = broken or chunk.error, done or chunk.done
    if broken is not None:
        recording.end(Outcome.FAILED, "engine_error")
    elif done or recording.finish_reason is not None:
        recording.end(Outcome.SUCCEEDED)
    else:
        recording.end(Outcome.FAILED, "cut_off")


def _request_body(model: str, planned: PlannedRequest, fixed: bool) -> bytes:
    body: dict[str, object] = {
        "model": model,
        "messages": planned.messages,
        "max_tokens": planned.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if fixed:
        body |= {"ignore_eos": True, "min_tokens": planned.max_tokens}
    return orjson.dumps(body)


def _now_s() -> float:
    # Not the event loop's clock: uvloop's stands still within an iteration and counts milliseconds.
    return time.perf_counter()
