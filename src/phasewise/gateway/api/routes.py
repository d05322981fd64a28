"""The table of the gateway's routes, and the handlers of all but generation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from phasewise.core.errors import ConfigError, RejectionKind, RequestRejected
from phasewise.core.request import WITH_KNOWN_FIELDS, Endpoint
from phasewise.engines.known import INFERENCE_PATHS
from phasewise.gateway.api import cache_routes
from phasewise.gateway.api.auth import Authenticator
from phasewise.gateway.api.openapi import openapi_document
from phasewise.gateway.api.pipeline import Pipeline
from phasewise.gateway.api.request_routes import LONGEST_ID, NDJSON, RequestRoutes, number_in, query_of
from phasewise.gateway.api.worker_routes import ModelCards, WorkerRoutes
from phasewise.gateway.http_errors import JSON, send_rejection
from phasewise.gateway.live.routes import LiveRoutes
from phasewise.gateway.overload import OverloadWatch
from phasewise.gateway.processes.peers import LEARNED_PATH, Peers
from phasewise.gateway.processes.totals import CounterTotals
from phasewise.gateway.records.metrics import CONTENT_TYPE, PrometheusMetrics
from phasewise.gateway.records.timeline_store import TimelineStore
from phasewise.gateway.records.worker_log import WorkerLog
from phasewise.gateway.server.client import Client, ClientWatch, Direct, Headers, Scope, header
from phasewise.gateway.server.request_head import answer_preflight
from phasewise.gateway.upstream.call import OpenRequests
from phasewise.scheduling.ledger import IDLE, LoadLedger
from phasewise.scheduling.world import ClusterView, Health

if TYPE_CHECKING:
    from phasewise.gateway.answer_cache.cache import AnswerCache

BYTES: Headers = ((b"content-type", b"application/octet-stream"),)

_MODELS = "/v1/models/"
_METHODS_OF_ADDED = frozenset({"GET", "POST"})

Handler = Callable[[Scope, Client], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Gateway:
    """The objects that the routes use."""

    pipeline: Pipeline
    authenticator: Authenticator
    cluster: ClusterView
    ledger: LoadLedger
    timelines: TimelineStore
    open_requests: OpenRequests
    requests: RequestRoutes
    metrics: PrometheusMetrics
    totals: CounterTotals
    peers: Peers
    clients: ClientWatch
    overload: OverloadWatch
    worker_log: WorkerLog
    worker_routes: WorkerRoutes
    model_cards: ModelCards
    live: LiveRoutes
    cache: AnswerCache | None = None


class Router:
    """Finds the handler of a request. `{id}` is any text, as a path's last segment or the one before; names
    of models may hold several.
    """

    def __init__(self, gateway: Gateway, learned: Callable[[], bytes] = bytes) -> None:
        self._gateway = gateway
        self._learned = learned
        self.reload: Callable[[], Awaitable[str]] = _nothing_to_read
        self.reload_in_force: Callable[[], Awaitable[str]] = _nothing_to_read
        generate, requests, workers = gateway.pipeline.generate, gateway.requests, gateway.worker_routes
        admin: dict[tuple[str, str], Handler] = {
            ("GET", "/phasewise/v1/requests"): requests.listed,
            ("GET", "/phasewise/v1/requests/open"): requests.open,
            ("GET", "/phasewise/v1/requests/{id}"): requests.one,
            ("GET", "/phasewise/v1/live"): self._live,
            ("GET", "/phasewise/v1/live/verdict"): self._verdict,
            ("GET", "/phasewise/v1/requests/{id}/page"): self._request_page,
            ("GET", "/phasewise/v1/workers"): self._workers,
            ("GET", "/phasewise/v1/workers/{id}/metrics"): workers.metrics,
            ("POST", "/phasewise/v1/workers/{id}/tokenize"): workers.tokenize,
            ("GET", "/phasewise/v1/cache"): self._cache,
            ("POST", "/phasewise/v1/cache/purge"): self._purge_cache,
            ("POST", "/phasewise/v1/cache/explain"): self._explain_cache,
            ("POST", "/phasewise/v1/reload"): self._reload,
        }
        self._table: dict[tuple[str, str], Handler] = {
            **{("POST", endpoint.value): partial(generate, endpoint) for endpoint in WITH_KNOWN_FIELDS},
            ("GET", "/v1/models"): self._models,
            ("GET", "/v1/models/{id}"): self._model,
            ("GET", "/health"): self._health,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/openapi.json"): self._openapi,
            ("GET", "/phasewise/"): self._page,
            **{address: partial(self._for_admins, handler) for address, handler in admin.items()},
            **{(method, path): self._forward for path, on in INFERENCE_PATHS.items() for method in on},
        }
        self._document = orjson.dumps(openapi_document(self._table))

    @property
    def addresses(self) -> tuple[tuple[str, str], ...]:
        """Every method and path that is answered."""
        return tuple(self._table)

    def serve(self, scope: Scope, direct: Direct) -> Coroutine[Any, Any, None]:
        """Answer one request of a connection.

        Not a coroutine itself: every wait of a request passes through each coroutine in the await chain.
        """
        if scope["method"] == "OPTIONS" and header(scope, b"access-control-request-method"):
            return answer_preflight(scope, direct)
        return self._handle(scope, Client(direct))

    async def _handle(self, scope: Scope, client: Client) -> None:
        clients = self._gateway.clients
        clients.add(client)
        # Load balancers send HEAD /health; the server omits the body.
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        handler = self._table.get((method, scope["path"]))
        if scope["is_local"] and scope["path"] == LEARNED_PATH:
            handler = self._send_learned
        try:
            if handler is None:
                # Engines redirect to the path without the slash, which not every client follows.
                scope["path"] = scope["path"].removesuffix("/") or "/"
                handler = self._find(method, scope["path"])
            await handler(scope, client)
        except RequestRejected as rejection:
            self._gateway.pipeline.count_rejection(rejection.kind)
            client.is_anthropic = scope["path"].startswith(Endpoint.MESSAGES)
            await send_rejection(client, rejection)
        finally:
            clients.discard(client)

    def _find(self, method: str, path: str) -> Handler:
        if handler := self._table.get((method, path)):
            return handler
        is_added = path in self._gateway.pipeline.engine_paths
        if is_added and method in _METHODS_OF_ADDED:
            return self._forward
        folder, _, last = path.rpartition("/")
        folder = _MODELS.removesuffix("/") if path.startswith(_MODELS) else folder
        templates = f"{folder}/{{id}}", f"{folder.rpartition('/')[0]}/{{id}}/{last}"
        for template in templates:
            if handler := self._table.get((method, template)):
                return handler
        methods = {known for known, at in self._table if at in {path, *templates}}
        methods |= _METHODS_OF_ADDED if is_added else set()
        if methods:
            raise RequestRejected(
                RejectionKind.METHOD_NOT_ALLOWED, f"this address takes {', '.join(sorted(methods))} only"
            )
        raise RequestRejected(
            RejectionKind.NOT_FOUND,
            f"there is nothing at {method} {path[:LONGEST_ID]}",
            hint=self._where_else(method, path),
        )

    def _where_else(self, method: str, path: str) -> str:
        """What a client with a wrong base URL should do."""
        served = f"/v1{path.removeprefix('/v1/v1')}"
        if (method, served) not in self._table:
            return "GET /openapi.json lists every address; gateway.engine_paths adds an engine's own"
        return f"this is {served}: OpenAI's clients take a base URL with /v1, Anthropic's one without"

    def _forward(self, scope: Scope, client: Client) -> Awaitable[None]:
        """To an engine, as the path and the body came."""
        pipeline, path = self._gateway.pipeline, scope["path"]
        if pipeline.lends_rights and path not in pipeline.engine_paths:
            raise RequestRejected(
                RejectionKind.NOT_FOUND,
                f"{path} is closed, because this gateway lends rights: it has keys, or an engine has",
                hint="the operator can open it with gateway.engine_paths",
            )
        return pipeline.generate(Endpoint.FORWARDED, scope, client)

    # --- models ---------------------------------------------------------------------------------------------

    async def _models(self, scope: Scope, client: Client) -> None:
        self._check_client(scope)
        models = [self._gateway.model_cards.entry(name) for name in self._gateway.cluster.models]
        await _send_json(client, {"object": "list", "data": models})

    async def _model(self, scope: Scope, client: Client) -> None:
        self._check_client(scope)
        name = scope["path"].removeprefix(_MODELS)
        if name not in self._gateway.cluster.models:
            raise RequestRejected(
                RejectionKind.NOT_FOUND,
                f"no worker serves a model of the name {name[:LONGEST_ID]}",
                hint="GET /v1/models lists those that are served",
            )
        await _send_json(client, self._gateway.model_cards.entry(name))

    # --- monitoring -----------------------------------------------------------------------------------

    async def _health(self, scope: Scope, client: Client) -> None:
        states = self._gateway.cluster.snapshot()
        up = sum(state.health is Health.UP for state in states)
        if up:
            await _send_json(client, {"status": "ok", "workers_up": up, "workers": len(states)})
            return
        # Notes may hold addresses, which only admins may see.
        answer = {
            "status": "unavailable",
            "reason": f"none of {len(states)} workers answers",
            "workers_up": 0,
            "workers": len(states),
        }
        await client.respond(503, JSON, orjson.dumps(answer))

    async def _metrics(self, scope: Scope, client: Client) -> None:
        totals = self._gateway.totals
        if not scope["is_local"]:
            self._gateway.authenticator.check_metrics(header(scope, b"authorization"))
        text = await (totals.own() if scope["is_local"] else totals.text())
        await client.respond(200, [(b"content-type", CONTENT_TYPE)], text)

    async def _openapi(self, scope: Scope, client: Client) -> None:
        await client.respond(200, JSON, self._document)

    # --- admin --------------------------------------------------------------------------------------------

    def _for_admins(self, handler: Handler, scope: Scope, client: Client) -> Awaitable[None]:
        """Let the gateway's own processes and the admin key in."""
        if not scope["is_local"]:
            self._gateway.authenticator.check_admin(header(scope, b"authorization"))
        return handler(scope, client)

    async def _page(self, scope: Scope, client: Client) -> None:
        self._gateway.authenticator.require_admin_key()
        await self._gateway.live.page(client)

    async def _live(self, scope: Scope, client: Client) -> None:
        if scope["is_local"]:
            after = query_of(scope).get("after", [""])[-1]
            await client.respond(200, NDJSON, await self._gateway.live.view.report(after))
            return
        streamed = b"text/event-stream" in (header(scope, b"accept") or b"")
        slo = query_of(scope).get("slo", [None])[-1]
        await self._gateway.live.live(client, slo, streamed=streamed)

    async def _verdict(self, scope: Scope, client: Client) -> None:
        query = query_of(scope)
        since_s, until_s = (number_in(query, name, 0.0) for name in ("since_unix_s", "until_unix_s"))
        await self._gateway.live.verdict(client, since_s, until_s)

    async def _request_page(self, scope: Scope, client: Client) -> None:
        await self._gateway.live.request(client, scope["path"].split("/")[-2])

    async def _workers(self, scope: Scope, client: Client) -> None:
        workers, load_of = self._gateway.cluster.snapshot(), self._gateway.ledger.whole_loads()
        loads = (load_of(state.worker.ref, IDLE) for state in workers)
        answer = [
            {**report.model_dump(mode="json"), "requests": load.requests, "tokens": load.tokens}
            for report, load in zip(self._gateway.worker_log.reports(), loads, strict=True)
        ]
        await _send_json(client, {"workers": answer})

    async def _cache(self, scope: Scope, client: Client) -> None:
        await _send_json(client, cache_routes.existing(self._gateway.cache).report())

    async def _purge_cache(self, scope: Scope, client: Client) -> None:
        cache = cache_routes.existing(self._gateway.cache)
        body = await _body(client)
        purged = await cache_routes.purge(cache, body)
        if not scope["is_local"]:
            within_s = cache_routes.DEADLINE_S
            replies = await self._gateway.peers.ask_all("POST", scope["path"], body, within_s)
            purged["purged"] += sum(orjson.loads(reply.body)["purged"] for reply in replies.values())
        await _send_json(client, purged)

    async def _explain_cache(self, scope: Scope, client: Client) -> None:
        cache = cache_routes.existing(self._gateway.cache)
        await _send_json(client, await cache_routes.explain(cache, await _body(client)))

    async def _reload(self, scope: Scope, client: Client) -> None:
        try:
            reload = self.reload_in_force if scope["is_local"] else self.reload
            await _send_json(client, {"changed": await reload()})
        except ConfigError as error:
            message = f"nothing was changed: {error.message}"
            raise RequestRejected(RejectionKind.BAD_CONFIG, message, hint=error.hint) from None

    def _check_client(self, scope: Scope) -> None:
        self._gateway.authenticator.caller(header(scope, b"authorization"), header(scope, b"x-api-key"))

    async def _send_learned(self, scope: Scope, client: Client) -> None:
        await client.respond(200, BYTES, self._learned())


async def _nothing_to_read() -> str:
    raise ConfigError("this gateway cannot read its configuration again", hint="restart it")


async def _body(client: Client) -> bytes:
    return await client.read_body(cache_routes.BODY_LIMIT_BYTES)


async def _send_json(client: Client, answer: dict[str, Any]) -> None:
    await client.respond(200, JSON, orjson.dumps(answer))
