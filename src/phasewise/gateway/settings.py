"""What follows from a gateway's configuration, at the start and whenever it is read again."""

from __future__ import annotations

from collections.abc import Sequence

from phasewise.clients.host import memory_limit_bytes
from phasewise.core.errors import ConfigError
from phasewise.core.slo import Slo
from phasewise.core.worker import Role, Worker
from phasewise.fleet.config import EdgeLimits, GatewayConfig, GatewayFile, WorkerConfig, byte_size
from phasewise.gateway.api.auth import Authenticator
from phasewise.gateway.api.prompt_prefix import PrefixHashing
from phasewise.scheduling.disaggregation import SplitPolicy
from phasewise.scheduling.engine_speed import EngineSpeeds
from phasewise.scheduling.policies import POLICIES, READS_PREFIXES, Policy, whole
from phasewise.scheduling.prefix_index import PrefixIndex

NOT_YET_SEEN = "unseen"


def workers_of(file: GatewayFile) -> list[Worker]:
    """The workers, none of them seen yet."""
    workers = [_worker(config) for config in file.workers]
    if len({worker.name for worker in workers}) != len(workers):
        raise ConfigError("two workers have the same name", hint="give each worker a name of its own")
    return workers


def _worker(config: WorkerConfig) -> Worker:
    return Worker(
        name=config.name,
        url=config.url,
        model=config.model,
        incarnation=NOT_YET_SEEN,
        role=config.role,
        pool=config.pool,
        steps_url=config.steps_url,
        slots=config.slots,
        weights=config.weights,
    )


def policy_of(
    config: GatewayConfig, workers: Sequence[Worker], paces: EngineSpeeds, prefixes: PrefixIndex
) -> Policy:
    """The policy by which requests are placed."""
    name = config.policy
    if name not in POLICIES:
        raise ConfigError(f"gateway.policy is {name!r}", hint=f"accepted: {', '.join(sorted(POLICIES))}")
    policy = POLICIES[name](prefixes)
    if not has_prefill_workers(workers):
        return whole(policy)
    kv_transfer = config.kv_transfer
    no_canary = kv_transfer.canary_s is None
    return SplitPolicy(kv_transfer.when, kv_transfer.threshold_tokens, policy, paces, prefixes, no_canary)


def hashing_of(
    config: GatewayConfig, workers: Sequence[Worker], authenticator: Authenticator
) -> PrefixHashing | None:
    """None where prefix hashes cannot change a placement: they cost time."""
    matters = config.policy in READS_PREFIXES or has_prefill_workers(workers)
    if not matters or len(workers) < 2:
        return None
    # Gateways agree on conversations' homes only where they have the same secret.
    several = config.salt_secret_file is not None
    return PrefixHashing(authenticator.hash_key(b"prefixes"), names_conversations=several)


def has_prefill_workers(workers: Sequence[Worker]) -> bool:
    """Whether requests may be disaggregated."""
    return any(worker.role is Role.PREFILL for worker in workers)


def memory_limit_of(limits: EdgeLimits) -> int | None:
    """The bytes that the process may hold; None if nothing limits it."""
    return memory_limit_bytes() if limits.memory is None else byte_size(limits.memory)


def slos_of(config: GatewayConfig) -> dict[str, Slo]:
    """The objectives by class."""
    return {it.name: Slo(it.ttft_s, it.tpot_s) for it in config.slo_classes}


def tenants_of(config: GatewayConfig) -> int:
    """How many tenants there are; without keys everybody is one."""
    return len({key.tenant for key in config.api_keys}) or 1
