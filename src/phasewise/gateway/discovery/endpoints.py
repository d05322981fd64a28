"""Which engines a cluster's objects name. Pure: it reads what the API server sent.

An endpoint that is not ready, or that terminates, gets no new requests: it is left out. Requests that it has
go on there as long as it answers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from phasewise.core.errors import ConfigError
from phasewise.core.worker import Role
from phasewise.fleet.config import DiscoverConfig, WorkerConfig

Object = Mapping[str, Any]

ROLE_LABELS = ("phasewise.dev/role", "llm-d.ai/role")
"""Which phases an engine serves: a label of its Service, or of its pod where an InferencePool names it."""
_ROLES = {"prefill": Role.PREFILL, "decode": Role.DECODE, "mixed": Role.MIXED, "both": Role.MIXED}


def workers_in_slices(slices: Iterable[Object], found: DiscoverConfig) -> list[WorkerConfig]:
    """The ready endpoints of a Service's EndpointSlices, each once: a slice may repeat another's."""
    workers: dict[str, WorkerConfig] = {}
    for each in slices:
        role = _role_in(each, found)
        port = _port_of(each, found)
        for endpoint in each.get("endpoints") or ():
            conditions = endpoint.get("conditions") or {}
            # An absent `ready` means unknown, which counts as ready.
            if port is None or conditions.get("terminating") or conditions.get("ready") is False:
                continue
            address = endpoint["addresses"][0]
            name = (endpoint.get("targetRef") or {}).get("name") or name_of(address)
            workers.setdefault(name, worker_at(found, name, address, port, role))
    return [workers[name] for name in sorted(workers)]


def workers_in_pods(
    pods: Iterable[Object], ports: Sequence[int], found: DiscoverConfig
) -> list[WorkerConfig]:
    """The ready pods of an InferencePool; with several ports, each is an engine of its own."""
    workers: list[WorkerConfig] = []
    for pod in sorted(pods, key=lambda it: str(it["metadata"]["name"])):
        address = (pod.get("status") or {}).get("podIP")
        if not address or pod["metadata"].get("deletionTimestamp") or not _is_ready(pod):
            continue
        name, role = pod["metadata"]["name"], _role_in(pod, found)
        for port in ports:
            own = name if len(ports) == 1 else f"{name}-{port}"
            workers.append(worker_at(found, own, address, port, role))
    return workers


def pool_selector(pool: Object) -> tuple[str, tuple[int, ...]]:
    """The label selector and the ports of an InferencePool."""
    spec = pool.get("spec") or {}
    labels = (spec.get("selector") or {}).get("matchLabels") or {}
    ports = tuple(int(it["number"]) for it in spec.get("targetPorts") or ())
    if not labels or not ports:
        raise ConfigError(
            f"the InferencePool {pool['metadata']['name']} selects no pods or has no targetPorts",
            hint="give it spec.selector.matchLabels and spec.targetPorts",
        )
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items())), ports


def worker_at(found: DiscoverConfig, name: str, address: str, port: int, role: Role) -> WorkerConfig:
    """The engine at this address, with the settings of all that are found the same way."""
    host = f"[{address}]" if ":" in address else address
    return WorkerConfig(
        name=name,
        url=f"{found.scheme}://{host}:{port}",
        model=found.model,
        role=role,
        pool=found.pool,
        steps_url=None if found.steps_port is None else f"http://{host}:{found.steps_port}",
        slots=found.slots,
        weights=found.weights,
        api_key_file=found.api_key_file,
        tls=found.tls,
    )


def name_of(address: str) -> str:
    """A worker's name where nothing names it but its address."""
    return "engine-" + address.replace(".", "-").replace(":", "-")


def _role_in(labelled: Object, found: DiscoverConfig) -> Role:
    labels = labelled["metadata"].get("labels") or {}
    given = next((labels[name] for name in ROLE_LABELS if name in labels), "")
    return _ROLES.get(given, found.role)


def _port_of(each: Object, found: DiscoverConfig) -> int | None:
    """The slice's port of the configured name or number; its only one if none is configured."""
    ports = list(_ports_in(each))
    if found.port is None:
        return ports[0][1] if len(ports) == 1 else None
    return next((number for name, number in ports if found.port in {name, number}), None)


def _ports_in(each: Object) -> Iterator[tuple[str, int]]:
    for port in each.get("ports") or ():
        if isinstance(port.get("port"), int):
            yield port.get("name") or "", port["port"]


def problem_of_service(slices: Collection[Object], found: DiscoverConfig, namespace: str) -> str | None:
    """Why a Service gives no engine, in words; None if it gives one."""
    if workers_in_slices(slices, found):
        return None
    if not slices:
        return f"it is not in the namespace {namespace}, or it selects no pods"
    names = sorted({name or str(number) for each in slices for name, number in _ports_in(each)})
    if names and all(_port_of(it, found) is None for it in slices):
        wanted = "it has several ports" if found.port is None else f"it has no port {found.port}"
        return f"{wanted}: set port to one of {', '.join(names)}"
    return "it has endpoints, and none of them is ready: look at its pods"


def problem_of_pool(pods: Collection[Object], found: DiscoverConfig, selector: str) -> str | None:
    """Why an InferencePool gives no engine, in words; None if it gives one."""
    if not pods:
        return f"it selects no pods: none has the labels {selector}"
    if not workers_in_pods(pods, (1,), found):
        return "it selects pods, and none of them is ready: look at them"
    return None


def _is_ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(it.get("type") == "Ready" and it.get("status") == "True" for it in conditions)
