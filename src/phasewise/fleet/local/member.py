"""One engine or the gateway under supervision: its process, its log, its stage and its deaths."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.core.errors import UpstreamError
from phasewise.fleet.local import process as proc_fs
from phasewise.fleet.local.plan import MemberPlan
from phasewise.fleet.local.state import MemberState, ProcessStage

# --- Reads an engine's log lines: how far its start is, and why it failed. It relies on their wording.

QUOTED_CHARACTERS = 300

# In the order of the start; a line of an earlier stage never moves the stage back.
_STAGE_MARKS: tuple[tuple[str, ProcessStage], ...] = (
    ("Starting to load model", ProcessStage.LOADING),
    ("init: loading model", ProcessStage.LOADING),
    ("Loading safetensors checkpoint", ProcessStage.LOADING),
    ("Loading weights took", ProcessStage.WARMING_UP),
    ("Model loading took", ProcessStage.WARMING_UP),
    ("init engine (profile", ProcessStage.WARMING_UP),
)
_STAGE_ORDER = (ProcessStage.STARTING, ProcessStage.LOADING, ProcessStage.WARMING_UP)

_LOG_PREFIX = re.compile(
    r"^(\(\w+( pid=\d+)?\) )?((ERROR|WARNING|INFO|CRITICAL) [\d-]+ [\d:]+ )?(\[[\w.]+:\d+\] ?)?"
)
_ARGUMENT_ERROR = re.compile(
    r"\berror: (unrecognized arguments?|argument |the following arguments|ambiguous)"
)
_NAMED_ERROR = re.compile(r"^\s*([A-Za-z_][\w.]*(Error|Exception|Interrupt|NotFound))\b(: .+)?$")
_PYDANTIC_REASON = re.compile(r"^\s*(Value error|Assertion failed), .+")
_LLAMA_CPP_ERROR = re.compile(r"^[\d.]+ E .+: .+")
# Engines repeat a failure at every boundary; these lines do not name the cause.
_SECOND_HAND = (
    "Failed to init server",
    "exiting due to model loading error",
    "Engine core initialization failed",
    "EngineCore failed to start",
    "EngineDeadError",
    "SystemExit",
)


def stage_after(logged: str, stage: ProcessStage) -> ProcessStage:
    """The stage of a starting engine after this log line."""
    for mark, named in _STAGE_MARKS:
        if mark in logged and stage in _STAGE_ORDER:
            return max(stage, named, key=_STAGE_ORDER.index)
    return stage


def rejects_command(lines: Sequence[str]) -> bool:
    """Whether the process ended because its command line is invalid."""
    return any(_ARGUMENT_ERROR.search(line) for line in lines)


def informative_line(lines: Sequence[str]) -> str | None:
    """The most informative line of a failed start, without the logger's prefix."""
    bare = [_LOG_PREFIX.sub("", line).rstrip() for line in lines]
    first_hand = [text for text in bare if not any(phrase in text for phrase in _SECOND_HAND)]
    for pattern in (_ARGUMENT_ERROR, _PYDANTIC_REASON, _NAMED_ERROR, _LLAMA_CPP_ERROR):
        for line in reversed(first_hand):
            if pattern.search(line):
                return line.strip()[:QUOTED_CHARACTERS]
    said = [line for line in bare if line.strip()]
    return said[-1].strip()[:QUOTED_CHARACTERS] if said else None


# --- Decides what follows a death: another start after a pause, or giving up. Pure.

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
# A process that served for this long was healthy: its death starts the count again.
STEADY_AFTER_S = 60.0
HOPELESS_STARTS = 3


@dataclass(frozen=True)
class Death:
    """The end of one run of a process; `ready_for_s` is None when it never became ready.

    `rejected` is set when it rejected its own command line: it would reject it again.
    """

    at_s: float
    ready_for_s: float | None
    rejected: bool = False


@dataclass(frozen=True)
class RestartAt:
    """Start again at this time."""

    at_s: float


@dataclass(frozen=True)
class GiveUp:
    """Do not start again: it was never ready and another try would fail in the same way."""

    failures: int


def after_death(deaths: Sequence[Death], *, has_served: bool) -> RestartAt | GiveUp:
    """What to do after the last of `deaths` (oldest first, at least one; the oldest may be dropped).

    Only a process that was never ready is given up: its command is wrong. One that has served is restarted
    for ever, since the cause (memory, a busy port) may pass. `has_served` is a separate argument, because the
    run that served may be among the dropped ones.
    """
    if not has_served and (len(deaths) >= HOPELESS_STARTS or deaths[-1].rejected):
        return GiveUp(len(deaths))
    row = 0
    for death in reversed(deaths):
        if death.ready_for_s is not None and death.ready_for_s >= STEADY_AFTER_S:
            # A death after long service starts a new series.
            row += 1
            break
        row += 1
    pause_s = min(FIRST_PAUSE_S * 2.0 ** min(row - 1, 10), LONGEST_PAUSE_S)
    return RestartAt(deaths[-1].at_s + pause_s)


KEPT_LOG_LINES = 400
KEPT_DEATHS = 50
LOG_TAIL_BYTES = 256 * 1024
ENGINE_CORE_TITLE = "VLLM::EngineCore"


class Member:
    """A member's process across its restarts."""

    def __init__(self, plan: MemberPlan, scratch: Path, health_timeout_s: float) -> None:
        self.plan = plan
        self._scratch = scratch
        self.child: proc_fs.Child | None = None
        self.stage = ProcessStage.WAITING
        self.since_unix_s = time.time()
        self.note: str | None = None
        self.restarts = 0
        self.has_served = False
        self.deaths: deque[Death] = deque(maxlen=KEPT_DEATHS)
        self.ready_in_s: float | None = None
        self._started_s = 0.0
        self._ready_at_s: float | None = None
        self._killed_because: str | None = None
        self._log_offset = 0
        self._log_lines: deque[str] = deque(maxlen=KEPT_LOG_LINES)
        limits = Timeouts(connect_s=health_timeout_s, head_s=health_timeout_s, idle_s=health_timeout_s)
        self._http = HttpClient(plan.url, limits)

    @property
    def state(self) -> MemberState:
        """Its current state."""
        return MemberState(
            name=self.plan.name,
            url=self.plan.url,
            log=self.plan.process.log,
            role=self.plan.role,
            steps_url=self.plan.steps_url,
            cores=self.plan.cores,
            gpus=self.plan.gpus,
            process=None if self.child is None else self.child.identity,
            stage=self.stage,
            since_unix_s=self.since_unix_s,
            restarts=self.restarts,
            ready_in_s=self.ready_in_s,
            note=self.note,
        )

    def enter(self, stage: ProcessStage, note: str | None = None) -> None:
        """Set its stage."""
        self.stage, self.note, self.since_unix_s = stage, note, time.time()

    def start(self) -> proc_fs.Child:
        """Start the process."""
        log = Path(self.plan.process.log)
        self._log_offset = log.stat().st_size if log.exists() else 0
        self._log_lines.clear()
        self._started_s, self._ready_at_s, self.ready_in_s = time.monotonic(), None, None
        self._killed_because = None
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir(mode=0o700)
        heading = f"{self.plan.name} starts (restarts: {self.restarts})"
        self.child = proc_fs.start(self.plan.process, self._scratch, heading)
        self.enter(ProcessStage.STARTING)
        return self.child

    def read_log(self) -> None:
        """Read what was logged since the last call, and derive the stage."""
        lines = self._new_lines()
        self._log_lines.extend(lines)
        stage = self.stage
        for line in lines:
            stage = stage_after(line, stage)
        if stage is not self.stage:
            self.enter(stage)

    def _new_lines(self) -> list[str]:
        """The complete lines logged since the last call; of very many, only the last ones.

        Nothing is read while an engine serves, so at its death its log may hold a week of lines.
        """
        try:
            with Path(self.plan.process.log).open("rb") as file:
                begin = max(self._log_offset, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES)
                file.seek(begin)
                data = file.read(LOG_TAIL_BYTES)
        except OSError:
            return []
        # An incomplete line is left for the next call.
        whole, newline, _ = data.rpartition(b"\n")
        cut_into_a_line = begin > self._log_offset
        self._log_offset = begin + len(whole) + len(newline)
        return whole.decode("utf-8", "replace").splitlines()[1 if cut_into_a_line else 0 :]

    @property
    def informative_line(self) -> str | None:
        """The most informative logged line about the cause of death."""
        return informative_line(list(self._log_lines))

    @property
    def is_gateway(self) -> bool:
        """Whether it is the gateway, which may be healthy while all engines are down."""
        return self.plan.role is None

    async def health_status(self) -> int | None:
        """The status code of its health endpoint, None without an answer."""
        try:
            return (await self._http.fetch("GET", "/health")).status
        except UpstreamError:
            return None

    def now_ready(self) -> None:
        """Mark it as serving from now on."""
        self.has_served = True
        if self._ready_at_s is None:
            self._ready_at_s = time.monotonic()
            self.ready_in_s = round(self._ready_at_s - self._started_s, 1)
        self.enter(ProcessStage.READY)

    @property
    def gone(self) -> bool:
        """Whether no process of it is left."""
        return self.child is None or self.child.gone

    @property
    def since_start_s(self) -> float:
        """How long its current process has run."""
        return time.monotonic() - self._started_s

    def kill(self, because: str) -> None:
        """Kill the process and all its children at once, and record why."""
        if self.child is not None:
            self._killed_because = because
            self.child.kill()

    def part_core_from_front(self) -> None:
        """Give the engine's core process its own cores and the front end the spare ones, if there are any."""
        if self.child is None or not self.plan.front_cores:
            return
        for pid in proc_fs.living_in_group(self.child.identity):
            is_core = proc_fs.command_line(pid).startswith(ENGINE_CORE_TITLE)
            cores = self.plan.cores if is_core else self.plan.front_cores
            for thread in proc_fs.threads_of(pid):
                with suppress(OSError):  # the thread has ended
                    os.sched_setaffinity(thread, cores)

    def bury(self) -> None:
        """After the leader's death: record how long it had served."""
        now_s = time.monotonic()
        ready_for_s = None if self._ready_at_s is None else now_s - self._ready_at_s
        self.deaths.append(Death(now_s, ready_for_s, rejects_command(list(self._log_lines))))

    @property
    def cause_of_death(self) -> str:
        """How the process ended, as a phrase."""
        if self._killed_because is not None:
            return f"killed: {self._killed_because}"
        code = None if self.child is None else self.child.exit_code
        if code is None:
            return "died"
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"ended with code {code}"

    def close(self) -> None:
        """Close the connection for health checks."""
        self._http.close()
