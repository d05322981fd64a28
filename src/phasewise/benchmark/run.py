"""The results of a run: the timelines of its requests, and how well the generator itself kept up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from phasewise.benchmark.engine_watch import EngineRecord
from phasewise.benchmark.target import Target
from phasewise.benchmark.workload.arrivals import ClosedLoop
from phasewise.benchmark.workload.plan import Plan
from phasewise.clients.host import CpuTimes
from phasewise.core.timeline import Timeline

CUT_SHORT = "cut_short"
"""The reason recorded for a request that was in flight when the run was stopped."""


@dataclass(frozen=True, slots=True)
class GeneratorHealth:
    """How well the generator worked, apart from what it measured.

    `loop_lags_s` are samples of how late the event loop was to a timer: chunks are stamped that late.
    `held_back` requests were sent late because the limit of open requests was reached.
    """

    loop_lags_s: tuple[float, ...] = ()
    cpu_s: float = 0.0
    held_back: int = 0


@dataclass(frozen=True, slots=True)
class BenchRun:
    """What a run measured.

    `unsent` requests of the plan were never due or never sent. `fixed_lengths` says that the engine accepted
    fixed output lengths, `primed` that every prompt was sent once before, to warm the prefix cache.
    `rejections` has the gateway's words for each of its codes.
    """

    target: Target
    plan: Plan
    timelines: tuple[Timeline, ...]
    wall_s: float
    started_unix_s: float = 0.0
    cut_short: bool = False
    fixed_lengths: bool = True
    primed: bool = False
    health: GeneratorHealth = field(default_factory=GeneratorHealth)
    engine: EngineRecord | None = None
    cpu_samples: Sequence[CpuTimes] = ()
    rejections: Mapping[str, str] = field(default_factory=dict)

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
