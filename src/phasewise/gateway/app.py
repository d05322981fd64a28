"""Builds a gateway from its file, starts and stops it. All its objects are built here."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phasewise.clients.host import memory_bytes
from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.core.errors import ConfigError
from phasewise.core.ports import TimelineSink
from phasewise.fleet.config import GatewayConfig, GatewayFile
from phasewise.fleet.config.credentials import access_of
from phasewise.fleet.local.gateway_run import GatewayRun, WorkerReport, gateway_url, picker_address
from phasewise.gateway.answer_cache.cached_responses import CachedResponses
from phasewise.gateway.api.auth import Authenticator
from phasewise.gateway.api.pipeline import Pipeline
from phasewise.gateway.api.quotas import build_quotas
from phasewise.gateway.api.request_routes import RequestRoutes
from phasewise.gateway.api.reservations import Reservations
from phasewise.gateway.api.routes import Gateway, Router
from phasewise.gateway.api.worker_routes import ModelCards, WorkerRoutes
from phasewise.gateway.health import POLL_INTERVAL_S, PROBE_TIMEOUTS, HealthWatcher
from phasewise.gateway.kv_transfer.audit import KvTransferWatch
from phasewise.gateway.kv_transfer.tickets import KvTransfers
from phasewise.gateway.live.routes import LiveRoutes
from phasewise.gateway.live.view import LiveView
from phasewise.gateway.overload import OverloadWatch
from phasewise.gateway.parts import GatewayParts
from phasewise.gateway.processes.peers import Peers, export, learn
from phasewise.gateway.processes.records import AllRecords
from phasewise.gateway.processes.replicas import SENDER_BYTES, OtherReplicas, ReplicaExchange
from phasewise.gateway.processes.totals import CounterTotals
from phasewise.gateway.progress_watch import ProgressWatch
from phasewise.gateway.quarantine import Quarantine
from phasewise.gateway.records.decision_file import DecisionFile
from phasewise.gateway.records.logs import RejectionLog, RequestLog
from phasewise.gateway.records.metric_families import DEFAULT_CLASS
from phasewise.gateway.records.metrics import OwnState, PrometheusMetrics
from phasewise.gateway.records.timeline_store import TimelineStore
from phasewise.gateway.records.traces import TraceSink
from phasewise.gateway.records.worker_log import WorkerLog
from phasewise.gateway.reload import Reloader
from phasewise.gateway.server.client import ClientTimeouts, ClientWatch
from phasewise.gateway.server.edge import Edge, EdgeBounds
from phasewise.gateway.server.request_head import AllowedSites
from phasewise.gateway.settings import (
    has_common_secret,
    hashing_of,
    lends_rights,
    memory_limit_of,
    rules_of,
    slos_of,
    tenants_of,
    workers_of,
)
from phasewise.gateway.upstream.call import OpenRequests
from phasewise.gateway.upstream.driver import FlowDriver
from phasewise.gateway.upstream.engines import Engines
from phasewise.gateway.upstream.exchange import Exchange
from phasewise.scheduling import World
from phasewise.scheduling.engines_needed import pools_need
from phasewise.scheduling.recording import UNRECORDED, DecisionRecorder
from phasewise.scheduling.world import Health, WorkerChange

if TYPE_CHECKING:
    from phasewise.clients.otlp_traces import OtlpTraces
    from phasewise.gateway.answer_cache.cache import AnswerCache
    from phasewise.gateway.picker.server import PickerServer

logger = logging.getLogger("phasewise.gateway")

METRICS_KEPT_S = 1.0

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]


class GatewayApp:
    """The application: it serves requests, and answers ASGI's lifespan events."""

    def __init__(self, parts: GatewayParts) -> None:
        self.gateway = parts.gateway
        self.start_error: ConfigError | None = None
        self.edge = parts.edge
        self._parts = parts
        self._router = Router(parts.gateway, partial(export, parts.world))
        self.serve = self._router.serve
        """Answers the requests of connections."""
        self._reloader: Reloader | None = None
        self.run_record: GatewayRun | None = None
        self.successor_of: int | None = None
        self._reloads: set[asyncio.Task[None]] = set()
        self._picker: PickerServer | None = None

    def allow_reload(
        self,
        file: GatewayFile,
        read: Callable[[], GatewayFile],
        path: Path | None = None,
        in_force: Path | None = None,
    ) -> Reloader:
        """Let the configuration be read again while the gateway serves."""
        self._reloader = Reloader(self._parts, file, read, path, in_force)
        self._router.reload = self._reloader.reload
        self._router.reload_in_force = self._reloader.take_in_force
        return self._reloader

    def pick_endpoints(self, config: GatewayConfig, port: int) -> None:
        """Place requests for Envoy too, which asks at this port of the gateway's host."""
        from phasewise.gateway.picker.picker import EndpointPicker  # noqa: PLC0415 - much to load for few
        from phasewise.gateway.picker.server import PickerServer  # noqa: PLC0415 - much to load for few

        picker, address = EndpointPicker(self._parts), picker_address(config, port)
        self._picker = PickerServer(picker, address, config.tls)

    def begin_reload(self, *, in_force: bool = False) -> None:
        """Read the configuration again soon, in all processes; with `in_force` here alone."""
        if self._reloader is not None:
            task = asyncio.create_task(self._reloader.reload_or_say_why_not(in_force=in_force))
            self._reloads.add(task)
            task.add_done_callback(self._reloads.discard)

    async def __call__(self, _lifespan: Event, receive: Receive, send: Send) -> None:
        """Start and stop with the server, which is all that it sends here."""
        await receive()
        if not await self._can_start():
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
        await learn(parts.world, parts.peers, self.successor_of)
        if parts.replicas is not None:
            running.append(parts.replicas.run(parts.world))
        await asyncio.gather(parts.watcher.start(), parts.quotas.start())
        await parts.kv_transfer_watch.start()
        if self._picker is not None:
            await self._picker.start()
        if self._reloader is not None:
            running += self._reloader.watches()
        if self.run_record is not None:
            running.append(self._keep_record(self.run_record))
        states = self.gateway.cluster.snapshot()
        up = sum(state.health is Health.UP for state in states)
        logger.log(logging.INFO if up else logging.WARNING, "%d of %d workers up", up, len(states))
        return [asyncio.create_task(work) for work in running]

    async def _stop(self, watches: list[asyncio.Task[None]]) -> None:
        parts = self._parts
        self.gateway.live.view.stop()
        if self._picker is not None:
            await self._picker.stop()
        for watch in (*watches, *self._reloads):
            watch.cancel()
        await asyncio.gather(parts.watcher.stop(), parts.quotas.stop(), parts.kv_transfer_watch.stop())
        if parts.cache is not None:
            await parts.cache.stop()
        if parts.traces is not None:
            await asyncio.to_thread(parts.traces.close)
        if parts.decisions is not None:
            parts.decisions.close()
        self.gateway.pipeline.close()
        parts.rejections.write()
        parts.engines.close()
        await self.gateway.totals.own(afresh=True)

    async def _keep_record(self, record: GatewayRun) -> None:
        """Record the workers' states for `phasewise status` whenever they have changed, until cancelled.

        Their health at once: `phasewise up` ends as soon as it is good, and `status` may follow.
        """
        recorded: tuple[WorkerReport, ...] | None = None
        changed = self.gateway.worker_log.changed
        while self.run_record is record:
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

    async def _can_start(self) -> bool:
        """Whether the gateway may start; if not, `start_error` says why."""
        cache = self._parts.cache
        try:
            if cache is not None:
                await cache.start()
            if self._picker is not None:
                self._picker.bind()
        except ConfigError as error:
            self.start_error = error
            if cache is not None:
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
    peers: Peers | None = None,
) -> GatewayApp:
    """Build a gateway, or one of its processes. It makes no connection before it starts."""
    config, peers = file.gateway, peers or Peers()
    kv, upstream = config.kv_transfer, config.upstream
    workers = workers_of(file.workers, peers.number, config.processes)
    quotas = build_quotas(config)
    authenticator = Authenticator(config, peers.secret)
    replicas = _replicas(config, authenticator)
    decisions = None if config.record_decisions is None else DecisionFile(Path(config.record_decisions))
    scheduling = UNRECORDED if decisions is None else DecisionRecorder(decisions.write).calls
    world = scheduling.new_world(
        rules_of(config, workers), workers, quotas, None if replicas is None else replicas.others
    )
    engines = Engines(timeouts or Timeouts(upstream.connect_s, upstream.first_byte_s, upstream.idle_s))
    engines.set_workers(
        WorkerChange((), tuple(workers)), {worker.name: access_of(worker) for worker in file.workers}
    )
    cache = _cache(config, world, engines.clients)
    open_requests = OpenRequests()
    # No gateway serves a request per microsecond, so the numbers after a restart are above those before it.
    first_number = int(time.time() * 1e6)
    timelines = TimelineStore(config.keep_timelines, first_number=first_number, process=peers.process)
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
            engines_needed=pools_need(
                world, metrics.slo_of(DEFAULT_CLASS), time.monotonic(), progress.kv_used
            ),
            waiting={model: world.queue.waiting(model) for model in world.cluster.models},
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
    records = AllRecords(timelines, open_requests, peers)
    live = LiveView(world, timelines, open_requests, engines.connect, metrics.slo_of, peers)
    rejections = RejectionLog(metrics.count_rejection)
    sinks: list[TimelineSink] = [timelines, metrics, kv_transfer_watch, live, rejections]
    if config.log.requests:
        sinks.append(RequestLog(lambda: world.cluster.models))
    if traces is not None and config.traces is not None:
        slow_per_s = config.traces.slow_per_s
        sinks.append(TraceSink(traces, slow_per_s, metrics.slo_of, lambda: world.cluster.models))
    kv_transfers = KvTransfers(kv.timeout_s, kv.lease_s, world.cluster.is_up, metrics.count_kv_transfer)
    worker_log = WorkerLog(world.cluster, world.breakers.is_open, poll_interval_s)
    quarantine = Quarantine(config.quarantine_s, lambda ref: not world.cluster.is_up(ref))
    exchange = Exchange(engines.clients, kv_transfers, resumes=config.resume != "off")
    # In shadow mode every client gets an answer that was computed for its own request.
    cached = None if cache is None else CachedResponses(cache, exchange, joins=cache.serves)
    pipeline = Pipeline(
        world,
        FlowDriver(exchange, quotas, quarantine, cached),
        authenticator,
        sinks,
        rejections.count,
        open_requests,
        reservations,
        hashing_of(config, workers, authenticator),
    )
    pipeline.request_flow = scheduling.request_flow
    pipeline.set_trust(config, lends_rights=lends_rights(config, file.workers))
    if config.traces is not None:
        pipeline.set_tracing(config.traces.sample)
    edge = Edge(bounds, rejections.count, AllowedSites.of(config))
    overload.on_stage = edge.heed
    clients_served = ClientWatch(
        client_timeouts or ClientTimeouts(config.limits.body_s, config.limits.read_s)
    )
    gateway = Gateway(
        pipeline,
        authenticator,
        world.cluster,
        world.ledger,
        timelines,
        open_requests,
        RequestRoutes(records),
        metrics,
        CounterTotals(metrics, peers),
        peers,
        clients_served,
        overload,
        worker_log,
        WorkerRoutes(world.cluster, engines.connect),
        ModelCards(world.cluster),
        LiveRoutes(
            live,
            world,
            records,
            gateway_url(config),
            lambda: metrics.slo_of(DEFAULT_CLASS),
            lambda: edge.stopping,
        ),
        cache,
    )

    def looked_at(name: str) -> None:
        scheduling.let_waiting_in(world, time.monotonic())
        worker_log.look(name)

    progress = ProgressWatch(world, engines.clients, engines.connect, probe_timeouts)
    watcher = HealthWatcher(
        world.cluster,
        engines.connect,
        poll_interval_s,
        timeouts=probe_timeouts,
        on_look=looked_at,
        on_silence=lambda name, for_s: engines.clients[name].abort_silent(for_s),
        on_models=gateway.model_cards.note,
        progress=progress,
    )
    return GatewayApp(
        GatewayParts(
            gateway=gateway,
            world=world,
            scheduling=scheduling,
            decisions=decisions,
            engines=engines,
            reservations=reservations,
            edge=edge,
            quotas=quotas,
            watcher=watcher,
            kv_transfer_watch=kv_transfer_watch,
            cache=cache,
            traces=traces,
            rejections=rejections,
            replicas=replicas,
            peers=peers,
        )
    )


def _replicas(config: GatewayConfig, authenticator: Authenticator) -> ReplicaExchange | None:
    """None without Redis: then replicas agree on conversations' homes at most."""
    if config.redis is None:
        return None
    key = authenticator.hash_key(b"gateways") if has_common_secret(config) else None
    return ReplicaExchange(config.redis, OtherReplicas(os.urandom(SENDER_BYTES), key))


def _cache(config: GatewayConfig, world: World, clients: Mapping[str, HttpClient]) -> AnswerCache | None:
    if config.cache is None:
        return None
    from phasewise.gateway.answer_cache.build import build_answer_cache  # noqa: PLC0415 - much to load for few

    return build_answer_cache(config.cache, world, clients)


def _traces(config: GatewayConfig) -> OtlpTraces | None:
    if config.traces is None:
        return None
    from phasewise.clients.otlp_traces import OtlpTraces  # noqa: PLC0415 - much to load for few

    return OtlpTraces(config.traces.endpoint)
