"""A fleet file as a fleet to simulate: its pools, levers and gateway, with step times from elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, replace

from phasewise.core.errors import ConfigError, UsageError
from phasewise.core.request import DEFAULT_MAX_WAIT_S
from phasewise.core.worker import DEFAULT_SLOTS
from phasewise.costs.fit.solve import FittedCost
from phasewise.costs.fit.step import StepCost
from phasewise.costs.roofline.deployment import Deployment
from phasewise.costs.roofline.step_cost import modelled_step_cost
from phasewise.fleet.config import FleetConfig
from phasewise.fleet.config.fleet import Pool
from phasewise.fleet.config.gateway import DEFAULT_CLASS
from phasewise.simulator.counting_engine import NO_SPECULATION, Speculation
from phasewise.simulator.fleet import EnginePool, FleetPlan
from phasewise.simulator.links import LinkSpeed
from phasewise.simulator.requests import EngineShape

BLOCK_TOKENS = 64
"""Prefixes are cached in blocks of this size, between those of engines on GPUs and on CPUs; of a trace, in
blocks of the size that it names."""
ACCEPTED_DRAFTS = 0.6
"""The share of drafted tokens that is assumed to be right: it depends on the text, which has none here."""


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """How fast engines are and what they hold. `modelled`: from a device's data sheet, not measured.

    `draws` are other step times that fit what was measured about as well.
    """

    cost: StepCost
    kv_tokens: int
    batch_tokens: int
    max_num_seqs: int
    max_model_len: int
    links: LinkSpeed
    modelled: bool
    front_end_s: float = 0.0
    draws: tuple[FittedCost, ...] = ()

    @property
    def fitted(self) -> FittedCost:
        """The step times, and what clients wait beyond them."""
        return FittedCost(self.cost, self.front_end_s)


def modelled_engine(deployment: Deployment, max_model_len: int, link_bytes_per_s: float) -> EngineFigures:
    """An engine by the data sheets of its model and device."""
    if not deployment.fits:
        raise ConfigError("the weights do not fit on these devices", hint="use more of them: --gpus")
    kv_tokens = deployment.kv_capacity_tokens
    return EngineFigures(
        cost=modelled_step_cost(deployment),
        kv_tokens=kv_tokens,
        batch_tokens=deployment.step_tokens,
        max_num_seqs=deployment.accelerator.max_num_seqs,
        max_model_len=min(max_model_len, kv_tokens),
        links=LinkSpeed(link_bytes_per_s, 0.003, max(1, round(deployment.kv_bytes(1)))),
        modelled=True,
    )


def fleet_plan(
    fleet: FleetConfig, engine: EngineFigures, gateways: int = 1, block_tokens: int = BLOCK_TOKENS
) -> FleetPlan:
    """What a fleet file would start, in virtual time."""
    gateway = fleet.gateway
    return FleetPlan(
        pools=tuple(_pool(it, engine, block_tokens) for it in fleet.pools),
        gateways=gateways,
        policy=gateway.policy,
        split=gateway.kv_transfer.when,
        threshold_tokens=gateway.kv_transfer.threshold_tokens,
        links=engine.links,
        queue=gateway.queue.max_waiting,
        max_wait_s=next(
            (it.max_wait_s for it in gateway.slo_classes if it.name == DEFAULT_CLASS), DEFAULT_MAX_WAIT_S
        ),
    )


def left_out(fleet: FleetConfig) -> tuple[str, ...]:
    """Settings of the fleet file that change how fast engines are, and are not simulated."""
    found = [f"gpus of pool {it.name}" for it in fleet.pools if it.gpus is not None]
    found += [
        f"{name} of pool {it.name}"
        for it in fleet.pools
        for name in ("weight_quantization", "kv_dtype", "kv_cache_memory_bytes", "attention_backend")
        if getattr(it.levers, name) is not None
    ]
    return tuple(found)


def with_engines(plan: FleetPlan, pool: str, engines: int) -> FleetPlan:
    """The same with another number of engines in a pool."""
    names = [it.name for it in plan.pools]
    if pool not in names:
        raise UsageError(f"no pool is named {pool!r}", hint=f"the fleet has {', '.join(names)}")
    return replace(
        plan, pools=tuple(replace(it, engines=engines) if it.name == pool else it for it in plan.pools)
    )


def _pool(pool: Pool, engine: EngineFigures, block_tokens: int) -> EnginePool:
    levers = pool.levers
    max_num_seqs = levers.max_num_seqs or engine.max_num_seqs
    max_model_len = min(levers.max_model_len or engine.max_model_len, engine.kv_tokens)
    shape = EngineShape(
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(levers.max_num_batched_tokens or engine.batch_tokens, max_num_seqs),
        block_size=block_tokens,
        total_blocks=-(-engine.kv_tokens // block_tokens),
        prefix_cache=levers.prefix_cache is not False,
    )
    drafted = 0 if levers.speculation is None else levers.speculation.tokens
    speculation = Speculation(drafted, drafted * ACCEPTED_DRAFTS) if drafted else NO_SPECULATION
    slots = pool.slots or DEFAULT_SLOTS
    return EnginePool(pool.replicas, engine.cost, shape, pool.role, slots, speculation, name=pool.name)
