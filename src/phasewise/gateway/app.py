"""Builds a gateway from its file and answers ASGI: the one place where its objects are put together."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING

from phasewise.adapters.http_client import HttpClient, Timeouts
from phasewise.adapters.prometheus import PrometheusMetrics
from phasewise.config import GatewayConfig, GatewayFile, UpstreamConfig, WorkerConfig
from phasewise.costs.pace_book import PaceBook
from phasewise.errors import ConfigError
from phasewise.gateway.asgi import Receive, Scope, Send, client_of
from phasewise.gateway.auth import Doorkeeper
from phasewise.gateway.edge import Edge, EdgeBounds
from phasewise.gateway.exchange import Exchange
from phasewise.gateway.flow_driver import FlowDriver
from phasewise.gateway.found_answers import FoundAnswers
from phasewise.gateway.hand_over import HandOvers
from phasewise.gateway.hand_over_watch import HandOverWatch
from phasewise.gateway.health import POLL_INTERVAL_S, PROBE_TIMEOUTS, HealthWatcher
from phasewise.gateway.logs import RequestLog
from phasewise.gateway.open_requests import OpenRequests
from phasewise.gateway.patience import ClientWatch, Patience
from phasewise.gateway.pipeline import Pipeline
from phasewise.gateway.prefix_hashing import PrefixHashing
from phasewise.gateway.quotas import GatewayQuotas, build_quotas
from phasewise.gateway.routes import Gateway, Router
from phasewise.gateway.timeline_store import TimelineStore
from phasewise.model.slo import Slo
from phasewise.model.worker import Role, Worker, WorkerRef
from phasewise.ports import TimelineSink
from phasewise.request_flow import World, let_waiting_in
from phasewise.routing.policies import POLICIES, READS_PREFIXES, Policy, whole
from phasewise.routing.split import SplitPolicy
from phasewise.state.breakers import Breakers
from phasewise.state.cluster_view import ClusterView, Health
from phasewise.state.load_ledger import LoadLedger
from phasewise.state.prefix_index import PrefixIndex
from phasewise.state.retry_budget import RetryBudget
from phasewise.state.waiting_line import WaitingLine

if TYPE_CHECKING:
    from phasewise.gateway.answer_cache import AnswerCache

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
        hand_over_watch: HandOverWatch,
        cache: AnswerCache | None,
    ) -> None:
        self.gateway = gateway
        self.start_error: ConfigError | None = None
        self.edge = edge
        self._router = Router(gateway)
        self._watcher = watcher
        self._clients = clients
        self._quotas = quotas
        self._hand_over_watch = hand_over_watch
        self._cache = cache

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer one connection's request, or follow the server's life.

        Not a coroutine itself: every chunk of a stream passes through all coroutines that await each other.
        """
        if scope["type"] == "http":
            return self._router.handle(scope, client_of(scope, receive, send))
        if scope["type"] == "lifespan":
            return self._live(receive, send)
        raise RuntimeError(f"the gateway does not speak {scope['type']}")

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        if not await self._cache_started():
            await send({"type": "lifespan.startup.failed", "message": ""})
            return
        await asyncio.gather(self._watcher.start(), self._quotas.start())
        await self._hand_over_watch.start()
        watches = [asyncio.create_task(it) for it in (self.gateway.clients.run(), self.edge.run())]
        states = self.gateway.cluster.snapshot()
        logger.info("%d of %d workers up", sum(it.health is Health.UP for it in states), len(states))
        await send({"type": "lifespan.startup.complete"})
        await receive()
        for watch in watches:
            watch.cancel()
        await asyncio.gather(self._watcher.stop(), self._quotas.stop(), self._hand_over_watch.stop())
        if self._cache is not None:
            await self._cache.stop()
        for client in self._clients.values():
            client.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _cache_started(self) -> bool:
        """Whether the gateway may start; `start_error` says why not, for whoever runs the server."""
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
    patience: Patience | None = None,
    probe_timeouts: Timeouts = PROBE_TIMEOUTS,
) -> GatewayApp:
    """Put a gateway together; nothing is contacted before it starts."""
    workers, quotas = _workers(file), build_quotas(file.gateway)
    world = _world(file.gateway, workers, quotas)
    timeouts = timeouts or _timeouts(file.gateway.upstream)
    clients = {worker.name: HttpClient(worker.url, timeouts) for worker in workers}
    cache = _cache(file.gateway, world, clients)
    doorkeeper, open_requests = Doorkeeper(file.gateway), OpenRequests()
    # Microseconds: no gateway serves a request in each, so a later life's numbers are above this one's.
    timelines = TimelineStore(file.gateway.keep_timelines, first_number=int(time.time() * 1e6))
    hand_over_watch = HandOverWatch(world, workers, file.gateway.hand_over)
    metrics = _metrics(file.gateway, world, quotas, hand_over_watch, cache)
    sinks: list[TimelineSink] = [timelines, metrics, hand_over_watch]
    if file.gateway.log.requests:
        sinks.append(RequestLog({worker.model for worker in workers}))
    hand_overs = _hand_overs(file.gateway, world.cluster, metrics)
    exchange = Exchange(clients, hand_overs, resumes=file.gateway.resume != "off")
    limits = file.gateway.limits
    bounds = EdgeBounds.of(limits)
    pipeline = Pipeline(
        world,
        FlowDriver(exchange, quotas, _found_answers(file.gateway, cache, exchange)),
        doorkeeper,
        sinks,
        metrics.count_refusal,
        open_requests,
        bounds.body_bytes,
        _hashing(file.gateway, workers),
    )
    clients_served = ClientWatch(patience or Patience(limits.body_s, limits.read_s))
    gateway = Gateway(
        pipeline,
        doorkeeper,
        world.cluster,
        world.ledger,
        timelines,
        open_requests,
        metrics,
        clients_served,
        cache,
    )
    watcher = HealthWatcher(
        world.cluster,
        workers,
        poll_interval_s,
        timeouts=probe_timeouts,
        on_look=lambda: let_waiting_in(world, time.monotonic()),
        on_silence=lambda name, for_s: clients[name].abort_silent(for_s),
    )
    edge = Edge(bounds, metrics.count_refusal, this_machine_only=not file.gateway.api_keys)
    return GatewayApp(gateway, watcher, clients, edge, quotas, hand_over_watch, cache)


def _timeouts(config: UpstreamConfig) -> Timeouts:
    return Timeouts(connect_s=config.connect_s, head_s=config.first_byte_s, idle_s=config.idle_s)


def _workers(file: GatewayFile) -> list[Worker]:
    workers = [_worker(config) for config in file.workers]
    if len({worker.name for worker in workers}) != len(workers):
        raise ConfigError("two workers have the same name", hint="give each worker a name of its own")
    return workers


def _world(config: GatewayConfig, workers: list[Worker], quotas: GatewayQuotas) -> World:
    paces, prefixes = PaceBook(workers), PrefixIndex()
    return World(
        ClusterView(workers),
        LoadLedger(),
        RetryBudget(),
        _policy(config, workers, paces, prefixes),
        Breakers(),
        WaitingLine(config.queue.max_waiting, config.queue.aging_s),
        quotas,
        paces=paces,
        prefixes=prefixes,
        learns_pace=_hands_over(workers),
    )


def _hand_overs(config: GatewayConfig, cluster: ClusterView, metrics: PrometheusMetrics) -> HandOvers:
    def answers(ref: WorkerRef) -> bool:
        return cluster.is_current(ref) and cluster.state(ref.name).health is Health.UP

    bounds = config.hand_over
    return HandOvers(bounds.timeout_s, bounds.lease_s, answers, metrics.count_hand_over)


def _cache(config: GatewayConfig, world: World, clients: Mapping[str, HttpClient]) -> AnswerCache | None:
    if config.cache is None:
        return None
    from phasewise.gateway.cache_building import build_answer_cache  # noqa: PLC0415 - much to load for few

    return build_answer_cache(config.cache, world.cluster, world.ledger, clients)


def _found_answers(
    config: GatewayConfig, cache: AnswerCache | None, exchange: Exchange
) -> FoundAnswers | None:
    if cache is None or config.cache is None:
        return None
    pace = config.cache.replay_tokens_per_s
    # In shadow mode nobody is given what was not computed for them.
    return FoundAnswers(cache, exchange, joins=cache.serves, replay_tokens_per_s=pace)


def _metrics(
    config: GatewayConfig,
    world: World,
    quotas: GatewayQuotas,
    hand_over_watch: HandOverWatch,
    cache: AnswerCache | None,
) -> PrometheusMetrics:
    return PrometheusMetrics(
        world.cluster,
        world.ledger,
        slos={it.name: Slo(it.ttft_s, it.tpot_s) for it in config.slo_classes},
        waiting=world.line.__len__,
        breaker_open=world.breakers.is_open,
        quota_degraded=lambda: quotas.degraded,
        hand_overs=hand_over_watch.states,
        cache_degraded=lambda: cache is not None and bool(cache.degraded),
    )


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


def _policy(config: GatewayConfig, workers: list[Worker], paces: PaceBook, prefixes: PrefixIndex) -> Policy:
    name = config.policy
    if name not in POLICIES:
        raise ConfigError(f"gateway.policy is {name!r}", hint=f"accepted: {', '.join(sorted(POLICIES))}")
    policy = POLICIES[name](prefixes)
    if not _hands_over(workers):
        return whole(policy)
    hand_over = config.hand_over
    nobody_tries = hand_over.canary_s is None
    return SplitPolicy(hand_over.when, hand_over.threshold_tokens, policy, paces, prefixes, nobody_tries)


def _hashing(config: GatewayConfig, workers: list[Worker]) -> PrefixHashing | None:
    """Hashes cost time, and tell nothing where there is no choice."""
    matters = config.policy in READS_PREFIXES or _hands_over(workers)
    return PrefixHashing() if matters and len(workers) > 1 else None


def _hands_over(workers: list[Worker]) -> bool:
    return any(worker.role is Role.PREFILL for worker in workers)
