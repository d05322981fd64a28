"""Tries a scaling rule on a simulated fleet: Kubernetes' autoscaler follows it, and engines start slowly."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil, inf

from phasewise.core.slo import Slo
from phasewise.costs.fit.step import StepCost, prefilling
from phasewise.scheduling.engines_needed import pools_need
from phasewise.scheduling.world import IDLE
from phasewise.simulator.fleet import MODEL, EnginePool, SimulatedFleet
from phasewise.simulator.gateway import SimulatedRequest

# --- Rules: how many engines a pool should have now, as a fraction.

Rule = Callable[[SimulatedFleet, EnginePool], float]


class FixedRule:
    """So many engines, always."""

    def __init__(self, engines: float) -> None:
        self._engines = engines

    def __call__(self, fleet: SimulatedFleet, pool: EnginePool) -> float:
        """The same at any time."""
        return self._engines


class ConcurrencyRule:
    """So many open requests per engine, those in the gateways' queues included."""

    def __init__(self, requests_per_engine: float) -> None:
        self._requests_per_engine = requests_per_engine

    def __call__(self, fleet: SimulatedFleet, pool: EnginePool) -> float:
        """By the requests that are open now."""
        requests = 0
        for gateway in fleet.gateways:
            world = gateway.world
            requests += world.queue.waiting(MODEL)
            for state in world.cluster.snapshot():
                if state.worker.pool == pool.name:
                    requests += world.ledger.loads.get(state.worker.ref, IDLE).requests
        return requests / self._requests_per_engine


class PhasewiseRule:
    """What the gateways publish, summed as a query would."""

    def __init__(self, slo: Slo, utilization: float) -> None:
        self._slo = slo
        self._utilization = utilization

    def __call__(self, fleet: SimulatedFleet, pool: EnginePool) -> float:
        """Of both phases and all gateways."""
        now_s = fleet.clock.now_s
        needs = (
            pools_need(it.world, self._slo, now_s, utilization=self._utilization) for it in fleet.gateways
        )
        return sum(it[MODEL, pool.name].total for it in needs if (MODEL, pool.name) in it)


class SloRule:
    """llm-d's queueing model: the highest rate of an engine at which mean TTFT and ITL are within targets.

    An iteration takes alpha / (1 - rho). Alpha, beta and gamma are those of the engine, known from the start.
    """

    WINDOW_S = 60.0

    def __init__(self, fleet: SimulatedFleet, slo: Slo, targets: float) -> None:
        self._ttft_s, self._itl_s = slo.ttft_s * targets, slo.tpot_s * targets
        self._arrived: deque[float] = deque()
        self._ended: deque[tuple[float, int, int]] = deque()
        arrival, end = fleet.on_arrival, fleet.on_end

        def arrived(served: SimulatedRequest) -> None:
            arrival(served)
            self._arrived.append(fleet.clock.now_s)

        def ended(served: SimulatedRequest) -> None:
            end(served)
            if served.answered:
                new = served.prompt_tokens - served.cached_tokens
                self._ended.append((fleet.clock.now_s, new, served.output_tokens))

        fleet.on_arrival, fleet.on_end = arrived, ended

    def __call__(self, fleet: SimulatedFleet, pool: EnginePool) -> float:
        """By the last minute's rate and mean lengths."""
        since_s = fleet.clock.now_s - self.WINDOW_S
        while self._arrived and self._arrived[0] < since_s:
            self._arrived.popleft()
        while len(self._ended) > 1 and self._ended[0][0] < since_s:
            self._ended.popleft()
        if not self._ended or not isinstance(pool.cost, StepCost):
            return 0.0
        prompt = sum(it[1] for it in self._ended) / len(self._ended)
        output = sum(it[2] for it in self._ended) / len(self._ended)
        chunk = pool.shape.max_num_batched_tokens
        alpha = pool.cost.floor_s
        beta = (pool.cost(prefilling(chunk)) - alpha) / chunk
        gamma = pool.cost.kv_read_s_per_token
        work = beta * (prompt + output) + gamma * (output + 1) * (prompt + output / 2)
        iteration_s = min(
            self._ttft_s - (beta + gamma) * prompt,
            self._itl_s - beta - gamma * (prompt + (output + 1) / 2),
        )
        rho = 1 - alpha / iteration_s if iteration_s > alpha else 0.0
        per_s = len(self._arrived) / self.WINDOW_S
        return per_s * work / rho if rho > 0 else inf


# --- Kubernetes' HorizontalPodAutoscaler, with its defaults.

TOLERANCE = 0.1
DOWN_AFTER_S = 300.0
LOOK_EVERY_S = 15.0


@dataclass(slots=True)
class PodAutoscaler:
    """From what a rule wants to a number of replicas: rises at once, falls to the most of five minutes."""

    least: int
    most: int
    _wanted: deque[tuple[float, int]] = field(default_factory=deque)

    def replicas(self, wanted: float, replicas: int, now_s: float) -> int:
        """The replicas from now on."""
        off = wanted / max(1, replicas) - 1.0
        desired = replicas if abs(off) <= TOLERANCE else self.most if wanted == inf else ceil(wanted - 1e-9)
        desired = min(self.most, max(self.least, desired))
        if not self._wanted:
            self._wanted.append((now_s, replicas))
        while self._wanted[0][0] <= now_s - DOWN_AFTER_S:
            self._wanted.popleft()
        self._wanted.append((now_s, desired))
        if desired > replicas:
            return min(desired, max(2 * replicas, replicas + 4))
        return min(replicas, max(it for _, it in self._wanted))


@dataclass(slots=True)
class ScaledPool:
    """A pool, its engines in the order of their beginnings, and how many there were from when on."""

    pool: EnginePool
    autoscaler: PodAutoscaler
    engines: list[str]
    began_s: dict[str, float]
    history: list[tuple[float, int]]
    draining: dict[str, float] = field(default_factory=dict)
    engine_s: float = 0.0


class Autoscaler:
    """Looks at a fleet's pools every fifteen seconds. To be made before the fleet runs."""

    def __init__(self, fleet: SimulatedFleet, rule: Rule, start_up_s: float, least: int, most: int) -> None:
        self._fleet = fleet
        self._rule = rule
        self.pools = []
        for pool in fleet.plan.pools:
            names = [it.worker.name for it in fleet.hosts.values() if it.worker.pool == pool.name]
            self.pools.append(
                ScaledPool(
                    replace(pool, starts_s=start_up_s),
                    PodAutoscaler(least, most),
                    names,
                    dict.fromkeys(names, 0.0),
                    [(0.0, len(names))],
                )
            )
        fleet.clock.background += 1
        fleet.clock.at(LOOK_EVERY_S, self._look)

    def end(self) -> None:
        """The run is over: count what is still there."""
        for it in self.pools:
            self._note_drained(it)
            for name in [*it.engines, *it.draining]:
                it.engine_s += self._fleet.clock.now_s - it.began_s[name]

    def _look(self) -> None:
        now_s = self._fleet.clock.now_s
        self._fleet.clock.at(now_s + LOOK_EVERY_S, self._look)
        for it in self.pools:
            self._note_drained(it)
            before = len(it.engines)
            replicas = it.autoscaler.replicas(self._rule(self._fleet, it.pool), before, now_s)
            for _ in range(before, replicas):
                name = self._fleet.add_engine(it.pool)
                it.engines.append(name)
                it.began_s[name] = now_s
            for _ in range(replicas, before):
                name = it.engines.pop()
                self._fleet.remove_engine(name)
                it.draining[name] = now_s
            if replicas != before:
                it.history.append((now_s, replicas))

    def _note_drained(self, it: ScaledPool) -> None:
        """An engine costs until its last answer is written."""
        for name in [*it.draining]:
            host = self._fleet.hosts.get(name)
            if host is None or host.is_idle:
                del it.draining[name]
                it.engine_s += self._fleet.clock.now_s - it.began_s[name]


def reversals(history: list[tuple[float, int]], within_s: float = 600.0) -> int:
    """How often a pool changed its direction within ten minutes of a change in the other one."""
    steps = [(at_s, after - before) for (_, before), (at_s, after) in pairwise(history)]
    return sum(
        (one > 0) != (other > 0) and at_s - before_s <= within_s
        for (before_s, one), (at_s, other) in pairwise(steps)
    )
