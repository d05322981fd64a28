"""What a watch saw in one window, as it was read: the only input of a verdict besides the objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from phasewise.clients.processes import CpuUse
from phasewise.clients.timeline_feed import Missed
from phasewise.core.engine_metrics import LoadReading, MetricsDelta
from phasewise.core.steps import EngineStep
from phasewise.core.timeline import Timeline

SAME_START_S = 5.0
"""Tolerance between a process's start and the start that an engine reports: boot times are rounded."""


@dataclass(frozen=True, slots=True)
class HostCpu:
    """The CPU use of an engine's processes, when the listening one started, and the number format in which
    it computes, if the processor has no instructions for that. `settings` are those on its command line, by
    our names, and `cores` are those that it may use.
    """

    use: CpuUse
    started_unix_s: float | None
    slow_format: str | None = None
    settings: Mapping[str, int] = field(default_factory=dict)
    cores: int | None = None

    def may_be(self, started_unix_s: float | None) -> bool:
        """Whether an engine with this start time can be this process: it may be a tunnel instead."""
        if started_unix_s is None or self.started_unix_s is None:
            return True
        return abs(started_unix_s - self.started_unix_s) <= SAME_START_S


class TargetKind(StrEnum):
    """The kind of server at an address."""

    GATEWAY = "gateway"
    ENGINE = "engine"


@dataclass(frozen=True, slots=True)
class WatchedEngine:
    """An engine to watch; `steps_url` is its step recorder, `model` its name at the gateway, `kind` the title
    of its kind, if it is known.
    """

    name: str
    url: str
    steps_url: str | None
    model: str | None = None
    kind: str = ""


@dataclass(frozen=True, slots=True)
class EngineSeen:
    """What was observed of one engine. `metrics` is None if it did not answer at both ends of the window.

    `recorded` says whether a step recorder answered, `details` whether its steps carry token counts,
    `dropped` how many were overwritten before they were read. `out_of_service` is why its gateway does not
    use it at the window's end; empty if it does.
    """

    engine: WatchedEngine
    metrics: MetricsDelta | None
    steps: tuple[EngineStep, ...]
    details: bool
    dropped: int
    loads: tuple[LoadReading, ...]
    round_trip_s: float | None
    recorded: bool = False
    out_of_service: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that was seen in a window.

    `reported` are the gateway's timelines, finished and open; `missed` are those that it could not give.
    `probed` are requests that we sent ourselves; with `cut_short` they were interrupted. `stolen_share` is
    the share of this machine's processor time that its hypervisor gave to others. With `kept` the window has
    passed, and this is what its gateway kept of it: nobody read the engines' counters at its ends.
    """

    url: str
    kind: TargetKind
    began_unix_s: float
    ended_unix_s: float
    engines: tuple[EngineSeen, ...]
    hosts: Mapping[str, HostCpu] = field(default_factory=dict)
    reported: tuple[Timeline, ...] = ()
    missed: Missed = field(default_factory=Missed)
    probed: tuple[Timeline, ...] = ()
    synthetic: bool = False
    cut_short: bool = False
    stolen_share: float | None = None
    kept: bool = False
