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
    """The workers of one gateway, by name. Changes are rare and requests are not: answers are kept ready."""

    def __init__(self, workers: Iterable[Worker]) -> None:
        self._states = {worker.name: WorkerState(worker, Health.UNKNOWN) for worker in workers}
        self._usable: dict[str, tuple[Worker, ...]] = {}
        served = (name for state in self._states.values() for name in _models_of(state.worker))
        self._models = tuple(dict.fromkeys(served))

    def snapshot(self) -> tuple[WorkerState, ...]:
        """Every worker, in the order given."""
        return tuple(self._states.values())

    def state(self, name: str) -> WorkerState:
        """One worker as last seen."""
        return self._states[name]

    def is_current(self, ref: WorkerRef) -> bool:
        """Whether this is the worker's present incarnation, up or down, and not a former one."""
        return self._states[ref.name].worker.incarnation == ref.incarnation

    def usable(self, model: str) -> tuple[Worker, ...]:
        """Workers that answer and serve the model."""
        return self._usable.get(model, ())

    @property
    def models(self) -> tuple[str, ...]:
        """Every model that some worker serves, whether it answers now or not."""
        return self._models

    def mark_up(self, name: str, incarnation: str) -> None:
        """A worker answered; another incarnation than before replaces it."""
        worker = self._states[name].worker
        if worker.incarnation != incarnation:
            worker = replace(worker, incarnation=incarnation)
        self._put(WorkerState(worker, Health.UP))

    def mark_down(self, name: str, note: str) -> None:
        """A worker did not answer."""
        self._put(replace(self._states[name], health=Health.DOWN, note=note))

    def report_unreachable(self, ref: WorkerRef, note: str) -> None:
        """A request found the worker gone; believed only of the incarnation that the request was sent to."""
        if self.is_current(ref):
            self.mark_down(ref.name, note)

    def check_invariants(self) -> None:
        """What is kept ready is what the workers' states say."""
        if self._usable != (expected := self._index()):
            raise AssertionError(f"usable workers out of step: {self._usable} but states say {expected}")

    def _put(self, state: WorkerState) -> None:
        before = self._states[state.worker.name]
        self._states[state.worker.name] = state
        if state.worker is not before.worker or state.health is not before.health:
            self._usable = self._index()

    def _index(self) -> dict[str, tuple[Worker, ...]]:
        index: dict[str, list[Worker]] = {}
        for state in self._states.values():
            if state.health is Health.UP:
                for model in _models_of(state.worker):
                    index.setdefault(model, []).append(state.worker)
        return {model: tuple(workers) for model, workers in index.items()}


def _models_of(worker: Worker) -> tuple[str, ...]:
    """The names it is asked for by: its model's and its adapter's."""
    if worker.lora is None or worker.lora == worker.model:
        return (worker.model,)
    return (worker.model, worker.lora)
