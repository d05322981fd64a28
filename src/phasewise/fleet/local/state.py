"""The state of a running fleet: its processes, their stages and addresses. Only the supervisor changes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from phasewise.core.worker import Role
from phasewise.fleet.config import GatewayConfig
from phasewise.fleet.config.gateway import Frozen


class ProcessStage(StrEnum):
    """The stage of a process."""

    WAITING = "waiting"
    STARTING = "starting"
    LOADING = "loading weights"
    WARMING_UP = "warming up"
    READY = "ready"
    SILENT = "not answering"
    BACKING_OFF = "restarting"
    DRAINING = "draining"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    DEAD = "dead"


class ProcessIdentity(Frozen):
    """A process that cannot be mistaken for a later one with the same number."""

    pid: int
    start_ticks: int


class MemberState(Frozen):
    """An engine or the gateway; its process leads a session of its own, whose id is its pid."""

    name: str
    url: str
    log: str
    role: Role | None = None
    steps_url: str | None = None
    cores: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()
    process: ProcessIdentity | None = None
    stage: ProcessStage = ProcessStage.WAITING
    since_unix_s: float = 0.0
    restarts: int = 0
    ready_in_s: float | None = None
    note: str | None = None


class Failure(Frozen):
    """Why a fleet stopped by itself."""

    message: str
    hint: str | None = None


class FleetState(Frozen):
    """A fleet at one moment, as the supervisor last wrote it; `traffic` plays requests of its own, if any."""

    version: int = 1
    name: str
    model: str
    boot_id: str
    supervisor: ProcessIdentity
    started_unix_s: float
    keys_needed: bool = False
    admin_key_file: str | None = None
    scratch: str
    drain_s: float = GatewayConfig().drain_s
    engines: tuple[MemberState, ...]
    gateway: MemberState
    traffic: MemberState | None = None
    failure: Failure | None = None

    @property
    def members(self) -> tuple[MemberState, ...]:
        """Every process of the fleet except the supervisor."""
        return (*self.engines, self.gateway, *(() if self.traffic is None else (self.traffic,)))

    @staticmethod
    def named(members: Sequence[MemberState], engines: int) -> dict[str, Any]:
        """The fields that hold these members, of which the first are so many engines."""
        gateway, *traffic = members[engines:]
        return {"engines": tuple(members[:engines]), "gateway": gateway, "traffic": next(iter(traffic), None)}

    @property
    def all_ready(self) -> bool:
        """Whether every member serves."""
        return all(member.stage is ProcessStage.READY for member in self.members)


# --- How often a supervisor checks and how long it waits, as one value that tests can shorten.


@dataclass(frozen=True)
class SupervisorTimes:
    """The times of one supervisor."""

    poll_s: float = 0.2
    health_every_s: float = 2.0
    health_timeout_s: float = 5.0
    silent_after_s: float = 10.0
    hopeless_after_s: float = 90.0
    # In addition to the gateway's own drain_s, after which it ends by itself; else it is killed.
    drain_grace_s: float = 5.0
    stop_grace_s: float = 10.0
    cleanup_grace_s: float = 1.0
    kill_grace_s: float = 5.0

    def longest_stop_s(self, drain_s: float) -> float:
        """How long stopping every process may take if running requests have `drain_s` to finish."""
        return drain_s + self.drain_grace_s + self.stop_grace_s + self.cleanup_grace_s + self.kill_grace_s
