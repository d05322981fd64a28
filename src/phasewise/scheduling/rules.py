"""The settings that a world schedules by, as plain values: a gateway and a replay build it from the same."""

from __future__ import annotations

from collections.abc import Sequence

from phasewise.core.kv_transfer import SplitRule
from phasewise.core.ports import QuotaSettlement
from phasewise.core.value import value
from phasewise.core.worker import Worker
from phasewise.scheduling.breakers import Breakers, RetryBudget
from phasewise.scheduling.disaggregation import SplitPolicy
from phasewise.scheduling.engine_speed import EngineSpeeds
from phasewise.scheduling.ledger import LoadLedger, Neighbours
from phasewise.scheduling.policies import POLICIES, Policy, whole
from phasewise.scheduling.prefix_index import PrefixIndex
from phasewise.scheduling.queue import DEFAULT_AGING_S, WaitingQueue
from phasewise.scheduling.world import ClusterView, World


@value
class SchedulingRules:
    """`policy` is a name in POLICIES. `split` is None in a fleet without prefill workers.

    With `times_engines` the engines' speeds are learned even if no placement needs them.
    """

    policy: str
    split: SplitRule | None = None
    threshold_tokens: int = 0
    max_waiting: int = 1_000
    aging_s: float = DEFAULT_AGING_S
    times_engines: bool = False

    @property
    def learns_pace(self) -> bool:
        """Whether the engines' speeds are needed."""
        return self.times_engines or self.split is not None

    def placement(self, paces: EngineSpeeds, prefixes: PrefixIndex) -> Policy:
        """The policy by which requests are placed."""
        policy = POLICIES[self.policy](prefixes)
        if self.split is None:
            return whole(policy)
        return SplitPolicy(self.split, self.threshold_tokens, policy, paces, prefixes)


def new_world(
    rules: SchedulingRules,
    workers: Sequence[Worker],
    quotas: QuotaSettlement,
    neighbours: Neighbours | None = None,
) -> World:
    """A world in which nothing has happened yet."""
    paces, prefixes = EngineSpeeds(workers, samples=rules.split is None), PrefixIndex()
    return World(
        ClusterView(workers),
        LoadLedger(neighbours),
        RetryBudget(),
        rules.placement(paces, prefixes),
        Breakers(),
        WaitingQueue(rules.max_waiting, rules.aging_s),
        quotas,
        paces=paces,
        prefixes=prefixes,
        learns_pace=rules.learns_pace,
        neighbours=neighbours,
    )


def apply_rules(world: World, rules: SchedulingRules) -> None:
    """Schedule by other rules from now on; what was learned stays."""
    world.policy = rules.placement(world.paces, world.prefixes)
    world.learns_pace, world.paces.samples = rules.learns_pace, rules.split is None
    world.queue.set_bounds(rules.max_waiting, rules.aging_s)
