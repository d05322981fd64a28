"""Starts a fleet's processes, waits until they are ready, restarts dead ones and stops them all."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from phasewise.core.errors import EngineStartFailed, FleetError, PhasewiseError
from phasewise.core.units import elapsed
from phasewise.fleet.local import process as proc_fs
from phasewise.fleet.local.keeper import Keeper
from phasewise.fleet.local.member import GiveUp, Member, after_death
from phasewise.fleet.local.plan import FleetPlan
from phasewise.fleet.local.run_files import admin_key_sha256, only_supervisor, write_private, write_state
from phasewise.fleet.local.state import Failure, FleetState, ProcessIdentity, ProcessStage, SupervisorTimes

_ON_THE_WAY = frozenset({ProcessStage.STARTING, ProcessStage.LOADING, ProcessStage.WARMING_UP})
_SERVING = frozenset({ProcessStage.READY, ProcessStage.SILENT, ProcessStage.WAITING})


class FleetSupervisor:
    """The only writer of a fleet's state."""

    def __init__(
        self,
        plan: FleetPlan,
        publish: Callable[[FleetState], None],
        *,
        ready_within_s: float = 600.0,
        pace: SupervisorTimes | None = None,
    ) -> None:
        self._plan = plan
        self._publish_state = publish
        self._ready_within_s = ready_within_s
        self._pace = pace or SupervisorTimes()
        self._scratch = Path(tempfile.mkdtemp(prefix="phasewise-"))
        self._members = [
            Member(member, self._scratch / member.name, self._pace.health_timeout_s)
            for member in plan.members
        ]
        self._started_unix_s = time.time()
        self._identity = proc_fs.identity_of(os.getpid()) or ProcessIdentity(pid=os.getpid(), start_ticks=0)
        self._boot_id = proc_fs.boot_id()
        self._failure: Failure | None = None
        self._unpublished = False
        self._stop_wanted = asyncio.Event()
        self._kill_wanted = asyncio.Event()

    @property
    def state(self) -> FleetState:
        """The current state of the fleet."""
        states = [member.state for member in self._members]
        return FleetState(
            name=self._plan.name,
            model=self._plan.model,
            boot_id=self._boot_id,
            supervisor=self._identity,
            started_unix_s=self._started_unix_s,
            keys_needed=self._plan.keys_needed,
            admin_key_file=str(self._plan.paths.admin_key) if self._plan.makes_admin_key else None,
            scratch=str(self._scratch),
            drain_s=self._plan.drain_s,
            failure=self._failure,
            **FleetState.named(states, len(self._plan.engines)),
        )

    async def run(self) -> None:
        """Keep the fleet running until a signal ends it; raises errors that a restart would not fix."""
        self._keeper = Keeper(self._scratch)
        try:
            with self._signals_heeded():
                await self._run_until_stopped()
        except PhasewiseError as error:
            self._failure = Failure(message=error.message, hint=error.hint)
            raise
        finally:
            for member in self._members:
                member.close()
            self._publish()
            self._keeper.close()

    def stop(self) -> None:
        """Stop the fleet; a second call does not wait."""
        (self._kill_wanted if self._stop_wanted.is_set() else self._stop_wanted).set()

    async def _run_until_stopped(self) -> None:
        tasks: list[asyncio.Task[Any]]
        tasks = [asyncio.create_task(self._keep_running(member)) for member in self._members]
        tasks.append(asyncio.create_task(self._enforce_readiness()))
        tasks.append(asyncio.create_task(self._stop_wanted.wait()))
        try:
            # Only the stop request is a normal end; any other finished task has failed.
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._stop_all()

    # --- one member -------------------------------------------------------------------------------------

    async def _keep_running(self, member: Member) -> None:
        while True:
            child = member.start()
            self._keeper.watch(child.identity.pid)
            self._publish()
            await self._follow_to_death(member, child)
            member.read_log()
            member.bury()
            await self._clear_away([member])
            self._keeper.forget(child.identity.pid)
            decision = after_death(member.deaths, has_served=member.has_served)
            if isinstance(decision, GiveUp):
                raise self._given_up(member, decision)
            pause_s = max(decision.at_s - time.monotonic(), 0.0)
            self._enter(
                member,
                ProcessStage.BACKING_OFF,
                f"{member.cause_of_death}; starts again in {elapsed(pause_s)}",
            )
            await asyncio.sleep(pause_s)
            member.restarts += 1

    async def _follow_to_death(self, member: Member, child: proc_fs.Child) -> None:
        last_answer_s = next_health_s = time.monotonic()
        while child.exit_code is None:
            before = member.stage
            if before in _ON_THE_WAY:
                member.read_log()
            if time.monotonic() >= next_health_s:
                last_answer_s = await self._ask_health(member, last_answer_s)
                steady = member.stage in {ProcessStage.READY, ProcessStage.SILENT}
                next_health_s = time.monotonic() + (self._pace.health_every_s if steady else 0.0)
            self._end_overdue_restart(member)
            if member.stage is not before or self._unpublished:
                self._publish()
            await asyncio.sleep(self._pace.poll_s)

    async def _ask_health(self, member: Member, last_answer_s: float) -> float:
        """Check once and update the stage; returns when the last good answer came."""
        status = await member.health_status()
        now_s = time.monotonic()
        if status == 200:
            if member.stage is not ProcessStage.READY:
                if member.stage is not ProcessStage.SILENT:
                    member.part_core_from_front()
                member.now_ready()
            return now_s
        if member.is_gateway and status is not None:
            if member.stage is not ProcessStage.WAITING:
                member.enter(ProcessStage.WAITING, "for an engine")
            return now_s
        if member.stage in {ProcessStage.READY, ProcessStage.SILENT}:
            self._missed_answer(member, now_s - last_answer_s)
        return last_answer_s

    def _missed_answer(self, member: Member, silent_s: float) -> None:
        if silent_s >= self._pace.hopeless_after_s:
            member.kill(f"no answer for {elapsed(silent_s)}")
        elif silent_s >= self._pace.silent_after_s and member.stage is ProcessStage.READY:
            member.enter(ProcessStage.SILENT, f"no answer for {elapsed(silent_s)}")

    def _end_overdue_restart(self, member: Member) -> None:
        # A member that never served is covered by the fleet's start deadline.
        if not member.has_served or member.stage not in _ON_THE_WAY:
            return
        if member.since_start_s >= self._ready_within_s:
            member.kill(f"not ready in {self._ready_within_s:g} s")

    def _given_up(self, member: Member, decision: GiveUp) -> PhasewiseError:
        self._enter(member, ProcessStage.FAILED, member.cause_of_death)
        reason = member.informative_line or member.cause_of_death
        kind = FleetError if member.is_gateway else EngineStartFailed
        times = "once" if decision.failures == 1 else f"{decision.failures} times"
        return kind(
            f"{member.plan.name} ended {times} before it was ready: {reason}",
            hint=f"its log is {member.plan.process.log}",
        )

    # --- all members ------------------------------------------------------------------------------------

    async def _enforce_readiness(self) -> None:
        """End the fleet if a member has not served within the start deadline."""
        await asyncio.sleep(self._ready_within_s)
        late = [member for member in self._members if not member.has_served]
        if late:
            member = late[0]
            raise EngineStartFailed(
                f"{member.plan.name} was not ready in {self._ready_within_s:g} s: it is {member.stage.value}",
                hint=f"allow more time with --timeout, or read {member.plan.process.log}",
            )
        await asyncio.Event().wait()

    async def _stop_all(self) -> None:
        # From here on a signal counts as the second one, also if a failure led here.
        self._stop_wanted.set()
        await self._drain_gateway()
        alive = [member for member in self._members if not member.gone]
        # A member that has not served has no stream to finish, and vLLM ignores signals while it loads.
        serving = [member for member in alive if member.stage in _SERVING]
        for member in alive:
            if member in serving and member.child is not None:
                member.child.terminate()
            if member.stage is not ProcessStage.FAILED:
                member.enter(ProcessStage.STOPPING)
        self._publish()
        await self._leaders_end(serving, self._pace.stop_grace_s)
        await self._clear_away(alive)
        for member in self._members:
            if member.child is not None and member.child.gone:
                self._keeper.forget(member.child.identity.pid)
            if member.stage is not ProcessStage.FAILED:
                member.enter(ProcessStage.STOPPED)
        self._publish()

    async def _drain_gateway(self) -> None:
        """Let the gateway finish its streams while the engines still run; traffic of our own ends first."""
        gateway, *traffic = self._members[len(self._plan.engines) :]
        for player in traffic:
            if player.child is not None:
                player.child.terminate()
        if gateway.child is None or gateway.child.gone or gateway.stage not in _SERVING:
            return
        gateway.child.terminate()
        drain_s = self._plan.drain_s
        self._enter(gateway, ProcessStage.DRAINING, f"running streams have {elapsed(drain_s)} to finish")
        await self._leaders_end([gateway], drain_s + self._pace.drain_grace_s)
        gateway.enter(ProcessStage.STOPPED if gateway.child.gone else ProcessStage.STOPPING)

    async def _leaders_end(self, members: list[Member], limit_s: float) -> None:
        """Wait until these members have ended, unless time runs out or a second stop request arrives."""
        deadline_s = time.monotonic() + limit_s
        while any(member.child is not None and member.child.exit_code is None for member in members):
            if time.monotonic() >= deadline_s or self._kill_wanted.is_set():
                return
            await asyncio.sleep(min(self._pace.poll_s, 0.1))

    async def _clear_away(self, members: list[Member]) -> None:
        """Kill what is left of these sessions, and wait until it is gone."""
        children = [member.child for member in members if member.child is not None]
        for child in children:
            child.kill_workers()
        for limit_s in (self._pace.cleanup_grace_s, self._pace.kill_grace_s):
            deadline_s = time.monotonic() + limit_s
            while time.monotonic() < deadline_s:
                if all(child.gone for child in children):
                    return
                await asyncio.sleep(min(self._pace.poll_s, 0.05))
            for child in children:
                child.kill()

    def _enter(self, member: Member, stage: ProcessStage, note: str | None = None) -> None:
        member.enter(stage, note)
        self._publish()

    def _publish(self) -> None:
        """Publish the state; a failure to write it stops neither serving nor stopping."""
        try:
            self._publish_state(self.state)
        except OSError as error:
            if not self._unpublished:
                reason = error.strerror or str(error)
                with suppress(OSError):  # the terminal may be gone
                    sys.stderr.write(
                        f"warning: the fleet's state cannot be written ({reason}); `phasewise status` is out "
                        "of date\n"
                    )
                    sys.stderr.flush()
            self._unpublished = True
        else:
            self._unpublished = False

    @contextmanager
    def _signals_heeded(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        heeded = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for number in heeded:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in heeded:
                loop.remove_signal_handler(number)


# --- Runs a planned fleet under its lock and keeps its record: in this process, or with `python -m`.


class Assignment(BaseModel):
    """The input of a background supervisor."""

    plan: FleetPlan
    ready_within_s: float


def supervise(
    plan: FleetPlan,
    ready_within_s: float,
    show: Callable[[FleetState], None] | None = None,
) -> None:
    """Run the fleet until it is stopped. Then the record is removed, unless the fleet failed: it says why."""
    paths = plan.paths

    def publish(state: FleetState) -> None:
        try:
            write_state(paths, state)
        finally:
            # On a full disk, the terminal still shows the progress.
            if show is not None:
                show(state)

    async def run() -> None:
        await FleetSupervisor(plan, publish, ready_within_s=ready_within_s).run()

    with only_supervisor(paths):
        _set_old_logs_aside(plan)
        for file in _engine_keys(plan):
            write_private(file, secrets.token_urlsafe(32).encode() + b"\n")
        _write_gateway_file(plan)
        asyncio.run(run())
        for file in (paths.state, paths.gateway_file, *_engine_keys(plan)):
            file.unlink(missing_ok=True)


def _engine_keys(plan: FleetPlan) -> list[Path]:
    return [Path(file) for engine in plan.engines for file in engine.process.secrets.values()]


def _write_gateway_file(plan: FleetPlan) -> None:
    file = plan.gateway_file
    if plan.makes_admin_key:
        key_sha256 = admin_key_sha256(plan.paths)
        file = file.model_copy(
            update={"gateway": file.gateway.model_copy(update={"admin_key_sha256": key_sha256})}
        )
    write_private(plan.paths.gateway_file, file.model_dump_json(indent=1).encode())


def _set_old_logs_aside(plan: FleetPlan) -> None:
    for member in plan.members:
        log = Path(member.process.log)
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists():
            log.replace(log.with_suffix(".log.1"))


def main() -> None:
    """`python -m phasewise.fleet.local.supervisor FILE`: run what the file says and remove it."""
    file = Path(sys.argv[1])
    assignment = Assignment.model_validate_json(file.read_bytes())
    file.unlink(missing_ok=True)
    try:
        supervise(assignment.plan, assignment.ready_within_s)
    except PhasewiseError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
