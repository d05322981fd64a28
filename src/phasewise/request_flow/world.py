"""The state that all flows of a gateway share, and who of those waiting may go on now."""

from __future__ import annotations

from dataclasses import dataclass

from phasewise.model.worker import Worker
from phasewise.ports import QuotaSettlement
from phasewise.routing.policies import Policy
from phasewise.state.breakers import Breakers
from phasewise.state.cluster_view import ClusterView
from phasewise.state.load_ledger import LoadLedger
from phasewise.state.retry_budget import RetryBudget
from phasewise.state.waiting_line import WaitingLine


@dataclass(frozen=True, slots=True)
class World:
    """The state that flows share."""

    cluster: ClusterView
    ledger: LoadLedger
    retries: RetryBudget
    policy: Policy
    breakers: Breakers
    line: WaitingLine
    quotas: QuotaSettlement

    def open_workers(self, model: str, now_s: float) -> tuple[Worker, ...]:
        """Workers of the model that answer, are trusted, and have a free slot."""
        return tuple(
            worker
            for worker in self.cluster.usable(model)
            if self.free_slots(worker) > 0 and self.breakers.allows(worker.ref, now_s)
        )

    def free_slots(self, worker: Worker) -> int:
        """How many more requests the worker may be given."""
        return worker.slots - self.ledger.load(worker.ref).requests


def let_waiting_in(world: World, now_s: float) -> None:
    """Grant as many tickets as there is room for; whoever makes room calls this.

    A ticket that is granted keeps its room until its flow has come to use it.
    """
    for model in world.line.models:
        room = sum(world.free_slots(worker) for worker in world.open_workers(model, now_s))
        world.line.grant(model, room, now_s)
