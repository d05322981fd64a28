"""The table of the gateway's routes, and the handlers of all but generation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import orjson

from phasewise.core.errors import ConfigError, RejectionKind, RequestRejected
from phasewise.core.latency import TtftBreakdown, fitted, ttft_breakdown
from phasewise.core.request import Endpoint
from phasewise.core.timeline_record import from_record
from phasewise.engines.known import INFERENCE_PATHS
from phasewise.gateway.api import cache_routes
from phasewise.gateway.api.auth import Authenticator
from phasewise.gateway.api.cache_routes import CacheAdmin
from phasewise.gateway.api.model_cards import ModelCards
from phasewise.gateway.api.openapi import openapi_document
from phasewise.gateway.api.pipeline import Pipeline
from phasewise.gateway.api.worker_routes import WorkerRoutes
from phasewise.gateway.http_errors import JSON, send_rejection
from phasewise.gateway.live.routes import LiveRoutes
from phasewise.gateway.overload import OverloadWatch
from phasewise.gateway.processes.metrics import AllMetrics
from phasewise.gateway.processes.records import AllRecords, Found
from phasewise.gateway.records.metrics import CONTENT_TYPE, PrometheusMetrics
from phasewise.gateway.records.timeline_store import MEASURES, TimelineStore
from phasewise.gateway.records.worker_log import WorkerLog
from phasewise.gateway.server.client import Client, ClientWatch, Headers, Scope, header
from phasewise.gateway.upstream.call import OpenRequests
from phasewise.scheduling.ledger import IDLE, LoadLedger
from phasewise.scheduling.world import ClusterView, Health

NDJSON: Headers = ((b"content-type", b"application/x-ndjson"),)
DEFAULT_LIMIT = 100
MOST_LINES = 2_000
"""A longer page would block the event loop, and every stream with it, for milliseconds."""
LONGEST_ID = 100
"""Characters of an id that an error repeats; ids have fewer."""
PIECE_BYTES = 64 * 1024
DEFAULT_OPEN_LIMIT = 1_000

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
    records: AllRecords
    metrics: PrometheusMetrics
    all_metrics: AllMetrics
    clients: ClientWatch
    overload: OverloadWatch
    worker_log: WorkerLog
    worker_routes: WorkerRoutes
    model_cards: ModelCards
    live: LiveRoutes
    cache: CacheAdmin | None = None


class Router:
    """Finds the handler of a request. `{id}` is any text, as a path's last segment or the one before; names
    of models may hold several.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.reload: Callable[[], Awaitable[str]] = _nothing_to_read
        self._table: dict[tuple[str, str], Handler] = {
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/v1/completions"): self._completions,
            ("POST", "/v1/embeddings"): self._embeddings,
            ("POST", "/v1/responses"): self._responses,
            ("POST", "/v1/messages"): self._messages,
            ("POST", "/v1/messages/count_tokens"): self._count_tokens,
            ("GET", "/v1/models"): self._models,
            ("GET", "/v1/models/{id}"): self._model,
            ("GET", "/health"): self._health,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/openapi.json"): self._openapi,
            ("GET", "/phasewise/v1/requests"): self._requests,
            ("GET", "/phasewise/v1/requests/open"): self._open,
            ("GET", "/phasewise/v1/requests/{id}"): self._request,
            ("GET", "/phasewise/"): self._page,
            ("GET", "/phasewise/v1/live"): self._live,
            ("GET", "/phasewise/v1/live/verdict"): self._verdict,
            ("GET", "/phasewise/v1/requests/{id}/page"): self._request_page,
            ("GET", "/phasewise/v1/workers"): self._workers,
            ("GET", "/phasewise/v1/workers/{id}/metrics"): self._worker_metrics,
            ("POST", "/phasewise/v1/workers/{id}/tokenize"): self._worker_tokenize,
            ("GET", "/phasewise/v1/cache"): self._cache,
            ("POST", "/phasewise/v1/cache/purge"): self._purge_cache,
            ("POST", "/phasewise/v1/cache/explain"): self._explain_cache,
            ("POST", "/phasewise/v1/reload"): self._reload,
            **{(method, path): self._forward for path, on in INFERENCE_PATHS.items() for method in on},
        }
        self._document = orjson.dumps(openapi_document(self._table))

    @property
    def addresses(self) -> tuple[tuple[str, str], ...]:
        """Every method and path that is answered."""
        return tuple(self._table)

    async def handle(self, scope: Scope, client: Client) -> None:
        """Answer one request."""
        clients = self._gateway.clients
        clients.add(client)
        # Load balancers send HEAD /health; the server omits the body.
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        handler = self._table.get((method, scope["path"]))
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

    # --- OpenAI's and Anthropic's -----------------------------------------------------------------------

    def _chat(self, scope: Scope, client: Client) -> Awaitable[None]:
        return self._gateway.pipeline.generate(Endpoint.CHAT, scope, client)

    def _completions(self, scope: Scope, client: Client) -> Awaitable[None]:
        return self._gateway.pipeline.generate(Endpoint.COMPLETIONS, scope, client)

    def _embeddings(self, scope: Scope, client: Client) -> Awaitable[None]:
        return self._gateway.pipeline.generate(Endpoint.EMBEDDINGS, scope, client)

    def _responses(self, scope: Scope, client: Client) -> Awaitable[None]:
        return self._gateway.pipeline.generate(Endpoint.RESPONSES, scope, client)

    def _messages(self, scope: Scope, client: Client) -> Awaitable[None]:
        client.is_anthropic = True
        return self._gateway.pipeline.generate(Endpoint.MESSAGES, scope, client)

    def _count_tokens(self, scope: Scope, client: Client) -> Awaitable[None]:
        client.is_anthropic = True
        return self._gateway.pipeline.generate(Endpoint.COUNT_TOKENS, scope, client)

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
        self._gateway.authenticator.check_metrics(header(scope, b"authorization"))
        await client.respond(200, [(b"content-type", CONTENT_TYPE)], await self._gateway.all_metrics.text())

    async def _openapi(self, scope: Scope, client: Client) -> None:
        await client.respond(200, JSON, self._document)

    # --- admin --------------------------------------------------------------------------------------------

    async def _requests(self, scope: Scope, client: Client) -> None:
        self._check_admin(scope)
        query = _query(scope)
        if "slowest" in query:
            await self._slowest(query, client)
            return
        if "id" in query:
            page = await self._gateway.records.matching(query["id"][-1], _limit(query, DEFAULT_LIMIT))
        else:
            page = await _page_asked(self._gateway.records, query)
        headers = [(b"x-phasewise-next", page.cursor.encode())]
        if page.more:
            headers.append((b"x-phasewise-more", b"1"))
        if page.dropped:
            headers.append((b"x-phasewise-dropped", b"%d" % page.dropped))
        await _send_lines(client, page.lines, headers)

    async def _slowest(self, query: dict[str, list[str]], client: Client) -> None:
        measure = query["slowest"][-1]
        if measure not in MEASURES:
            accepted = ", ".join(MEASURES)
            raise RequestRejected(
                RejectionKind.BAD_REQUEST,
                "slowest is no known time",
                param="slowest",
                hint=f"accepted: {accepted}",
            )
        limit = _limit(query, DEFAULT_LIMIT)
        found = await self._gateway.records.slowest(measure, limit, _tenant(query))
        await _send_lines(client, found.lines, [(b"x-phasewise-looked-at", b"%d" % found.of)])

    async def _open(self, scope: Scope, client: Client) -> None:
        self._check_admin(scope)
        limit = _limit(_query(scope), DEFAULT_OPEN_LIMIT)
        found = await self._gateway.records.open(limit)
        await _send_lines(client, found.lines, [(b"x-phasewise-open", b"%d" % found.of)])

    async def _request(self, scope: Scope, client: Client) -> None:
        self._check_admin(scope)
        records, asked = self._gateway.records, scope["path"].rpartition("/")[2]
        line = await records.request(asked)
        if line is None:
            raise RequestRejected(
                RejectionKind.NOT_FOUND,
                f"the gateway has no record of request {asked[:LONGEST_ID]}",
                hint=f"it keeps the last {records.capacity:,} requests that have ended "
                "(gateway.keep_timelines), and none of a process that has ended",
            )
        record = orjson.loads(line)
        breakdown = ttft_breakdown(from_record(record))
        await _send_json(client, {**record, "ttft": None if breakdown is None else _breakdown_ms(breakdown)})

    async def _page(self, scope: Scope, client: Client) -> None:
        self._gateway.authenticator.require_admin_key()
        await self._gateway.live.page(client)

    async def _live(self, scope: Scope, client: Client) -> None:
        self._check_admin(scope)
        streamed = b"text/event-stream" in (header(scope, b"accept") or b"")
        slo = _query(scope).get("slo", [None])[-1]
        await self._gateway.live.live(client, slo, streamed=streamed)

    async def _verdict(self, scope: Scope, client: Client) -> None:
        self._check_admin(scope)
        query = _query(scope)
        since_s, until_s = (_number(query, name, 0.0) for name in ("since_unix_s", "until_unix_s"))
        await self._gateway.live.verdict(client, since_s, until_s)

    async def _request_page(self, scope: Scope, client: Client) -> None:
        self._check_admin(scope)
        await self._gateway.live.request(client, scope["path"].split("/")[-2])

    async def _workers(self, scope: Scope, client: Client) -> None:
        self._check_admin(scope)
        workers, load_of = self._gateway.cluster.snapshot(), self._gateway.ledger.whole_loads()
        loads = (load_of(state.worker.ref, IDLE) for state in workers)
        answer = [
            {**report.model_dump(mode="json"), "requests": load.requests, "tokens": load.tokens}
            for report, load in zip(self._gateway.worker_log.reports(), loads, strict=True)
        ]
        await _send_json(client, {"workers": answer})

    async def _worker_metrics(self, scope: Scope, client: Client) -> None:
        self._check_admin(scope)
        await self._gateway.worker_routes.metrics(scope["path"], client)

    async def _worker_tokenize(self, scope: Scope, client: Client) -> None:
        self._check_admin(scope)
        await self._gateway.worker_routes.tokenize(scope["path"], client)

    async def _cache(self, scope: Scope, client: Client) -> None:
        self._check_admin(scope)
        await _send_json(client, cache_routes.existing(self._gateway.cache).report())

    async def _purge_cache(self, scope: Scope, client: Client) -> None:
        self._check_admin(scope)
        cache = cache_routes.existing(self._gateway.cache)
        await _send_json(client, await cache_routes.purge(cache, await _body(client)))

    async def _explain_cache(self, scope: Scope, client: Client) -> None:
        self._check_admin(scope)
        cache = cache_routes.existing(self._gateway.cache)
        await _send_json(client, await cache_routes.explain(cache, await _body(client)))

    async def _reload(self, scope: Scope, client: Client) -> None:
        self._check_admin(scope)
        try:
            await _send_json(client, {"changed": await self.reload()})
        except ConfigError as error:
            message = f"nothing was changed: {error.message}"
            raise RequestRejected(RejectionKind.BAD_CONFIG, message, hint=error.hint) from None

    def _check_client(self, scope: Scope) -> None:
        self._gateway.authenticator.caller(header(scope, b"authorization"), header(scope, b"x-api-key"))

    def _check_admin(self, scope: Scope) -> None:
        self._gateway.authenticator.check_admin(header(scope, b"authorization"))


async def _nothing_to_read() -> str:
    raise ConfigError("this gateway cannot read its configuration again", hint="restart it")


async def _body(client: Client) -> bytes:
    return await client.read_body(cache_routes.BODY_LIMIT_BYTES)


async def _send_json(client: Client, answer: dict[str, Any]) -> None:
    await client.respond(200, JSON, orjson.dumps(answer))


async def _send_lines(client: Client, lines: list[bytes], headers: Headers) -> None:
    length = (b"content-length", b"%d" % sum(len(line) + 1 for line in lines))
    await client.start(200, [*NDJSON, length, (b"x-phasewise-now", b"%.6f" % time.time()), *headers])
    for piece in _pieces(lines):
        await client.send_part(piece)
        # A fast reader never makes us wait, but other streams must run too.
        await asyncio.sleep(0)
    await client.finish()


def _breakdown_ms(measured: TtftBreakdown) -> dict[str, Any]:
    breakdown = fitted(measured)
    return {
        "total_ms": round(breakdown.ttft_s * 1e3, 3),
        "parts": [
            {"part": entry.part, "source": entry.source, "ms": round(entry.seconds * 1e3, 3)}
            for entry in breakdown.parts
        ],
        "unexplained_ms": round(breakdown.unexplained_s * 1e3, 3),
    }


async def _page_asked(records: AllRecords, query: dict[str, list[str]]) -> Found:
    limit = _limit(query, DEFAULT_LIMIT)
    tenant = _tenant(query)
    if "after" not in query and "since_unix_s" not in query:
        return await records.newest(limit, tenant)
    if tenant is not None:
        raise RequestRejected(
            RejectionKind.BAD_REQUEST,
            "tenant cannot be combined with after or since_unix_s",
            param="tenant",
            hint="leave one of them out",
        )
    cursor = query.get("after", [""])[-1]
    return await records.after(cursor, limit, _number(query, "since_unix_s", 0.0))


def _pieces(lines: list[bytes]) -> Iterator[bytes]:
    piece: list[bytes] = []
    size = 0
    for line in lines:
        piece += (line, b"\n")
        size += len(line) + 1
        if size >= PIECE_BYTES:
            yield b"".join(piece)
            piece, size = [], 0
    if piece:
        yield b"".join(piece)


def _query(scope: Scope) -> dict[str, list[str]]:
    return parse_qs(scope["query_string"].decode("latin-1"))


def _tenant(query: dict[str, list[str]]) -> str | None:
    return query["tenant"][-1] if "tenant" in query else None


def _limit(query: dict[str, list[str]], default: int) -> int:
    return min(int(_number(query, "limit", default)), MOST_LINES)


def _number(query: dict[str, list[str]], name: str, default: float) -> float:
    try:
        value = float(query.get(name, [default])[-1])
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e12:
        raise RequestRejected(RejectionKind.BAD_REQUEST, f"{name} is not a number of 0 or more", param=name)
    return value
