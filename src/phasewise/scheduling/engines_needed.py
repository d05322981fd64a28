"""How many engines each phase of a pool needs, from the work that arrives, what is open, and the objectives.

The figures are shares of engines, linear in the work: those of several gateways and of both phases add up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from phasewise.core.slo import Slo
from phasewise.core.value import value
from phasewise.core.worker import Role, Worker
from phasewise.scheduling.engine_speed import EnginePace
from phasewise.scheduling.world import World

UTILIZATION = 0.55
"""The share of what an engine could do within the objectives that is planned with, because
arrivals are uneven; tuned on traces of two families."""
FULL_KV = 0.9
"""The share of the KV cache in use from which requests may be preempted."""
CAUGHT_UP_S = 600.0
"""Prompts that are late are worked off in this time. A shorter one starts engines that come when the burst is
over."""
MOST_FLOOR = 0.9
"""The largest share of TPOT's bound for a decode step without streams: a slower engine never meets it."""


@value
class EnginesNeeded:
    """Engines for each phase, as shares: a mixed pool needs the sum."""

    prefill: float
    decode: float

    @property
    def total(self) -> float:
        """For both phases."""
        return self.prefill + self.decode


@value
class PoolWork:
    """What arrives at a pool per second, and what is open in it.

    `prefill` is seconds of an engine, and `open_prefill_s` those that open and waiting prompts still take.
    """

    prefill: float
    output_tokens: float
    open_prefill_s: float
    open_streams: float
    kv_used: float = 0.0


def engines_needed(
    work: PoolWork, pace: EnginePace, slo: Slo, role: Role, utilization: float = UTILIZATION
) -> EnginesNeeded:
    """The engines of a pool that meets the objectives.

    Of each second an engine spends `prefill` on prompts, and on each output token `step_s_per_stream`. What
    is left has to hold the steps' fixed part: with TPOT at its bound, `step_s` of every `tpot_s`. Open
    streams need a token within each TPOT; prompts beyond those of a TTFT need engines to catch up.
    """
    late_s = max(0.0, work.open_prefill_s - work.prefill * slo.ttft_s)
    prefill = work.prefill + late_s / max(slo.ttft_s, CAUGHT_UP_S)
    decode = pace.step_s_per_stream * max(work.output_tokens, work.open_streams / slo.tpot_s)
    usable = utilization
    if role is not Role.PREFILL:
        usable *= 1.0 - min(MOST_FLOOR, pace.step_s / slo.tpot_s)
    needed = EnginesNeeded(prefill / usable, decode / usable)
    lacking = work.kv_used / FULL_KV - needed.total
    return needed if lacking <= 0 else EnginesNeeded(needed.prefill, needed.decode + lacking)


def pools_need(
    world: World,
    slo: Slo,
    now_s: float,
    kv_used: Callable[[str], float] = lambda _worker: 0.0,
    utilization: float = UTILIZATION,
) -> dict[tuple[str, str], EnginesNeeded]:
    """The engines that the requests of this gateway need, by model and pool; without pools of unknown speed.

    `kv_used` is the share of a worker's KV cache in use, by whichever gateway's requests.
    """
    pools: dict[tuple[str, str], list[Worker]] = {}
    for state in world.cluster.snapshot():
        pools.setdefault((state.worker.model, state.worker.pool), []).append(state.worker)
    # Decode workers get prompts only if there are no others.
    readers = Counter(model for (model, _), workers in pools.items() if workers[0].role is not Role.DECODE)
    found = {}
    for (model, pool), workers in pools.items():
        if (pace := world.paces.pace_of_pool(model, pool)) is None:
            continue
        role = workers[0].role
        waiting = 0.0 if role is Role.DECODE and readers[model] else world.queue.waiting(model)
        open_s, streams, kv = _open_work(world, workers, pace, waiting / max(1, readers[model]), kv_used)
        arriving = world.paces.arriving.lately((model, pool), now_s)
        found[model, pool] = engines_needed(
            PoolWork(*arriving, open_s, streams, kv), pace, slo, role, utilization
        )
    return found


def _open_work(
    world: World, workers: Sequence[Worker], pace: EnginePace, waiting: float, kv_used: Callable[[str], float]
) -> tuple[float, int, float]:
    """Seconds of prefill, streams, and KV caches, by this gateway's requests."""
    whole_of = world.ledger.whole_loads()
    own = [world.ledger.load(worker.ref) for worker in workers]
    prompts, tokens = sum(load.unread_requests for load in own), sum(load.unread_tokens for load in own)
    kv = (
        kv_used(worker.name) * load.tokens / whole_of(worker.ref, load).tokens
        for worker, load in zip(workers, own, strict=True)
        if load.tokens
    )
    return (
        (prompts + waiting) * pace.read_s(tokens / max(1, prompts)),
        sum(load.streams for load in own),
        sum(kv),
    )
