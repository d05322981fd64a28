"""Builds a gateway from its file and answers ASGI. All its objects are built here."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from phasewise.clients.host import memory_bytes, memory_limit_bytes
from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.core.errors import ConfigError
from phasewise.core.ports import TimelineSink
from phasewise.core.slo import Slo
from phasewise.core.worker import Role, Worker, WorkerRef
from phasewise.fleet.config import (
    EdgeLimits,
    GatewayConfig,
    GatewayFile,
    UpstreamConfig,
    WorkerConfig,
    byte_size,
)
from phasewise.gateway.answer_cache.cached_responses import CachedResponses
from phasewise.gateway.api.auth import Authenticator
from phasewise.gateway.api.pipeline import Pipeline, Reservations
from phasewise.gateway.api.prompt_prefix import PrefixHashing
from phasewise.gateway.api.quotas import GatewayQuotas, build_quotas
from phasewise.gateway.api.routes import Gateway, Router
from phasewise.gateway.health import POLL_INTERVAL_S, PROBE_TIMEOUTS, HealthWatcher
from phasewise.gateway.kv_transfer.tickets import KvTransfers
from phasewise.gateway.kv_transfer.watch import KvTransferWatch
from phasewise.gateway.overload import OverloadWatch
from phasewise.gateway.progress_watch import ProgressWatch
from phasewise.gateway.records.logs import RequestLog
from phasewise.gateway.records.metrics import OwnState, PrometheusMetrics
from phasewise.gateway.records.timeline_store import TimelineStore
from phasewise.gateway.server.client import ClientTimeouts, ClientWatch, Receive, Scope, Send, client_of
from phasewise.gateway.server.edge import Edge, EdgeBounds
from phasewise.gateway.upstream.call import OpenRequests
from phasewise.gateway.upstream.driver import FlowDriver
from phasewise.gateway.upstream.exchange import Exchange
from phasewise.scheduling import World, let_waiting_in
from phasewise.scheduling.breakers import Breakers, RetryBudget
from phasewise.scheduling.disaggregation import SplitPolicy
from phasewise.scheduling.engine_speed import EngineSpeeds
from phasewise.scheduling.policies import POLICIES, READS_PREFIXES, Policy, whole
from phasewise.scheduling.prefix_index import PrefixIndex
from phasewise.scheduling.queue import WaitingQueue
from phasewise.scheduling.world import ClusterView, Health, LoadLedger

if TYPE_CHECKING:
    from phasewise.gateway.answer_cache.cache import AnswerCache

logger = logging.getLogger("phasewise.gateway")

NOT_YET_SEEN = "unseen"


class GatewayApp:
    """The ASGI application."""

    def __init__(
        self,
        gateway: Gateway,
        watcher: HealthWatcher,
        clients: dict[str, HttpClient],
        edge: Edge,
        quotas: GatewayQuotas,
        kv_transfer_watch: KvTransferWatch,
        cache: AnswerCache | None,
    ) -> None:
        self.gateway = gateway
        self.start_error: ConfigError | None = None
        self.edge = edge
        self._router = Router(gateway)
        self._watcher = watcher
        self._clients = clients
        self._quotas = quotas
        self._kv_transfer_watch = kv_transfer_watch
        self._cache = cache

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer one request, or the server's lifespan events.

        Not a coroutine itself: every chunk of a stream passes through each coroutine in the await chain.
        """
        if scope["type"] == "http":
            return self._router.handle(scope, client_of(scope, receive))
        if scope["type"] == "lifespan":
            return self._live(receive, send)
        raise RuntimeError(f"the gateway does not support ASGI scope {scope['type']!r}")

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        if not await self._cache_started():
            await send({"type": "lifespan.startup.failed", "message": ""})
            return
        await asyncio.gather(self._watcher.start(), self._quotas.start())
        await self._kv_transfer_watch.start()
        running = (self.gateway.clients.run(), self.edge.run(), self.gateway.overload.run())
        watches = [asyncio.create_task(it) for it in running]
        states = self.gateway.cluster.snapshot()
        logger.info("%d of %d workers up", sum(it.health is Health.UP for it in states), len(states))
        await send({"type": "lifespan.startup.complete"})
        await receive()
        for watch in watches:
            watch.cancel()
        await asyncio.gather(self._watcher.stop(), self._quotas.stop(), self._kv_transfer_watch.stop())
        if self._cache is not None:
            await self._cache.stop()
        self.gateway.pipeline.close()
        for client in self._clients.values():
            client.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _cache_started(self) -> bool:
        """Whether the gateway may start; if not, `start_error` says why."""
        if self._cache is not None:
            try:
                await self._cache.start()
            except ConfigError as error:
                self.start_error = error
                await self._cache.stop()
        return self.start_error is None


def build_app(
    file: GatewayFile,
    timeouts: Timeouts | None = None,
    poll_interval_s: float = POLL_INTERVAL_S,
    client_timeouts: ClientTimeouts | None = None,
    probe_timeouts: Timeouts = PROBE_TIMEOUTS,
    log_dropped: Callable[[], int] = lambda: 0,
) -> GatewayApp:
    """Build a gateway. It makes no connection before it starts."""
    workers, quotas = _workers(file), build_quotas(file.gateway)
    world = _world(file.gateway, workers, quotas)
    timeouts = timeouts or _timeouts(file.gateway.upstream)
    clients = {worker.name: HttpClient(worker.url, timeouts) for worker in workers}
    cache = _cache(file.gateway, world, clients)
    authenticator, open_requests = Authenticator(file.gateway), OpenRequests()
    # No gateway serves a request per microsecond, so the numbers after a restart are above those before it.
    timelines = TimelineStore(file.gateway.keep_timelines, first_number=int(time.time() * 1e6))
    kv_transfer_watch = KvTransferWatch(world, workers, file.gateway.kv_transfer)
    bounds, overload = EdgeBounds.of(file.gateway.limits), _overload(file.gateway.limits)
    tenants = len({key.tenant for key in file.gateway.api_keys}) or 1
    reservations = Reservations(quotas, overload, bounds.body_bytes, bounds.bodies_bytes, tenants)
    metrics = PrometheusMetrics(
        world.cluster,
        world.ledger,
        slos={it.name: Slo(it.ttft_s, it.tpot_s) for it in file.gateway.slo_classes},
        breaker_open=world.breakers.is_open,
        kv_transfers=kv_transfer_watch.states,
        own=lambda: OwnState(
            waiting=len(world.queue),
            quota_degraded=quotas.degraded,
            cache_degraded=cache is not None and bool(cache.degraded),
            log_dropped=log_dropped(),
            loop_lag_s=overload.take_longest_lag_s(),
            overload_stage=overload.stage,
            body_bytes=reservations.reserved_bytes,
        ),
    )
    sinks: list[TimelineSink] = [timelines, metrics]
    if _has_prefill_workers(workers):
        sinks.append(kv_transfer_watch)
    if file.gateway.log.requests:
        sinks.append(RequestLog({worker.model for worker in workers}))
    kv_transfers = _kv_transfers(file.gateway, world.cluster, metrics)
    exchange = Exchange(clients, kv_transfers, resumes=file.gateway.resume != "off")
    pipeline = Pipeline(
        world,
        FlowDriver(exchange, quotas, _cached_responses(file.gateway, cache, exchange)),
        authenticator,
        sinks,
        metrics.count_rejection,
        open_requests,
        reservations,
        _hashing(file.gateway, workers),
    )
    clients_served = ClientWatch(
        client_timeouts or ClientTimeouts(file.gateway.limits.body_s, file.gateway.limits.read_s)
    )
    gateway = Gateway(
        pipeline,
        authenticator,
        world.cluster,
        world.ledger,
        timelines,
        open_requests,
        metrics,
        clients_served,
        overload,
        cache,
    )
    watcher = HealthWatcher(
        world.cluster,
        workers,
        poll_interval_s,
        timeouts=probe_timeouts,
        on_look=lambda: let_waiting_in(world, time.monotonic()),
        on_silence=lambda name, for_s: clients[name].abort_silent(for_s),
        progress=ProgressWatch(world, workers, clients, probe_timeouts),
    )
    edge = Edge(bounds, metrics.count_rejection, this_machine_only=not file.gateway.api_keys)
    overload.on_stage = edge.heed
    return GatewayApp(gateway, watcher, clients, edge, quotas, kv_transfer_watch, cache)


def _timeouts(config: UpstreamConfig) -> Timeouts:
    return Timeouts(connect_s=config.connect_s, head_s=config.first_byte_s, idle_s=config.idle_s)


def _workers(file: GatewayFile) -> list[Worker]:
    workers = [_worker(config) for config in file.workers]
    if len({worker.name for worker in workers}) != len(workers):
        raise ConfigError("two workers have the same name", hint="give each worker a name of its own")
    return workers


def _world(config: GatewayConfig, workers: list[Worker], quotas: GatewayQuotas) -> World:
    paces, prefixes = EngineSpeeds(workers), PrefixIndex()
    return World(
        ClusterView(workers),
        LoadLedger(),
        RetryBudget(),
        _policy(config, workers, paces, prefixes),
        Breakers(),
        WaitingQueue(config.queue.max_waiting, config.queue.aging_s),
        quotas,
        paces=paces,
        prefixes=prefixes,
        learns_pace=_has_prefill_workers(workers),
    )


def _kv_transfers(config: GatewayConfig, cluster: ClusterView, metrics: PrometheusMetrics) -> KvTransfers:
    def answers(ref: WorkerRef) -> bool:
        return cluster.is_current(ref) and cluster.state(ref.name).health is Health.UP

    bounds = config.kv_transfer
    return KvTransfers(bounds.timeout_s, bounds.lease_s, answers, metrics.count_kv_transfer)


def _cache(config: GatewayConfig, world: World, clients: Mapping[str, HttpClient]) -> AnswerCache | None:
    if config.cache is None:
        return None
    from phasewise.gateway.answer_cache.build import build_answer_cache  # noqa: PLC0415 - much to load for few

    return build_answer_cache(config.cache, world.cluster, world.ledger, clients)


def _cached_responses(
    config: GatewayConfig, cache: AnswerCache | None, exchange: Exchange
) -> CachedResponses | None:
    if cache is None or config.cache is None:
        return None
    pace = config.cache.replay_tokens_per_s
    # In shadow mode every client gets an answer that was computed for its own request.
    return CachedResponses(cache, exchange, joins=cache.serves, replay_tokens_per_s=pace)


def _overload(limits: EdgeLimits) -> OverloadWatch:
    limit_bytes = memory_limit_bytes() if limits.memory is None else byte_size(limits.memory)
    return OverloadWatch(limit_bytes, memory_bytes)


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
    )


def _policy(
    config: GatewayConfig, workers: list[Worker], paces: EngineSpeeds, prefixes: PrefixIndex
) -> Policy:
    name = config.policy
    if name not in POLICIES:
        raise ConfigError(f"gateway.policy is {name!r}", hint=f"accepted: {', '.join(sorted(POLICIES))}")
    policy = POLICIES[name](prefixes)
    if not _has_prefill_workers(workers):
        return whole(policy)
    kv_transfer = config.kv_transfer
    no_canary = kv_transfer.canary_s is None
    return SplitPolicy(kv_transfer.when, kv_transfer.threshold_tokens, policy, paces, prefixes, no_canary)


def _hashing(config: GatewayConfig, workers: list[Worker]) -> PrefixHashing | None:
    """None where prefix hashes cannot change a placement: they cost time."""
    matters = config.policy in READS_PREFIXES or _has_prefill_workers(workers)
    return PrefixHashing() if matters and len(workers) > 1 else None


def _has_prefill_workers(workers: list[Worker]) -> bool:
    return any(worker.role is Role.PREFILL for worker in workers)
