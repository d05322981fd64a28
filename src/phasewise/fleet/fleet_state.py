"""What is known of a running fleet: its processes, their stages and addresses.

Only the supervisor changes it. Where it is kept is run_file.py's; how it looks is the command line's.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from phasewise.config import GatewayConfig
from phasewise.model.worker import Role


class Stage(StrEnum):
    """How far a process has come."""

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


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ProcessIdentity(_Frozen):
    """A process that cannot be mistaken for a later one with the same number."""

    pid: int
    start_ticks: int


class MemberState(_Frozen):
    """An engine or the gateway; its process leads a session of its own, whose id is its pid."""

    name: str
    url: str
    log: str
    role: Role | None = None
    steps_url: str | None = None
    cores: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()
    process: ProcessIdentity | None = None
    stage: Stage = Stage.WAITING
    since_unix_s: float = 0.0
    restarts: int = 0
    ready_in_s: float | None = None
    note: str | None = None


class Failure(_Frozen):
    """Why a fleet stopped by itself."""

    message: str
    hint: str | None = None


class FleetState(_Frozen):
    """A fleet at one moment, as the supervisor last wrote it."""

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
    failure: Failure | None = None

    @property
    def members(self) -> tuple[MemberState, ...]:
        """Every process of the fleet but the supervisor."""
        return (*self.engines, self.gateway)

    @property
    def all_ready(self) -> bool:
        """Whether every member serves."""
        return all(member.stage is Stage.READY for member in self.members)
