"""A fleet in virtual time: gateways with the real request flow before engines that count.

The same seed gives the same result to the bit. Gateways and networks take no time, except for KV transfers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf
from zlib import crc32

from phasewise.core.kv_transfer import SplitRule
from phasewise.core.request import NO_LIMITS, Endpoint, GenerationRequest, Limits
from phasewise.core.worker import DEFAULT_SLOTS, Role, Worker
from phasewise.costs.fit.step import StepSeconds
from phasewise.scheduling import World
from phasewise.scheduling.ledger import Neighbours
from phasewise.scheduling.rules import SchedulingRules, new_world
from phasewise.simulator.counting_engine import NO_DRAFTS, CountingEngine, DraftedTokens
from phasewise.simulator.gateway import SimulatedGateway, SimulatedRequest, VirtualQuotas
from phasewise.simulator.hosts import EngineHost, Links, LinkSpeed, VirtualClock
from phasewise.simulator.requests import EngineShape
from phasewise.simulator.traffic import Session, SessionTurn, SimulatedTraffic, block_keys, tokens_of

MODEL = "simulated"
BYTES_PER_TOKEN = 4.6
"""Bytes per token of a client's prompts; a gateway has to learn it."""
TEMPLATE_TOKENS = 12
HEALTH_EVERY_S = 2.0
"""How often gateways look whether an engine is up."""
HASHED_BLOCK_TOKENS = 111
"""What a gateway's blocks of 512 bytes hold of English text."""


DEMO_SHAPE, DEMO_LINKS = EngineShape(), LinkSpeed()


@dataclass(frozen=True, slots=True)
class EnginePool:
    """Engines that are alike."""

    engines: int
    cost: StepSeconds
    shape: EngineShape = DEMO_SHAPE
    role: Role = Role.MIXED
    slots: int = DEFAULT_SLOTS
    speculation: DraftedTokens = NO_DRAFTS
    name: str = ""


@dataclass(frozen=True, slots=True)
class EngineOutage:
    """An engine dies, and is up again some time later."""

    at_s: float
    engine: str
    down_s: float = inf


SPREAD_BY: Mapping[str, Callable[[SessionTurn], int]] = {
    "conversation": lambda turn: turn.conversation,
    "tenant": lambda turn: crc32(turn.tenant.encode()),
    "prefix": lambda turn: turn.keys[0] if turn.keys else turn.prompt[0].text,
}
"""What a load balancer in front of the gateways may hash. The prefix is what a prompt begins with."""


@dataclass(frozen=True, slots=True)
class FleetScenario:
    """A fleet to simulate. `split` and `threshold_tokens` are those of disaggregated fleets.

    Requests are spread over gateways by a name in SPREAD_BY, as if by chance without one. Several gateways
    that share nothing else agree on a conversation's home, unless `homes` is false: they have no secret in
    common then.
    """

    pools: tuple[EnginePool, ...]
    gateways: int = 1
    policy: str = "prefix_affinity"
    split: SplitRule = SplitRule.AUTO
    threshold_tokens: int = 512
    links: LinkSpeed = DEMO_LINKS
    queue: int = 1_000
    max_wait_s: float = 10.0
    failures: tuple[EngineOutage, ...] = ()
    spread_by: str | None = None
    homes: bool = True
    limits: Mapping[str, Limits] = field(default_factory=dict)
    """The limits of tenants; each has a key of its own."""

    @property
    def block_tokens(self) -> int:
        """The size of a cached block, the same for all engines."""
        return self.pools[0].shape.block_size


NeighboursOf = Callable[["SimulatedFleet", int], Neighbours | None]
"""What a gateway of this number learns of the others; None if nothing."""


class SimulatedFleet:
    """One fleet, to be run once."""

    def __init__(
        self, plan: FleetScenario, seed: int = 1, neighbours_of: NeighboursOf = lambda _fleet, _number: None
    ) -> None:
        self.plan = plan
        self.clock = VirtualClock()
        self.links = Links(self.clock, plan.links)
        self.hosts: dict[str, EngineHost] = {}
        self.requests: list[SimulatedRequest] = []
        self.on_arrival: Callable[[SimulatedRequest], None] = lambda _request: None
        self.on_end: Callable[[SimulatedRequest], None] = lambda _request: None
        self._pool_of: dict[str, EnginePool] = {}
        self._numbers: dict[str, Iterator[int]] = {}
        self._seed = seed
        workers = [self._new_worker(pool) for pool in plan.pools for _ in range(pool.engines)]
        for worker in workers:
            self._host(worker)
        self.gateways = [
            SimulatedGateway(
                self.clock, _world(plan, workers, self.clock, neighbours_of(self, number)), self.hosts, number
            )
            for number in range(plan.gateways)
        ]
        shares_nothing = all(gateway.world.neighbours is None for gateway in self.gateways)
        self._names_conversations = plan.homes and plan.gateways > 1 and shares_nothing
        for failure in plan.failures:
            self.clock.at(failure.at_s, self._fail, failure)

    def run(self, traffic: SimulatedTraffic, until_s: float = inf) -> list[SimulatedRequest]:
        """Serve all sessions, to the end or up to a time."""
        self._plan_next(iter(traffic.sessions))
        self.clock.run(until_s)
        return self.requests

    # --- engines ------------------------------------------------------------------------------------------

    def _new_worker(self, pool: EnginePool) -> Worker:
        kind = pool.name or pool.role
        name = f"{kind}-{next(self._numbers.setdefault(kind, count()))}"
        self._pool_of[name] = pool
        return Worker(name, f"http://{name}", MODEL, "1", pool.role, kind, slots=pool.slots)

    def _host(self, worker: Worker) -> None:
        self.hosts[worker.name] = EngineHost(self.clock, worker, self._engine(worker.name), self.links)

    def _engine(self, name: str) -> CountingEngine:
        pool = self._pool_of[name]
        return CountingEngine(pool.shape, pool.cost, pool.speculation)

    def _fail(self, failure: EngineOutage) -> None:
        if failure.down_s < inf:
            self.clock.at(self.clock.now_s + failure.down_s, self._revive, failure.engine)
        self._look_soon(failure.engine)
        self.hosts[failure.engine].die()

    def _revive(self, name: str) -> None:
        host = self.hosts[name]
        again = replace(host.worker, incarnation=str(int(host.worker.incarnation) + 1))
        host.revive(again, self._engine(name))
        self._look_soon(name)

    def _look_soon(self, name: str) -> None:
        every_s = HEALTH_EVERY_S
        self.clock.at(every_s * (self.clock.now_s // every_s + 1), self._look, name)

    def _look(self, name: str) -> None:
        """The gateways' health watchers look at an engine."""
        host = self.hosts[name]
        for gateway in self.gateways:
            if host.up:
                gateway.sees_up(name, host.worker.incarnation)
            else:
                gateway.sees_down(name)

    # --- clients ------------------------------------------------------------------------------------------

    def _plan_next(self, coming: Iterator[Session]) -> None:
        """Plan one session at a time, so that a long trace is never planned as a whole."""
        if (session := next(coming, None)) is not None:
            self.clock.at(session.at_s, self._begin, coming, session)

    def _begin(self, coming: Iterator[Session], session: Session) -> None:
        self._plan_next(coming)
        self._ask(session, 0)

    def _ask(self, session: Session, number: int) -> None:
        turn = session.turns[number]

        def ended(served: SimulatedRequest) -> None:
            self.on_end(served)
            if number + 1 < len(session.turns) and served.answered:
                think_s = session.turns[number + 1].think_s
                self.clock.at(self.clock.now_s + think_s, self._ask, session, number + 1)

        served = SimulatedRequest(self._request(turn), tokens_of(turn.prompt), turn.output_tokens)
        self.requests.append(served)
        self.on_arrival(served)
        self._gateway_of(turn).serve(served, self.keys_of(turn, self.plan.block_tokens), ended)

    def _gateway_of(self, turn: SessionTurn) -> SimulatedGateway:
        if self.plan.spread_by is None:
            mixed = hash((self._seed, len(self.requests), self._seed)) >> 7
            return self.gateways[mixed % len(self.gateways)]
        key, seed = SPREAD_BY[self.plan.spread_by](turn), self._seed
        # If a gateway is gone, only its own keys move.
        return max(self.gateways, key=lambda gateway: hash((seed, key, gateway.number)))

    def _request(self, turn: SessionTurn) -> GenerationRequest:
        prompt_tokens = tokens_of(turn.prompt)
        if turn.keys:
            hashes = turn.keys[: prompt_tokens // self.plan.block_tokens]
        else:
            hashes = block_keys(turn.prompt, HASHED_BLOCK_TOKENS)
        return GenerationRequest(
            f"r{len(self.requests)}",
            Endpoint.CHAT,
            MODEL,
            self.clock.now_s,
            prompt_bytes=int(max(1, prompt_tokens - TEMPLATE_TOKENS) * BYTES_PER_TOKEN),
            max_output_tokens=turn.output_tokens,
            stream=True,
            tenant=turn.tenant,
            priority=turn.priority,
            max_wait_s=self.plan.max_wait_s,
            key_id=turn.tenant,
            limits=self.plan.limits.get(turn.tenant, NO_LIMITS),
            prefix_hashes=tuple(hashes),
            conversation=turn.conversation if self._names_conversations else 0,
            splittable=True,
        )

    @staticmethod
    def keys_of(turn: SessionTurn, block_tokens: int) -> Sequence[int]:
        """The blocks of the prompt and its answer: the next turn begins with both."""
        if turn.keys:
            return turn.keys
        last = turn.prompt[-1]
        longer = replace(last, tokens=last.tokens + turn.output_tokens)
        return block_keys((*turn.prompt[:-1], longer), block_tokens)


def _world(
    plan: FleetScenario, workers: Sequence[Worker], clock: VirtualClock, neighbours: Neighbours | None
) -> World:
    split = plan.split if any(worker.role is Role.PREFILL for worker in workers) else None
    rules = SchedulingRules(plan.policy, split, plan.threshold_tokens, plan.queue)
    world = new_world(rules, workers, VirtualQuotas(clock), neighbours)
    for worker in workers:
        world.cluster.mark_up(worker.name, worker.incarnation)
    return world
