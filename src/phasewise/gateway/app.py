"""Builds a gateway from its file and answers ASGI. All its objects are built here."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from phasewise.clients.host import memory_bytes
from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.core.errors import ConfigError
from phasewise.core.ports import TimelineSink
from phasewise.core.worker import Worker
from phasewise.fleet.config import GatewayConfig, GatewayFile, UpstreamConfig
from phasewise.fleet.config.credentials import access_of
from phasewise.fleet.local.gateway_run import GatewayRun, WorkerReport, gateway_url
from phasewise.gateway.answer_cache.cached_responses import CachedResponses
from phasewise.gateway.api.auth import Authenticator
from phasewise.gateway.api.pipeline import Pipeline, Reservations
from phasewise.gateway.api.quotas import GatewayQuotas, ProcessQuotas, build_quotas
from phasewise.gateway.api.routes import Gateway, Router
from phasewise.gateway.api.worker_routes import WorkerRoutes
from phasewise.gateway.health import POLL_INTERVAL_S, PROBE_TIMEOUTS, HealthWatcher
from phasewise.gateway.kv_transfer.tickets import KvTransfers
from phasewise.gateway.kv_transfer.watch import KvTransferWatch
from phasewise.gateway.live.pages import GatewayPages
from phasewise.gateway.live.routes import LiveRoutes
from phasewise.gateway.live.view import LiveView
from phasewise.gateway.overload import OverloadWatch
from phasewise.gateway.parts import Parts
from phasewise.gateway.processes.limits import BoardQuotas
from phasewise.gateway.processes.membership import Membership
from phasewise.gateway.processes.metrics import AllMetrics
from phasewise.gateway.processes.records import AllRecords
from phasewise.gateway.processes.siblings import Question
from phasewise.gateway.progress_watch import ProgressWatch
from phasewise.gateway.quarantine import Quarantine
from phasewise.gateway.records.logs import RequestLog
from phasewise.gateway.records.metrics import OwnState, PrometheusMetrics
from phasewise.gateway.records.timeline_store import TimelineStore
from phasewise.gateway.records.traces import TraceSink
from phasewise.gateway.records.worker_log import WorkerLog
from phasewise.gateway.reload import Reloader
from phasewise.gateway.server.certificate import Certificate
from phasewise.gateway.server.client import ClientTimeouts, ClientWatch, Receive, Scope, Send, client_of
from phasewise.gateway.server.edge import Edge, EdgeBounds
from phasewise.gateway.settings import (
    has_prefill_workers,
    hashing_of,
    memory_limit_of,
    policy_of,
    slos_of,
    tenants_of,
    workers_of,
)
from phasewise.gateway.upstream.call import OpenRequests
from phasewise.gateway.upstream.driver import FlowDriver
from phasewise.gateway.upstream.engines import Engines
from phasewise.gateway.upstream.exchange import Exchange
from phasewise.scheduling import World, let_waiting_in
from phasewise.scheduling.breakers import Breakers, RetryBudget
from phasewise.scheduling.engine_speed import EngineSpeeds
from phasewise.scheduling.prefix_index import PrefixIndex
from phasewise.scheduling.queue import WaitingQueue
from phasewise.scheduling.world import ClusterView, Health, LoadLedger, WorkerChange

if TYPE_CHECKING:
    from phasewise.clients.otlp_traces import OtlpTraces
    from phasewise.gateway.answer_cache.cache import AnswerCache

logger = logging.getLogger("phasewise.gateway")

METRICS_KEPT_S = 1.0


class GatewayApp:
    """The ASGI application."""

    def __init__(self, parts: Parts) -> None:
        self.gateway = parts.gateway
        self.start_error: ConfigError | None = None
        self.edge = parts.edge
        self.certificate = parts.certificate
        self._parts = parts
        self._router = Router(parts.gateway)
        self._reloader: Reloader | None = None
        self.run_record: GatewayRun | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reloads: set[asyncio.Task[None]] = set()

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer one request, or the server's lifespan events.

        Not a coroutine itself: every chunk of a stream passes through each coroutine in the await chain.
        """
        if scope["type"] == "http":
            return self._router.handle(scope, client_of(scope, receive))
        if scope["type"] == "lifespan":
            return self._live(receive, send)
        raise RuntimeError(f"the gateway does not support ASGI scope {scope['type']!r}")

    def allow_reload(
        self, file: GatewayFile, read: Callable[[], GatewayFile], path: Path | None = None
    ) -> None:
        """Let the configuration be read again while the gateway serves."""
        self._reloader = Reloader(self._parts, file, read, path)
        self._router.reload = self._reload_all
        if self._parts.membership is not None:
            self._parts.membership.siblings.answers["reload"] = self._reload_too

    async def _reload_all(self) -> str:
        """Read the configuration again, here and then in the other processes."""
        if self._reloader is None:
            raise RuntimeError("there is nothing to read")
        said = await self._reloader.reload()
        if self._parts.membership is not None:
            await self._parts.membership.siblings.ask_all("reload")
        return said

    async def _reload_too(self, _question: Question) -> bytes:
        if self._reloader is not None:
            await self._reloader.reload_or_say_why_not()
        return b""

    def ask_for_reload(self) -> None:
        """Read the configuration again soon; may be called by a signal handler."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin_reload)

    def _begin_reload(self) -> None:
        if self._reloader is not None:
            task = asyncio.create_task(self._reloader.reload_or_say_why_not())
            self._reloads.add(task)
            task.add_done_callback(self._reloads.discard)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        if not await self._cache_started():
            await send({"type": "lifespan.startup.failed", "message": ""})
            return
        watches = await self._start()
        await send({"type": "lifespan.startup.complete"})
        try:
            await receive()
        except asyncio.CancelledError:
            return  # a second signal: the process ends without more ado
        await self._stop(watches)
        await send({"type": "lifespan.shutdown.complete"})

    async def _start(self) -> list[asyncio.Task[None]]:
        parts = self._parts
        running = [self.gateway.clients.run(), self.edge.run(), self.gateway.overload.run()]
        if parts.membership is not None:
            await parts.membership.start(parts.world)
            if parts.membership.has_successor:
                running.append(self.gateway.all_metrics.run())
        await asyncio.gather(parts.watcher.start(), parts.quotas.start())
        await parts.kv_transfer_watch.start()
        self._loop = asyncio.get_running_loop()
        if self._reloader is not None:
            running.append(self._reloader.run())
        if self.run_record is not None:
            running.append(self._keep_record(self.run_record))
        states = self.gateway.cluster.snapshot()
        up = sum(it.health is Health.UP for it in states)
        logger.log(logging.INFO if up else logging.WARNING, "%d of %d workers up", up, len(states))
        return [asyncio.create_task(it) for it in running]

    async def _stop(self, watches: list[asyncio.Task[None]]) -> None:
        parts = self._parts
        self.gateway.live.view.stop()
        for watch in (*watches, *self._reloads):
            watch.cancel()
        await asyncio.gather(parts.watcher.stop(), parts.quotas.stop(), parts.kv_transfer_watch.stop())
        if parts.cache is not None:
            await parts.cache.stop()
        if parts.traces is not None:
            await asyncio.to_thread(parts.traces.close)
        self.gateway.pipeline.close()
        parts.engines.close()
        if parts.membership is not None:
            self.gateway.all_metrics.keep()
            await parts.membership.stop()

    async def _keep_record(self, record: GatewayRun) -> None:
        """Record the workers' states for `phasewise status` whenever they have changed, until cancelled.

        Their health at once: `phasewise up` ends as soon as it is good, and `status` may follow.
        """
        recorded: tuple[WorkerReport, ...] | None = None
        changed = self.gateway.worker_log.changed
        while True:
            changed.clear()
            workers = self.gateway.worker_log.reports()
            if workers != recorded:
                try:
                    await asyncio.to_thread(record.write, workers)
                except OSError as error:
                    logger.info("`phasewise status` does not show this gateway: %s", error.strerror)
                    return
                recorded = workers
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_INTERVAL_S):
                    await changed.wait()

    async def _cache_started(self) -> bool:
        """Whether the gateway may start; if not, `start_error` says why."""
        cache = self._parts.cache
        if cache is not None:
            try:
                await cache.start()
            except ConfigError as error:
                self.start_error = error
                await cache.stop()
        return self.start_error is None


def build_app(
    file: GatewayFile,
    timeouts: Timeouts | None = None,
    poll_interval_s: float = POLL_INTERVAL_S,
    client_timeouts: ClientTimeouts | None = None,
    probe_timeouts: Timeouts = PROBE_TIMEOUTS,
    log_dropped: Callable[[], int] = lambda: 0,
    metrics_kept_s: float = METRICS_KEPT_S,
    membership: Membership | None = None,
) -> GatewayApp:
    """Build a gateway, or one of its processes. It makes no connection before it starts."""
    config, workers = file.gateway, workers_of(file)
    siblings = None if membership is None else membership.siblings
    quotas = build_quotas(config, ProcessQuotas() if membership is None else BoardQuotas(membership.board))
    world = _world(config, workers, quotas, membership)
    engines = Engines(timeouts or _timeouts(config.upstream))
    engines.set_workers(WorkerChange((), tuple(workers)), {it.name: access_of(it) for it in file.workers})
    cache = _cache(config, world, engines.clients)
    authenticator = Authenticator(config, None if membership is None else membership.board.secret)
    open_requests = OpenRequests()
    # No gateway serves a request per microsecond, so the numbers after a restart are above those before it.
    timelines = TimelineStore(config.keep_timelines, first_number=int(time.time() * 1e6))
    kv_transfer_watch = KvTransferWatch(world, engines.connect, config.kv_transfer)
    bounds = EdgeBounds.of(config.limits)
    traces = _traces(config)
    overload = OverloadWatch(memory_limit_of(config.limits), memory_bytes)
    reservations = Reservations(quotas, overload, bounds.body_bytes, bounds.bodies_bytes, tenants_of(config))
    metrics = PrometheusMetrics(
        world.cluster,
        world.ledger,
        slos=slos_of(config),
        breaker_open=world.breakers.is_open,
        kv_transfers=kv_transfer_watch.states,
        own=lambda: OwnState(
            waiting=len(world.queue),
            quota_degraded=quotas.degraded,
            cache_degraded=cache is not None and bool(cache.degraded),
            log_dropped=log_dropped(),
            traces_dropped={} if traces is None else traces.dropped,
            loop_lag_s=overload.take_longest_lag_s(),
            overload_stage=overload.stage,
            body_bytes=reservations.reserved_bytes,
        ),
        kept_s=metrics_kept_s,
    )
    records = AllRecords(timelines, open_requests, siblings)
    live = LiveView(world, timelines, open_requests, engines.connect, slos_of(config), siblings)
    pages = GatewayPages(world, records, live, gateway_url(config))
    sinks: list[TimelineSink] = [timelines, metrics, kv_transfer_watch, live]
    if config.log.requests:
        sinks.append(RequestLog(lambda: world.cluster.models))
    if traces is not None and config.traces is not None:
        slow_per_s = config.traces.slow_per_s
        sinks.append(TraceSink(traces, slow_per_s, metrics.slo_of, lambda: world.cluster.models))
    kv_transfers = _kv_transfers(config, world.cluster, metrics)
    worker_log = WorkerLog(world.cluster, world.breakers.is_open, poll_interval_s)
    quarantine = Quarantine(config.quarantine_s, lambda ref: not world.cluster.is_up(ref))
    exchange = Exchange(engines.clients, kv_transfers, resumes=config.resume != "off")
    pipeline = Pipeline(
        world,
        FlowDriver(exchange, quotas, quarantine, _cached_responses(config, cache, exchange)),
        authenticator,
        sinks,
        metrics.count_rejection,
        open_requests,
        reservations,
        hashing_of(config, workers, authenticator),
    )
    pipeline.set_unknown_fields(passed=config.unknown_fields == "pass")
    if config.traces is not None:
        pipeline.set_tracing(config.traces.sample)
    limits = config.limits
    edge = Edge(bounds, metrics.count_rejection, this_machine_only=not config.api_keys)
    overload.on_stage = edge.heed
    clients_served = ClientWatch(client_timeouts or ClientTimeouts(limits.body_s, limits.read_s))
    gateway = Gateway(
        pipeline,
        authenticator,
        world.cluster,
        world.ledger,
        timelines,
        open_requests,
        records,
        metrics,
        AllMetrics(metrics, membership),
        clients_served,
        overload,
        worker_log,
        WorkerRoutes(world.cluster, engines.connect),
        LiveRoutes(live, pages, lambda: edge.stopping),
        cache,
    )

    def looked_at(name: str) -> None:
        let_waiting_in(world, time.monotonic())
        worker_log.look(name)

    watcher = HealthWatcher(
        world.cluster,
        engines.connect,
        poll_interval_s,
        timeouts=probe_timeouts,
        on_look=looked_at,
        on_silence=lambda name, for_s: engines.clients[name].abort_silent(for_s),
        progress=ProgressWatch(world, engines.clients, engines.connect, probe_timeouts),
    )
    return GatewayApp(
        Parts(
            gateway=gateway,
            world=world,
            engines=engines,
            reservations=reservations,
            edge=edge,
            certificate=Certificate(),
            quotas=quotas,
            watcher=watcher,
            kv_transfer_watch=kv_transfer_watch,
            cache=cache,
            traces=traces,
            membership=membership,
        )
    )


def _timeouts(config: UpstreamConfig) -> Timeouts:
    return Timeouts(connect_s=config.connect_s, head_s=config.first_byte_s, idle_s=config.idle_s)


def _world(
    config: GatewayConfig, workers: list[Worker], quotas: GatewayQuotas, membership: Membership | None
) -> World:
    paces, prefixes = EngineSpeeds(workers), PrefixIndex()
    neighbours = None if membership is None else membership.neighbours
    world = World(
        ClusterView(workers),
        LoadLedger(neighbours),
        RetryBudget(),
        policy_of(config, workers, paces, prefixes),
        Breakers(),
        WaitingQueue(config.queue.max_waiting, config.queue.aging_s),
        quotas,
        paces=paces,
        prefixes=prefixes,
        learns_pace=has_prefill_workers(workers),
        neighbours=neighbours,
    )
    if neighbours is not None:
        neighbours.know(workers, config.queue.aging_s)
        neighbours.on_turn = lambda: let_waiting_in(world, time.monotonic(), in_turn=True)
    return world


def _kv_transfers(config: GatewayConfig, cluster: ClusterView, metrics: PrometheusMetrics) -> KvTransfers:
    bounds = config.kv_transfer
    return KvTransfers(bounds.timeout_s, bounds.lease_s, cluster.is_up, metrics.count_kv_transfer)


def _cache(config: GatewayConfig, world: World, clients: Mapping[str, HttpClient]) -> AnswerCache | None:
    if config.cache is None:
        return None
    from phasewise.gateway.answer_cache.build import build_answer_cache  # noqa: PLC0415 - much to load for few

    return build_answer_cache(config.cache, world.cluster, world.ledger, clients)


def _traces(config: GatewayConfig) -> OtlpTraces | None:
    if config.traces is None:
        return None
    from phasewise.clients.otlp_traces import OtlpTraces  # noqa: PLC0415 - much to load for few

    return OtlpTraces(config.traces.endpoint)


def _cached_responses(
    config: GatewayConfig, cache: AnswerCache | None, exchange: Exchange
) -> CachedResponses | None:
    if cache is None or config.cache is None:
        return None
    pace = config.cache.replay_tokens_per_s
    # In shadow mode every client gets an answer that was computed for its own request.
    return CachedResponses(cache, exchange, joins=cache.serves, replay_tokens_per_s=pace)
