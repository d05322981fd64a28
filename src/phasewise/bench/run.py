"""What a run leaves behind: the timelines of its requests, and how well the generator itself kept up.

Only nouns: the generator fills them, the report reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from phasewise.adapters.host_cpu import CpuTimes
from phasewise.bench.engine_watch import EngineRecord
from phasewise.bench.target import Target
from phasewise.model.timeline import Timeline
from phasewise.workload.arrivals import ClosedLoop
from phasewise.workload.plan import Plan

CUT_SHORT = "cut_short"
"""The reason of a request that was in flight when the run was stopped."""


@dataclass(frozen=True, slots=True)
class GeneratorHealth:
    """How the generator fared, apart from what it measured.

    `loop_lags_s` are readings of how late the event loop came to a timer: chunks are stamped as late as that.
    `held_back` requests were sent late because as many as allowed were open already.
    """

    loop_lags_s: tuple[float, ...] = ()
    cpu_s: float = 0.0
    held_back: int = 0


@dataclass(frozen=True, slots=True)
class BenchRun:
    """What a run saw.

    `unsent` requests of the plan were never due or never sent. `fixed_lengths` says that the engine let us
    fix the outputs' lengths, `primed` that every prompt was sent once before, to warm the prefix cache.
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
