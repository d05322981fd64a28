"""One run of a report: what it saw, its figures, and what it is called beside the others of a sweep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from phasewise.bench.report import BenchReport
from phasewise.bench.run import BenchRun
from phasewise.model.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Measured:
    """A run with its figures. `label` tells it from the others of a sweep, such as `2 req/s`."""

    run: BenchRun
    report: BenchReport
    label: str = ""

    @property
    def counted(self) -> tuple[Timeline, ...]:
        """The requests that the figures are of: those that arrived after the warm-up."""
        return self.run.timelines[self.report.window.warm_up_requests :]

    def arrival_s(self, timeline: Timeline) -> float:
        """When a request was meant to be sent, in seconds of the run."""
        return timeline.started_unix_s - self.run.started_unix_s

    def readings_s(self, reading: Callable[[Timeline], float | None]) -> list[float]:
        """One latency of every counted request that has it."""
        return [value for timeline in self.counted if (value := reading(timeline)) is not None]
