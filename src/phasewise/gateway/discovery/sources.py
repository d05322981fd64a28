"""Watches the places where engines are found, and reports who is there."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from hashlib import blake2b

from phasewise.clients.kubernetes import (
    ENDPOINT_SLICES,
    INFERENCE_POOLS,
    PODS,
    ApiServer,
    ListAgain,
    api_server,
    own_namespace,
)
from phasewise.core.errors import FailureKind, PhasewiseError, UpstreamError
from phasewise.core.value import value
from phasewise.fleet.config import DiscoverConfig, KubernetesConfig, WorkerConfig
from phasewise.gateway.discovery.endpoints import (
    name_of,
    pool_selector,
    problem_of_pool,
    problem_of_service,
    worker_at,
    workers_in_pods,
    workers_in_slices,
)
from phasewise.gateway.guard import ErrorGuard

logger = logging.getLogger("phasewise.gateway")

RESOLVE_EVERY_S = 1.0
AGAIN_AFTER_S = 1.0
"""So soon a source that cannot be read is tried again; the engines that were found there stay."""

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
        guard, said = ErrorGuard(f"looking for engines at {source.named}"), ""
        while True:
            with guard:
                try:
                    async for found in found_at(source, self._kubernetes):
                        said = _say(source, found.problem, said)
                        await self._report(number, found.workers)
                except PhasewiseError as error:
                    said = _say(source, str(error), said)
            await asyncio.sleep(AGAIN_AFTER_S)

    async def _report(self, number: int, workers: Workers) -> None:
        before = self._all()
        self._found[number] = workers
        if (now := self._all()) != before:
            await self._on_change(now)

    def _all(self) -> Workers:
        """Those of all sources, each once: two Services may select the same pod."""
        workers = {worker.name: worker for found in self._found for worker in found}.values()
        return tuple(sorted(workers, key=lambda it: _rank(self._host, it.name)))


def _rank(host: str, name: str) -> bytes:
    return blake2b(f"{host}/{name}".encode(), digest_size=8).digest()


def _say(source: DiscoverConfig, problem: str | None, said: str) -> str:
    """Log a problem once, until there is another one or none."""
    if problem and problem != said:
        logger.warning("looking for engines at %s: %s", source.named, problem)
    return problem or ""


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

    def found() -> Found:
        slices = listed.objects.values()
        workers = tuple(workers_in_slices(slices, source))
        return Found(workers, problem_of_service(slices, source, namespace))

    listed = await api.list(path, selector)
    yield found()
    try:
        async for _ in api.follow(path, selector, listed):
            yield found()
    except ListAgain:
        return


async def _of_pool(api: ApiServer, source: DiscoverConfig, namespace: str) -> AsyncIterator[Found]:
    """The pool itself is read again whenever a watch of its pods ends."""
    pool = await api.get(f"{INFERENCE_POOLS.format(namespace)}/{source.inference_pool}")
    selector, ports = pool_selector(pool)
    path = PODS.format(namespace)

    def found() -> Found:
        pods = listed.objects.values()
        return Found(tuple(workers_in_pods(pods, ports, source)), problem_of_pool(pods, source, selector))

    listed = await api.list(path, selector)
    yield found()
    try:
        async for _ in api.follow(path, selector, listed):
            yield found()
    except ListAgain:
        return


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
        addresses = sorted({str(address[4][0]) for address in resolved})
        yield Found(tuple(worker_at(source, name_of(it), it, port, source.role) for it in addresses))
        await asyncio.sleep(RESOLVE_EVERY_S)
