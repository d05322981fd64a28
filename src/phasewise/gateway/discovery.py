"""Finds engines while the gateway serves: in Kubernetes, or by a name in DNS.

An endpoint that is not ready, or that terminates, gets no new requests: it is left out. Requests that it has
go on there as long as it answers.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from phasewise.clients.kubernetes import (
    ENDPOINT_SLICES,
    INFERENCE_POOLS,
    PODS,
    ApiServer,
    ListAgain,
    api_server,
    own_namespace,
)
from phasewise.core.errors import ConfigError, FailureKind, PhasewiseError, UpstreamError
from phasewise.core.value import value
from phasewise.core.worker import Role
from phasewise.fleet.config import DiscoverConfig, KubernetesConfig, WorkerConfig
from phasewise.gateway.guard import ErrorGuard

logger = logging.getLogger("phasewise.gateway")

RESOLVE_EVERY_S = 1.0
AGAIN_AFTER_S = 1.0
"""So soon a source that cannot be read is tried again; the engines that were found there stay."""
ROLE_LABELS = ("phasewise.dev/role", "llm-d.ai/role")
"""Which phases an engine serves: a label of its Service, or of its pod where an InferencePool names it."""
_ROLES = {"prefill": Role.PREFILL, "decode": Role.DECODE, "mixed": Role.MIXED, "both": Role.MIXED}

Object = Mapping[str, Any]
Workers = tuple[WorkerConfig, ...]


@value
class Found:
    """The engines that are there, and why there are none, if so."""

    workers: Workers
    problem: str | None = None


class Discovery:
    """Reports the engines of all sources whenever they have changed.

    They come in an order of this host's own. Among equal engines placement takes the first, and replicas that
    start together and know nothing of each other would all take the same one.
    """

    def __init__(
        self,
        sources: Sequence[DiscoverConfig],
        kubernetes: KubernetesConfig,
        on_change: Callable[[Workers], Awaitable[None]],
    ) -> None:
        self._sources = sources
        self._kubernetes = kubernetes
        self._on_change = on_change
        self._found: list[Workers] = [()] * len(sources)
        self._host = socket.gethostname()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as together:
            for number, source in enumerate(self._sources):
                together.create_task(self._follow(number, source))

    async def _follow(self, number: int, source: DiscoverConfig) -> None:
        guard, reported = ErrorGuard(f"looking for engines at {source.named}"), ""

        def report(problem: str) -> None:
            """Log a problem once, until there is another one or none."""
            nonlocal reported
            if problem and problem != reported:
                logger.warning("looking for engines at %s: %s", source.named, problem)
            reported = problem

        while True:
            with guard:
                try:
                    async for found in found_at(source, self._kubernetes):
                        report(found.problem or "")
                        before = self._all()
                        self._found[number] = found.workers
                        if (now := self._all()) != before:
                            await self._on_change(now)
                except PhasewiseError as error:
                    report(str(error))
            await asyncio.sleep(AGAIN_AFTER_S)

    def _all(self) -> Workers:
        """Those of all sources, each once: two Services may select the same pod."""
        workers = {worker.name: worker for found in self._found for worker in found}
        return tuple(workers[name] for name in sorted(workers, key=self._rank))

    def _rank(self, name: str) -> bytes:
        return blake2b(f"{self._host}/{name}".encode(), digest_size=8).digest()


def found_at(source: DiscoverConfig, kubernetes: KubernetesConfig) -> AsyncIterator[Found]:
    """What is there, now and after each change; PhasewiseError if it cannot be known."""
    if source.dns is not None:
        return _in_dns(source, source.dns)
    api = api_server(kubernetes.api, kubernetes.token_file, kubernetes.ca_file)
    namespace = source.namespace or own_namespace(kubernetes.token_file)
    objects = _of_service if source.service is not None else _of_pool
    return objects(api, source, namespace)


async def _of_service(api: ApiServer, source: DiscoverConfig, namespace: str) -> AsyncIterator[Found]:
    path, selector = ENDPOINT_SLICES.format(namespace), f"kubernetes.io/service-name={source.service}"
    async for slices in _watched(api, path, selector):
        workers = tuple(workers_in_slices(slices, source))
        yield Found(workers, None if workers else problem_of_service(slices, source, namespace))


async def _of_pool(api: ApiServer, source: DiscoverConfig, namespace: str) -> AsyncIterator[Found]:
    """The pool itself is read again whenever a watch of its pods ends."""
    pool = await api.get(f"{INFERENCE_POOLS.format(namespace)}/{source.inference_pool}")
    selector, ports = pool_selector(pool)
    async for pods in _watched(api, PODS.format(namespace), selector):
        workers = tuple(workers_in_pods(pods, ports, source))
        yield Found(workers, None if workers else problem_of_pool(pods, selector))


async def _watched(api: ApiServer, path: str, selector: str) -> AsyncIterator[Collection[Object]]:
    """The objects, now and after each change, until the watch ends or has missed changes."""
    listed = await api.list(path, selector)
    yield listed.objects.values()
    with suppress(ListAgain):
        async for _ in api.follow(path, selector, listed):
            yield listed.objects.values()


async def _in_dns(source: DiscoverConfig, name: str) -> AsyncIterator[Found]:
    loop, port = asyncio.get_running_loop(), int(source.port or 0)
    while True:
        try:
            resolved = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except OSError:
            raise UpstreamError(
                FailureKind.CONNECTION_REFUSED,
                f"DNS knows no address of {name}",
                hint="check the name: that of a headless Service is NAME.NAMESPACE.svc",
            ) from None
        hosts = sorted({str(address[4][0]) for address in resolved})
        yield Found(tuple(_worker_at(source, _name_of(host), host, port, source.role) for host in hosts))
        await asyncio.sleep(RESOLVE_EVERY_S)


# --- Which engines a cluster's objects name, as the API server sent them.


def workers_in_slices(slices: Iterable[Object], source: DiscoverConfig) -> list[WorkerConfig]:
    """The ready endpoints of a Service's EndpointSlices, each once: a slice may repeat another's."""
    workers: dict[str, WorkerConfig] = {}
    for each in slices:
        role, port = _role_in(each, source), _port_of(each, source)
        for endpoint in each.get("endpoints") or ():
            conditions = endpoint.get("conditions") or {}
            # An absent `ready` means unknown, which counts as ready.
            if port is None or conditions.get("terminating") or conditions.get("ready") is False:
                continue
            address = endpoint["addresses"][0]
            name = (endpoint.get("targetRef") or {}).get("name") or _name_of(address)
            workers.setdefault(name, _worker_at(source, name, address, port, role))
    return [workers[name] for name in sorted(workers)]


def workers_in_pods(
    pods: Iterable[Object], ports: Sequence[int], source: DiscoverConfig
) -> list[WorkerConfig]:
    """The ready pods of an InferencePool; with several ports, each is an engine of its own."""
    workers: list[WorkerConfig] = []
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"])):
        status = pod.get("status") or {}
        address, conditions = status.get("podIP"), status.get("conditions") or ()
        is_ready = any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
        if not address or pod["metadata"].get("deletionTimestamp") or not is_ready:
            continue
        name, role = pod["metadata"]["name"], _role_in(pod, source)
        for port in ports:
            own = name if len(ports) == 1 else f"{name}-{port}"
            workers.append(_worker_at(source, own, address, port, role))
    return workers


def pool_selector(pool: Object) -> tuple[str, tuple[int, ...]]:
    """The label selector and the ports of an InferencePool."""
    spec = pool.get("spec") or {}
    labels = (spec.get("selector") or {}).get("matchLabels") or {}
    ports = tuple(int(port["number"]) for port in spec.get("targetPorts") or ())
    if not labels or not ports:
        raise ConfigError(
            f"the InferencePool {pool['metadata']['name']} selects no pods or has no targetPorts",
            hint="give it spec.selector.matchLabels and spec.targetPorts",
        )
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items())), ports


def problem_of_service(slices: Collection[Object], source: DiscoverConfig, namespace: str) -> str:
    """Why a Service without a worker gives none."""
    if not slices:
        return f"it is not in the namespace {namespace}, or it selects no pods"
    names = sorted({name or str(number) for each in slices for name, number in _ports_in(each)})
    if names and all(_port_of(each, source) is None for each in slices):
        wanted = "it has several ports" if source.port is None else f"it has no port {source.port}"
        return f"{wanted}: set port to one of {', '.join(names)}"
    return "it has endpoints, and none of them is ready: look at its pods"


def problem_of_pool(pods: Collection[Object], selector: str) -> str:
    """Why an InferencePool without a worker gives none."""
    if not pods:
        return f"it selects no pods: none has the labels {selector}"
    return "it selects pods, and none of them is ready: look at them"


def _worker_at(source: DiscoverConfig, name: str, address: str, port: int, role: Role) -> WorkerConfig:
    """The engine at this address, with the settings of all that are found the same way."""
    host = f"[{address}]" if ":" in address else address
    return WorkerConfig(
        name=name,
        url=f"{source.scheme}://{host}:{port}",
        model=source.model,
        role=role,
        pool=source.pool,
        steps_url=None if source.steps_port is None else f"http://{host}:{source.steps_port}",
        slots=source.slots,
        weights=source.weights,
        api_key_file=source.api_key_file,
        tls=source.tls,
    )


def _name_of(address: str) -> str:
    """A worker's name where nothing names it but its address."""
    return "engine-" + address.replace(".", "-").replace(":", "-")


def _role_in(labelled: Object, source: DiscoverConfig) -> Role:
    labels = labelled["metadata"].get("labels") or {}
    given = next((labels[name] for name in ROLE_LABELS if name in labels), "")
    return _ROLES.get(given, source.role)


def _port_of(each: Object, source: DiscoverConfig) -> int | None:
    """The slice's port of the configured name or number; its only one if none is configured."""
    ports = list(_ports_in(each))
    if source.port is None:
        return ports[0][1] if len(ports) == 1 else None
    return next((number for name, number in ports if source.port in {name, number}), None)


def _ports_in(each: Object) -> Iterator[tuple[str, int]]:
    for port in each.get("ports") or ():
        if isinstance(port.get("port"), int):
            yield port.get("name") or "", port["port"]
