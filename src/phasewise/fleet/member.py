"""One engine or the gateway under supervision: its process, its log, how far it has come, how often it died.

It does what it is told; when to start it, ask for its health or give it up is the supervisor's to decide.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from phasewise.adapters.http_client import HttpClient, Timeouts
from phasewise.errors import UpstreamError
from phasewise.fleet import proc_fs, process
from phasewise.fleet.engine_log import refuses_command, stage_after, telling_line
from phasewise.fleet.fleet_state import MemberState, Stage
from phasewise.fleet.plan import MemberPlan
from phasewise.fleet.restart_policy import Death

KEPT_LOG_LINES = 400
KEPT_DEATHS = 50
LOG_TAIL_BYTES = 256 * 1024
ENGINE_CORE_TITLE = "VLLM::EngineCore"


class Member:
    """A member's process across its restarts."""

    def __init__(self, plan: MemberPlan, scratch: Path, health_timeout_s: float) -> None:
        self.plan = plan
        self._scratch = scratch
        self.child: process.Child | None = None
        self.stage = Stage.WAITING
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
        """What is known of it now."""
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

    def enter(self, stage: Stage, note: str | None = None) -> None:
        """Be in a stage from now on."""
        self.stage, self.note, self.since_unix_s = stage, note, time.time()

    def start(self) -> None:
        """Start the process."""
        log = Path(self.plan.process.log)
        self._log_offset = log.stat().st_size if log.exists() else 0
        self._log_lines.clear()
        self._started_s, self._ready_at_s, self.ready_in_s = time.monotonic(), None, None
        self._killed_because = None
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir(mode=0o700)
        heading = f"{self.plan.name} starts (restarts: {self.restarts})"
        self.child = process.start(self.plan.process, self._scratch, heading)
        self.enter(Stage.STARTING)

    def read_log(self) -> None:
        """Take up what was logged since the last call, and the stage it shows."""
        lines = self._new_lines()
        self._log_lines.extend(lines)
        stage = self.stage
        for line in lines:
            stage = stage_after(line, stage)
        if stage is not self.stage:
            self.enter(stage)

    def _new_lines(self) -> list[str]:
        """The whole lines logged since the last call; of very many, the last ones only.

        Nothing is read while an engine serves, so at its death its log may hold a week of lines.
        """
        try:
            with Path(self.plan.process.log).open("rb") as file:
                begin = max(self._log_offset, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES)
                file.seek(begin)
                data = file.read(LOG_TAIL_BYTES)
        except OSError:
            return []
        # A line that is still being written is left for the next time.
        whole, newline, _ = data.rpartition(b"\n")
        cut_into_a_line = begin > self._log_offset
        self._log_offset = begin + len(whole) + len(newline)
        return whole.decode("utf-8", "replace").splitlines()[1 if cut_into_a_line else 0 :]

    @property
    def telling_line(self) -> str | None:
        """The logged line that says most about why the process died."""
        return telling_line(list(self._log_lines))

    @property
    def is_gateway(self) -> bool:
        """Whether it stands before engines, which may all be away while it is well itself."""
        return self.plan.role is None

    async def health_status(self) -> int | None:
        """The status code its health is answered with, None for no answer."""
        try:
            return (await self._http.fetch("GET", "/health")).status
        except UpstreamError:
            return None

    def now_ready(self) -> None:
        """It serves from now on."""
        self.has_served = True
        if self._ready_at_s is None:
            self._ready_at_s = time.monotonic()
            self.ready_in_s = round(self._ready_at_s - self._started_s, 1)
        self.enter(Stage.READY)

    @property
    def since_start_s(self) -> float:
        """How long its present process has run."""
        return time.monotonic() - self._started_s

    def kill(self, because: str) -> None:
        """End the process and all it started at once, and remember why it was we who did."""
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
                with suppress(OSError):  # a thread that ended meanwhile
                    os.sched_setaffinity(thread, cores)

    def bury(self) -> None:
        """After the leader's death: remember how long it had served."""
        now_s = time.monotonic()
        ready_for_s = None if self._ready_at_s is None else now_s - self._ready_at_s
        self.deaths.append(Death(now_s, ready_for_s, refuses_command(list(self._log_lines))))

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
        """Drop the connection its health is asked on."""
        self._http.close()
