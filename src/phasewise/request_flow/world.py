"""The state that all flows of a gateway share, and who of those waiting may go on now."""

from __future__ import annotations

from dataclasses import dataclass, field

from phasewise.costs.pace_book import PaceBook
from phasewise.model.decision import Candidate
from phasewise.ports import QuotaSettlement
from phasewise.routing.policies import Policy
from phasewise.state.breakers import LONGEST_PAIR_REST_S, PAIR_FAILURES_TO_OPEN, Breakers
from phasewise.state.cluster_view import ClusterView
from phasewise.state.latest_time import LatestTime
from phasewise.state.load_ledger import IDLE, LoadLedger
from phasewise.state.prefix_index import PrefixIndex
from phasewise.state.retry_budget import RetryBudget
from phasewise.state.waiting_line import WaitingLine


@dataclass(frozen=True, slots=True)
class World:
    """The state that flows share.

    `pairs` are the breakers of workers that hand KV over, by `pair_ref`. One that `learns_pace` notes how
    fast its engines are; where nobody asks for that it only costs time.
    """

    cluster: ClusterView
    ledger: LoadLedger
    retries: RetryBudget
    policy: Policy
    breakers: Breakers
    line: WaitingLine
    quotas: QuotaSettlement
    clock: LatestTime = field(default_factory=LatestTime)
    paces: PaceBook = field(default_factory=PaceBook)
    prefixes: PrefixIndex = field(default_factory=PrefixIndex)
    pairs: Breakers = field(default_factory=lambda: Breakers(PAIR_FAILURES_TO_OPEN, LONGEST_PAIR_REST_S))
    learns_pace: bool = True

    def candidates(self, model: str, now_s: float) -> list[Candidate]:
        """Workers of the model that answer, are trusted, and have a free slot, with what they have to do."""
        load_of = self.ledger.loads.get
        candidates = [
            Candidate(
                worker, load.tokens, load.requests, load.unread_tokens, load.streams, load.unread_requests
            )
            for worker in self.cluster.usable(model)
            if (load := load_of(worker.ref, IDLE)).requests < worker.slots
        ]
        if not self.breakers.any_open:
            return candidates
        return [it for it in candidates if self.breakers.allowance(it.worker.ref, now_s)]

    def room(self, model: str, now_s: float) -> int:
        """How many more requests the model's workers may be given now.

        Those of every role: which of them takes which part is the policy's, but none is idle while others
        wait.
        """
        load_of, workers = self.ledger.loads.get, self.cluster.usable(model)
        free_slots = [worker.slots - load_of(worker.ref, IDLE).requests for worker in workers]
        if not self.breakers.any_open:
            return sum(free_slots)
        allowances = (self.breakers.allowance(worker.ref, now_s) for worker in workers)
        return sum(map(min, free_slots, allowances))


def let_waiting_in(world: World, now_s: float) -> None:
    """Grant as many tickets as there is room for.

    Whoever makes room calls this: a request that ends, a worker that comes back, time for a breaker.
    A ticket that is granted keeps its room until its flow has come to use it.
    """
    world.clock.tell(now_s)
    for model in world.line.models:
        world.line.grant(model, world.room(model, now_s), now_s)
