"""Tries a scaling rule on a simulated fleet: Kubernetes' autoscaler follows it, and engines start slowly."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise, takewhile
from math import ceil, inf

from phasewise.core.slo import Slo
from phasewise.costs.fit.step import StepCost, prefilling
from phasewise.scheduling.engines_needed import pools_need
from phasewise.simulator.fleet import MODEL, EnginePool, SimulatedFleet

# --- Rules: how many engines a pool should have now, as a fraction.

Rule = Callable[[SimulatedFleet, EnginePool], float]


def open_requests_per_engine(requests: float) -> Rule:
    """So many open requests for an engine, those in the gateways' queues included."""

    def wanted(fleet: SimulatedFleet, pool: EnginePool) -> float:
        found = 0
        for world in (it.world for it in fleet.gateways):
            workers = (it.worker for it in world.cluster.snapshot() if it.worker.pool == pool.name)
            found += world.queue.waiting(MODEL) + sum(world.ledger.load(it.ref).requests for it in workers)
        return found / requests

    return wanted


def published_need(slo: Slo, utilization: float) -> Rule:
    """What the gateways publish, of both phases and added up."""

    def wanted(fleet: SimulatedFleet, pool: EnginePool) -> float:
        now_s = fleet.clock.now_s
        needs = (pools_need(it.world, slo, now_s, utilization=utilization) for it in fleet.gateways)
        return sum(it[MODEL, pool.name].total for it in needs if (MODEL, pool.name) in it)

    return wanted


RATE_OVER_S = 60.0


def queueing_model(slo: Slo, targets: float) -> Rule:
    """llm-d's: the highest rate of an engine at which mean TTFT and ITL are within their targets.

    An iteration takes alpha / (1 - rho). Alpha, beta and gamma are the engine's own, and the lengths are
    those of the last minute's requests, answers that are still being written included.
    """
    ttft_s, itl_s = slo.ttft_s * targets, slo.tpot_s * targets

    def wanted(fleet: SimulatedFleet, pool: EnginePool) -> float:
        since_s = fleet.clock.now_s - RATE_OVER_S
        recent = list(takewhile(lambda it: it.arrived_s >= since_s, reversed(fleet.requests)))
        if not recent or not isinstance(pool.cost, StepCost):
            return 0.0
        prompt = sum(it.prompt_tokens - it.cached_tokens for it in recent) / len(recent)
        output = sum(it.output_tokens for it in recent) / len(recent)
        chunk, alpha = pool.shape.max_num_batched_tokens, pool.cost.floor_s
        beta, gamma = (pool.cost(prefilling(chunk)) - alpha) / chunk, pool.cost.kv_read_s_per_token
        work_s = beta * (prompt + output) + gamma * (output + 1) * (prompt + output / 2)
        iteration_s = min(
            ttft_s - (beta + gamma) * prompt, itl_s - beta - gamma * (prompt + (output + 1) / 2)
        )
        if iteration_s <= alpha:
            return inf
        return len(recent) / RATE_OVER_S * work_s / (1 - alpha / iteration_s)

    return wanted


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
