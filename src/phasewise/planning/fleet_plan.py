"""A fleet file as a fleet to simulate: its pools, levers and gateway, with step times from elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, replace

from phasewise.core.errors import ConfigError, UsageError
from phasewise.core.request import DEFAULT_MAX_WAIT_S
from phasewise.core.worker import DEFAULT_SLOTS
from phasewise.costs.fit.solve import FittedCost
from phasewise.costs.fit.step import StepCost
from phasewise.costs.roofline.deployment import Deployment
from phasewise.costs.roofline.step_demand import PrefillChunk, decodes
from phasewise.fleet.config import FleetConfig
from phasewise.fleet.config.fleet import Pool
from phasewise.fleet.config.gateway import DEFAULT_CLASS
from phasewise.simulator.counting_engine import NO_DRAFTS, DraftedTokens
from phasewise.simulator.fleet import EnginePool, FleetScenario
from phasewise.simulator.links import LinkSpeed
from phasewise.simulator.requests import EngineShape

BLOCK_TOKENS = 64
"""The size of a cached block, between those of engines on GPUs and on CPUs; a trace may name its own."""
ACCEPTED_DRAFTS = 0.6
"""The share of drafted tokens that is assumed to be right: it depends on the text, which has none here."""
_FAR = 4096
_BATCH = 64
"""A step of so many tokens reads nearly all experts of a mixture."""


def modelled_step_cost(deployment: Deployment) -> StepCost:
    """Slopes of the roofline: weights are read in every step, until arithmetic takes longer than that.

    Experts that a small batch does not touch are counted as read.
    """
    one, many = deployment.step(PrefillChunk(1)), deployment.step(PrefillChunk(_FAR))
    weights_s = deployment.step(decodes(_BATCH, 0)).weight_read_s
    per_token_s = (many.compute_s - one.compute_s) / (_FAR - 1)
    network_s = (many.network_s - one.network_s) / (_FAR - 1)
    # One token that sees many: its pairs are as many as the tokens it sees.
    attention_s = (
        deployment.step(PrefillChunk(_FAR, _FAR)).attention_compute_s
        - deployment.step(PrefillChunk(_FAR)).attention_compute_s
    ) / (_FAR * _FAR)
    kv_s = (deployment.step(decodes(1, 2 * _FAR)).kv_s - deployment.step(decodes(1, _FAR)).kv_s) / _FAR
    return StepCost(
        floor_s=weights_s + one.overhead_s + one.network_s,
        knee_tokens=max(1, round(weights_s / per_token_s)),
        beyond_knee_s_per_token=per_token_s,
        attention_s_per_token_pair=attention_s,
        kv_read_s_per_token=kv_s,
        per_request_s=0.0,
        per_token_s=network_s,
    )


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
) -> FleetScenario:
    """What a fleet file would start, in virtual time."""
    gateway = fleet.gateway
    return FleetScenario(
        pools=tuple(_pool(pool, engine, block_tokens) for pool in fleet.pools),
        gateways=gateways,
        policy=gateway.policy,
        split=gateway.kv_transfer.when,
        threshold_tokens=gateway.kv_transfer.threshold_tokens,
        links=engine.links,
        queue=gateway.queue.max_waiting,
        max_wait_s=next(
            (slo_class.max_wait_s for slo_class in gateway.slo_classes if slo_class.name == DEFAULT_CLASS),
            DEFAULT_MAX_WAIT_S,
        ),
    )


def left_out(fleet: FleetConfig) -> tuple[str, ...]:
    """Settings of the fleet file that change how fast engines are, and are not simulated."""
    found = [f"gpus of pool {pool.name}" for pool in fleet.pools if pool.gpus is not None]
    found += [
        f"{name} of pool {pool.name}"
        for pool in fleet.pools
        for name in ("weight_quantization", "kv_dtype", "kv_cache_memory_bytes", "attention_backend")
        if getattr(pool.levers, name) is not None
    ]
    return tuple(found)


def with_engines(plan: FleetScenario, pool: str, engines: int) -> FleetScenario:
    """The plan with another number of engines in a pool; UsageError if it has no such pool."""
    names = [pool.name for pool in plan.pools]
    if pool not in names:
        raise UsageError(f"no pool is named {pool!r}", hint=f"the fleet has {', '.join(names)}")
    return replace(
        plan,
        pools=tuple(
            replace(planned, engines=engines) if planned.name == pool else planned for planned in plan.pools
        ),
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
    speculation = DraftedTokens(drafted, drafted * ACCEPTED_DRAFTS) if drafted else NO_DRAFTS
    slots = pool.slots or DEFAULT_SLOTS
    return EnginePool(pool.replicas, engine.cost, shape, pool.role, slots, speculation, name=pool.name)
