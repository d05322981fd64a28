"""Which workers exist and which of them answer. Written by the health watcher and by reports of failure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from phasewise.model.worker import Worker, WorkerRef


class Health(StrEnum):
    """What was last seen of a worker."""

    UNKNOWN = "unknown"
    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker and what was last seen of it."""

    worker: Worker
    health: Health
    note: str = ""


class ClusterView:
    """The workers of one gateway, by name."""

    def __init__(self, workers: Iterable[Worker]) -> None:
        self._states = {worker.name: WorkerState(worker, Health.UNKNOWN) for worker in workers}

    def snapshot(self) -> tuple[WorkerState, ...]:
        """Every worker, in the order given."""
        return tuple(self._states.values())

    def usable(self, model: str) -> tuple[Worker, ...]:
        """Workers that answer and serve the model."""
        return tuple(
            state.worker
            for state in self._states.values()
            if state.health is Health.UP and model in {state.worker.model, state.worker.lora}
        )

    @property
    def models(self) -> tuple[str, ...]:
        """Every model that some worker serves, whether it answers now or not."""
        names = (name for state in self._states.values() for name in (state.worker.model, state.worker.lora))
        return tuple(dict.fromkeys(name for name in names if name is not None))

    def mark_up(self, name: str, incarnation: str) -> None:
        """A worker answered; another incarnation than before replaces it."""
        state = self._states[name]
        worker = state.worker
        if worker.incarnation != incarnation:
            worker = replace(worker, incarnation=incarnation)
        self._states[name] = WorkerState(worker, Health.UP)

    def mark_down(self, name: str, note: str) -> None:
        """A worker did not answer."""
        self._states[name] = replace(self._states[name], health=Health.DOWN, note=note)

    def report_unreachable(self, ref: WorkerRef, note: str) -> None:
        """A request found the worker gone; believed only of the incarnation that the request was sent to."""
        if self._states[ref.name].worker.incarnation == ref.incarnation:
            self.mark_down(ref.name, note)
