"""What follows from a gateway's configuration, at the start and whenever it is read again."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Sequence

from phasewise.clients.host import memory_limit_bytes
from phasewise.core.errors import ConfigError
from phasewise.core.slo import Slo
from phasewise.core.worker import Role, Worker
from phasewise.fleet.config import EdgeLimits, GatewayConfig, TlsConfig, WorkerConfig, byte_size
from phasewise.gateway.api.auth import Authenticator
from phasewise.gateway.api.prompt_prefix import PrefixHashing
from phasewise.scheduling.policies import POLICIES, READS_PREFIXES
from phasewise.scheduling.rules import SchedulingRules

NOT_YET_SEEN = "unseen"


def workers_of(configs: Iterable[WorkerConfig], process: int = 0, processes: int = 1) -> list[Worker]:
    """The workers, none of them seen yet, with the slots that this process of several has of them."""
    workers = [_worker(config, process, processes) for config in configs]
    if len({worker.name for worker in workers}) != len(workers):
        raise ConfigError("two workers have the same name", hint="give each worker a name of its own")
    return workers


def _worker(config: WorkerConfig, process: int, processes: int) -> Worker:
    # The shares add up to the setting; where there are fewer slots than processes, each process has one.
    slots = max(1, config.slots // processes + (process < config.slots % processes))
    return Worker(
        name=config.name,
        url=config.url,
        model=config.model,
        incarnation=NOT_YET_SEEN,
        role=config.role,
        pool=config.pool,
        steps_url=config.steps_url,
        slots=slots,
        weights=config.weights,
    )


def lends_rights(config: GatewayConfig, workers: Iterable[WorkerConfig]) -> bool:
    """Whether the gateway lends clients rights that they would not have at the engines themselves.

    It does if clients have keys, or if it shows a worker a key or a certificate. Only then does it close what
    engines leave open to everyone who reaches them.
    """
    return bool(config.api_keys) or any(
        worker.api_key_file is not None or (worker.tls is not None and worker.tls.certificate is not None)
        for worker in workers
    )


def rules_of(config: GatewayConfig, workers: Sequence[Worker]) -> SchedulingRules:
    """The rules by which requests are placed and wait."""
    name, kv_transfer = config.policy, config.kv_transfer
    if name not in POLICIES:
        raise ConfigError(f"gateway.policy is {name!r}", hint=f"accepted: {', '.join(sorted(POLICIES))}")
    return SchedulingRules(
        name,
        kv_transfer.when if has_prefill_workers(workers) else None,
        kv_transfer.threshold_tokens,
        config.queue.max_waiting,
        config.queue.aging_s,
        times_engines=True,
    )


def hashing_of(
    config: GatewayConfig, workers: Sequence[Worker], authenticator: Authenticator
) -> PrefixHashing | None:
    """None where prefix hashes cannot change a placement: they cost time."""
    matters = config.policy in READS_PREFIXES or has_prefill_workers(workers)
    if not matters or len(workers) < 2:
        return None
    return PrefixHashing(authenticator.hash_key(b"prefixes"), names_conversations=has_common_secret(config))


def has_common_secret(config: GatewayConfig) -> bool:
    """Whether other replicas have this one's secret: only with it do they agree on conversations' homes, and
    understand each other's prefixes.
    """
    return config.salt_secret_file is not None or config.processes > 1


def has_prefill_workers(workers: Sequence[Worker]) -> bool:
    """Whether requests may be disaggregated."""
    return any(worker.role is Role.PREFILL for worker in workers)


def memory_limit_of(limits: EdgeLimits) -> int | None:
    """The bytes that the process may hold; None if nothing limits it."""
    return memory_limit_bytes() if limits.memory is None else byte_size(limits.memory)


def slos_of(config: GatewayConfig) -> dict[str, Slo]:
    """The objectives by class."""
    return {slo_class.name: Slo(slo_class.ttft_s, slo_class.tpot_s) for slo_class in config.slo_classes}


def tenants_of(config: GatewayConfig) -> int:
    """How many tenants there are; without keys everybody is one."""
    return len({key.tenant for key in config.api_keys}) or 1


def certificate_of(tls: TlsConfig) -> ssl.SSLContext:
    """The certificate of a configuration; raises ConfigError if it cannot be used."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.certificate, tls.key, password="")
    except OSError as error:
        reason = error.strerror or "they are not a certificate and its key"
        # The setting may hold the key itself instead of its path.
        pasted = "\n" in tls.certificate + tls.key
        which = "what should be two paths" if pasted else f"{tls.certificate} and {tls.key}"
        raise ConfigError(
            f"gateway.tls: {which} cannot be used ({reason})",
            hint="give two PEM files: the certificate with its chain, and its key without a password",
        ) from None
    return context
