"""The state that all flows of a gateway share: the workers, their load, the queue and the breakers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from phasewise.core.decision import Candidate
from phasewise.core.ports import QuotaSettlement
from phasewise.core.worker import UNKNOWN_MODEL, Worker, WorkerRef
from phasewise.scheduling.breakers import LONGEST_PAIR_OPEN_S, PAIR_FAILURES_TO_OPEN, Breakers, RetryBudget
from phasewise.scheduling.engine_speed import EngineSpeeds
from phasewise.scheduling.ledger import IDLE, LoadLedger, Neighbours, candidate
from phasewise.scheduling.policies import Policy
from phasewise.scheduling.prefix_index import PrefixIndex
from phasewise.scheduling.queue import WaitingQueue

# --- Which workers exist and which of them answer. Written by the health watcher and by reports of failure.


class Health(StrEnum):
    """The health of a worker at its last check.

    A suspect or hung one answers, but its requests make no progress.
    """

    UNKNOWN = "unknown"
    UP = "up"
    SUSPECT = "suspect"
    HUNG = "hung"
    DOWN = "down"

    @property
    def stands_still(self) -> bool:
        """Whether the worker answers without making progress."""
        return self in {Health.SUSPECT, Health.HUNG}


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker and its health at the last check."""

    worker: Worker
    health: Health
    note: str = ""


@dataclass(frozen=True, slots=True)
class WorkerChange:
    """Workers that are gone, and new ones. One with another address or model is both."""

    gone: tuple[str, ...]
    new: tuple[Worker, ...]


class ClusterView:
    """The workers of one gateway, by name.

    Changes are rare, so the usable workers of a model are precomputed.
    """

    def __init__(self, workers: Iterable[Worker]) -> None:
        self._states: dict[str, WorkerState] = {}
        self._usable: dict[str, tuple[Worker, ...]] = {}
        self._models: tuple[str, ...] = ()
        self.set_workers(workers)

    def set_workers(self, workers: Iterable[Worker]) -> WorkerChange:
        """Replace the workers. Those at the same address with the same model keep their state."""
        before, self._states, new = self._states, {}, []
        for worker in workers:
            known = before.get(worker.name)
            if known is not None and worker.model == UNKNOWN_MODEL and worker.url == known.worker.url:
                # It has said so itself.
                model, steps_url = known.worker.model, known.worker.steps_url
                worker = replace(worker, model=model, steps_url=steps_url)  # noqa: PLW2901
            if known is None or not _is_same_engine(known.worker, worker):
                new.append(worker)
                self._states[worker.name] = WorkerState(worker, Health.UNKNOWN)
            else:
                same = replace(worker, incarnation=known.worker.incarnation)
                self._states[worker.name] = replace(known, worker=same)
        self._index_models()
        stay = self._states.keys() - {worker.name for worker in new}
        return WorkerChange(tuple(name for name in before if name not in stay), tuple(new))

    def snapshot(self) -> tuple[WorkerState, ...]:
        """Every worker, in the order given."""
        return tuple(self._states.values())

    def state(self, name: str) -> WorkerState:
        """One worker at its last check."""
        return self._states[name]

    def is_current(self, ref: WorkerRef) -> bool:
        """Whether this is the worker's present incarnation, up or down."""
        state = self._states.get(ref.name)
        return state is not None and state.worker.incarnation == ref.incarnation

    def is_up(self, ref: WorkerRef) -> bool:
        """Whether this incarnation of the worker is there and answers."""
        return self.is_current(ref) and self._states[ref.name].health is Health.UP

    def usable(self, model: str) -> tuple[Worker, ...]:
        """Workers that answer and serve the model."""
        return self._usable.get(model, ())

    def serving(self, model: str) -> tuple[WorkerState, ...]:
        """Workers that serve the model, whether they answer now or not."""
        return tuple(state for state in self._states.values() if model in _models_of(state.worker))

    @property
    def models(self) -> tuple[str, ...]:
        """Every model that some worker serves, whether it answers now or not."""
        return self._models

    def mark_up(
        self, name: str, incarnation: str, model: str = UNKNOWN_MODEL, steps_url: str | None = None
    ) -> None:
        """A worker answered; a new incarnation replaces the old one.

        `model` and `steps_url` count if no model was known.
        """
        worker = self._states[name].worker
        is_named = worker.model == UNKNOWN_MODEL and model != UNKNOWN_MODEL
        if is_named:
            worker = replace(worker, model=model, steps_url=steps_url)
        if worker.incarnation != incarnation:
            worker = replace(worker, incarnation=incarnation)
        self._put(WorkerState(worker, Health.UP))
        if is_named:
            self._index_models()

    def mark_down(self, name: str, note: str) -> None:
        """A worker did not answer."""
        self._put(replace(self._states[name], health=Health.DOWN, note=note))

    def mark_still(self, name: str, health: Health, note: str) -> None:
        """A worker answers, but makes no progress."""
        self._put(replace(self._states[name], health=health, note=note))

    def annotate(self, name: str, note: str) -> None:
        """A worker is in service all the same, with this to be said of it."""
        self._put(replace(self._states[name], note=note))

    def report_unreachable(self, ref: WorkerRef, note: str) -> None:
        """A request could not reach the worker. Ignored if the worker has restarted since."""
        if self.is_current(ref):
            self.mark_down(ref.name, note)

    def check_invariants(self) -> None:
        """The precomputed usable workers match the workers' states."""
        if self._usable != (expected := self._index()):
            raise AssertionError(f"usable workers out of step: {self._usable} but states say {expected}")

    def _put(self, state: WorkerState) -> None:
        before = self._states[state.worker.name]
        self._states[state.worker.name] = state
        if state.worker is not before.worker or state.health is not before.health:
            self._usable = self._index()

    def _index_models(self) -> None:
        served = (name for state in self._states.values() for name in _models_of(state.worker))
        self._models = tuple(dict.fromkeys(served))
        self._usable = self._index()

    def _index(self) -> dict[str, tuple[Worker, ...]]:
        index: dict[str, list[Worker]] = {}
        for state in self._states.values():
            if state.health is Health.UP:
                for model in _models_of(state.worker):
                    index.setdefault(model, []).append(state.worker)
        return {model: tuple(workers) for model, workers in index.items()}


def _is_same_engine(one: Worker, other: Worker) -> bool:
    return replace(one, incarnation="", slots=0) == replace(other, incarnation="", slots=0)


def _models_of(worker: Worker) -> tuple[str, ...]:
    """The model name that requests may use; none while it is unknown."""
    return () if worker.model == UNKNOWN_MODEL else (worker.model,)


# --- The latest time that was reported, for code that runs without a time of its own.


class LatestTime:
    """A clock that moves only when it is advanced."""

    __slots__ = ("now_s",)

    def __init__(self) -> None:
        self.now_s = 0.0

    def advance(self, at_s: float) -> None:
        """Something happened at this time."""
        self.now_s = max(self.now_s, at_s)


@dataclass(slots=True)
class World:
    """The state that flows share. A reload may replace the policy and `learns_pace`, nothing else.

    `pairs` are the breakers of worker pairs that transfer KV, by `pair_ref`. `learns_pace` is false where no
    policy uses the engines' speeds, to save time. `neighbours` are other replicas with the same workers.
    """

    cluster: ClusterView
    ledger: LoadLedger
    retries: RetryBudget
    policy: Policy
    breakers: Breakers
    queue: WaitingQueue
    quotas: QuotaSettlement
    clock: LatestTime = field(default_factory=LatestTime)
    paces: EngineSpeeds = field(default_factory=EngineSpeeds)
    prefixes: PrefixIndex = field(default_factory=PrefixIndex)
    pairs: Breakers = field(default_factory=lambda: Breakers(PAIR_FAILURES_TO_OPEN, LONGEST_PAIR_OPEN_S))
    learns_pace: bool = True
    neighbours: Neighbours | None = None

    def set_workers(self, workers: Sequence[Worker]) -> WorkerChange:
        """Replace the workers. Requests on those that are gone may finish there."""
        change = self.cluster.set_workers(workers)
        self.paces.set_workers(workers)
        for name in change.gone:
            self.prefixes.forget(name)
            self.breakers.forget(name)
        return change

    def learn_prefix(self, worker: WorkerRef, hashes: Sequence[int], *counts: int) -> None:
        """A worker has computed this prompt: see PrefixIndex.served. Other replicas learn it too."""
        self.prefixes.served(worker, hashes, *counts)
        if self.neighbours is not None:
            self.neighbours.served(worker, hashes, *counts)

    def candidates(self, model: str, now_s: float) -> list[Candidate]:
        """Healthy workers of the model with a free slot and no open circuit, with their load."""
        workers = self.cluster.usable(model)
        if self.neighbours is None:
            candidates = self.ledger.candidates(workers)
        else:
            load_of = self.ledger.whole_loads()
            candidates = [
                option
                for worker in workers
                if (option := candidate(worker, load_of(worker.ref, IDLE))).has_slot
            ]
        if not self.breakers.any_open:
            return candidates
        return [candidate for candidate in candidates if self.breakers.allowance(candidate.worker.ref, now_s)]

    def free_slots(self, model: str, now_s: float) -> int:
        """How many more requests the model's workers, of every role, can take now."""
        workers = self.cluster.usable(model)
        free_slots = [worker.slots - self.ledger.load(worker.ref).requests for worker in workers]
        if not self.breakers.any_open:
            return sum(free_slots)
        allowances = (self.breakers.allowance(worker.ref, now_s) for worker in workers)
        return sum(map(min, free_slots, allowances))


def let_waiting_in(world: World, now_s: float) -> None:
    """Grant as many tickets as there are free slots.

    Called when a slot may be free: a request ends, a worker comes back, a circuit admits a trial. A granted
    ticket keeps its slot until its flow uses it.
    """
    world.clock.advance(now_s)
    for model in world.queue.models:
        world.queue.grant(model, world.free_slots(model, now_s), now_s)
